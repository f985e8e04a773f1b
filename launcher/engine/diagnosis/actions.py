"""Applies suggested fixes to server settings."""

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

LEAST_CONTEXT = 2_048
"""Shortest context in tokens that a fix sets."""
_LEAST_UBATCH = 32
_USUAL_UBATCH = int(ROWS["ubatch"].usual or 0)
_NO_DRAFTS: Mapping[str, Any] = {"draft": 0}
_REMOVALS: Mapping[str, Mapping[str, Any]] = {
    **{flag: {row.attribute: None} for row in ROWS.values() for flag in row.flags if row.can_be_open},
    "--parallel": {"slots": 1},
    "--batch-size": {"ubatch": None},
    "--rpc": {"rpc": ()},
    "--mmproj": {"mmproj": None},
    "--chat-template-file": {"chat_template_file": None},
    **dict.fromkeys(("--spec-type", "--spec-draft-n-max", "--spec-draft-model"), _NO_DRAFTS),
}
"""Changes to ServeOptions that remove a flag of the engine, by flag."""
_SPELLINGS = {"--split-mode": "-sm/--split-mode", "--flash-attn": "-fa/--flash-attn"}
"""The spellings of a flag in a user's extra arguments, by the flag that an action adds."""
_SMALLER_KV = {"f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q4_0"}


Values = Mapping[str, Value]
"""The values of an action by name; a change without a value chooses one itself."""


def apply_action(action: Action, options: ServeOptions, *, context: int | None = None) -> ServeOptions:
    """Return `options` changed by `action`; `context` is the running context in tokens if `options` leaves it open.

    Raises ActionImpossible if the action does not change settings, or nothing is left to change.
    """
    change = _CHANGES.get(action.kind)
    if change is None:
        raise ActionImpossible(
            message("{label}: changing settings does not do this.", label=action.label),
            message("Do this yourself."),
        )
    changed = change(action.parameters, options, options.context or context)
    if changed is None or changed == options:
        raise ActionImpossible(
            message("{label}: there is nothing to change in the current settings.", label=action.label),
            message("Choose another fix."),
        )
    return changed


def changes_settings(action: Action) -> bool:
    """Return whether an action changes server settings, so that `apply_action` can carry it out."""
    return action.kind in _CHANGES


def restarts_server(action: Action) -> bool:
    """Return whether `ServerSession.apply_fix` can carry out an action: by settings, another port or a restart."""
    return changes_settings(action) or action.kind in (ActionKind.OTHER_PORT, ActionKind.RESTART)


def sets_flag(options: ServeOptions, flag: str) -> bool:
    """Return whether `options` produce the engine's `flag`, so that REMOVE_FLAG can remove it."""
    return _remove_flag({"flag": flag}, options, None) not in (None, options)


# The changes, one for each kind of action: they get the action's values, the options, and the set or running context in
# tokens, and return the changed options, or None if the change is impossible.


def _shorten_context(values: Values, options: ServeOptions, context: int | None) -> ServeOptions | None:
    wanted = values.get("context")
    if wanted is None and context is not None:
        wanted = context // 2
    if wanted is None or int(wanted) < LEAST_CONTEXT:
        return None
    return replace(options, context=int(wanted))


