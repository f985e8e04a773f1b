"""The work for the Start page, on the core's threads: reads this computer, makes plans, and asks an engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.app.planning import hub_headers
from launcher.app.planning.planner import MachineDescription, downloaded_file, read_situation
from launcher.base.errors import LauncherError
from launcher.base.paths import models_dir
from launcher.fetch.hub_cache import is_hub_offline
from launcher.gui.late import engine_answer, first_checks, model_source, named_plans, start_settings
from launcher.gui.service import DEMO
from launcher.gui.start import queries
from launcher.gui.start.queries import Computer, EngineAnswer, PlanRequest, PlanResult, ReadingPhase, drop_duplicates
from launcher.machine.advice import list_advice
from launcher.machine.disks import read_disks
from launcher.machine.gpus import read_gpu_states
from launcher.machine.machine import read_machine
from launcher.machine.wsl import read_wsl_settings
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria, estimate_argument, list_unplanned, make_plans
from launcher.models.read_situation import choose_visible_backend, explain_hidden_gpus
from launcher.models.smaller_model import replace_misfits

if TYPE_CHECKING:
    from launcher.app.first.first_checks import StartSurvey
    from launcher.models.catalogue import Catalogue
    from launcher.models.plan import Plan, UnplannedFile
    from launcher.models.situation import Situation

_MOST_PLANS, _MOST_OTHER_FITS = 8, 3
"""The most plans to list, and the most plans of one family that fit otherwise than the recommended plan."""


async def read_and_plan(
    request: PlanRequest, known: Computer | None, report: Callable[[ReadingPhase], object]
) -> PlanResult:
    """Read this computer, unless it is `known`, and plan. Missing information is not an error."""
    computer = known
    if computer is None:
        report(ReadingPhase.COMPUTER)
        computer = await asyncio.to_thread(_read_computer, wake=request.wake)
    report(ReadingPhase.PLANS)
    catalogue = await asyncio.to_thread(load_catalogue)
    families = tuple((entry.id, entry.name) for entry in catalogue.models if entry.id != "demo")
    without_plans = PlanResult(request, computer, families, None, (), (), None, is_hub_offline())
    try:
        situation = await read_situation(request.described or MachineDescription(wake=request.wake))
        if request.named is not None:
            return await _plan_named(without_plans._replace(situation=situation), request.named, catalogue, situation)
        plans, unplanned, smaller = await asyncio.to_thread(_make_plans, catalogue, situation, request)
    except LauncherError as error:
        return without_plans._replace(problem=error)
    result = without_plans._replace(situation=situation, plans=plans, unplanned=unplanned, smaller=smaller)
    criteria = PlanCriteria(model=request.family, intent=request.intent)
    return _add_estimated(await _apply_own_settings(result, catalogue, situation, criteria))


async def _plan_named(result: PlanResult, name: str, catalogue: Catalogue, situation: Situation) -> PlanResult:
    """Add the plans of a model that the user named. Raises what `select_named` and `plan_named` raise."""
    request = result.request
    selection = await named_plans.select_named(name, catalogue)
    machine = request.described or MachineDescription(wake=request.wake)
    planned = await named_plans.plan_named(selection, situation, PlanCriteria(intent=request.intent), machine)
    if not planned.plans and isinstance(planned.asked, LauncherError):
        raise planned.asked
    plans, smaller = await asyncio.to_thread(replace_misfits, planned.plans, catalogue, situation, planned.criteria)
    plans = drop_duplicates(plans)[:_MOST_PLANS]
    result = result._replace(plans=plans, unplanned=planned.unplanned, smaller=smaller)
    return _add_estimated(await _apply_own_settings(result, planned.catalogue, situation, planned.criteria))


def _add_estimated(result: PlanResult) -> PlanResult:
    """Add the plans whose files' headers may be read on the hub, if the user has agreed or may be asked."""
    asks = hub_headers.should_ask()
    if not asks and not hub_headers.may_read():
        return result
    estimated = hub_headers.find_estimated_plans(result.plans)
    return result._replace(estimated=estimated, asks_headers=asks and bool(estimated))


