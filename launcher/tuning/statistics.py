"""Intervals, paired comparisons and sample sizes: textbook statistics in plain Python.

Speeds are compared by their logarithms: a ratio becomes a difference, "twice as fast" and "half as fast" are equally
far from 1, and noise that is proportional to the speed has a constant spread.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from launcher.base.codec import JsonView

CONFIDENCE = 0.95
INTERVAL_NOTE = "± and ranges are 95 % intervals."
"""Note under a table of intervals."""
_TINY = 1e-300
_PRECISION = 1e-15
_MOST_TERMS = 10_000
_MOST_PAIRS = 10_000
_FEWEST_OF_AN_ORDER = 3
"""The fewest pairs of each order for removing the effect of the order."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate from `n` observations and its confidence interval.

    A single observation has no spread: its interval is infinite, not narrow.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("estimate n low high")
    estimate: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Values of the baseline and of a candidate, measured one after the other. Both are above 0."""

    baseline: float
    candidate: float
    baseline_first: bool = True

    @property
    def log_ratio(self) -> float:
        """Logarithm of candidate over baseline."""
        return math.log(self.candidate / self.baseline)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean and its interval by Student's t with n - 1 degrees of freedom.

    It assumes independent values of one nearly normal distribution. Raises ValueError without values.
    """
    if not values:
        raise ValueError("no mean without values")
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Interval(mean, -math.inf, math.inf, n)
    reach = t_quantile((1 + confidence) / 2, n - 1) * statistics.stdev(values, mean) / math.sqrt(n)
    return Interval(mean, mean - reach, mean + reach, n)


