"""Measurement of the settings in use: a warm-up, then rounds until the interval is narrow enough or time is up."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from launcher.base.errors import NothingMeasured
from launcher.base.messages import join_messages, message
from launcher.monitor.meter import Acceptance, sum_acceptance
from launcher.tuning.measuring_loop import OnRun, after_rounds, send_prompts, visit_rounds, warm_up
from launcher.tuning.records import Bench, Prompt, Run
from launcher.tuning.statistics import Figure, Interval, rate_interval

WIDTH = 0.03
"""Largest half width of the interval, as a share of the mean, at which a measurement ends."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 30
"""Default limits of the number of rounds. With two, Student's t would reach 12.7 standard errors to each side."""


class EndReason(StrEnum):
    """Reason why a measurement ended: see `measure_speed`."""

    NARROW = "narrow"
    MOST = "most"
    BUDGET = "budget"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Result of a measurement: all runs but the warm-up, including disturbed and failed ones, and why it ended.

    `interval` is that of the mean decode rate in tokens/s. Its observations are rounds, so differences between prompts
    do not widen it, but drift from round to round does. None without a round in which every prompt counted.
    """

    runs: tuple[Run, ...]
    interval: Interval | None
    ended: EndReason

    @property
    def answered(self) -> tuple[Run, ...]:
        """The runs that were neither disturbed nor failed. Their speed may still be unknown."""
        return tuple(run for run in self.runs if run.spoilt is None and run.error is None)

    @property
    def clock(self) -> Literal["engine", "wall"]:
        """The clock of the rates: the engine's, unless a reply had no timings."""
        return "engine" if all(run.clock == "engine" for run in self.answered) else "wall"

    @property
    def counted(self) -> tuple[Run, ...]:
        """The usable runs."""
        return tuple(run for run in self.runs if run.is_counted)

    @property
    def rounds(self) -> int:
        """The rounds that the interval rests on."""
        return self.interval.n if self.interval else 0

    @property
    def decode(self) -> Figure | None:
        """Decode rate in tokens/s over all usable runs. The spread includes differences between prompts."""
        return Figure.from_values([run.decode_rate for run in self.counted])

    @property
    def prefill(self) -> Figure | None:
        """Prompt processing rate in tokens/s."""
        return Figure.from_values([run.prefill_rate for run in self.answered])

    @property
    def first_token(self) -> Figure | None:
        """Seconds to the first token, by the client's clock."""
        return Figure.from_values([run.first_token_s for run in self.answered])

    @property
    def power(self) -> Figure | None:
        """Mean GPU power in watts during the requests."""
        return Figure.from_values([run.power_w for run in self.counted])

    @property
    def tokens_per_joule(self) -> float | None:
        """Reply tokens per joule. None if no run has its energy."""
        known = [(run.reply_tokens, run.energy_j) for run in self.counted if run.energy_j]
        return sum(tokens for tokens, _ in known) / sum(joules or 0.0 for _, joules in known) if known else None

    @property
    def hottest_c(self) -> float | None:
        """Highest temperature of a run, in degrees Celsius."""
        return max((run.temperature_c for run in self.counted if run.temperature_c is not None), default=None)

    @property
    def acceptance(self) -> Acceptance | None:
        """Draft acceptance of all replies together. None if nothing was drafted."""
        known = [run.acceptance for run in self.answered if run.acceptance is not None]
        return sum_acceptance(known) if known else None


async def measure_speed(
    bench: Bench,
    prompts: Sequence[Prompt],
    *,
    width: float = WIDTH,
    budget_s: float = float("inf"),
    on_run: OnRun = lambda *_: None,
    least_rounds: int = LEAST_ROUNDS,
    most_rounds: int = MOST_ROUNDS,
    seed: int = 0,
) -> MeasuredSpeed:
    """Send every prompt in rounds to the server of `bench`, after one warm-up reply that does not count.

    It ends
    - NARROW, after at least `least_rounds`, when the half width of the 95 % interval is at most `width` of the mean;
    - UNKNOWN, after `least_rounds` without a known speed;
    - MOST, after `most_rounds`;
    - BUDGET, before a round that would probably exceed `budget_s`, but never before the first;
    - FAILED, when a request fails.

    Disturbed runs are repeated at the end of their round, twice at most. All prompts of a round have the same seed, so
    two settings measured with the same `seed` get the same requests. `on_run` gets each run and its round's number.

    Raises NothingMeasured when every reply failed or was disturbed. Checking the width after each round makes the
    interval slightly too narrow on average (optional stopping), so it proves no difference between settings: `tuner`
    does.
    """
    began_s = bench.now_s()
    warm = await warm_up(bench, prompts[0], seed)
    on_run(warm, 0)
    runs: list[Run] = []
    rates: list[float] = []
    ended = EndReason.FAILED if warm.error else EndReason.MOST
    for number, _ in visit_rounds([bench], after_rounds(0 if warm.error else most_rounds)):
        round_began_s = bench.now_s()
        round_runs = await send_prompts(bench, prompts, seed, number, on_run)
        runs += round_runs
        if any(run.error for run in round_runs):
            ended = EndReason.FAILED
            break
        if (rate := round_rate(round_runs, prompts)) is not None:
            rates.append(rate)
        if number >= least_rounds and (not rates or _is_narrow(rates, width)):
            ended = EndReason.NARROW if rates else EndReason.UNKNOWN
            break
        now_s = bench.now_s()
        if number < most_rounds and now_s - began_s + (now_s - round_began_s) > budget_s:
            ended = EndReason.BUDGET
            break
    measured = MeasuredSpeed(tuple(runs), rate_interval(rates) if rates else None, ended)
    if not measured.answered:
        why = next((run.error or run.spoilt for run in (warm, *runs) if run.error or run.spoilt), "")
        raise NothingMeasured(join_messages(message("Nothing could be measured."), why))
    return measured


def round_rate(runs: Sequence[Run], prompts: Sequence[Prompt]) -> float | None:
    """Return the mean decode rate of a round in tokens/s. None unless every prompt has a usable run."""
    rates = {run.prompt: run.decode_rate for run in runs if run.is_counted and run.decode_rate is not None}
    return statistics.fmean(rates.values()) if len(rates) == len(prompts) else None


def _is_narrow(rates: Sequence[float], width: float) -> bool:
    if len(rates) < 2:
        return False
    interval = rate_interval(rates)
    return interval.half_width <= width * interval.estimate
