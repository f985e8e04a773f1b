"""Data for the Start page: this computer, plans for it, and an engine's own figures. Runs on the core's thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from launcher.base.errors import LauncherError
from launcher.base.late import asyncio
from launcher.base.paths import models_dir

if TYPE_CHECKING:
    from launcher.app.first.first_checks import StartSurvey
    from launcher.app.planning.planner import EngineComparison, MachineDescription
    from launcher.app.planning.start_settings import KeptPlan
    from launcher.machine.advice import MachineAdvice
    from launcher.machine.backend import BackendChoice
    from launcher.machine.disks import Disk
    from launcher.machine.gpu import GpuActivity
    from launcher.machine.machine import Machine
    from launcher.models.catalogue import Catalogue
    from launcher.models.plan import Plan, PlanCriteria, UnplannedFile
    from launcher.models.preset import Intent
    from launcher.models.situation import Situation

_MOST_PLANS, _MOST_OTHER_FITS = 8, 3
"""The most plans to list, and the most plans of one family that fit otherwise than the recommended plan."""
_PAINT_S = 0.05
"""Time that the window gets to paint a plan."""


class ReadingPhase(Enum):
    """The work in progress: reading this computer, or making plans."""

    COMPUTER = auto()
    PLANS = auto()


class Computer(NamedTuple):
    """This computer at one moment."""

    machine: Machine
    activities: Mapping[str, GpuActivity]
    disk: Disk
    backend: BackendChoice
    advice: tuple[MachineAdvice, ...]


class PlanRequest(NamedTuple):
    """A request for plans: model family (None: all), goal, and a described computer (None: this one).

    `named` is a model that the user named in place of a family: the path of a file, or a name or link on the hub.
    """

    family: str | None = None
    intent: Intent = "balanced"
    described: MachineDescription | None = None
    wake: bool = False
    named: str | None = None


class PlanResult(NamedTuple):
    """Plans for a request. `situation` is None if it could not be read; `problem` says why.

    `plans` are the choices, the recommended one first; `unplanned` are the files of a family that could not be planned.
    `own_settings` are the user's earlier ones for some of the plans' files. `smaller` is a plan that fits, set if none
    for the request does. `estimated` are plans whose files' headers may be read on the hub; with `asks_headers` the
    user has not been asked about that yet.
    """

    request: PlanRequest
    computer: Computer
    families: tuple[tuple[str, str], ...]
    situation: Situation | None
    plans: tuple[Plan, ...]
    unplanned: tuple[UnplannedFile, ...]
    problem: LauncherError | None
    offline: bool = False
    own_settings: tuple[KeptPlan, ...] = ()
    smaller: Plan | None = None
    estimated: tuple[Plan, ...] = ()
    asks_headers: bool = False

    def find_own_settings(self, plan: Plan) -> KeptPlan | None:
        """Return the user's settings for a plan's file, whether the plan uses them or not."""
        return next((each for each in self.own_settings if plan is each.planned or plan is each.kept_plan), None)

    def with_plan_replaced(self, plan: Plan, other: Plan) -> PlanResult:
        """Return a copy in which `other` replaces `plan`."""
        return self._replace(plans=_drop_duplicates(other if each is plan else each for each in self.plans))


class EngineAnswer(NamedTuple):
    """An engine's own figures for a plan, compared with the estimate. `seconds` is how long they took."""

    plan: Plan
    comparison: EngineComparison
    seconds: float


async def read_and_plan(
    request: PlanRequest, known: Computer | None, report: Callable[[ReadingPhase], object]
) -> PlanResult:
    """Read this computer, unless it is `known`, and plan. Missing information is not an error."""
    from launcher.app.planning.planner import MachineDescription, read_situation
    from launcher.fetch.hub_cache import is_hub_offline
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import PlanCriteria

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
    from launcher.app.planning.named_plans import plan_named, select_named
    from launcher.app.planning.planner import MachineDescription
    from launcher.models.plan import PlanCriteria
    from launcher.models.smaller_model import replace_misfits

    request = result.request
    selection = await select_named(name, catalogue)
    machine = request.described or MachineDescription(wake=request.wake)
    planned = await plan_named(selection, situation, PlanCriteria(intent=request.intent), machine)
    if not planned.plans and isinstance(planned.asked, LauncherError):
        raise planned.asked
    plans, smaller = await asyncio.to_thread(replace_misfits, planned.plans, catalogue, situation, planned.criteria)
    plans = _drop_duplicates(plans)[:_MOST_PLANS]
    result = result._replace(plans=plans, unplanned=planned.unplanned, smaller=smaller)
    return _add_estimated(await _apply_own_settings(result, planned.catalogue, situation, planned.criteria))


