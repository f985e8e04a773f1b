"""What can be done about a failure, with values for the start that failed: the context, ubatch or layers that fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from launcher.base.action import Action, ActionKind
from launcher.base.errors import (
    ActionImpossible,
    BadOption,
    CpuUnsupported,
    DraftsInert,
    EngineFailed,
    EngineMissing,
    EngineUnsuitable,
    LauncherError,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
    PortBusy,
)
from launcher.engine.action import LEAST_CONTEXT, apply, changes_settings, sets
from launcher.engine.ask import backend_of_log
from launcher.engine.build import BUILT_IN
from launcher.engine.diagnosis import Diagnosis, diagnose
from launcher.models.fitting import CONTEXTS, fewest_on_host
from launcher.models.geometry import geometry_of
from launcher.models.library_index import origin_of
from launcher.models.memory import Estimate, Setting, estimate
from launcher.models.weights import weights_of

if TYPE_CHECKING:
    from launcher.engine.launch import Launch, ServeOptions
    from launcher.models.compute import Backend

_LADDER = (*CONTEXTS, 24_576, 16_384, 12_288, 8_192, 6_144, 4_096, LEAST_CONTEXT)
_MIB = 2**20
_FREE = re.compile(r" - (?!CPU)\w+ *: .*\(\d+ MiB, (\d+) MiB free\)")
"""A GPU in llama.cpp's list of devices (common/common.cpp, from b10605 on)."""
_ANOTHER_ENGINE = (
    Action(ActionKind.OTHER_ENGINE_BUILD, "Install the official build for this computer"),
    Action(ActionKind.BUILT_IN_ENGINE, "Use the built-in engine"),
)
_ANOTHER_MODEL = Action(ActionKind.OTHER_MODEL, "See the models that the catalogue knows")
_OF_CODES: tuple[tuple[type[LauncherError], tuple[Action, ...]], ...] = (
    (ModelHasNoHead, (Action(ActionKind.DRAFT_OFF, "Start without MTP"),)),
    (DraftsInert, (Action(ActionKind.DRAFT_OFF, "Start without MTP"), _ANOTHER_ENGINE[0])),
    (PortBusy, (Action(ActionKind.OTHER_PORT, "Start on another port"),)),
    (ModelBroken, (Action(ActionKind.DOWNLOAD_AGAIN, "Download it again"), _ANOTHER_MODEL)),
    (ModelMissing, (Action(ActionKind.DOWNLOAD_AGAIN, "Download it"), _ANOTHER_MODEL)),
    (EngineMissing, _ANOTHER_ENGINE),
    (CpuUnsupported, _ANOTHER_ENGINE),
    (LibraryMissing, (Action(ActionKind.INSTALL_LIBRARY, "Say what is missing"), *_ANOTHER_ENGINE)),
    (EngineFailed, (Action(ActionKind.RESTART, "Start again"),)),
)
"""What can be done about errors that no log explains."""

Measure = Callable[[Setting], Estimate]


def advise(
    error: LauncherError, options: ServeOptions, launch: Launch | None = None, lines: Sequence[str] = ()
) -> None:
    """Let an error carry what can be done about it: `options` failed, as `launch`, if it came so far, with `lines`.

    An error that a log explained gets actions with values; others get those that go with their kind.
    """
    if launch is not None and "diagnosis" in error.facts:
        exit_code = error.facts.get("exit_code")
        error.propose(proposals(exit_code if isinstance(exit_code, int) else None, lines, launch))
    elif not error.actions and "diagnosis" not in error.facts:
        error.propose(_of_kind(error, options))


def _of_kind(error: LauncherError, options: ServeOptions) -> Iterator[Action]:
    """Yield what goes with an error of our own checks."""
    flag = error.facts.get("option")
    if isinstance(error, BadOption | EngineUnsuitable) and isinstance(flag, str) and sets(options, flag):
        yield Action(ActionKind.REMOVE_FLAG, f"Start without {flag}", {"flag": flag})
    for kind, actions in _OF_CODES:
        if isinstance(error, kind):
            for action in actions:
                if action.kind is ActionKind.DOWNLOAD_AGAIN and (
                    "version" in error.facts or origin_of(options.model) is None
                ):
                    continue  # the same file would come, or nobody knows from where
                if not changes_settings(action) or _changes(action, options):
                    yield action
            return


