"""What a tune asks of the best that it found, and what pairs of measurements answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.tuning.records import Settings
from launcher.tuning.space import Key, draft_of, key
from launcher.tuning.statistics import Pair, speedup_among, turned
from launcher.tuning.tuner_course import Pairs
from launcher.tuning.verdict import Compared

ERROR = 0.05
"""The chance of a wrong claim that is allowed."""
_FEWEST = 3
"""Pairs from which an interval is made."""


class Measured:
    """All pairs of the settings that are compared."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[Key, Key], list[Pair]] = {}

    def add(self, settings: Sequence[Settings], pairs: Pairs) -> None:
        """Take in what some rounds gave."""
        for (a, b), found in pairs.items():
            one, other = key(settings[a]), key(settings[b])
            if (other, one) in self._pairs:
                one, other, found = other, one, [turned(pair) for pair in found]
            self._pairs.setdefault((one, other), []).extend(found)

    def compare(self, candidate: Settings, against: Settings, confidence: float) -> Compared | None:
        """Return what the pairs of two settings say, the spread being that of all comparisons; None if too few."""
        one, other = key(against), key(candidate)
        pairs = self._pairs.get((one, other)) or [turned(pair) for pair in self._pairs.get((other, one), ())]
        if len(pairs) < _FEWEST:
            return None
        ratio = speedup_among(pairs, list(self._pairs.values()), confidence)
        return Compared(candidate, against, ratio, confidence)


@dataclass(eq=False)
class Question:
    """Whether a candidate is better than something else; `answer` is None while that is open.

    `found` is the comparison that the answer rests on, or the best there is.
    """

    candidate: Settings
    against: Settings
    found: Compared | None = None
    answer: bool | None = None

    def look(self, measured: Measured, confidence: float) -> None:
        """Look at all pairs that there are."""
        self.found = measured.compare(self.candidate, self.against, confidence) or self.found
        if self.found is not None and (self.found.no_better or self.found.better):
            self.answer = self.found.better


@dataclass(frozen=True)
class Questions:
    """Whether MTP is better (None where it cannot be served), and whether other settings beat the baseline's."""

    mtp: Question | None
    gains: tuple[Question, ...] = ()

    def open(self) -> list[Question]:
        """Return those whose answer still matters: of the gains none without MTP once MTP is better, or the reverse."""
        mtp = self.mtp.answer if self.mtp else False
        gains = [each for each in self.gains if mtp is None or bool(draft_of(each.candidate)) is mtp]
        return [each for each in self.all() if each.answer is None and (each is self.mtp or each in gains)]

    def all(self) -> list[Question]:
        """Return all of them, that about MTP first."""
        return [*([self.mtp] if self.mtp else []), *self.gains]
