"""What the page asks the core: this computer, the plans for it, and an engine's own word. Runs on the core's thread."""

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
    from launcher.first_checks import Survey
    from launcher.kept_plans import KeptPlan
    from launcher.machine.advice import Advice
    from launcher.machine.backend import BackendChoice
    from launcher.machine.disks import Disk
    from launcher.machine.gpu import Activity
    from launcher.machine.machine import Machine
    from launcher.models.catalogue import Catalogue
    from launcher.models.plan import Plan, Unplanned
    from launcher.models.preset import Intent
    from launcher.models.situation import Situation
    from launcher.planner import MachineWish, Verdict

_ROWS, _OTHERWISE = 8, 3
_ON = {"1", "on", "yes", "true"}


class Looking(Enum):
    """What is looked at."""

    COMPUTER = auto()
    PLANS = auto()


@dataclass(frozen=True, slots=True)
class Computer:
    """This computer as it was read."""

    machine: Machine
    activities: Mapping[str, Activity]
    disk: Disk
    backend: BackendChoice
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a family of the catalogue (None: all), what matters most, and which computer (None: this one)."""

    family: str | None = None
    intent: Intent = "balanced"
    described: MachineWish | None = None
    wake: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The answer. `situation` is None when it could not be read, for `problem`.

    `plans` are what to choose from, the recommended one first; `lacking` is what could not be planned of a family.
    `kept` are what the user set otherwise before for some of them.
    """

    question: Question
    computer: Computer
    families: tuple[tuple[str, str], ...]
    situation: Situation | None
    plans: tuple[Plan, ...]
    lacking: tuple[Unplanned, ...]
    problem: LauncherError | None
    offline: bool = False
    kept: tuple[KeptPlan, ...] = ()

    def kept_for(self, plan: Plan) -> KeptPlan | None:
        """Return what the user set otherwise than a plan, or than what it was made of."""
        return next((each for each in self.kept if plan is each.planned or plan is each.mine), None)

    def with_other(self, plan: Plan, other: Plan) -> Found:
        """Return it with another plan in the place of one."""
        return replace(self, plans=_told_apart(other if each is plan else each for each in self.plans))


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's own figures for a plan, and how long it took to ask, in seconds."""

    plan: Plan
    verdict: Verdict
    seconds: float


async def look(question: Question, tell: Callable[[Looking], object], known: Computer | None = None) -> Found:
    """Read this computer, or take what is known of it, and plan. Nothing that is missing makes it fail."""
    from launcher.models.catalogue_load import load_catalogue
    from launcher.planner import MachineWish, situation

    computer = known
    if computer is None:
        tell(Looking.COMPUTER)
        computer = await asyncio.to_thread(_read_computer, wake=question.wake)
    tell(Looking.PLANS)
    catalogue = await asyncio.to_thread(load_catalogue)
    families = tuple((entry.id, entry.name) for entry in catalogue.models if entry.id != "demo")
    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _ON
    here = Found(question, computer, families, None, (), (), None, offline)
    try:
        there = await situation(question.described or MachineWish(wake=question.wake))
        plans, lacking = await asyncio.to_thread(_plans, catalogue, there, question)
    except LauncherError as error:
        return replace(here, problem=error)
    return await asyncio.to_thread(_with_kept, replace(here, situation=there, plans=plans, lacking=lacking), catalogue)


def _with_kept(found: Found, catalogue: Catalogue) -> Found:
    """Return the answer with the settings that the user chose before in place of the plans' own, where they fit."""
    from launcher.kept_plans import kept_plans
    from launcher.models.plan import Wish

    if found.situation is None:
        return found
    wish = Wish(found.question.family, found.question.intent)
    found = replace(found, kept=kept_plans(found.plans, catalogue, found.situation, wish))
    for each in found.kept:
        found = found.with_other(each.planned, each.mine) if each.mine is not None else found
    return found


def _read_computer(*, wake: bool) -> Computer:
    from launcher.base.paths import models_dir
    from launcher.machine.advice import advise
    from launcher.machine.backend import choose_backend
    from launcher.machine.disks import read_disks
    from launcher.machine.gpus import inspect_gpus
    from launcher.machine.machine import read_machine
    from launcher.machine.wsl import read_settings

    machine = read_machine(wake=wake)
    (disk,) = read_disks([models_dir()])
    activities = {gpu_id: activity for gpu_id, (_, activity) in inspect_gpus(machine.gpus, wake=wake).items()}
    settings = read_settings() if machine.host.wsl else ()
    return Computer(machine, activities, disk, choose_backend(machine.gpus), advise(machine, settings, [disk]))


def _plans(
    catalogue: Catalogue, situation: Situation, question: Question
) -> tuple[tuple[Plan, ...], tuple[Unplanned, ...]]:
    """Plan; of one family the files of about the recommended one's size, too, also some that fit otherwise."""
    from launcher.models.plan import Wish, make_plans, unplanned

    wish = Wish(question.family, question.intent)
    plans = _told_apart(make_plans(catalogue, situation, wish))
    if question.family is None or not plans:
        return plans[:_ROWS], unplanned(catalogue, situation, wish) if question.family else ()
    first, seen = plans[0], {plan.file.quant for plan in plans}
    entry = catalogue.find(question.family)
    others = [make_plans(catalogue, situation, replace(wish, quant=each.quant)) for each in entry.files]
    more = [each[0] for each in others if each and each[0].file.quant not in seen]

    def distance(plan: Plan) -> int:
        return abs((plan.file.size_bytes or 0) - (first.file.size_bytes or 0))

    more.sort(key=distance)
    alike = [plan for plan in more if plan.status is first.status]
    other = [plan for plan in more if plan.status is not first.status]
    near = [*plans[1:], *other[:_OTHERWISE], *alike][: _ROWS - 1]
    near.sort(key=lambda plan: (plan.group, plan.setting.n_cpu_moe > 0, distance(plan)))
    return (first, *near), unplanned(catalogue, situation, wish)


def _told_apart(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return plans without those that no column tells from a better one, such as with another physical batch."""
    first: dict[object, Plan] = {}
    for plan in plans:
        setting = plan.setting
        seen = (plan.entry.id, plan.file.quant, setting.context, setting.kv, setting.draft, setting.n_cpu_moe)
        first.setdefault((plan.status, *seen), plan)
    return tuple(first.values())


async def look_for(plan: Plan | None) -> Survey:
    """Return what is here already of a plan, or of the demo. Raises what `survey` raises."""
    from launcher.engine.demo import DEMO
    from launcher.first_checks import Aim, aim_of, survey

    return await survey(aim_of(plan) if plan is not None else Aim(DEMO))


async def ask_engine(plan: Plan) -> Answer:
    """Ask an engine what a plan takes: the file's header is read, from the hub if it is there. See planner.ask."""
    from launcher import planner
    from launcher.models.plan import source_name

    began_s = time.monotonic()
    source = await asyncio.to_thread(planner.read_source, source_name(plan.entry, plan.file))
    inside = plan.entry.speculation in ("mtp", None)
    setting = replace(plan.setting, draft=plan.setting.draft if inside else 0, draft_model_bytes=0)
    verdict = await planner.ask(source, setting, None)
    return Answer(plan, verdict, time.monotonic() - began_s)