def proposals(exit_code: int | None, lines: Sequence[str], launch: Launch) -> tuple[Action, ...]:
    """Return what can be done about an engine that ended, with values for what it was started with, best first.

    `exit_code` None is an engine that runs on, but did not answer. Nothing when its log names no cause. Those that
    `action.changes_settings` can be applied to `launch.options`.
    """
    found = diagnose("\n".join(lines), exit_code=exit_code)
    if found is None:
        return ()
    backend = backend_of_log(lines)
    told = found.facts.get("free_mib")
    return sized(found, launch, backend=backend, free_mib=told if isinstance(told, int) else _free_mib(lines, backend))


def _free_mib(lines: Iterable[str], backend: Backend) -> int | None:
    """Return what was free where the weights were to go: on all GPUs, as the engine's log says, or on the host now."""
    if backend == "cpu":
        return int(psutil.virtual_memory().available // _MIB)  # the engine has given back what it had
    free = [int(found[1]) for line in lines if (found := _FREE.search(line))]
    return sum(free) if free else None


def sized(diagnosis: Diagnosis, launch: Launch, *, backend: Backend, free_mib: int | None = None) -> tuple[Action, ...]:
    """Return the actions of a lack of memory with values for what was started; others stay as they are.

    `backend` is where the weights are, `free_mib` what was free there before the start; where it is not known the free
    memory that the log tells of counts. The context is then the longest of the usual ones that the memory formula says
    fits, else the next shorter one; experts go to the host as few as will do. What no formula says changes nothing:
    an action without values is applied by halves (`action.apply`). A context beyond what the model was trained for is
    the first to go.
    """
    told = diagnosis.facts.get("free_mib")
    budget = free_mib if free_mib is not None else told if isinstance(told, int) else None
    setting = launch.setting(backend)
    trained = launch.header.trained_context or setting.context
    steps = sorted({step for step in (*_LADDER, trained) if LEAST_CONTEXT <= step < setting.context}, reverse=True)
    if trained < setting.context:
        steps = [step for step in steps if step <= trained] or steps[-1:]
    try:
        geometry = geometry_of(launch.header)
        weights = weights_of(launch.header, geometry)
    except LauncherError:
        useful = (each for each in diagnosis.actions if _useful(each, launch, setting, has_experts=True))
        return _in_order((_shorter(each, steps, None) for each in useful), beyond=trained < setting.context)

    def measure(candidate: Setting) -> Estimate:
        return estimate(geometry, weights, candidate)

    if budget is not None and measure(setting).needed <= budget * _MIB:
        budget = None  # it did not fit, so not all of that was to be had

    def fits(context: int) -> bool:
        return budget is not None and measure(replace(setting, context=context)).needed <= budget * _MIB

    def sized_one(action: Action) -> Action:
        if action.kind is ActionKind.MORE_EXPERTS_ON_CPU and budget is not None and geometry.experts:
            count = fewest_on_host(setting, geometry.layers, budget, measure)
            return replace(action, parameters={"n_cpu_moe": max(count, setting.n_cpu_moe + 1)})
        return _shorter(action, steps, None if budget is None else fits)

    useful = (each for each in diagnosis.actions if _useful(each, launch, setting, has_experts=bool(geometry.experts)))
    return _in_order(map(sized_one, useful), beyond=trained < setting.context)


def _in_order(actions: Iterable[Action], *, beyond: bool) -> tuple[Action, ...]:
    """Return the actions as they stand, or those that shorten the context first where it is `beyond` use."""
    return tuple(sorted(actions, key=lambda action: beyond and action.kind is not ActionKind.SMALLER_CONTEXT))


def _useful(action: Action, launch: Launch, setting: Setting, *, has_experts: bool) -> bool:
    """Whether an action can change anything about these settings."""
    match action.kind:
        case ActionKind.MORE_EXPERTS_ON_CPU:
            return has_experts and setting.backend != "cpu"
        case ActionKind.BUILT_IN_ENGINE:
            return launch.build.name != BUILT_IN
        case ActionKind.OTHER_KV_TYPE:
            return setting.kv != action.parameters.get("kv")
        case ActionKind.SMALLER_CONTEXT | ActionKind.LARGER_CONTEXT:
            return True
        case _:
            return not changes_settings(action) or _changes(action, launch.options)


def _changes(action: Action, options: ServeOptions) -> bool:
    try:
        apply(action, options)
    except ActionImpossible:
        return False
    return True


def _shorter(action: Action, steps: Sequence[int], fits: Callable[[int], bool] | None) -> Action:
    """Return the action with the longest context of `steps` that `fits`, or the next one."""
    if action.kind is not ActionKind.SMALLER_CONTEXT or not steps:
        return action
    chosen = next((step for step in steps if fits(step)), steps[-1]) if fits else steps[0]
    return replace(action, label=f"Use a context of {chosen:,}", parameters={"context": chosen})
