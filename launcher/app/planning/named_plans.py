"""Plans for a model that the user names: of the catalogue, on this machine, or on the hub.

The formula estimates the memory. For a model that the formula does not know, an engine on this machine computes it, if
the model's header can be read.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.app.planning.planner import PlannedModels, settings_for_model
from launcher.base.errors import BadOption, LauncherError, ModelBroken
from launcher.base.messages import command_name, message
from launcher.base.paths import expand_user, explain_os_error
from launcher.models.cuda_pool import MOST_MEASURED_BYTES
from launcher.models.file_kinds import kind_of_broken
from launcher.models.fitting import SHORT_CONTEXTS
from launcher.models.gguf import check_complete, read_model
from launcher.models.header_summary import apply_header
from launcher.models.locate import add_draft, select_model
from launcher.models.memory import HostParts, MemoryEstimate, MemoryParts, PlanSettings, overhead_bytes
from launcher.models.plan import Plan, PlanCriteria, Status, estimate_argument, fit_status, list_unplanned, make_plans
from launcher.models.speed import forecast_reading

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.app.planning.model_source import ModelSource
    from launcher.app.planning.planner import EngineComparison, MachineDescription
    from launcher.engine.engine_estimate import EngineEstimate
    from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
    from launcher.models.locate import ModelSelection
    from launcher.models.situation import Situation

_MIB = 2**20
_MOST_HEADERS = 2
"""Headers that are read on the hub for one list of plans, besides the one that has the geometry."""
_MOST_QUESTIONS = 3
"""Dry runs of an engine for one plan, each of about a second."""
_OTHER_BACKEND_DOUBT = 0.5
"""Share by which the compute buffers of another backend may differ from the estimated ones."""


async def select_named(
    name: str, catalogue: Catalogue, draft_model: Path | None = None, drafter: str | None = None
) -> ModelSelection:
    """Return the model that a user names by id, path, store, or repository, with a `draft_model`, for `drafter`.

    Raises what `select_model` and `select_hub_model` raise, and ModelBroken for a local file that is incomplete.
    """
    selection: ModelSelection | None = None
    if "/" in name and not expand_user(name).exists():
        from launcher.models.hub_model import select_hub_model  # imported late: it needs the network's modules

        selection = await asyncio.to_thread(select_hub_model, name, catalogue)
    if selection is None and "://" in name:
        raise BadOption(
            message("{name} is not a page of a model on Hugging Face.", name=name),
            message(
                "Write OWNER/NAME[:QUANT], or download it first[: {command}].",
                command=command_name("pull URL --sha256 SUM"),
            ),
        )
    if selection is None:
        selection = await asyncio.to_thread(select_model, name, catalogue)
    if selection.path is not None:
        check_complete(*(await asyncio.to_thread(read_model, selection.path)).parts)
    return await asyncio.to_thread(add_draft, selection, draft_model, drafter) if draft_model else selection


async def plan_named(
    selection: ModelSelection, situation: Situation, criteria: PlanCriteria, machine: MachineDescription
) -> PlannedModels:
    """Return the plans for a model. For a model on the hub, the header of the first plan's file is read.

    There are none if the engine has just refused the model. Raises BadOption and ModelUnknown for criteria that the
    model cannot meet, and the errors of the hub.
    """
    catalogue, entry = selection.catalogue, selection.entry
    quant = criteria.quant or (selection.file.quant if selection.file and selection.names_file else None)
    criteria = replace(criteria, model=entry.id, quant=quant)
    plans = make_plans(catalogue, situation, criteria)
    is_on_hub = entry.repo is not None and len(catalogue.models) == 1
    if is_on_hub and plans:
        from launcher.models.hub_model import leave_out_file, read_planned_header

        left = _MOST_HEADERS
        while left and plans and not plans[0].estimate.weights_exact:  # once a header is read, another may come first
            first = plans[0].file
            try:
                other = await asyncio.to_thread(read_planned_header, entry, first)
            except ModelBroken as error:
                if selection.names_file:
                    raise
                other = kind_of_broken(error)
            if other is not None:
                selection = leave_out_file(selection, first, other)
                catalogue, entry = selection.catalogue, selection.entry
            else:
                left -= 1
            plans = make_plans(catalogue, situation, criteria)
    unplanned = list_unplanned(catalogue, situation, criteria)
    asked: EngineComparison | LauncherError | None = None
    has_header = selection.path is not None or is_on_hub
    file = selection.file or entry.files[0]
    if has_header and not plans and apply_header(entry, file)[0].geometry is None:
        by_engine = await _plan_by_engine(selection, file, situation, criteria, machine)
        if isinstance(by_engine, Plan):
            return PlannedModels(selection, catalogue, criteria, (by_engine,), ())
        asked = by_engine
    elif has_header and plans and not plans[0].estimate.compute_exact and not plans[0].setting.draft_bytes:
        corrected, asked = await correct_by_engine(plans[0], selection, machine)
        # What the engine refuses, it refuses at each size: the files differ in their quantisation only.
        is_refused = isinstance(asked, LauncherError) and asked.facts.get("exit_code") is not None
        plans = () if is_refused else (corrected, *plans[1:])
    return PlannedModels(selection, catalogue, criteria, plans, unplanned, asked)


async def correct_by_engine(
    plan: Plan, selection: ModelSelection, machine: MachineDescription
) -> tuple[Plan, EngineComparison | LauncherError]:
    """Ask an engine about a plan whose compute buffers are a guess.

    Return the plan with the engine's figures, and the engine's answer. If no engine answers, or an engine with another
    backend, the plan only gets a caution.
    """
    answer = await _ask_engine(selection, plan.file, plan.setting, machine)
    if isinstance(answer, LauncherError):
        why = message(
            "The memory figures are estimates: the formula is not exact for this architecture, and no engine could be "
            "asked. {reason}",
            reason=answer.message,
        )
        return replace(plan, cautions=(*plan.cautions, why)), answer
    engine, estimate = answer.engine, plan.estimate
    if engine.backend != plan.setting.backend:
        why = message(
            "The memory figures are estimates: the formula is not exact for this architecture, and the engine here, "
            "{engine}, computes with {theirs}, not with {ours}.",
            engine=engine.engine,
            theirs=engine.backend,
            ours=plan.setting.backend,
        )
        return replace(plan, cautions=(*plan.cautions, why)), answer
    compute, draft_compute = engine.compute_mib * _MIB, (engine.draft_compute_mib or 0) * _MIB
    parts = estimate.parts._replace(compute=compute, draft_compute=draft_compute, staging=0)
    changed = parts.total - estimate.parts.total
    doubt = parts.pool if estimate.weights_exact else (estimate.high - estimate.low) // 2
    estimate = estimate._replace(
        parts=parts,
        compute_exact=True,
        low=parts.total - doubt,
        high=parts.total + doubt,
        by_gpu=(*estimate.by_gpu[:-1], estimate.by_gpu[-1] + changed),
    )
    return _replace_estimate(plan, estimate, engine), answer


def _replace_estimate(plan: Plan, estimate: MemoryEstimate, engine: EngineEstimate) -> Plan:
    status = fit_status(estimate.needed_mib, plan.setting, plan.free_mib, plan.margin_mib)
    if plan.host_short:
        status = Status.TOO_BIG
    reason = message(
        "The memory figures are the engine's own ({name}), because the formula is not exact for this architecture. The "
        "model needs {needed:,} of {free:,} MiB.",
        name=engine.engine,
        needed=estimate.required_mib,
        free=plan.free_mib,
    )
    return replace(
        plan,
        estimate=estimate,
        status=status,
        engine=engine.engine,
        reasons=(*plan.reasons[:1], reason, *plan.reasons[2:]),
    )


async def _ask_engine(
    selection: ModelSelection, file: ModelFile, settings: PlanSettings, machine: MachineDescription
) -> EngineComparison | LauncherError:
    from launcher.app.planning import engine_answer  # imported late: most plans do without it

    try:
        source = await _read_source(selection, file)
        return await engine_answer.compare_with_engine(source, settings, None, machine)
    except LauncherError as error:
        return error
    except OSError as error:
        return explain_os_error(error)


async def _read_source(selection: ModelSelection, file: ModelFile) -> ModelSource:
    from launcher.app.planning import model_source

    target = str(selection.path) if selection.path is not None else estimate_argument(selection.entry, file)
    return await asyncio.to_thread(model_source.read_source, target)


async def _plan_by_engine(
    selection: ModelSelection,
    file: ModelFile,
    situation: Situation,
    criteria: PlanCriteria,
    machine: MachineDescription,
) -> Plan | LauncherError:
    """Return the plan of a model without a formula, with an engine's figures, or the reason why there is none."""
    try:
        source = await _read_source(selection, file)
    except LauncherError as error:
        return error
    except OSError as error:
        return explain_os_error(error)
    entry = selection.entry
    if entry.embedding:
        criteria = replace(criteria, draft=0)
    settings = settings_for_model(source.model, criteria, situation)
    for questions_left in reversed(range(_MOST_QUESTIONS)):
        answer = await _ask_engine(selection, file, settings, machine)
        if isinstance(answer, LauncherError):
            return answer
        plan = _make_plan(entry, file, settings, situation, answer.engine)
        context = None if criteria.context is not None else _shorter_context(plan, answer.engine)
        if plan.status is not Status.TOO_BIG or context is None or not questions_left:
            break
        settings = replace(settings, context=context)
    return plan


