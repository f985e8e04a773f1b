"""Simulates tunes on random machines, and judges their answers."""

import asyncio
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

from launcher.base.errors import NothingMeasured
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt, RunSettings
from launcher.tuning.space import Key, draft_length, settings_key
from launcher.tuning.tuner import Predicted, TuneEvent, VerdictReached, tune
from launcher.tuning.verdict import Verdict
from tools.tuner_simulation.bench import PROMPT_TOKENS, SimulatedBench, make_prompts
from tools.tuner_simulation.machine import Machine, Surroundings, compute_true_scores, draw_machine


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The workload of every simulated tune."""

    name: str
    prompts: tuple[Prompt, ...]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


WORK = SimulatedWork("code", make_prompts())
_AT_ONCE = 5
"""The number of machines that a process gets at a time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a tune, compared with the truth.

    `likely` says whether the answer rests on the forecast. `to_best` and `to_baseline` are the true benefit of the
    recommended settings over that of the best and of the baseline, `speedup` that of the best with MTP over the best
    without. `covered` says whether the interval of the gain holds the true gain, None where none is claimed. Errors of
    forecasts are by draft length, as shares. `starts` and `replies` are what was measured, `grid` the settings that can
    be served, `own_s` the tuner's own time. `first_s` is when there was a first answer; `first_to_best` and
    `first_to_baseline` are its benefit.
    """

    kind: str
    noise: float
    answer: str
    likely: bool
    to_best: float
    to_baseline: float
    speedup: float
    covered: bool | None
    errors: dict[int, float]
    starts: int
    replies: int
    grid: int
    seconds: float
    own_s: float
    first_s: float
    first_to_best: float
    first_to_baseline: float


def simulate_tune(number: int, goal: Goal, budget_s: float, surroundings: Surroundings | None = None) -> Outcome:
    """Tune machine `number`, and compare the verdict with the truth."""
    machine = draw_machine(number, surroundings)
    bench = SimulatedBench(machine, seed=number)
    began_s = time.process_time()
    first: list[tuple[float, RunSettings]] = []

    def on_event(event: TuneEvent) -> None:
        if isinstance(event, Predicted):
            first.append((bench.now_s(), event.answer.settings))
        elif isinstance(event, VerdictReached):
            first.append((bench.now_s(), event.verdict.settings))

    try:
        verdict = asyncio.run(tune(bench, machine.space(), WORK, goal, budget_s, seed=number, on_event=on_event))
    except NothingMeasured:
        return _judge_unmeasured(machine, goal, bench, time.process_time() - began_s)
    return judge_verdict(machine, goal, verdict, bench, time.process_time() - began_s, first[0])


def _judge_unmeasured(machine: Machine, goal: Goal, bench: SimulatedBench, own_s: float) -> Outcome:
    """Return the outcome of a tune that could not measure the baseline, so that nothing changes."""
    scores = compute_true_scores(machine, goal, PROMPT_TOKENS)
    to_best = math.exp(scores[settings_key(machine.space().baseline_settings())] - max(scores.values()))
    return Outcome(
        kind=machine.kind,
        noise=machine.run_noise,
        answer="undecided",
        likely=False,
        to_best=to_best,
        to_baseline=1.0,
        speedup=_speedup(scores),
        covered=None,
        errors={},
        starts=bench.starts,
        replies=bench.runs,
        grid=len(scores),
        seconds=bench.now_s(),
        own_s=own_s,
        first_s=bench.now_s(),
        first_to_best=to_best,
        first_to_baseline=1.0,
    )


def judge_verdict(
    machine: Machine,
    goal: Goal,
    verdict: Verdict,
    bench: SimulatedBench,
    own_s: float,
    first: tuple[float, RunSettings],
) -> Outcome:
    """Compare a verdict, and the `first` answer at its time, with the truth."""
    scores = compute_true_scores(machine, goal, PROMPT_TOKENS)
    found, baseline = scores[settings_key(verdict.settings)], scores[settings_key(machine.space().baseline_settings())]
    gain = verdict.gain.ratio if verdict.gain else None
    return Outcome(
        kind=machine.kind,
        noise=machine.run_noise,
        answer=verdict.mtp,
        likely=verdict.likely is not None,
        to_best=math.exp(found - max(scores.values())),
        to_baseline=math.exp(found - baseline),
        speedup=_speedup(scores),
        covered=gain.low <= math.exp(found - baseline) <= gain.high if gain else None,
        errors=_errors(machine, goal, verdict, scores, bench),
        starts=len(verdict.trials),
        replies=sum(len(trial.runs) for trial in verdict.trials),
        grid=len(scores),
        seconds=bench.now_s(),
        own_s=own_s,
        first_s=first[0],
        first_to_best=math.exp(scores[settings_key(first[1])] - max(scores.values())),
        first_to_baseline=math.exp(scores[settings_key(first[1])] - baseline),
    )


def _speedup(scores: dict[Key, float]) -> float:
    on = [score for settings, score in scores.items() if draft_length(dict(settings))]
    off = [score for settings, score in scores.items() if not draft_length(dict(settings))]
    return math.exp(max(on) - max(off)) if on else 0.0


def _errors(
    machine: Machine, goal: Goal, verdict: Verdict, scores: dict[Key, float], bench: SimulatedBench
) -> dict[int, float]:
    """Return the errors of the forecasts. The truth of a machine that drifts is that of its mean condition."""
    drift = statistics.fmean(bench.drifts)
    errors = {}
    for forecast in verdict.forecasts:
        settings = {**verdict.forecast_settings, "draft": forecast.draft}
        if not forecast.draft:
            idle = {axis.name: machine.space().baseline[axis.name] for axis in machine.space().axes if axis.drafting}
            settings |= idle
        if settings_key(settings) in scores:
            errors[forecast.draft] = forecast.value / goal.value_from_score(scores[settings_key(settings)] - drift) - 1
    return errors


def search_exhaustively(number: int, goal: Goal, visits: int, surroundings: Surroundings | None = None) -> Outcome:
    """Measure every setting of a grid several times and take the best mean: an exhaustive search."""
    machine = draw_machine(number, surroundings)
    bench = SimulatedBench(machine, seed=number)
    scores = compute_true_scores(machine, goal, PROMPT_TOKENS)
    found = asyncio.run(_best_of_all(bench, list(scores), goal, visits))
    return Outcome(
        kind=machine.kind,
        noise=machine.run_noise,
        answer="on" if draft_length(dict(found)) else "off",
        likely=False,
        to_best=math.exp(scores[found] - max(scores.values())),
        to_baseline=math.exp(scores[found] - scores[settings_key(machine.space().baseline_settings())]),
        speedup=_speedup(scores),
        covered=None,
        errors={},
        starts=visits * len(scores),
        replies=visits * len(scores) * len(WORK.prompts),
        grid=len(scores),
        seconds=bench.now_s(),
        own_s=0.0,
        first_s=bench.now_s(),
        first_to_best=math.exp(scores[found] - max(scores.values())),
        first_to_baseline=math.exp(scores[found] - scores[settings_key(machine.space().baseline_settings())]),
    )


async def _best_of_all(bench: SimulatedBench, grid: list[Key], goal: Goal, visits: int) -> Key:
    sums = dict.fromkeys(grid, 0.0)
    for turn in range(visits):
        for settings in grid:
            await bench.become(dict(settings), reliable=True)
            runs = [await bench.run(prompt, seed=turn) for prompt in WORK.prompts]
            sums[settings] += statistics.fmean(goal.run_score(run) or 0.0 for run in runs)
    return max(sums, key=sums.__getitem__)


def simulate_tunes(
    numbers: Iterable[int], goal: Goal, budget_s: float, surroundings: Surroundings | None = None
) -> list[Outcome]:
    """Simulate several machines, on all processors."""
    with ProcessPoolExecutor() as pool:
        return list(
            pool.map(simulate_tune, numbers, repeat(goal), repeat(budget_s), repeat(surroundings), chunksize=_AT_ONCE)
        )


def simulate_exhaustive_searches(
    numbers: Iterable[int], goal: Goal, visits: int, surroundings: Surroundings | None = None
) -> list[Outcome]:
    """Search several machines' grids exhaustively."""
    with ProcessPoolExecutor() as pool:
        return list(
            pool.map(
                search_exhaustively, numbers, repeat(goal), repeat(visits), repeat(surroundings), chunksize=_AT_ONCE
            )
        )
