"""Tunes on simulated machines, which are drawn by number."""

from dataclasses import dataclass, field

from launcher.tuning.goal import Goal
from launcher.tuning.tuner import (
    TuneEvent,
    tune,
)
from launcher.tuning.verdict import Verdict
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import Machine, draw_machine
from tools.tuner_simulation.run import WORK

HOUR_S = 3_600.0
MTP_LOSES, MTP_WINS, NO_ROOM = 59, 0, 22
"""Machines by number: MTP is 5 % slower than nothing; twice as fast; it pushes experts to the CPU and loses 8 %."""


@dataclass
class EventRecorder:
    """Records events."""

    events: list[TuneEvent] = field(default_factory=list)

    def __call__(self, event: TuneEvent) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


_known: dict[tuple[int, float], tuple[Machine, Verdict, EventRecorder]] = {}


async def tuned_once(number: int, budget_s: float = HOUR_S) -> tuple[Machine, Verdict, EventRecorder]:
    """A finished tune, shared by tests that do not change it."""
    if (number, budget_s) not in _known:
        _known[number, budget_s] = await tune_machine(number, budget_s)
    return _known[number, budget_s]


async def tune_machine(number: int, budget_s: float = HOUR_S, **more: object) -> tuple[Machine, Verdict, EventRecorder]:
    machine, recorder = draw_machine(number), EventRecorder()
    verdict = await tune(
        SimulatedBench(machine, seed=number), machine.space(), WORK, Goal(), budget_s, on_event=recorder, seed=3, **more
    )
    return machine, verdict, recorder
