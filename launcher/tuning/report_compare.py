"""How many times as fast some runs are as others, and between which limits.

Runs of one start of a server are more alike than those of two, so where both sides were started several times it is
starts that are compared, each by the typical speed of its runs: neighbours in pairs, so that what drifts cancels.
Of fewer starts rounds are compared, each the typical speed of one reply to every prompt that both have: the replies of
a round are more alike than rounds are, and what the prompts differ by is no noise. Rounds that took turns are pairs.
Where there is but one round, its prompts are the pairs. All else is compared by Welch's t test on the logarithms of the
speeds, which asks for no equal spread (B. L. Welch, Biometrika 34, 1947).
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.tuning.records import Run
from launcher.tuning.statistics import CONFIDENCE, Interval, Pair, exponential, paired_speedup, t_quantile

FEWEST_STARTS = 3
"""Starts on each side from which these are compared, and not their runs."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """The typical ratio of speeds, `paired` or not; the ends of its interval are infinite (0) for too few runs."""

    ratio: Interval
    paired: bool

    @property
    def told_apart(self) -> bool:
        """Whether one is faster, at that confidence."""
        return not self.ratio.low <= 1 <= self.ratio.high


@dataclass(frozen=True, slots=True)
class Start:
    """Runs with the same settings one after the other: those of one start. `number` counts the starts."""

    number: int
    runs: tuple[Run, ...]

    @property
    def rate(self) -> float | None:
        """The typical speed of those that count: their geometric mean."""
        logs = [math.log(run.decode_rate) for run in self.runs if run.counts and run.decode_rate]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None

    @property
    def rounds(self) -> tuple[float, ...]:
        """The mean speed of each round, in which every prompt was answered once: what `bench` takes, too."""
        return tuple(statistics.fmean(each.values()) for each in _rounds(_rates(self.runs)))


def speedup_of_starts(
    baseline: Sequence[Start],
    candidate: Sequence[Start],
    *,
    together: bool = True,
    by_start: bool = False,
    confidence: float = CONFIDENCE,
) -> Speedup:
    """Return how many times as fast the candidate's starts were; `together` means: of one measurement, taking turns.

    `by_start` gives no limits where there are fewer than FEWEST_STARTS on a side: replies of one start do not show how
    starts differ. Raises ValueError when one of them has no run that counts.
    """
    before = {start.number: rate for start in baseline if (rate := start.rate)}
    after = {start.number: rate for start in candidate if (rate := start.rate)}
    if min(len(before), len(after)) < FEWEST_STARTS:
        runs = [[run for start in each for run in start.runs] for each in (baseline, candidate)]
        found = speedup(*runs, together=together, confidence=confidence)
        return replace(found, ratio=replace(found.ratio, low=0.0, high=math.inf)) if by_start else found
    pairs = _neighbours(before, after) if together else []
    if len(pairs) >= FEWEST_STARTS and 2 * len(pairs) >= min(len(before), len(after)):
        return Speedup(paired_speedup(pairs, confidence), paired=True)
    return Speedup(welch(list(before.values()), list(after.values()), confidence), paired=False)


def _neighbours(before: Mapping[int, float], after: Mapping[int, float]) -> list[Pair]:
    """Return pairs of starts that follow one another, each start in one pair at most."""
    order = sorted([*before, *after])
    pairs: list[Pair] = []
    at = 0
    while at < len(order) - 1:
        one, other = order[at], order[at + 1]
        if (one in before) == (other in before):
            at += 1
            continue
        first = one in before
        pairs.append(Pair(before[one if first else other], after[other if first else one], first))
        at += 2
    return pairs


def speedup(
    baseline: Sequence[Run], candidate: Sequence[Run], *, together: bool = True, confidence: float = CONFIDENCE
) -> Speedup:
    """Return how many times as fast the candidate's rounds were. `together` means: measured taking turns.

    Raises ValueError when one of them has no run that counts.
    """
    before, after = _rates(baseline), _rates(candidate)
    if not before or not after:
        raise ValueError("no speed-up without runs on both sides")
    shared = [prompt for prompt in before if prompt in after]
    if shared:
        before, after = ({prompt: each[prompt] for prompt in shared} for each in (before, after))
    ones, others = ([_typical(round_.values()) for round_ in _rounds(each)] for each in (before, after))
    if min(len(ones), len(others)) < 2 and len(shared) > 1:
        return Speedup(paired_speedup([(_typical(before[p]), _typical(after[p])) for p in shared], confidence), True)
    if together and shared and len(ones) == len(others) > 1:
        return Speedup(paired_speedup(list(zip(ones, others, strict=True)), confidence), paired=True)
    return Speedup(welch(ones, others, confidence), paired=False)


def _typical(rates: Collection[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def _rounds(rates: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return the rounds in which every prompt has a reply: the first of each, the second of each, and so on."""
    return [dict(zip(rates, each, strict=True)) for each in zip(*rates.values(), strict=False)]


def welch(baseline: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the ratio of the geometric means and its interval; `n` is the number of values on both sides.

    The degrees of freedom (Welch and Satterthwaite) are rounded down, which never makes the interval too narrow. Values
    must be above 0. One value on a side says nothing of its spread: the interval is then infinite.
    """
    sides = [[math.log(value) for value in each] for each in (baseline, candidate)]
    means = [statistics.fmean(each) for each in sides]
    effect, n = means[1] - means[0], len(baseline) + len(candidate)
    if min(map(len, sides)) < 2:
        return exponential(Interval(effect, -math.inf, math.inf, n))
    errors = [statistics.variance(each, mean) / len(each) for each, mean in zip(sides, means, strict=True)]
    if not sum(errors):
        return exponential(Interval(effect, effect, effect, n))
    freedom = sum(errors) ** 2 / sum(error**2 / (len(each) - 1) for error, each in zip(errors, sides, strict=True))
    reach = t_quantile((1 + confidence) / 2, max(1, math.floor(freedom))) * math.sqrt(sum(errors))
    return exponential(Interval(effect, effect - reach, effect + reach, n))


def percent_faster(ratio: Interval) -> str:
    """Return a ratio in words: "41.0 % faster (38.2 to 43.9 %)", "not distinguishable (-3 to +4 %)"."""
    if not math.isfinite(ratio.high):
        return f"{ratio.estimate:.2f} times as fast (too few runs for limits)"
    if ratio.low <= 1 <= ratio.high:
        ends = [100 * (end - 1) for end in (ratio.low, ratio.high)]
        digits = 0 if max(map(abs, ends)) >= 0.95 else 1
        if max(map(abs, ends)) < 0.05:
            return "equally fast (within 0.1 %)"
        return f"not distinguishable ({ends[0]:+.{digits}f} to {ends[1]:+.{digits}f} %)"
    faster = ratio.estimate > 1
    low, high = sorted(abs(100 * (end - 1)) for end in (ratio.low, ratio.high))
    return f"{100 * abs(ratio.estimate - 1):.1f} % {'faster' if faster else 'slower'} ({low:.1f} to {high:.1f} %)"


def _rates(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the speeds by prompt."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.counts and run.decode_rate:
            found.setdefault(run.prompt, []).append(run.decode_rate)
    return found
