"""Measures the tuner's own computing time, in tunes of simulated machines."""

import asyncio
import statistics
import time
from collections.abc import Iterator

from benchmarks.reference import Interpreter
from benchmarks.report import Row
from launcher.tuning.goal import Goal
from launcher.tuning.tuner import TrialFailed, TrialMeasured, TrialPlanned, TuneEvent, tune
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import Machine, Surroundings, draw_machine
from tools.tuner_simulation.run import WORK

_LIMIT_STARTS_PER_S = 1.25
_TEN_MINUTES_S, _HOUR_S = 600.0, 3_600.0


def run(*, quick: bool) -> Iterator[Row]:
    """Tune machines of all kinds with the default budget and grid, and with an hour and the large grid."""
    for name, small, budget_s in (
        ("ten minutes, small grid", True, _TEN_MINUTES_S),
        ("an hour, large grid", False, _HOUR_S),
    ):
        bare, tunes = Interpreter(), []
        for number in range(2 if quick else 40):
            bare.start()
            tunes.append(_time_tune(draw_machine(number, Surroundings(small=small)), budget_s))
        what = f"the tuner's share of a core during a tune: {name}, the largest"
        yield bare.share_row(what, [share for share, _ in tunes], 3, _LIMIT_STARTS_PER_S, worst=True)
        waits_ms = [max(waits) for _, waits in tunes]
        shown = f"{statistics.median(waits_ms):.0f} ms (most {max(waits_ms):.0f})"
        yield Row(f"its longest computation between two trials: {name}", shown)


def _time_tune(machine: Machine, budget_s: float) -> tuple[float, list[float]]:
    """Return the tuner's own computing time in percent of the simulated time, and its milliseconds between trials."""
    bench, waits, ended_s = SimulatedBench(machine, seed=1), [0.0], time.process_time()

    def listen(event: TuneEvent) -> None:
        nonlocal ended_s
        if isinstance(event, TrialPlanned):
            waits.append(1_000 * (time.process_time() - ended_s))
        if isinstance(event, TrialMeasured | TrialFailed):
            ended_s = time.process_time()

    began_s = time.process_time()
    asyncio.run(tune(bench, machine.space(), WORK, Goal(), budget_s, on_event=listen))
    return 100 * (time.process_time() - began_s) / bench.now_s(), waits
