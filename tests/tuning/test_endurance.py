"""Sustained load: real changes are found, no others are, and the causes come from the sensors."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
import scipy

from launcher.base.errors import EngineFailed, NothingMeasured
from launcher.tuning.endurance import (
    ALPHA,
    FEWEST_REPLIES,
    EnduranceVerdict,
    find_change,
    find_levels,
    judge_endurance,
    steps_rate,
    sustain_load,
)
from launcher.tuning.records import Prompt, Run
from launcher.tuning.statistics import Interval
from tests.tuning.clocked import Moment, Speed, VirtualBench

PROMPT = Prompt("code", (("user", "Write a parser."),), 400)
SETTINGS = {"draft": 2, "ctx": 8_192}


async def measure_endurance(
    speed: Callable[[float], Speed], minutes: float = 10.0, noise: float = 0.01
) -> tuple[EnduranceVerdict, VirtualBench, list[Run]]:
    """`speed` gets roughly the seconds since the first reply."""
    bench = VirtualBench(lambda moment: speed(moment.now_s - 105), noise)
    runs: list[Run] = []
    await sustain_load(bench, SETTINGS, PROMPT, minutes * 60, on_run=runs.append)
    return judge_endurance(runs), bench, runs


def series(n: int, alike: float, spread: float, dice: random.Random) -> list[float]:
    """Noise in which each value has the correlation `alike` with the next."""
    at, found = dice.gauss(0, 1), []
    for _ in range(n):
        at = alike * at + math.sqrt(1 - alike * alike) * dice.gauss(0, 1)
        found.append(100 * (1 + spread * at))
    return found


async def test_a_steady_speed_holds() -> None:
    result, bench, runs = await measure_endurance(lambda _: Speed(60.0, 70.0, 2_400.0, 300.0))
    assert result.answer == "holds"
    assert result.sentence.startswith("Holds over 10 min: with 95 % confidence the last third is ")
    assert result.fall is None
    assert result.thirds
    assert result.thirds.low < 1 < result.thirds.high
    assert len(result.stretches) == 1
    assert 595 < result.seconds < 610
    assert bench.starts == [SETTINGS]
    assert len(bench.prompts) == len(runs) + 1  # the first prompt warms up
    assert len(set(bench.seeds)) == 1
    warm = 96 * (1 + random.Random(7).gauss(0, 0.01))  # tokens/s of the first one: a step yields 1.6
    assert {prompt.tokens for prompt in bench.prompts[1:]} == {round(warm * 3)}  # as many tokens as take 3 s


async def test_a_clock_lowered_by_heat_is_found_with_time_and_reason() -> None:
    def throttled_speed(s: float) -> Speed:
        return Speed(60.0, 66.0, 2_500.0, 300.0) if s < 240 else Speed(52.0, 84.0, 2_150.0, 280.0)

    result, _, _ = await measure_endurance(throttled_speed)
    assert result.answer == "falls"
    assert result.fall == pytest.approx(1 - 52 / 60, abs=0.01)
    assert result.after_s == pytest.approx(240, abs=10)
    assert result.because == ("because the GPU's clock fell from 2,500 to 2,150 MHz at 84 °C (before: 66 °C)")
    assert result.sentence == f"Falls by 13 % after 4.0 min, {result.because}."
    assert [row.temperature_c for row in result.rows][::9] == [66.0, 84.0]
    assert len(result.rows) in (10, 11)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (
            Speed(50, 70.0, 2_500.0, 300.0, spoilt="The GPU's memory is full, and the rest lies in host memory."),
            "because of disturbances: The GPU's memory is full, and the rest lies in host memory",
        ),
        (
            Speed(50, 66.0, 2_500.0, 220.0),
            "because the GPU waits for host memory or the processor (the GPU drew 220 W, not 300, at",
        ),
        (Speed(50, 66.0, 2_490.0, 300.0), "for an unknown reason: clock and power are about the same"),
        (Speed(50), "for an unknown reason: no sensor reports clock or power"),
        (
            Speed(50, 85.0, 2_000.0, spoilt="The GPU was held back (temperature (driver))."),
            "because the GPU's clock fell from 2,500 to 2,000 MHz at 85 °C (before: 65 °C) (The GPU was held back",
        ),
    ],
)
async def test_the_reason_of_a_drop_is_read_from_sensors(after: Speed, why: str) -> None:
    before = Speed(60, 65.0, 2_500.0, 300.0) if after.clock_mhz else Speed(60)
    result, _, _ = await measure_endurance(lambda s: before if s < 200 else after)
    assert result.answer == "falls"
    assert result.because
    assert result.because.startswith(why)


async def test_a_short_load_is_reported_as_too_short() -> None:
    for minutes, short in ((2.0, True), (4.0, False)):
        result, _, _ = await measure_endurance(lambda s: Speed(60.0 if s < 40 else 30.0), minutes=minutes)
        assert result.answer == "falls"
        assert ("at least 3 minutes are needed" in result.sentence) is short


async def test_a_slow_decline_counts_as_a_drop() -> None:
    result, _, _ = await measure_endurance(lambda s: Speed(60.0 * (1 - 0.1 * s / 600)))
    assert result.answer == "falls"
    assert result.fall
    assert 0.05 < result.fall <= 0.1


async def test_a_decline_without_a_change_point_is_found_by_thirds() -> None:
    """With so few replies no change of level can be significant among all orders."""
    result, _, runs = await measure_endurance(lambda s: Speed(12.0 * (1 - 0.25 * s / 120)), minutes=1.4, noise=0.04)
    assert FEWEST_REPLIES <= len(runs) < 30
    assert len(result.stretches) == 1
    assert result.answer == "falls"
    assert result.after_s is None
    assert result.sentence.startswith("Falls by 1")
    assert " from the first third to the last, for an unknown reason" in result.sentence


async def test_a_temporary_dip_is_reported_but_holds() -> None:
    result, _, _ = await measure_endurance(lambda s: Speed(48.0 if 180 <= s < 300 else 60.0))
    assert result.answer == "holds"
    assert "Between 3.0 min and 5.1 min it was 19 % slower." in result.sentence
    assert len(result.stretches) == 3


async def test_an_increase_holds() -> None:
    result, _, _ = await measure_endurance(lambda s: Speed(50.0 if s < 120 else 60.0))
    assert result.answer == "holds"
    assert "For the first 2.0 min it was 17 % slower." in result.sentence


async def test_another_draft_acceptance_is_no_change_of_speed() -> None:
    """Steps are judged, not tokens: MTP that guesses worse for a while is no hot GPU."""
    one = Run("code", SETTINGS, 0.0, 2.0, reply_tokens=100, decode_rate=100.0)
    assert steps_rate(one) == 100.0
    _, _, runs = await measure_endurance(lambda _: Speed(60.0))
    assert steps_rate(runs[0]) == pytest.approx(60.0, rel=0.05)
    assert runs[0].decode_rate == pytest.approx(96.0, rel=0.05)


async def test_too_few_or_noisy_replies_are_undecided() -> None:
    result, _, runs = await measure_endurance(lambda _: Speed(2.0), minutes=3)
    assert len(runs) < FEWEST_REPLIES
    assert result.answer == "undecided"
    assert result.sentence == f"Undecided: {len(runs)} replies are too few; at least 20 are needed."
    result, _, _ = await measure_endurance(lambda _: Speed(60.0), minutes=2, noise=0.3)
    assert result.answer == "undecided"
    assert "varies too much" in result.sentence
    assert judge_endurance([]).answer == "undecided"


async def test_a_server_that_crashes_is_reported_with_earlier_results() -> None:
    result, _, runs = await measure_endurance(lambda s: Speed(60.0) if s < 300 else Speed(0, error="The engine ended."))
    assert result.answer == "ended"
    assert result.sentence.startswith(
        "The server stopped responding after 5.0 min: The engine ended. Until then: Holds"
    )
    assert [run.error for run in runs[-4:]] == [None, *["The engine ended."] * 3]
    lost: list[int] = []

    def once(moment: Moment) -> Speed:
        lost.append(1)
        return Speed(60.0, error="The connection broke off." if len(lost) == 30 else None)

    bench, runs = VirtualBench(once), []
    await sustain_load(bench, SETTINGS, PROMPT, 300, on_run=runs.append)
    assert judge_endurance(runs).answer == "holds"


async def test_subjects_that_cannot_be_served_are_an_error() -> None:
    with pytest.raises(EngineFailed):
        await sustain_load(
            VirtualBench(lambda _: Speed(1), fails_to_start=lambda _: True), SETTINGS, PROMPT, 60, on_run=print
        )
    with pytest.raises(NothingMeasured, match="The engine ended"):
        await sustain_load(
            VirtualBench(lambda _: Speed(1, error="The engine ended.")), SETTINGS, PROMPT, 60, on_run=print
        )


def test_the_change_point_maximises_the_variance_between_segments() -> None:
    dice = random.Random(3)
    for _ in range(20):
        n = dice.randint(10, 24)
        # Rounded, so that some values are equal.
        values = [round(dice.gauss(100, 5)) + (4.0 if n / 3 < i < 2 * n / 3 else 0.0) for i in range(n)]
        ranks = scipy.stats.rankdata(values)
        squares = {}
        for begin in range(n):
            for end in range(begin + 5, n):
                before, inside, after = ranks[:begin], ranks[begin:end], ranks[end:]
                outside = [*before, *after]
                if len(outside) >= 5 and all(len(part) == 0 or len(part) >= 5 for part in (before, after)):
                    means = sum(inside) / len(inside), sum(outside) / len(outside)
                    squares[begin, end] = len(inside) * len(outside) / n * (means[0] - means[1]) ** 2
        found = find_change(values)
        assert found
        assert squares[found.begin, found.end] == pytest.approx(max(squares.values()))


@pytest.mark.parametrize(("alike", "most"), [(0.0, 0.02), (0.3, 0.1)])
def test_noise_is_rarely_taken_for_a_change(alike: float, most: float) -> None:
    dice = random.Random(11)
    found = [find_change(series(50, alike, 0.03, dice)) for _ in range(100)]
    assert sum(each is not None and each.chance <= ALPHA for each in found) / 100 <= most


def test_a_step_is_found_where_it_is() -> None:
    dice = random.Random(5)
    for _ in range(8):
        values = series(120, 0.2, 0.02, dice)
        found = find_levels([value * (0.94 if i >= 70 else 1.0) for i, value in enumerate(values)])
        assert min(abs(each.last - 69) for each in found) <= 6


def test_a_clear_change_is_as_unlikely_by_chance_as_999_orders_can_show() -> None:
    dice = random.Random(3)
    found = find_change([dice.gauss(0 if i < 40 else 8, 1) for i in range(80)])
    assert found is not None
    assert (found.begin, found.end, found.chance) == (0, 40, 1 / 1_000)


def test_levels_cover_the_series() -> None:
    dice = random.Random(2)
    values = [dice.gauss(100 if i < 50 else 90 if i < 90 else 97, 0.5) for i in range(150)]
    found = find_levels(values)
    assert [(each.first, each.last) for each in found] == [(0, 49), (50, 89), (90, 149)]
    assert [each.mean for each in found] == pytest.approx([100, 90, 97], abs=0.3)
    assert find_change([1.0] * 9) is None
    assert find_levels([]) == []
    assert len(find_levels([5.0] * 100)) == 1
    assert len(find_levels([5.0] * 50 + [4.0] * 50)) == 2


@pytest.mark.thorough
def test_verdicts_on_simulated_loads_are_right() -> None:
    """Over 60 replies, noise of 1 % never causes a wrong verdict, noise of 5 % seldom."""

    def verdicts(spread: float, after: float) -> list[str]:
        found = []
        for _ in range(25):
            rates = series(60, 0.0, spread, dice)
            runs, at_s = [], 0.0
            for number, rate in enumerate(rates):
                true = rate * (after if number >= 24 else 1.0)
                runs.append(Run("code", {}, at_s, 300 / true, reply_tokens=300, decode_rate=true))
                at_s += 300 / true
            found.append(judge_endurance(runs).answer)
        return found

    dice = random.Random(9)
    assert set(verdicts(0.01, 1.0)) == {"holds"}
    assert set(verdicts(0.01, 0.92)) == {"falls"}
    assert verdicts(0.05, 1.0).count("falls") <= 2
    assert verdicts(0.05, 0.92).count("falls") >= 22


async def test_thirds_are_compared_by_welchs_test() -> None:
    result, _, runs = await measure_endurance(lambda s: Speed(60.0 if s < 400 else 59.5), noise=0.02)
    rates = [math.log(rate) for run in runs if (rate := steps_rate(run))]
    third = len(rates) // 3

    def blocks(values: list[float]) -> list[float]:
        cuts = [round(number * len(values) / 10) for number in range(11)]
        return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]

    late, early = blocks(rates[-third:]), blocks(rates[:third])
    theirs = scipy.stats.ttest_ind(late, early, equal_var=False)
    interval = result.thirds
    assert isinstance(interval, Interval)
    assert math.log(interval.estimate) == pytest.approx(sum(late) / 10 - sum(early) / 10)
    bounds = theirs.confidence_interval(0.95)
    assert math.log(interval.low) == pytest.approx(bounds.low, abs=2e-4)  # scipy's degrees of freedom are not whole
    assert math.log(interval.high) == pytest.approx(bounds.high, abs=2e-4)
    assert math.log(interval.low) <= bounds.low