def _add_estimated(result: PlanResult) -> PlanResult:
    """Add the plans whose files' headers may be read on the hub, if the user has agreed or may be asked."""
    from launcher.app.planning import hub_headers

    asks = hub_headers.should_ask()
    if not asks and not hub_headers.may_read():
        return result
    estimated = hub_headers.find_estimated_plans(result.plans)
    return result._replace(estimated=estimated, asks_headers=asks and bool(estimated))


async def _apply_own_settings(
    result: PlanResult, catalogue: Catalogue, situation: Situation, criteria: PlanCriteria
) -> PlanResult:
    """Return the result with tuned settings, and with the user's earlier settings, in place of the plans' own."""
    from launcher.app.planning.planner import downloaded_file

    if not any(downloaded_file(plan) for plan in result.plans):
        return result  # there are own settings for files on this computer alone, and reading them imports a lot
    from launcher.app.planning.start_settings import apply_own_settings

    plans, own_settings = await apply_own_settings(result.plans, catalogue, situation, criteria)
    result = result._replace(plans=_drop_duplicates(plans), own_settings=own_settings)
    for each in own_settings:
        if each.kept_plan is not None:
            result = result.with_plan_replaced(each.planned, each.kept_plan)
    return result


def _read_computer(*, wake: bool) -> Computer:
    from launcher.machine.advice import list_advice
    from launcher.machine.disks import read_disks
    from launcher.machine.gpus import read_gpu_states
    from launcher.machine.machine import read_machine
    from launcher.machine.wsl import read_wsl_settings
    from launcher.models.read_situation import choose_visible_backend, explain_hidden_gpus

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
    from launcher.models.plan import PlanCriteria, list_unplanned, make_plans
    from launcher.models.smaller_model import replace_misfits

    criteria = PlanCriteria(request.family, request.intent)
    plans, smaller = replace_misfits(make_plans(catalogue, situation, criteria), catalogue, situation, criteria)
    plans = _drop_duplicates(plans)
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


def _drop_duplicates(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return plans without duplicates: those that no column distinguishes from a better one (another ubatch)."""
    first: dict[object, Plan] = {}
    for plan in plans:
        setting = plan.setting
        columns = (plan.entry.id, plan.file.quant, setting.context, setting.kv, setting.draft, setting.n_cpu_moe)
        first.setdefault((plan.status, *columns), plan)
    return tuple(first.values())


async def read_headers(plans: Sequence[Plan]) -> LauncherError | None:
    """Read the headers of the plans' files on the hub. Returns the first error."""
    from launcher.app.planning import hub_headers

    return await hub_headers.read_headers(plans)


async def survey_plan(plan: Plan | None) -> StartSurvey:
    """Return which parts of a plan, or of the demo, are already here. Raises what `survey_start` raises.

    The plan is painted first, because importing what this needs holds up the window.
    """
    await asyncio.sleep(_PAINT_S)
    from launcher.app.first.first_checks import FirstStartRequest, make_first_start_request, survey_start
    from launcher.engine.demo import DEMO

    return await survey_start(make_first_start_request(plan) if plan is not None else FirstStartRequest(DEMO))


async def ask_engine(plan: Plan) -> EngineAnswer:
    """Ask an engine build for a plan's memory. The file's header is read, from the hub if needed."""
    from launcher.app.planning import planner
    from launcher.models.plan import estimate_argument

    started_s = time.monotonic()
    source = await asyncio.to_thread(planner.read_source, estimate_argument(plan.entry, plan.file))
    comparison = await planner.compare_with_engine(source, plan.setting, None)
    return EngineAnswer(plan, comparison, time.monotonic() - started_s)
