"""Suggests fixes for a failed start, with values that fit it, such as the longest context for which there is memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.diagnosis.actions import LEAST_CONTEXT, apply_action, changes_settings, sets_flag
from launcher.engine.diagnosis.explain import ENDED_BY_OTHERS, Diagnosis, diagnose_log
from launcher.engine.engine_estimate import backend_of_log
from launcher.machine.surroundings import read_available_bytes
from launcher.models.fitting import CONTEXTS, fewest_on_host
from launcher.models.geometry import read_geometry
from launcher.models.library_index import find_origin
from launcher.models.memory import MemoryEstimate, PlanSettings, estimate_memory, kv_bits
from launcher.models.weights import read_weights

if TYPE_CHECKING:
    from launcher.engine.serve_options import ServeOptions
    from launcher.engine.server.launch import Launch
    from launcher.models.compute_buffers import Backend

_CONTEXT_STEPS = (*CONTEXTS, 24_576, 16_384, 12_288, 8_192, 6_144, 4_096, LEAST_CONTEXT)
_MIB = 2**20
_FREE_MEMORY = re.compile(r" - (?!CPU)\w+ *: .*\(\d+ MiB, (\d+) MiB free\)")
"""Free MiB of a GPU in llama.cpp's device list (common/common.cpp, since b10605)."""
_ANOTHER_ENGINE = (
    Action(ActionKind.OTHER_ENGINE_BUILD, message("Install the official build for this computer")),
    Action(ActionKind.BUILT_IN_ENGINE, message("Use the built-in engine")),
)
_ANOTHER_MODEL = Action(ActionKind.OTHER_MODEL, message("Show the models of the catalogue"))
_FIXES_BY_CLASS: tuple[tuple[type[LauncherError], tuple[Action, ...]], ...] = (
    (ModelHasNoHead, (Action(ActionKind.DRAFT_OFF, message("Start without MTP")),)),
    (DraftsInert, (Action(ActionKind.DRAFT_OFF, message("Start without MTP")), _ANOTHER_ENGINE[0])),
    (PortBusy, (Action(ActionKind.OTHER_PORT, message("Start on another port")),)),
    (ModelBroken, (Action(ActionKind.DOWNLOAD_AGAIN, message("Download it again")), _ANOTHER_MODEL)),
    (ModelMissing, (Action(ActionKind.DOWNLOAD_AGAIN, message("Download it")), _ANOTHER_MODEL)),
    (EngineMissing, _ANOTHER_ENGINE),
    (CpuUnsupported, _ANOTHER_ENGINE),
    (LibraryMissing, (Action(ActionKind.INSTALL_LIBRARY, message("Show what is missing")), *_ANOTHER_ENGINE)),
    (EngineFailed, (Action(ActionKind.RESTART, message("Start again")),)),
)
"""Suggested fixes for errors that no log explains, by error class; the first matching row counts."""
_FIXES_OF_SELF_ENDED = (
    _ANOTHER_ENGINE[0],
    Action(
        ActionKind.REPORT, message("Report it with the log"), {"link": "https://github.com/ggml-org/llama.cpp/issues"}
    ),
)
"""Suggested fixes for an engine that ended by itself: started again, it would end again."""


def attach_fixes(
    error: LauncherError, options: ServeOptions, launch: Launch | None = None, lines: Sequence[str] = ()
) -> None:
    """Attach suggested fixes to an error of a start.

    `options` are the requested settings, `launch` the prepared start if the failure came after that, and `lines` the
    engine's log. An error explained by the log gets fixes with values; others get the fixes for their error class.
    """
    if launch is not None and "diagnosis" in error.facts:
        exit_code = error.facts.get("exit_code")
        error.attach_actions(suggest_fixes(exit_code if isinstance(exit_code, int) else None, lines, launch))
    elif not error.actions and "diagnosis" not in error.facts:
        error.attach_actions(_fixes_of_class(error, options))


def _fixes_of_class(error: LauncherError, options: ServeOptions) -> Iterator[Action]:
    """Yield the suggested fixes for the class of an error from this program's own checks."""
    flag = error.facts.get("option")
    if isinstance(error, BadOption | EngineUnsuitable) and isinstance(flag, str) and sets_flag(options, flag):
        yield Action(ActionKind.REMOVE_FLAG, message("Start without {flag}", flag=flag), {"flag": flag})
    exit_code = error.facts.get("exit_code")
    if isinstance(error, EngineFailed) and isinstance(exit_code, int) and exit_code not in ENDED_BY_OTHERS:
        yield from _FIXES_OF_SELF_ENDED
        return
    for kind, actions in _FIXES_BY_CLASS:
        if isinstance(error, kind):
            for action in actions:
                if action.kind is ActionKind.DOWNLOAD_AGAIN and (
                    "version" in error.facts or find_origin(options.model) is None
                ):
                    continue  # a new download would give the same file, or its source is unknown
                if action.kind is ActionKind.DRAFT_OFF and options.drafter.drafts and not options.drafter.uses_head:
                    action = replace(action, label=message("Start without drafts"))
                if not changes_settings(action) or _changes_options(action, options):
                    yield action
            return


def suggest_fixes(exit_code: int | None, lines: Sequence[str], launch: Launch) -> tuple[Action, ...]:
    """Return the suggested fixes for an engine that ended, with values for its start, best first.

    `exit_code` None means an engine that still runs but did not answer. Empty if the log names no cause. Fixes for
    which `changes_settings` is true can be applied to `launch.options`.
    """
    found = diagnose_log("\n".join(lines), exit_code=exit_code)
    if found is None:
        return ()
    backend = backend_of_log(lines)
    free_mib = found.facts.get("free_mib")
    if not isinstance(free_mib, int):
        free_mib = _find_free_mib(lines, backend)
    return add_fix_values(found, launch, backend=backend, free_mib=free_mib)