def _enlarge_context(values: Values, options: ServeOptions, context: int | None) -> ServeOptions | None:
    wanted = values.get("context") or (2 * context if context else None)
    if wanted is None:
        return None
    least = int(values.get("holds", 0)) * options.slots  # the context is divided equally among the slots
    return replace(options, context=max(int(wanted), -(-least // 1_024) * 1_024))


def _shrink_kv_type(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    wanted = values.get("kv") or _SMALLER_KV.get(options.kv or "f16")
    return replace(options, kv=str(wanted)) if wanted is not None else None


def _shrink_ubatch(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    wanted = int(values.get("ubatch", (options.ubatch or _USUAL_UBATCH) // 2))
    return replace(options, ubatch=wanted) if wanted >= _LEAST_UBATCH else None


def _move_experts(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    return replace(options, n_cpu_moe=int(values.get("n_cpu_moe", (options.n_cpu_moe or 0) + 4)))


def _add_slots(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    return replace(options, slots=int(values.get("slots", 2 * options.slots)))


def _enlarge_cache(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    return replace(options, cache_ram=int(values["cache_ram"]))


def _shorten_draft(values: Values, options: ServeOptions, context: int | None) -> ServeOptions | None:
    return _change_drafts({"draft": max(options.draft - 1, 0), **values}, options, context)


def _change_drafts(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    """Return the options with a draft length, and with a drafter if one is given; without either, with no drafts."""
    changed = replace(options, draft=int(values.get("draft", 0)))
    other = values.get("drafter")
    return changed if other in (None, changed.drafter.spec_type) else replace(changed, chosen_drafter=str(other))


def _use_one_slot(_values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    return replace(options, slots=1)


def _remove_from(flag: str, extra: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return arguments without a flag and its value; None if it is absent. `-c/--ctx-size` means either spelling."""
    for index, word in enumerate(extra):
        if word.split("=")[0] in flag.split("/"):
            value_follows = "=" not in word and index + 1 < len(extra) and not extra[index + 1].startswith("-")
            return extra[:index] + extra[index + 1 + value_follows :]
    return None


def _remove_flag(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    flag = str(values.get("flag", ""))
    other_words = _remove_from(flag, options.extra)
    if other_words is not None:
        return replace(options, extra=other_words)
    changes = next((_REMOVALS[name] for name in flag.split("/") if name in _REMOVALS), None)
    return replace(options, **changes) if changes is not None else None


def _add_flag(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    """Return the options with a flag: as the setting that it belongs to, otherwise as an extra argument."""
    flag = str(values["flag"])
    other_words = _remove_from(_SPELLINGS.get(flag, flag), options.extra)
    if other_words is None:
        other_words = options.extra
    row = next((row for row in ROWS.values() if flag in row.flags), None)
    if row is not None and "value" in values:
        setting = row.parse_value(str(values["value"]))
        if setting == row.usual and row.value_in(options) is None and other_words == options.extra:
            return None
        changes: dict[str, Any] = {row.attribute: setting}
        return replace(options, extra=other_words, **changes)
    value = (str(values["value"]),) if "value" in values else ()
    return replace(options, extra=(*other_words, flag, *value))


def _replace_flag(values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    flag, replacement = str(values.get("flag", "")), values.get("with")
    if replacement is None or flag not in options.extra:
        return None
    return replace(options, extra=tuple(str(replacement) if word == flag else word for word in options.extra))


def _use_built_in(_values: Values, options: ServeOptions, _context: int | None) -> ServeOptions | None:
    return replace(options, engine=None, built_in=True, n_cpu_moe=None)


_CHANGES = {
    ActionKind.SMALLER_CONTEXT: _shorten_context,
    ActionKind.LARGER_CONTEXT: _enlarge_context,
    ActionKind.OTHER_KV_TYPE: _shrink_kv_type,
    ActionKind.SMALLER_UBATCH: _shrink_ubatch,
    ActionKind.DRAFT_OFF: _change_drafts,
    ActionKind.MORE_EXPERTS_ON_CPU: _move_experts,
    ActionKind.ONE_SLOT: _use_one_slot,
    ActionKind.MORE_SLOTS: _add_slots,
    ActionKind.LARGER_CACHE: _enlarge_cache,
    ActionKind.SHORTER_DRAFT: _shorten_draft,
    ActionKind.OTHER_DRAFTS: _change_drafts,
    ActionKind.REMOVE_FLAG: _remove_flag,
    ActionKind.REPLACE_FLAG: _replace_flag,
    ActionKind.ADD_FLAG: _add_flag,
    ActionKind.BUILT_IN_ENGINE: _use_built_in,
}
