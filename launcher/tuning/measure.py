"""One measurement of what is served now: warmed up, round by round, until it is known well enough or time is over."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Literal

from launcher.base.errors import NothingMeasured
from launcher.monitor.meter import Acceptance, total
from launcher.tuning.plan_of_trials import WARM_UP_TOKENS
from launcher.tuning.records import Bench, Prompt, Run
from launcher.tuning.statistics import Interval, rate_interval

WIDTH = 0.03
"""Half of the interval, as a share of the mean, below which a speed is known well enough."""
MINIMUM, MOST = 3, 30
"""Rounds. Student's t over two would reach 12.7 standard errors to each side."""
_REPEATS = 2
"""How often a round asks again for what was spoilt."""

OnRun = Callable[[Run, int], None]
"""Gets each run, and the number of its round from 1; that of the warm-up is 0."""


class Ended(StrEnum):
    """Why a measurement has ended."""

    NARROW = "narrow"
    MOST = "most"
    BUDGET = "budget"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of some runs and their standard deviation, None for a single one."""

    mean: float
    stdev: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Figure | None":
        """Return the figure of the values that are known, None when there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: all runs but the warm-up, also those that do not count, and why there are no more.

    `interval` is that of the mean decode rate in tokens/s, with rounds as its observations: what the prompts differ by
    is no noise, and what drifts from round to round is. None without a round in which every prompt counted.
    """

    runs: tuple[Run, ...]
    interval: Interval | None
    ended: Ended

    @property
    def answered(self) -> tuple[Run, ...]:
        """The runs that were neither spoilt nor failed, though their speed may be unknown."""
        return tuple(run for run in self.runs if run.spoilt is None and run.error is None)

    @property
    def clock(self) -> Literal["engine", "wall"]:
        """Whose clock the rates are by: the engine's, unless a reply had no timings."""
        return "engine" if all(run.clock == "engine" for run in self.answered) else "wall"

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that may be used."""
        return tuple(run for run in self.runs if run.counts)

    @property
    def decode(self) -> Figure | None:
        """Tokens a second of writing, over all runs that count; its spread holds the prompts' differences, too."""
        return Figure.of([run.decode_rate for run in self.counted])

    @property
    def prefill(self) -> Figure | None:
        """Tokens a second of reading."""
        return Figure.of([run.prefill_rate for run in self.answered])

    @property
    def first_token(self) -> Figure | None:
        """Seconds to the first token, as the reader saw it."""
        return Figure.of([run.first_token_s for run in self.answered])

    @property
    def power(self) -> Figure | None:
        """Watts while replies were written and read."""
        return Figure.of([run.power_w for run in self.counted])

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens of replies for a joule; None where no run has its energy."""
        known = [(run.reply_tokens, run.energy_j) for run in self.counted if run.energy_j]
        return sum(tokens for tokens, _ in known) / sum(joules or 0.0 for _, joules in known) if known else None

    @property
    def hottest_c(self) -> float | None:
        """The highest temperature that a run had, in degrees Celsius."""
        return max((run.temperature_c for run in self.counted if run.temperature_c is not None), default=None)

    @property
    def acceptance(self) -> Acceptance | None:
        """The drafts of all replies; None where none were made."""
        found = [run.acceptance for run in self.answered if run.acceptance is not None]
        return total(found) if found else None


async def measure(
    bench: Bench,
    prompts: Sequence[Prompt],
    *,
    width: float = WIDTH,
    budget_s: float = float("inf"),
    on_run: OnRun | None = None,
    minimum: int = MINIMUM,
    most: int = MOST,
    seed: int = 0,
) -> Measured:
    """Ask every prompt in rounds of what `bench` serves now, after one reply that warms up and counts for nothing.

    It ends when half of the 95 % interval of the decode rate is at most `width` of it and there were `minimum` rounds;
    after `most` rounds, or `minimum` rounds that tell no speed; before a round for which `budget_s` has no time left,
    though there is one always; and when a request fails. A run that was spoilt is asked again at its round's end, twice
    at most. All prompts of a round have the same seed, so two settings measured with the same `seed` are asked alike.

    Raises NothingMeasured when every reply failed or was spoilt. Looking after each round whether it is narrow enough
    makes the interval a little too narrow in the mean (optional stopping): claims about a difference are made by
    `tuner`, not by this.
    """
    began_s = bench.now_s()
    first = await warm_up(bench, prompts, seed)
    _tell(on_run, 0, first)
    runs: list[Run] = []
    rounds: list[float] = []
    ended = Ended.FAILED if first.error else Ended.MOST
    for number in range(1, most + 1) if not first.error else ():
        round_s = bench.now_s()
        done = await ask_round(bench, prompts, seed + number, partial(_tell, on_run, number))
        runs += done
        if any(run.error for run in done):
            ended = Ended.FAILED
            break
        if (rate := round_rate(done, prompts)) is not None:
            rounds.append(rate)
        if number >= minimum and (not rounds or _narrow(rounds, width)):
            ended = Ended.NARROW if rounds else Ended.UNKNOWN
            break
        now_s = bench.now_s()
        if number < most and now_s - began_s + (now_s - round_s) > budget_s:
            ended = Ended.BUDGET
            break
    measured = Measured(tuple(runs), rate_interval(rounds) if rounds else None, ended)
    if not measured.answered:
        why = next((run.error or run.spoilt for run in (first, *runs) if run.error or run.spoilt), "")
        raise NothingMeasured(f"Nothing could be measured. {why}")
    return measured


async def warm_up(bench: Bench, prompts: Sequence[Prompt], seed: int) -> Run:
    """Ask for one short reply, which counts for nothing but an error."""
    return await bench.run(replace(prompts[0], tokens=min(WARM_UP_TOKENS, prompts[0].tokens)), seed=seed)


async def ask_round(bench: Bench, prompts: Sequence[Prompt], seed: int, tell: Callable[[Run], None]) -> list[Run]:
    """Ask every prompt once, then again what was spoilt. It ends with the first request that fails."""
    runs: list[Run] = []
    left = list(prompts)
    for _ in range(1 + _REPEATS):
        spoilt = []
        for prompt in left:
            run = await bench.run(prompt, seed=seed)
            runs.append(run)
            tell(run)
            if run.error:
                return runs
            if run.spoilt:
                spoilt.append(prompt)
        left = spoilt
    return runs


def round_rate(runs: Sequence[Run], prompts: Sequence[Prompt]) -> float | None:
    """Return the mean decode rate of a round in tokens/s; None where not every prompt has one that counts."""
    rates = {run.prompt: run.decode_rate for run in runs if run.counts and run.decode_rate is not None}
    return statistics.fmean(rates.values()) if len(rates) == len(prompts) else None


def _narrow(rounds: Sequence[float], width: float) -> bool:
    if len(rounds) < 2:
        return False
    interval = rate_interval(rounds)
    return interval.half_width <= width * interval.estimate


def _tell(on_run: OnRun | None, number: int, run: Run) -> None:
    if on_run is not None:
        on_run(run, number)