def _find_free_mib(lines: Iterable[str], backend: Backend) -> int | None:
    """Return the free memory in MiB for the weights: that of all GPUs in the log, or that of the host now."""
    if backend == "cpu":
        return read_available_bytes() // _MIB  # the engine has ended, so its memory is free again
    free = [int(found[1]) for line in lines if (found := _FREE_MEMORY.search(line))]
    return sum(free) if free else None


def add_fix_values(
    diagnosis: Diagnosis, launch: Launch, *, backend: Backend, free_mib: int | None = None
) -> tuple[Action, ...]:
    """Return the diagnosis's fixes. Fixes that save memory get the values to apply; others stay unchanged.

    `backend` holds the weights, `free_mib` is the free memory there before the start, by default the figure in the log.
    The fix that shortens the context gets the longest usual length that fits by the memory estimate, or the next
    shorter one if the free memory is unknown; it comes first if the context is beyond the trained one. As few experts
    as necessary move to the host. `apply_action` chooses the values of other fixes.
    """
    logged_mib = diagnosis.facts.get("free_mib")
    if free_mib is None and isinstance(logged_mib, int):
        free_mib = logged_mib
    settings = launch.plan_settings(backend)
    trained = launch.header.trained_context or settings.context
    steps = sorted(
        {step for step in (*_CONTEXT_STEPS, trained) if LEAST_CONTEXT <= step < settings.context}, reverse=True
    )
    beyond_trained = trained < settings.context
    if beyond_trained:
        steps = [step for step in steps if step <= trained] or steps[-1:]
    try:
        geometry = read_geometry(launch.header)
        weights = read_weights(launch.header, geometry)
    except LauncherError:
        useful = (each for each in diagnosis.actions if _is_useful(each, launch, settings, has_experts=True))
        return _sort_actions((_set_context(each, steps, None) for each in useful), beyond_trained=beyond_trained)

    def estimate(candidate: PlanSettings) -> MemoryEstimate:
        return estimate_memory(geometry, weights, candidate)

    if free_mib is not None and estimate(settings).needed_bytes <= free_mib * _MIB:
        free_mib = None  # by the estimate these settings fit, but they did not, so the estimate cannot help here

    def fits(context: int) -> bool:
        return free_mib is not None and estimate(replace(settings, context=context)).needed_bytes <= free_mib * _MIB

    def add_value(action: Action) -> Action:
        if action.kind is ActionKind.MORE_EXPERTS_ON_CPU and free_mib is not None and geometry.experts:
            count = fewest_on_host(settings, geometry.layers, free_mib, estimate)
            return replace(action, parameters={"n_cpu_moe": max(count, settings.n_cpu_moe + 1)})
        return _set_context(action, steps, None if free_mib is None else fits)

    useful = (
        each for each in diagnosis.actions if _is_useful(each, launch, settings, has_experts=bool(geometry.experts))
    )
    return _sort_actions(map(add_value, useful), beyond_trained=beyond_trained)


def _sort_actions(actions: Iterable[Action], *, beyond_trained: bool) -> tuple[Action, ...]:
    """Return the actions in their order, but a shorter context first if the context is beyond the trained one."""
    return tuple(sorted(actions, key=lambda action: beyond_trained and action.kind is not ActionKind.SMALLER_CONTEXT))


def _is_useful(action: Action, launch: Launch, settings: PlanSettings, *, has_experts: bool) -> bool:
    """Return whether an action would change anything for these settings."""
    match action.kind:
        case ActionKind.MORE_EXPERTS_ON_CPU:
            return has_experts and settings.backend != "cpu"
        case ActionKind.BUILT_IN_ENGINE:
            return launch.build.name != BUILT_IN
        case ActionKind.OTHER_KV_TYPE:
            wanted = str(action.parameters.get("kv"))
            return settings.kv != wanted and (wanted == "f16" or kv_bits(wanted) < kv_bits(settings.kv))
        case ActionKind.SMALLER_CONTEXT | ActionKind.LARGER_CONTEXT:
            return True
        case ActionKind.LOAD_PROJECTOR:
            return not _has_projector(launch.options)
        case ActionKind.ADD_FLAG if action.parameters.get("flag") == "--no-mmproj-offload":
            return _has_projector(launch.options) and _changes_options(action, launch.options)
        case ActionKind.ADD_FLAG if action.parameters.get("flag") == "--flash-attn":
            is_possible = action.parameters.get("value") == "on" or kv_bits(settings.kv) >= kv_bits("f16")
            return is_possible and _changes_options(action, launch.options)
        case _:
            return not changes_settings(action) or _changes_options(action, launch.options)


def _has_projector(options: ServeOptions) -> bool:
    return options.mmproj is not None or sets_flag(options, "--mmproj")


def _changes_options(action: Action, options: ServeOptions) -> bool:
    try:
        apply_action(action, options)
    except ActionImpossible:
        return False
    return True


def _set_context(action: Action, steps: Sequence[int], fits: Callable[[int], bool] | None) -> Action:
    """Return a SMALLER_CONTEXT action with the longest of `steps` that fits, or the shortest if none does.

    Without `fits`, the longest step is taken. Other actions are returned unchanged.
    """
    if action.kind is not ActionKind.SMALLER_CONTEXT or not steps:
        return action
    chosen = next((step for step in steps if fits(step)), steps[-1]) if fits else steps[0]
    return replace(
        action, label=message("Use a context of {context:,}", context=chosen), parameters={"context": chosen}
    )
