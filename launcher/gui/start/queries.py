"""Data for the Start page: this computer, plans for it, and an engine's own figures. Runs on the core's thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError

if TYPE_CHECKING:
    from launcher.app.first_checks import StartSurvey
    from launcher.app.planner import EngineComparison, MachineWish
    from launcher.app.start_settings import KeptPlan
    from launcher.machine.advice import Advice
    from launcher.machine.backend import BackendChoice
    from launcher.machine.disks import Disk
    from launcher.machine.gpu import GpuActivity
    from launcher.machine.machine import Machine
    from launcher.models.catalogue import Catalogue
    from launcher.models.plan import Plan, UnplannedFile
    from launcher.models.preset import Intent
    from launcher.models.situation import Situation

_MOST_PLANS, _MOST_OTHER_FITS = 8, 3
_ON = {"1", "on", "yes", "true"}


class ReadingPhase(Enum):
    """Phase of reading."""

    COMPUTER = auto()
    PLANS = auto()


@dataclass(frozen=True, slots=True)
class Computer:
    """A reading of this computer."""

    machine: Machine
    activities: Mapping[str, GpuActivity]
    disk: Disk
    backend: BackendChoice
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for plans: model family (None: all), goal, and a described computer (None: this one)."""

    family: str | None = None
    intent: Intent = "balanced"
    described: MachineWish | None = None
    wake: bool = False


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The answer. `situation` is None if it could not be read; `problem` says why.

    `plans` are the choices, the recommended one first; `lacking` are the files of a family that could not be planned.
    `kept` are the user's earlier settings for some of them.
    """

    question: PlanRequest
    computer: Computer
    families: tuple[tuple[str, str], ...]
    situation: Situation | None
    plans: tuple[Plan, ...]
    lacking: tuple[UnplannedFile, ...]
    problem: LauncherError | None
    offline: bool = False
    kept: tuple[KeptPlan, ...] = ()

    def kept_for(self, plan: Plan) -> KeptPlan | None:
        """Return the user's settings for a plan's file, whether the plan has them or not."""
        return next((each for each in self.kept if plan is each.planned or plan is each.kept_plan), None)

    def with_plan_replaced(self, plan: Plan, other: Plan) -> PlanResult:
        """Return a copy in which `other` replaces `plan`."""
        return replace(self, plans=_drop_duplicates(other if each is plan else each for each in self.plans))


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An engine's own figures for a plan. `seconds` is how long they took."""

    plan: Plan
    verdict: EngineComparison
    seconds: float


async def read_and_plan(
    question: PlanRequest, report: Callable[[ReadingPhase], object], known: Computer | None = None
) -> PlanResult:
    """Read this computer, unless it is `known`, and plan. Missing information is not an error."""
    from launcher.app.planner import MachineWish, read_situation
    from launcher.models.catalogue_load import load_catalogue

    computer = known
    if computer is None:
        report(ReadingPhase.COMPUTER)
        computer = await asyncio.to_thread(_read_computer, wake=question.wake)
    report(ReadingPhase.PLANS)
    catalogue = await asyncio.to_thread(load_catalogue)
    families = tuple((entry.id, entry.name) for entry in catalogue.models if entry.id != "demo")
    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _ON
    here = PlanResult(question, computer, families, None, (), (), None, offline)
    try:
        there = await read_situation(question.described or MachineWish(wake=question.wake))
        plans, lacking = await asyncio.to_thread(_make_plans, catalogue, there, question)
    except LauncherError as error:
        return replace(here, problem=error)
    return await _apply_own_settings(replace(here, situation=there, plans=plans, lacking=lacking), catalogue, there)


async def _apply_own_settings(found: PlanResult, catalogue: Catalogue, there: Situation) -> PlanResult:
    """Return the answer with tuned settings, and with the user's earlier settings, in place of the plans' own."""
    from launcher.app.start_settings import apply_own_settings
    from launcher.models.plan import PlanCriteria

    wish = PlanCriteria(model=found.question.family, intent=found.question.intent)
    plans, kept = await apply_own_settings(found.plans, catalogue, there, wish)
    found = replace(found, plans=_drop_duplicates(plans), kept=kept)
    for each in found.kept:
        found = found.with_plan_replaced(each.planned, each.kept_plan) if each.kept_plan is not None else found
    return found


