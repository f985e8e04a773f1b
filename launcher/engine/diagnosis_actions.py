"""What a proposed action amounts to for the settings that failed: the context, ubatch or layers that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError
from launcher.engine.action import LEAST_CONTEXT, Action, ActionKind
from launcher.engine.ask import backend_of_log
from launcher.engine.diagnosis import Diagnosis, diagnose
from launcher.models.fitting import CONTEXTS, fewest_on_host
from launcher.models.geometry import geometry_of
from launcher.models.memory import Estimate, Setting, estimate
from launcher.models.weights import weights_of

if TYPE_CHECKING:
    from launcher.engine.launch import Launch
    from launcher.engine.process import Exit
    from launcher.models.compute import Backend

_LADDER = (*CONTEXTS, 24_576, 16_384, 12_288, 8_192, 6_144, 4_096, LEAST_CONTEXT)
_MIB = 2**20

Measure = Callable[[Setting], Estimate]


def proposals(ended: Exit, lines: Sequence[str], launch: Launch) -> tuple[Action, ...]:
    """Return what can be done about an engine that ended, with values for what it was started with, best first.

    None when its log names no cause. Those that `action.changes_settings` can be applied to `launch.options`.
    """
    found = diagnose("\n".join(lines), exit_code=ended.code)
    return sized(found, launch, backend=backend_of_log(lines)) if found else ()


def sized(diagnosis: Diagnosis, launch: Launch, *, backend: Backend, free_mib: int | None = None) -> tuple[Action, ...]:
    """Return the actions of a lack of memory with values for what was started; others stay as they are.

    `backend` is where the weights are, `free_mib` what was free there before the start; where it is not known the free
    memory that the log tells of counts. The context is then the longest of the usual ones that the memory formula says
    fits, else the next shorter one; experts go to the host as few as will do. What no formula says changes nothing:
    an action without values is applied by halves (`action.apply`).
    """
    told = diagnosis.facts.get("free_mib")
    budget = free_mib if free_mib is not None else told if isinstance(told, int) else None
    setting = launch.setting(backend)
    try:
        geometry = geometry_of(launch.header)
        weights = weights_of(launch.header, geometry)
    except LauncherError:
        useful = (each for each in diagnosis.actions if _useful(each, launch, setting, has_experts=True))
        return tuple(_shorter(each, setting.context, None) for each in useful)

    def measure(candidate: Setting) -> Estimate:
        return estimate(geometry, weights, candidate)

    def fits(candidate: Setting) -> bool:
        return budget is not None and measure(candidate).needed <= budget * _MIB

    def sized_one(action: Action) -> Action:
        if action.kind is ActionKind.MORE_EXPERTS_ON_CPU and budget is not None and geometry.experts:
            count = fewest_on_host(setting, geometry.layers, budget, measure)
            return replace(action, parameters={"n_cpu_moe": max(count, setting.n_cpu_moe + 1)})
        known = None if budget is None else lambda context: fits(replace(setting, context=context))
        return _shorter(action, setting.context, known)

    has_experts = bool(geometry.experts)
    return tuple(sized_one(each) for each in diagnosis.actions if _useful(each, launch, setting, has_experts))


def _useful(action: Action, launch: Launch, setting: Setting, has_experts: bool) -> bool:
    """Whether an action can change anything about these settings."""
    match action.kind:
        case ActionKind.REMOVE_FLAG:
            words = {word.split("=")[0] for word in launch.options.extra}
            return action.parameters.get("flag") in words
        case ActionKind.DRAFT_OFF:
            return setting.draft > 0
        case ActionKind.MORE_EXPERTS_ON_CPU:
            return has_experts
        case ActionKind.ONE_SLOT:
            return setting.slots > 1
        case ActionKind.OTHER_KV_TYPE:
            return setting.kv != action.parameters.get("kv")
        case _:
            return True


def _shorter(action: Action, context: int, fits: Callable[[int], bool] | None) -> Action:
    """Return the action with the longest usual context below `context` that `fits`, or the next one."""
    if action.kind is not ActionKind.SMALLER_CONTEXT:
        return action
    below = [step for step in _LADDER if step < context]
    if not below:
        return action
    chosen = next((step for step in below if fits(step)), below[-1]) if fits else below[0]
    return replace(action, label=f"Use a context of {chosen:,}", parameters={"context": chosen})
