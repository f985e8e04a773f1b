"""What the Start page asks for, and gets: this computer, plans for it, and an engine's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from launcher.base.errors import LauncherError

if TYPE_CHECKING:
    from launcher.app.planning.planner import EngineComparison, MachineDescription
    from launcher.app.planning.start_settings import KeptPlan
    from launcher.machine.advice import MachineAdvice
    from launcher.machine.backend import BackendChoice
    from launcher.machine.disks import Disk
    from launcher.machine.gpu import GpuActivity
    from launcher.machine.machine import Machine
    from launcher.models.plan import Plan, UnplannedFile
    from launcher.models.preset import Intent
    from launcher.models.situation import Situation

PAINT_S = 0.05
"""Time that the window gets to paint a plan, before what else is asked for imports more."""


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
        return self._replace(plans=drop_duplicates(other if each is plan else each for each in self.plans))


class EngineAnswer(NamedTuple):
    """An engine's own figures for a plan, compared with the estimate. `seconds` is how long they took."""

    plan: Plan
    comparison: EngineComparison
    seconds: float


def drop_duplicates(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return plans without duplicates: those that no column distinguishes from a better one (another ubatch)."""
    first: dict[object, Plan] = {}
    for plan in plans:
        setting = plan.setting
        columns = (plan.entry.id, plan.file.quant, setting.context, setting.kv, setting.draft, setting.n_cpu_moe)
        first.setdefault((plan.status, *columns), plan)
    return tuple(first.values())
