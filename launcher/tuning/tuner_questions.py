"""What a tune asks of its finalists, and what pairs of measurements answer."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.tuning.records import Settings
from launcher.tuning.space import key
from launcher.tuning.statistics import Pair, paired_speedup
from launcher.tuning.tuner_course import Pairs
from launcher.tuning.verdict import Compared

ERROR = 0.05
"""The chance of a wrong claim that is allowed."""
_FEWEST = 3
"""Pairs from which an interval is made."""


@dataclass(frozen=True, slots=True)
class Finalists:
    """What is compared with the baseline: the best with MTP, one near to it with another draft length, the best
    without MTP.
    """

    on: Settings | None
    rival: Settings | None
    off: Settings | None

    def listed(self) -> list[Settings]:
        """Return those that there are."""
        return [settings for settings in (self.on, self.rival, self.off) if settings is not None]


class Measured:
    """Pairs of some settings with each other."""

    def __init__(self, settings: Sequence[Settings], pairs: Pairs) -> None:
        self._places = {key(each): place for place, each in enumerate(settings)}
        self._pairs = pairs

    def pairs(self, candidate: Settings, against: Settings) -> list[Pair]:
        """Return those of two settings."""
        a, b = self._places.get(key(against)), self._places.get(key(candidate))
        if a is None or b is None or a == b:
            return []
        return self._pairs[a, b] if a < b else [_turned(pair) for pair in self._pairs[b, a]]

    def compare(self, candidate: Settings, against: Settings, share: float = 1.0) -> Compared | None:
        """Return the comparison of two; None if there are too few pairs. `share` is that of the chance of error.

        The intervals of all comparisons with the baseline, and of one more, hold together (Bonferroni).
        """
        return compared(candidate, against, self.pairs(candidate, against), 1 - ERROR * share / len(self._places))

    @property
    def spread(self) -> float:
        """The standard deviation of a pair's log-ratio, over all comparisons; 0 without any."""
        logs = [[pair.log_ratio for pair in found] for found in self._pairs.values() if len(found) > 1]
        squares = sum(statistics.variance(each) * (len(each) - 1) for each in logs)
        return math.sqrt(squares / sum(len(each) - 1 for each in logs)) if logs else 0.0


@dataclass
class Question:
    """Whether a candidate is better than something else; `answer` is None while that is open.

    `found` is the comparison that the answer rests on, or the best there is; `fresh` are the pairs measured for it.
    """

    candidate: Settings
    against: Settings
    found: Compared | None = None
    answer: bool | None = None
    fresh: list[Pair] = field(default_factory=list)

    def take(self, found: Compared | None, *, may_confirm: bool) -> None:
        """Take in a comparison; that of a verification may only deny that the candidate is better."""
        if found is not None:
            self.found = found
            if found.no_better or (found.better and may_confirm):
                self.answer = found.better

    def look(self, measured: Measured, confidence: float) -> None:
        """Take in fresh pairs, and look at all of them."""
        self.fresh += measured.pairs(self.candidate, self.against)
        self.take(compared(self.candidate, self.against, self.fresh, confidence), may_confirm=True)


def compared(candidate: Settings, against: Settings, pairs: Sequence[Pair], confidence: float) -> Compared | None:
    """Return what pairs say of two settings; None if they are too few."""
    if len(pairs) < _FEWEST:
        return None
    return Compared(candidate, against, paired_speedup(pairs, confidence), confidence)


def _turned(pair: Pair) -> Pair:
    return Pair(pair.candidate, pair.baseline, not pair.baseline_first)
