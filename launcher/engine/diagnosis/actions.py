"""Application of suggested fixes to server settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.base.action import Action, ActionKind, Value
from launcher.base.errors import ActionImpossible
from launcher.base.messages import message
from launcher.models.server_settings import ROWS

if TYPE_CHECKING:
    from launcher.engine.serve_options import ServeOptions

__all__ = [
    "LEAST_CONTEXT",
    "Action",
    "ActionKind",
    "Value",
    "apply_action",
    "changes_settings",
    "restarts_server",
    "sets_flag",
]

LEAST_CONTEXT = 2_048
"""Shortest context in tokens that a fix sets."""
_LEAST_UBATCH = 32
_USUAL_UBATCH = int(ROWS["ubatch"].usual or 0)
_NO_DRAFTS: Mapping[str, Any] = {"draft": 0, "draft_file": None}
_SETTERS: Mapping[str, Mapping[str, Any]] = {
    **{flag: {row.attribute: None} for row in ROWS.values() for flag in row.flags if row.can_be_open},
    "--parallel": {"slots": 1},
    "--batch-size": {"ubatch": None},
    "--rpc": {"rpc": ()},
    "--mmproj": {"mmproj": None},
    "--chat-template-file": {"chat_template_file": None},
    **dict.fromkeys(("--spec-type", "--spec-draft-n-max", "--spec-draft-model"), _NO_DRAFTS),
}
"""Changes to ServeOptions that remove a flag of the engine, by flag."""
_SMALLER_KV = {"f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q4_0"}


def apply_action(action: Action, options: ServeOptions, *, context: int | None = None) -> ServeOptions:
    """Return `options` changed by `action`; `context` is the running context in tokens if `options` leaves it open.

    Raises ActionImpossible if the action does not change settings, or nothing is left to change.
    """
    change = _CHANGES.get(action.kind)
    changed = change(action.parameters, options, options.context or context) if change else None
    if change is None:
        raise ActionImpossible(
            message("{label}: changing settings does not do this.", label=action.label),
            message("Do this yourself."),
        )
    if changed is None or changed == options:
        raise ActionImpossible(
            message("{label}: the current settings have nothing to change.", label=action.label),
            message("Choose another fix."),
        )
    return changed


def changes_settings(action: Action) -> bool:
    """Return whether an action changes server settings, so that `apply_action` can carry it out."""
    return action.kind in _CHANGES


def restarts_server(action: Action) -> bool:
    """Return whether `Session.fix` can carry out an action: with other settings, on another port, or by a restart."""
    return changes_settings(action) or action.kind in (ActionKind.OTHER_PORT, ActionKind.RESTART)


def sets_flag(options: ServeOptions, flag: str) -> bool:
    """Return whether `options` produce the engine's `flag`, so that REMOVE_FLAG can remove it."""
    return _remove_flag({"flag": flag}, options, None) not in (None, options)


def _shorten_context(given: Mapping[str, Value], options: ServeOptions, running: int | None) -> ServeOptions | None:
    wanted = given.get("context")
    if wanted is None and running is not None:
        wanted = running // 2
    return replace(options, context=int(wanted)) if wanted is not None and int(wanted) >= LEAST_CONTEXT else None


def _enlarge_context(given: Mapping[str, Value], options: ServeOptions, running: int | None) -> ServeOptions | None:
    wanted = given.get("context") or (2 * running if running else None)
    if wanted is None:
        return None
    least = int(given.get("holds", 0)) * options.slots  # the context is divided equally among the slots
    return replace(options, context=max(int(wanted), -(-least // 1_024) * 1_024))


def _shrink_kv_type(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    wanted = given.get("kv") or _SMALLER_KV.get(options.kv or "f16")
    return replace(options, kv=str(wanted)) if wanted is not None else None


def _shrink_ubatch(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    wanted = int(given.get("ubatch", (options.ubatch or _USUAL_UBATCH) // 2))
    return replace(options, ubatch=wanted) if wanted >= _LEAST_UBATCH else None


def _turn_draft_off(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, draft=0, draft_file=None)


def _move_experts(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, n_cpu_moe=int(given.get("n_cpu_moe", (options.n_cpu_moe or 0) + 4)))


def _add_slots(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, slots=int(given.get("slots", 2 * options.slots)))


def _shorten_draft(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, draft=int(given.get("draft", max(options.draft - 1, 0))))


def _use_one_slot(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, slots=1)


def _remove_from(flag: str, extra: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return arguments without a flag (`-c/--ctx-size` means either spelling) and its value; None if it is absent."""
    for index, word in enumerate(extra):
        if word.split("=")[0] in flag.split("/"):
            value_follows = "=" not in word and index + 1 < len(extra) and not extra[index + 1].startswith("-")
            return extra[:index] + extra[index + 1 + value_follows :]
    return None


def _remove_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag = str(given.get("flag", ""))
    left = _remove_from(flag, options.extra)
    if left is not None:
        return replace(options, extra=left)
    setter = next((_SETTERS[name] for name in flag.split("/") if name in _SETTERS), None)
    return replace(options, **setter) if setter is not None else None


def _add_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag = str(given["flag"])
    value = (str(given["value"]),) if "value" in given else ()
    return replace(options, extra=(*(_remove_from(flag, options.extra) or options.extra), flag, *value))


def _replace_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag, other = str(given.get("flag", "")), given.get("with")
    if other is None or flag not in options.extra:
        return None
    return replace(options, extra=tuple(str(other) if word == flag else word for word in options.extra))


def _use_built_in(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, engine=None, built_in=True, n_cpu_moe=None)


_CHANGES = {
    ActionKind.SMALLER_CONTEXT: _shorten_context,
    ActionKind.LARGER_CONTEXT: _enlarge_context,
    ActionKind.OTHER_KV_TYPE: _shrink_kv_type,
    ActionKind.SMALLER_UBATCH: _shrink_ubatch,
    ActionKind.DRAFT_OFF: _turn_draft_off,
    ActionKind.MORE_EXPERTS_ON_CPU: _move_experts,
    ActionKind.ONE_SLOT: _use_one_slot,
    ActionKind.MORE_SLOTS: _add_slots,
    ActionKind.SHORTER_DRAFT: _shorten_draft,
    ActionKind.REMOVE_FLAG: _remove_flag,
    ActionKind.REPLACE_FLAG: _replace_flag,
    ActionKind.ADD_FLAG: _add_flag,
    ActionKind.BUILT_IN_ENGINE: _use_built_in,
}
