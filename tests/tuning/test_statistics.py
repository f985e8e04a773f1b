"""The statistics, compared with scipy, with published examples, and with the stated coverage of intervals."""

import math
import random
import statistics

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.codec import to_json
from launcher.tuning.statistics import (
    Interval,
    Pair,
    crossover_interval,
    mean_interval,
    paired_speedup,
    pairs_needed,
    rate_interval,
    speedup_among,
    t_quantile,
    t_two_sided,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 29, 150, 5_000])
def test_quantiles_of_t_equal_those_of_scipy(freedom: int) -> None:
    probabilities = [0.001, 0.3, 0.5, 0.6, 0.9, 0.975, 0.98, 0.995, 0.99999]
    found = [t_quantile(probability, freedom) for probability in probabilities]
    assert found == pytest.approx(scipy.stats.t.ppf(probabilities, freedom), rel=1e-9, abs=1e-12)


@given(st.floats(-60, 60), st.integers(1, 500))
def test_tails_of_t_equal_those_of_scipy(t: float, freedom: int) -> None:
    assert t_two_sided(t, freedom) == pytest.approx(2 * scipy.stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_an_undefined_quantile_is_refused(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, freedom)


@given(st.lists(st.floats(1, 1_000), min_size=2, max_size=40))
def test_the_interval_of_a_mean_equals_that_of_scipy(values: list[float]) -> None:
    found = mean_interval(values)
    assert found.estimate == pytest.approx(statistics.fmean(values))
    assert found.n == len(values)
    if statistics.stdev(values) > 1e-6:
        low, high = scipy.stats.t.interval(
            0.95, len(values) - 1, loc=statistics.fmean(values), scale=scipy.stats.sem(values)
        )
        assert (found.low, found.high) == pytest.approx((low, high))


def test_one_value_has_no_interval() -> None:
    alone = mean_interval([5.0])
    assert alone == Interval(5.0, -math.inf, math.inf, 1)
    assert to_json(alone) == {"estimate": 5.0, "low": None, "high": None, "n": 1}
    with pytest.raises(ValueError, match="without values"):
        mean_interval([])


def test_a_paired_comparison_equals_that_of_scipy_on_logarithms() -> None:
    before, after = [50.1, 49.2, 51.7, 48.8, 50.3], [71.0, 69.9, 72.5, 70.2, 68.8]
    found = paired_speedup(list(zip(before, after, strict=True)))
    test = scipy.stats.ttest_rel([math.log(x) for x in after], [math.log(x) for x in before])
    low, high = test.confidence_interval(0.95)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high))
    assert found.estimate == pytest.approx(statistics.geometric_mean(b / a for a, b in zip(before, after, strict=True)))


def test_a_crossover_is_the_regression_on_effect_and_order() -> None:
    first, second = [0.31, 0.28, 0.35, 0.30], [0.22, 0.19, 0.24, 0.26]
    found = crossover_interval(first, second)
    line = scipy.stats.linregress([0.5] * 4 + [-0.5] * 4, first + second)  # the order's effect is its slope
    reach = scipy.stats.t.ppf(0.975, 6) * line.intercept_stderr
    assert (found.low, found.estimate, found.high) == pytest.approx(
        (line.intercept - reach, line.intercept, line.intercept + reach)
    )


def test_steady_drift_cancels_in_a_comparison_in_both_orders() -> None:
    """A machine that slows down by 3 % from one measurement to the next, and a candidate that is 10 % faster."""
    pairs, speed = [], 100.0
    for number in range(8):
        earlier, later = speed, speed * 0.97
        first = number % 2 == 0
        pairs.append(Pair(earlier, later * 1.1) if first else Pair(later, earlier * 1.1, baseline_first=False))
        speed *= 0.97**2
    found = paired_speedup(pairs)
    assert found.estimate == pytest.approx(1.1)
    assert found.high - found.low < 1e-9
    spread_by_order = paired_speedup([(pair.baseline, pair.candidate) for pair in pairs])
    assert spread_by_order.high - spread_by_order.low > 0.03