def _read_computer(*, wake: bool) -> Computer:
    from launcher.base.paths import models_dir
    from launcher.machine.advice import advise
    from launcher.machine.backend import choose_backend
    from launcher.machine.disks import read_disks
    from launcher.machine.gpus import read_gpu_states
    from launcher.machine.machine import read_machine
    from launcher.machine.wsl import read_wsl_settings

    machine = read_machine(wake=wake)
    (disk,) = read_disks([models_dir()])
    activities = {gpu_id: activity for gpu_id, (_, activity) in read_gpu_states(machine.gpus, wake=wake).items()}
    settings = read_wsl_settings() if machine.host.wsl else ()
    return Computer(machine, activities, disk, choose_backend(machine.gpus), advise(machine, settings, [disk]))


def _make_plans(
    catalogue: Catalogue, situation: Situation, question: PlanRequest
) -> tuple[tuple[Plan, ...], tuple[UnplannedFile, ...]]:
    """Make plans.

    For a single family, add files of about the recommended one's size and some that fit with other settings.
    """
    from launcher.models.plan import PlanCriteria, list_unplanned, make_plans

    wish = PlanCriteria(question.family, question.intent)
    plans = _drop_duplicates(make_plans(catalogue, situation, wish))
    if question.family is None or not plans:
        return plans[:_MOST_PLANS], list_unplanned(catalogue, situation, wish) if question.family else ()
    first, seen = plans[0], {plan.file.quant for plan in plans}
    entry = catalogue.find(question.family)
    others = [make_plans(catalogue, situation, replace(wish, quant=each.quant)) for each in entry.files]
    more = [each[0] for each in others if each and each[0].file.quant not in seen]

    def distance(plan: Plan) -> int:
        return abs((plan.file.size_bytes or 0) - (first.file.size_bytes or 0))

    more.sort(key=distance)
    alike = [plan for plan in more if plan.status is first.status]
    other = [plan for plan in more if plan.status is not first.status]
    near = [*plans[1:], *other[:_MOST_OTHER_FITS], *alike][: _MOST_PLANS - 1]
    near.sort(key=lambda plan: (plan.group, plan.setting.n_cpu_moe > 0, distance(plan)))
    return (first, *near), list_unplanned(catalogue, situation, wish)


def _drop_duplicates(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return plans without duplicates: those that no column distinguishes from a better one (another ubatch)."""
    first: dict[object, Plan] = {}
    for plan in plans:
        setting = plan.setting
        seen = (plan.entry.id, plan.file.quant, setting.context, setting.kv, setting.draft, setting.n_cpu_moe)
        first.setdefault((plan.status, *seen), plan)
    return tuple(first.values())


async def survey_plan(plan: Plan | None) -> StartSurvey:
    """Return which parts of a plan, or of the demo, are already here. Raises what `survey_start` raises."""
    from launcher.app.first_checks import StartRequest, start_request_of, survey_start
    from launcher.engine.demo import DEMO

    return await survey_start(start_request_of(plan) if plan is not None else StartRequest(DEMO))


async def ask_engine(plan: Plan) -> EngineAnswer:
    """Ask an engine build for a plan's memory. The file's header is read, from the hub if needed. See planner."""
    from launcher.app import planner
    from launcher.models.plan import estimate_argument

    began_s = time.monotonic()
    source = await asyncio.to_thread(planner.read_source, estimate_argument(plan.entry, plan.file))
    inside = plan.entry.speculation in ("mtp", None)
    setting = replace(plan.setting, draft=plan.setting.draft if inside else 0, draft_model_bytes=0)
    verdict = await planner.compare_with_engine(source, setting, None)
    return EngineAnswer(plan, verdict, time.monotonic() - began_s)
