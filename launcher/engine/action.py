"""What an action makes of the settings that failed, or of those that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.base.action import Action, ActionKind, Value
from launcher.base.errors import ActionImpossible

if TYPE_CHECKING:
    from launcher.engine.launch import ServeOptions

__all__ = ["LEAST_CONTEXT", "Action", "ActionKind", "Value", "apply", "changes_settings", "sets", "starts_again"]

LEAST_CONTEXT = 2_048
"""Below this many tokens a context is of no use."""
_LEAST_UBATCH = 32
_USUAL_UBATCH = 512
_SETTERS: Mapping[str, Mapping[str, Any]] = {
    "--ctx-size": {"context": None},
    "--parallel": {"slots": 1},
    "--threads": {"threads": None},
    "--cache-type-k": {"kv": None},
    "--cache-type-v": {"kv": None},
    "--ubatch-size": {"ubatch": None},
    "--batch-size": {"ubatch": None},
    "--n-cpu-moe": {"n_cpu_moe": None},
    "--rpc": {"rpc": ()},
    "--spec-type": {"draft": 0, "draft_file": None},
    "--spec-draft-n-max": {"draft": 0, "draft_file": None},
    "--spec-draft-model": {"draft": 0, "draft_file": None},
}
"""The engine's flags that settings become, and the settings without them."""
_SMALLER_KV = {"f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q4_0"}


def apply(action: Action, options: ServeOptions, *, context: int | None = None) -> ServeOptions:
    """Return `options` as changed by `action`; `context` is what runs where the options leave it open, in tokens.

    Raises ActionImpossible when the action changes no settings, or has nothing left to change.
    """
    change = _CHANGES.get(action.kind)
    changed = change(action.parameters, options, options.context or context) if change else None
    if change is None:
        raise ActionImpossible(f"{action.label}: this is not done by changing settings.", "It is for you to do.")
    if changed is None or changed == options:
        raise ActionImpossible(f"{action.label}: these settings leave nothing to change.", "Choose another way.")
    return changed


def changes_settings(action: Action) -> bool:
    """Whether `apply` can do something about it."""
    return action.kind in _CHANGES


def starts_again(action: Action) -> bool:
    """Whether `Session.fix` carries it out: by other settings, on another port, or by another start as it was."""
    return changes_settings(action) or action.kind in (ActionKind.OTHER_PORT, ActionKind.RESTART)


def sets(options: ServeOptions, flag: str) -> bool:
    """Whether the engine gets `flag` by these options, so that REMOVE_FLAG can take it away."""
    return _remove_flag({"flag": flag}, options, None) not in (None, options)


def _context(given: Mapping[str, Value], options: ServeOptions, running: int | None) -> ServeOptions | None:
    wanted = given.get("context")
    if wanted is None and running is not None:
        wanted = running // 2
    return replace(options, context=int(wanted)) if wanted is not None and int(wanted) >= LEAST_CONTEXT else None


def _larger_context(given: Mapping[str, Value], options: ServeOptions, running: int | None) -> ServeOptions | None:
    wanted = given.get("context") or (2 * running if running else None)
    if wanted is None:
        return None
    least = int(given.get("holds", 0)) * options.slots  # a slot gets an equal part
    return replace(options, context=max(int(wanted), -(-least // 1_024) * 1_024))


def _kv(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    wanted = given.get("kv") or _SMALLER_KV.get(options.kv or "f16")
    return replace(options, kv=str(wanted)) if wanted is not None else None


def _ubatch(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    wanted = int(given.get("ubatch", (options.ubatch or _USUAL_UBATCH) // 2))
    return replace(options, ubatch=wanted) if wanted >= _LEAST_UBATCH else None


def _draft_off(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, draft=0, draft_file=None)


def _experts(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, n_cpu_moe=int(given.get("n_cpu_moe", (options.n_cpu_moe or 0) + 4)))


def _more_slots(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, slots=int(given.get("slots", 2 * options.slots)))


def _shorter_draft(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, draft=int(given.get("draft", max(options.draft - 1, 0))))


def _one_slot(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, slots=1)


def _without(flag: str, extra: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return arguments without a flag (-c/--ctx-size: by either name) and its value; None when it is not among them."""
    for index, word in enumerate(extra):
        if word.split("=")[0] in flag.split("/"):
            value_follows = "=" not in word and index + 1 < len(extra) and not extra[index + 1].startswith("-")
            return extra[:index] + extra[index + 1 + value_follows :]
    return None


def _remove_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag = str(given.get("flag", ""))
    left = _without(flag, options.extra)
    if left is not None:
        return replace(options, extra=left)
    setter = next((_SETTERS[name] for name in flag.split("/") if name in _SETTERS), None)
    return replace(options, **setter) if setter is not None else None


def _add_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag = str(given["flag"])
    value = (str(given["value"]),) if "value" in given else ()
    return replace(options, extra=(*(_without(flag, options.extra) or options.extra), flag, *value))


def _replace_flag(given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    flag, other = str(given.get("flag", "")), given.get("with")
    if other is None or flag not in options.extra:
        return None
    return replace(options, extra=tuple(str(other) if word == flag else word for word in options.extra))


def _built_in(_given: Mapping[str, Value], options: ServeOptions, _running: int | None) -> ServeOptions | None:
    return replace(options, engine=None, built_in=True, n_cpu_moe=None)


_CHANGES = {
    ActionKind.SMALLER_CONTEXT: _context,
    ActionKind.LARGER_CONTEXT: _larger_context,
    ActionKind.OTHER_KV_TYPE: _kv,
    ActionKind.SMALLER_UBATCH: _ubatch,
    ActionKind.DRAFT_OFF: _draft_off,
    ActionKind.MORE_EXPERTS_ON_CPU: _experts,
    ActionKind.ONE_SLOT: _one_slot,
    ActionKind.MORE_SLOTS: _more_slots,
    ActionKind.SHORTER_DRAFT: _shorter_draft,
    ActionKind.REMOVE_FLAG: _remove_flag,
    ActionKind.REPLACE_FLAG: _replace_flag,
    ActionKind.ADD_FLAG: _add_flag,
    ActionKind.BUILT_IN_ENGINE: _built_in,
}
