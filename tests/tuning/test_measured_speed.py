"""The measurement of one setting, on a bench in virtual time whose speeds are known."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import scipy

from launcher.base.errors import NothingMeasured
from launcher.monitor.meter import Acceptance
from launcher.tuning.measured_speed import EndReason, MeasuredSpeed, measure_speed
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.statistics import Figure

PROMPTS = tuple(Prompt(name, (("user", name),), tokens=100) for name in ("a", "b"))
DRAFTS = Acceptance(60, 45, (30, 30), (25, 20))


class Ask(NamedTuple):
    """A request, and how many there were before."""

    prompt: str
    seed: int
    before: int


class Timed:
    """A bench whose replies have a given speed."""

    def __init__(
        self, speed: Callable[[Ask], float | None], mark: Callable[[Ask], dict[str, str]] = lambda _: {}
    ) -> None:
        self.requests: list[tuple[str, int, int]] = []
        self._speed, self._mark = speed, mark
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    async def become(self, settings: RunSettings, **_: bool) -> float:
        assert not settings
        return 0.0

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        ask = Ask(prompt.name, seed, len(self.requests))
        self.requests.append((prompt.name, seed, prompt.tokens))
        began_s, rate = self._now_s, self._speed(ask)
        self._now_s += prompt.tokens / (rate or 100.0)
        marks = self._mark(ask)
        return Run(
            prompt.name,
            {},
            began_s,
            self._now_s - began_s,
            reply_tokens=prompt.tokens,
            decode_rate=rate,
            acceptance=DRAFTS,
            spoilt=marks.get("spoilt"),
            error=marks.get("error"),
        )


async def test_a_warm_up_is_dropped_and_a_round_has_one_seed() -> None:
    received: list[int] = []
    bench = Timed(lambda ask: 1.0 if ask.before == 0 else 50.0)
    measured = await measure_speed(bench, PROMPTS, seed=40, on_run=lambda _, number: received.append(number))
    assert bench.requests == [("a", 40, 24), *((name, seed, 100) for seed in (41, 42, 43) for name in "ab")]
    assert received == [0, 1, 1, 2, 2, 3, 3]
    assert measured.ended is EndReason.NARROW
    assert measured.decode == Figure.from_values([50.0] * 6)
    assert measured.acceptance
    assert measured.acceptance.drafted == 6 * DRAFTS.drafted
    assert measured.acceptance.accepted_by_position == (150, 120)


async def test_differences_between_prompts_are_not_noise() -> None:
    speeds = {"a": 100.0, "b": 20.0}
    measured = await measure_speed(Timed(lambda ask: speeds[ask.prompt]), PROMPTS)
    assert measured.ended is EndReason.NARROW
    assert measured.interval
    assert measured.interval.estimate == 60.0
    assert measured.interval.half_width == 0.0


async def test_measuring_ends_when_the_interval_is_narrow_enough() -> None:
    noise = random.Random(7)
    speeds = [noise.gauss(80.0, 4.0) for _ in range(500)]
    measured = await measure_speed(Timed(lambda ask: speeds[ask.before]), PROMPTS[:1], width=0.02, most_rounds=400)
    assert measured.ended is EndReason.NARROW
    rates = [run.decode_rate or 0.0 for run in measured.runs]
    assert rates == speeds[1 : 1 + len(rates)]
    for count in range(3, len(rates) + 1):
        logs = [math.log(rate) for rate in rates[:count]]
        reach = scipy.stats.t.interval(0.95, count - 1, loc=0.0, scale=scipy.stats.sem(logs))[1]
        assert (math.sinh(reach) <= 0.02) == (count == len(rates))
    assert measured.interval
    assert measured.interval.low < 80.0 < measured.interval.high
    assert measured.interval.n == len(rates)


async def test_measuring_ends_with_its_rounds_or_its_time() -> None:
    def alternating_speed(ask: Ask) -> float:
        return 100.0 if ask.seed % 2 else 10.0

    measured = await measure_speed(Timed(alternating_speed), PROMPTS, most_rounds=7)
    assert (measured.ended, len(measured.runs)) == (EndReason.MOST, 14)
    bench = Timed(alternating_speed)
    measured = await measure_speed(bench, PROMPTS, budget_s=60.0)
    assert measured.ended is EndReason.BUDGET
    assert bench.now_s() <= 60.0
    measured = await measure_speed(Timed(alternating_speed), PROMPTS, budget_s=0.0)
    assert len(measured.runs) == 2, "one round there is always"
    assert measured.interval
    assert measured.interval.high == float("inf"), "one round says nothing of its spread"


async def test_a_spoilt_run_is_repeated_at_the_end_of_its_round_and_not_counted() -> None:
    def spoil_as_throttled(ask: Ask) -> dict[str, str]:
        return {"spoilt": "The GPU was held back."} if ask.prompt == "a" and ask.seed == 2 and ask.before < 5 else {}

    bench = Timed(lambda ask: 5.0 if spoil_as_throttled(ask) else 50.0, spoil_as_throttled)
    measured = await measure_speed(bench, PROMPTS)
    assert [name for name, seed, _ in bench.requests if seed == 2] == ["a", "b", "a"]
    assert measured.decode == Figure.from_values([50.0] * 6)
    assert len(measured.runs) == 7


async def test_a_round_that_stays_spoilt_is_left_out() -> None:
    def spoil_as_busy(ask: Ask) -> dict[str, str]:
        return {"spoilt": "Another program came."} if ask.prompt == "a" and ask.seed == 1 else {}

    measured = await measure_speed(Timed(lambda _: 50.0, spoil_as_busy), PROMPTS)
    assert sum(run.spoilt is not None for run in measured.runs) == 3
    assert measured.interval
    assert measured.interval.n == 2
    assert len(measured.counted) == 5


async def test_a_failed_request_ends_measuring_and_earlier_runs_stay() -> None:
    def fail_after_four(ask: Ask) -> dict[str, str]:
        return {"error": "The engine ended."} if ask.before >= 4 else {}

    measured = await measure_speed(Timed(lambda _: 50.0, fail_after_four), PROMPTS)
    assert measured.ended is EndReason.FAILED
    assert [run.error for run in measured.runs] == [None, None, None, "The engine ended."]
    assert measured.interval
    assert measured.interval.n == 1


@pytest.mark.parametrize("kind", ["error", "spoilt"])
async def test_no_result_has_its_reason(kind: str) -> None:
    with pytest.raises(NothingMeasured, match="It rains"):
        await measure_speed(Timed(lambda _: 50.0, lambda _: {kind: "It rains."}), PROMPTS)


async def test_replies_too_short_for_a_speed_end_measuring() -> None:
    measured = await measure_speed(Timed(lambda _: None), PROMPTS)
    assert (measured.ended, len(measured.runs)) == (EndReason.UNKNOWN, 6)
    assert (measured.decode, measured.interval) == (None, None)


def test_energy_figures_are_sums_and_not_means_of_ratios() -> None:
    def run(tokens: int, joules: float | None, celsius: float | None) -> Run:
        return Run("a", {}, 0, 1, reply_tokens=tokens, decode_rate=9.0, energy_j=joules, temperature_c=celsius)

    measured = MeasuredSpeed((run(100, 50.0, 60.0), run(300, 50.0, 71.0), run(80, None, None)), None, EndReason.MOST)
    assert measured.tokens_per_joule == 4.0
    assert measured.hottest_c == 71.0
    assert measured.power is None
    assert MeasuredSpeed((run(80, None, None),), None, EndReason.MOST).tokens_per_joule is None