async def _apply_own_settings(
    result: PlanResult, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> PlanResult:
    """Return the result with tuned settings, and with the user's earlier settings, in place of the plans' own."""
    if not any(downloaded_file(plan) for plan in result.plans):
        return result  # there are own settings for files on this computer alone, and reading them imports a lot
    plans, own_settings = await start_settings.apply_own_settings(result.plans, catalogue, situation, criteria)
    result = result._replace(plans=drop_duplicates(plans), own_settings=own_settings)
    for each in own_settings:
        if each.kept_plan is not None:
            result = result.with_plan_replaced(each.planned, each.kept_plan)
    return result


def _read_computer(*, wake: bool) -> Computer:

    machine = read_machine(wake=wake)
    (disk,) = read_disks([models_dir()])
    activities = {gpu_id: activity for gpu_id, (_, activity) in read_gpu_states(machine.gpus, wake=wake).items()}
    settings = read_wsl_settings() if machine.host.wsl else ()
    backend = choose_visible_backend(machine.gpus, explain_hidden_gpus(machine.gpus, os.environ))
    return Computer(machine, activities, disk, backend, list_advice(machine, settings, [disk]))


def _make_plans(
    catalogue: Catalogue, situation: Situation, request: PlanRequest
) -> tuple[tuple[Plan, ...], tuple[UnplannedFile, ...], Plan | None]:
    """Return plans, the recommended one first, the files of a family without a plan, and a plan that fits if none does.

    For a single family, add plans for its other files: those of about the recommended one's size first, and a few whose
    fit differs.
    """

    criteria = PlanCriteria(request.family, request.intent)
    plans, smaller = replace_misfits(make_plans(catalogue, situation, criteria), catalogue, situation, criteria)
    plans = drop_duplicates(plans)
    if request.family is None or not plans:
        return plans[:_MOST_PLANS], list_unplanned(catalogue, situation, criteria) if request.family else (), smaller
    recommended, listed_quants = plans[0], {plan.file.quant for plan in plans}
    entry = catalogue.find(request.family)
    others = [make_plans(catalogue, situation, replace(criteria, quant=each.quant)) for each in entry.files]
    best_by_file = [each[0] for each in others if each and each[0].file.quant not in listed_quants]

    def size_difference(plan: Plan) -> int:
        return abs((plan.file.size_bytes or 0) - (recommended.file.size_bytes or 0))

    best_by_file.sort(key=size_difference)
    same_fit = [plan for plan in best_by_file if plan.status is recommended.status]
    other_fits = [plan for plan in best_by_file if plan.status is not recommended.status]
    listed = [*plans[1:], *other_fits[:_MOST_OTHER_FITS], *same_fit][: _MOST_PLANS - 1]
    listed.sort(key=lambda plan: (plan.group, plan.setting.n_cpu_moe > 0, size_difference(plan)))
    return (recommended, *listed), list_unplanned(catalogue, situation, criteria), smaller


async def read_headers(plans: Sequence[Plan]) -> LauncherError | None:
    """Read the headers of the plans' files on the hub. Returns the first error."""
    return await hub_headers.read_headers(plans)


async def survey_plan(plan: Plan | None) -> StartSurvey:
    """Return which parts of a plan, or of the demo, are already here. Raises what `survey_start` raises.

    The plan is painted first, because importing what this needs holds up the window.
    """
    await asyncio.sleep(queries.PAINT_S)
    return await first_checks.survey_start(
        first_checks.make_first_start_request(plan) if plan is not None else first_checks.FirstStartRequest(DEMO)
    )


async def ask_engine(plan: Plan) -> EngineAnswer:
    """Ask an engine build for a plan's memory. The file's header is read, from the hub if needed."""
    started_s = time.monotonic()
    source = await asyncio.to_thread(model_source.read_source, estimate_argument(plan.entry, plan.file))
    comparison = await engine_answer.compare_with_engine(source, plan.setting, None)
    return EngineAnswer(plan, comparison, time.monotonic() - started_s)