@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_an_interval_contains_the_truth_as_often_as_stated(n: int) -> None:
    random_ = random.Random(7)
    kept = 0
    for _ in range(4_000):
        found = paired_speedup([(1.0, math.exp(random_.gauss(0.2, 0.05))) for _ in range(n)])
        kept += found.low <= math.exp(0.2) <= found.high
    assert kept / 4_000 == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


def test_the_computed_number_of_pairs_shows_the_effect_as_often_as_requested() -> None:
    random_ = random.Random(3)
    n = pairs_needed(0.03, 0.04)
    shown = 0
    for _ in range(3_000):
        logs = [random_.gauss(0.04, 0.03) for _ in range(n)]
        shown += crossover_interval(logs[::2], logs[1::2]).low > 0
    assert 0.88 < shown / 3_000 < 0.96
    assert n % 2 == 0
    assert pairs_needed(0.03, 0.5) == 4
    assert pairs_needed(1.0, 1e-9) == 10_000


def rounds_of_three(rounds: int, seed: int) -> tuple[np.ndarray, list[list[Pair]]]:
    """Logarithms of three settings by round, and the pairs of (0, 1), (0, 2) and (1, 2)."""
    dice = np.random.default_rng(seed)
    logs = dice.normal(0, 0.05, (rounds, 3)) + dice.normal(0, 0.3, (rounds, 1)) + np.array([0.0, 0.1, -0.05])
    pairs = [[Pair(math.exp(row[a]), math.exp(row[b])) for row in logs] for a, b in ((0, 1), (0, 2), (1, 2))]
    return logs, pairs


def test_comparisons_of_the_same_rounds_share_the_residual_of_a_two_way_layout() -> None:
    logs, pairs = rounds_of_three(4, seed=1)
    residual = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    variance, freedom = (residual**2).sum() / 6, 6
    found = speedup_among(pairs[0], pairs)
    reach = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(2 * variance / 4)
    effect = (logs[:, 1] - logs[:, 0]).mean()
    assert math.log(found.low) == pytest.approx(effect - reach)
    assert math.log(found.high) == pytest.approx(effect + reach)
    assert found.estimate == pytest.approx(paired_speedup(pairs[0]).estimate)


@pytest.mark.parametrize("orders", [[True] * 5, [True, False] * 2, [True, False] * 3, [True, False] * 8])
def test_a_single_comparison_equals_that_of_its_pairs(orders: list[bool]) -> None:
    dice = np.random.default_rng(2)
    pairs = [Pair(1.0, math.exp(dice.normal(0.1, 0.05)), order) for order in orders]
    for confidence in (0.9, 0.95, 0.99):
        one, other = speedup_among(pairs, [pairs], confidence), paired_speedup(pairs, confidence)
        assert (one.estimate, one.low, one.high) == pytest.approx((other.estimate, other.low, other.high))


def test_a_shared_spread_contains_the_truth_as_often_as_stated() -> None:
    held = 0
    for seed in range(1_000):
        _, pairs = rounds_of_three(4, seed)
        found = speedup_among(pairs[1], pairs)
        held += math.log(found.low) <= -0.05 <= math.log(found.high)
    assert 930 <= held <= 970


@given(st.lists(st.floats(1, 1_000), min_size=2, max_size=40))
def test_the_interval_of_rates_equals_that_of_their_logarithms_by_scipy(rates: list[float]) -> None:
    found, mean, logs = rate_interval(rates), statistics.fmean(rates), np.log(rates)
    assert (found.estimate, found.n) == (pytest.approx(mean), len(rates))
    assert found.low > 0
    if logs.std() > 1e-6:
        _, high = scipy.stats.t.interval(0.95, len(rates) - 1, loc=0, scale=scipy.stats.sem(logs))
        assert found.low == pytest.approx(mean * math.exp(-high), rel=1e-6)
        if high < 500:  # beyond that the factor is no number
            assert found.high == pytest.approx(mean * math.exp(high), rel=1e-6)