def _shorter_context(plan: Plan, engine: EngineEstimate) -> int | None:
    """Return the longest context that fits if its memory is proportional to its length; None if none does."""
    room_mib = plan.free_mib - plan.margin_mib // 2 - (plan.needed_mib - engine.context_mib)
    if room_mib <= 0 or not engine.context_mib:
        return None
    context = int(plan.setting.context * room_mib / engine.context_mib) // 1_024 * 1_024
    return context if SHORT_CONTEXTS[-1] <= context < plan.setting.context else None


def _make_plan(
    entry: ModelEntry, file: ModelFile, settings: PlanSettings, situation: Situation, engine: EngineEstimate
) -> Plan:
    parts = MemoryParts(
        weights=engine.model_mib * _MIB,
        kv=engine.context_mib * _MIB,
        recurrent=0,
        draft_kv=(engine.draft_context_mib or 0) * _MIB,
        compute=engine.compute_mib * _MIB,
        draft_compute=(engine.draft_compute_mib or 0) * _MIB,
        staging=0,
        overhead=sum(overhead_bytes(settings, max(settings.gpus, 1))),
        mmproj=0,
    )
    is_same = engine.backend == settings.backend
    doubt = 0 if is_same else int((parts.compute + parts.draft_compute) * _OTHER_BACKEND_DOUBT)
    estimate = MemoryEstimate(
        setting=settings,
        parts=parts,
        host=HostParts(engine.host_mib * _MIB, 0, 0, 0),
        by_gpu=(parts.total,),
        weights_exact=True,
        compute_exact=is_same,
        drafts_counted=True,
        low=parts.total - doubt,
        high=parts.total + doubt + (MOST_MEASURED_BYTES if settings.backend == "cuda" else 0),
    )
    reasons = [
        message(
            "The memory figures are the engine's own ({name}), because there is no formula for this model. It needs "
            "{needed:,} of {free:,} MiB.",
            name=engine.engine,
            needed=estimate.needed_mib,
            free=situation.free_mib,
        )
    ]
    cautions = []
    if not is_same:
        cautions.append(
            message(
                "The engine computed them for {theirs}; the buffers of {ours} differ.",
                theirs=engine.backend,
                ours=settings.backend,
            )
        )
    return Plan(
        entry=entry,
        file=file,
        setting=settings,
        status=fit_status(estimate.needed_mib, settings, situation.free_mib, situation.margin_mib),
        estimate=estimate,
        free_mib=situation.free_mib,
        margin_mib=situation.margin_mib,
        mark="derived",
        reasons=tuple(reasons),
        cautions=tuple(cautions),
        evidence=(),
        limit_t_s=None,
        limit_full_t_s=None,
        reading=forecast_reading((entry.parameters_b or 0) * 1e9, situation) if entry.embedding else None,
        engine=engine.engine,
    )
