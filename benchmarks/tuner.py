"""The tuner's own time: tunes of simulated machines, where nothing else takes time."""

import asyncio
import statistics
import time

from benchmarks.measure import summary
from benchmarks.report import Row
from launcher.tuning.goal import Goal
from launcher.tuning.tuner import TrialFailed, TrialMeasured, TrialPlanned, TuneEvent, tune
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import Machine, draw
from tools.tuner_simulation.run import WORK

_LIMIT_PERCENT = 1.0
_TEN_MINUTES_S, _HOUR_S = 600.0, 3_600.0


def run(*, quick: bool) -> list[Row]:
    """Tune machines of all kinds with a default's time and grid, and with an hour and the large grid."""
    numbers = range(8 if quick else 40)
    short = [_tune(draw(number, small=True), _TEN_MINUTES_S) for number in numbers]
    long = [_tune(draw(number), _HOUR_S) for number in numbers]
    rows = []
    for name, tunes in (("ten minutes, small grid", short), ("an hour, large grid", long)):
        percent = [share for share, _ in tunes]
        decisions_ms = [max(waits) for _, waits in tunes]
        rows += [
            Row(
                f"the tuner's processor time, of the time that a tune takes: {name}",
                f"< {_LIMIT_PERCENT:g} %",
                summary(percent, "%", 3),
                max(percent) < _LIMIT_PERCENT,
            ),
            Row(
                f"its longest thought between two trials: {name}",
                "-",
                f"{statistics.median(decisions_ms):.0f} ms (most {max(decisions_ms):.0f})",
                None,
            ),
        ]
    return rows


def _tune(machine: Machine, budget_s: float) -> tuple[float, list[float]]:
    """Return the percentage of the virtual time that the tune computes, and milliseconds between trials."""
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