def rate_interval(rates: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of rates and an interval by Student's t over logarithms, which has no negative rates.

    Its ends are the mean multiplied and divided by the same factor. Raises ValueError without rates, or if one is 0.
    """
    if len(rates) < 2:
        return mean_interval(rates, confidence)
    logs = mean_interval([math.log(rate) for rate in rates], confidence)
    mean, reach = statistics.fmean(rates), logs.high - logs.estimate
    return Interval(mean, mean * math.exp(-reach), mean * _exp(reach), logs.n)


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean and spread of `n` values. Standard deviation and interval are None for a single value."""

    JSON_VIEW: ClassVar[JsonView] = JsonView("mean stdev low high n")
    mean: float
    stdev: float | None
    low: float | None
    high: float | None
    least: float
    most: float
    n: int

    @classmethod
    def from_values(cls, values: Iterable[float | None]) -> "Figure | None":
        """Return the figure of the known values, which must not be negative. None without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        n = len(known)
        mean = math.fsum(known) / n
        if n < 2:
            return cls(mean, None, None, None, mean, mean, 1)
        # 20 times as fast as statistics.stdev
        stdev = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
        reach = t_quantile((1 + CONFIDENCE) / 2, n - 1) * stdev / math.sqrt(n)
        return cls(mean, stdev, max(0.0, mean - reach), mean + reach, min(known), max(known), n)

    @property
    def span(self) -> float:
        """Difference between the greatest and the least value."""
        return self.most - self.least


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None. None without any."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def plus_minus(interval: Interval, digits: int = 1) -> str:
    """Return " ± 1.3" for the interval of a rate, or a note if the interval is wider than the rate itself."""
    if not math.isfinite(interval.high):
        return ""
    if interval.half_width > interval.estimate / 2:
        return " (too few runs for limits)"
    return f" ± {interval.half_width:.{digits}f}"


def paired_speedup(pairs: Sequence[Pair | tuple[float, float]], confidence: float = CONFIDENCE) -> Interval:
    """Return the typical ratio of candidate to baseline, and its interval by Student's t over logarithms.

    A tuple is a pair of baseline and candidate. Influences on both (heat, other load, the prompt) cancel. If both
    orders occur at least three times, the effect of the order is removed, too (see `crossover_interval`). With fewer
    pairs that would widen the interval more than it helps, and equal numbers of both orders cancel it in the mean.
    """
    all_pairs = [pair if isinstance(pair, Pair) else Pair(*pair) for pair in pairs]
    first = [pair.log_ratio for pair in all_pairs if pair.baseline_first]
    second = [pair.log_ratio for pair in all_pairs if not pair.baseline_first]
    both = min(len(first), len(second)) >= _FEWEST_OF_AN_ORDER
    logs = crossover_interval(first, second, confidence) if both else mean_interval(first + second, confidence)
    return ratio_of_logs(logs)


def swap_pair(pair: Pair) -> Pair:
    """Return the pair with its sides swapped."""
    return Pair(pair.candidate, pair.baseline, not pair.baseline_first)


def speedup_among(
    pairs: Sequence[Pair], comparisons: Sequence[Sequence[Pair]], confidence: float = CONFIDENCE
) -> Interval:
    """Return `paired_speedup` with the pooled spread of all comparisons of the same rounds, of which `pairs` is one.

    Where each of k settings was measured once in each of r rounds, the mean of the k (k - 1) / 2 variances of their
    differences is twice the residual variance of a two-way layout, which has (r - 1) (k - 1) degrees of freedom
    (randomised blocks; Box, Hunter and Hunter, Statistics for Experimenters, chapter 4). This assumes equal relative
    noise at all settings. `comparisons` are all k (k - 1) / 2 of them; with a single one the result is that of
    `paired_speedup`. There must be at least two pairs.
    """
    parts = [_within_orders(each) for each in comparisons if len(each) > 1]
    spread = math.sqrt(sum(squares for squares, _ in parts) / sum(freedom for _, freedom in parts))
    settings = (1 + math.sqrt(1 + 8 * len(comparisons))) / 2
    freedom = max(1, int(sum(freedom for _, freedom in parts) * 2 / settings))
    first = sum(pair.baseline_first for pair in pairs)
    second = len(pairs) - first
    both = min(first, second) >= _FEWEST_OF_AN_ORDER
    error = spread * (math.sqrt(1 / first + 1 / second) / 2 if both else 1 / math.sqrt(len(pairs)))
    effect, reach = math.log(paired_speedup(pairs).estimate), t_quantile((1 + confidence) / 2, freedom) * error
    return ratio_of_logs(Interval(effect, effect - reach, effect + reach, len(pairs)))


def crossover_interval(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the effect from differences in both orders, AB (`first`) and BA (`second`), at least two of each.

    Steady drift adds to the differences in one order what it subtracts from those in the other. So it does not affect
    the mean of the two groups' means, nor the spread within the groups, which has n - 2 degrees of freedom (analysis of
    an AB/BA crossover trial; S. Senn, Cross-over Trials in Clinical Research, chapter 3).
    """
    n = len(first) + len(second)
    means = statistics.fmean(first), statistics.fmean(second)
    squares = sum((value - means[0]) ** 2 for value in first) + sum((value - means[1]) ** 2 for value in second)
    error = math.sqrt(squares / (n - 2) * (1 / len(first) + 1 / len(second))) / 2
    effect = (means[0] + means[1]) / 2
    reach = t_quantile((1 + confidence) / 2, n - 2) * error
    return Interval(effect, effect - reach, effect + reach, n)


def _within_orders(pairs: Sequence[Pair]) -> tuple[float, int]:
    """Return the sum of squared deviations of log-ratios, and its degrees of freedom.

    Deviations are from the mean of all pairs, or from the mean of each order if both orders occur often enough.
    """
    groups = [[each.log_ratio for each in pairs if each.baseline_first is first] for first in (True, False)]
    if min(map(len, groups)) < _FEWEST_OF_AN_ORDER:
        groups = [groups[0] + groups[1]]
    squares = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
    return squares, len(pairs) - len(groups)


def ratio_of_logs(logs: Interval) -> Interval:
    """Return the interval of ratios for an interval of their logarithms."""
    return Interval(math.exp(logs.estimate), math.exp(logs.low), _exp(logs.high), logs.n)


def pairs_needed(spread: float, effect: float, *, confidence: float = CONFIDENCE, power: float = 0.9) -> int:
    """Return how many pairs `paired_speedup` needs to show an effect with the given power: even, at least 4.

    `spread` is the standard deviation of a pair's log-ratio, `effect` the logarithm of the expected ratio.
    """
    normal = statistics.NormalDist()
    # The normal distribution gives a lower bound to start from; Student's t needs more.
    least = (spread / effect * (normal.inv_cdf((1 + confidence) / 2) + normal.inv_cdf(power))) ** 2
    n = min(max(4, 2 * int(min(least, _MOST_PAIRS) / 2)), _MOST_PAIRS)
    while n < _MOST_PAIRS:
        freedom = n - 2 if n >= 2 * _FEWEST_OF_AN_ORDER else n - 1
        reach = t_quantile((1 + confidence) / 2, freedom) + t_quantile(power, freedom)
        if n >= (reach * spread / effect) ** 2:
            break
        n += 2
    return n


def t_two_sided(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies at least this far from 0."""
    if abs(t) < 1:  # equal to the formula below, but loses no digits for small t
        return 1 - _beta_regularised(t * t / (freedom + t * t), 0.5, freedom / 2)
    return _beta_regularised(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=1_024)
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t for a probability between 0 and 1, both excluded.

    Raises ValueError for another probability, and for less than one degree of freedom.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"no quantile {probability} of t with {freedom} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    tail, low, high = 2 * (1 - probability), 0.0, 1.0
    while t_two_sided(high, freedom) > tail:
        high *= 2
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if t_two_sided(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def _beta_regularised(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22, Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_regularised(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return math.exp(log_front) * fraction / a


def _away_from_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
