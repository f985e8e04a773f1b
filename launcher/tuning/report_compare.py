"""How many times as fast some runs are as others, and between which limits.

Runs of the same prompts are compared in pairs, prompt by prompt, so that what the prompt does to both cancels; so are
runs of one measurement, whose settings took turns. All else is compared by Welch's t test on the logarithms of the
speeds, which asks for no equal spread (B. L. Welch, Biometrika 34, 1947).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.tuning.records import Run
from launcher.tuning.statistics import CONFIDENCE, Interval, exponential, paired_speedup, t_quantile


@dataclass(frozen=True, slots=True)
class Speedup:
    """The typical ratio of speeds, `paired` or not; the ends of its interval are infinite (0) for too few runs."""

    ratio: Interval
    paired: bool

    @property
    def told_apart(self) -> bool:
        """Whether one is faster, at that confidence."""
        return not self.ratio.low <= 1 <= self.ratio.high


def speedup(
    baseline: Sequence[Run], candidate: Sequence[Run], *, together: bool = True, confidence: float = CONFIDENCE
) -> Speedup:
    """Return how many times as fast the candidate's replies were. `together` means: measured taking turns.

    Raises ValueError when one of them has no run that counts.
    """
    before, after = _rates(baseline), _rates(candidate)
    if not before or not after:
        raise ValueError("no speed-up without runs on both sides")
    pairs = [pair for prompt, rates in before.items() for pair in zip(rates, after.get(prompt, ()), strict=False)]
    same = before.keys() == after.keys() and all(len(before[each]) == len(after[each]) for each in before)
    if len(pairs) > 1 and (len({*before} & {*after}) > 1 or (together and same)):
        return Speedup(paired_speedup(pairs, confidence), paired=True)
    ratio = welch(
        [x for each in before.values() for x in each], [x for each in after.values() for x in each], confidence
    )
    return Speedup(ratio, paired=False)


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
        return f"not distinguishable ({100 * (ratio.low - 1):+.0f} to {100 * (ratio.high - 1):+.0f} %)"
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
