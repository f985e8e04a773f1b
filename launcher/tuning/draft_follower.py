"""Decides when a server's drafts change with its traffic: to what was counted as faster, and back if it is not."""

import math
from collections import deque
from collections.abc import Sequence
from functools import reduce

from launcher.models.drafters import DraftChoice, choice_in
from launcher.tuning.advice import Advice, Measured, compare_choices, find_faster
from launcher.tuning.report import welch_ratio
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import FEWEST_STEPS, UseCounts

HOUR_S = 3_600.0
_KEPT_S, _BARRED_S = 8 * HOUR_S, 24 * HOUR_S
"""The time for which counts are evidence, and that for which what was undone is not tried again."""
_LEAST_S = 600.0
"""The shortest time between two changes."""
_FEWEST_OF_ONE = 50
"""The fewest steps of an interval whose time per step counts."""
_FEWEST_INTERVALS, _FEWEST_BEFORE = 3, 6
"""The fewest such intervals after a change by which it is judged, and before it."""
_LATE_S = 180.0
_FIRST_LOOK_S, _LONGEST_LOOK_S, _LOOK_STEPS = 4 * HOUR_S, 32 * HOUR_S, 500
"""How long drafts are off until they are tried again, at first, and at most: twice as long each time. And the fewest
steps of such a look."""


class DraftFollower:
    """Follows the traffic of one server by its counts, which belong to intervals of about a minute.

    It neither measures nor changes anything itself. Times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, UseCounts]] = deque()
        """Of the settings in use."""
        self._began_s: float | None = None
        self._before: tuple[DraftChoice, list[UseCounts]] | None = None
        """What was in use before the last change, and the counts that led to it."""
        self._changed_to: DraftChoice | None = None
        self._judge_s = HOUR_S
        """The time after a change at which it is judged, for the first time; then after twice the time."""
        self._left: tuple[DraftChoice, float] | None = None
        """What the last change left, and until when counts of it may still come."""
        self._barred: dict[DraftChoice, float] = {}
        self._look_s, self._looks = _FIRST_LOOK_S, False

    def add_counts(self, at_s: float, counts: UseCounts) -> None:
        """Add the counts of an interval that ended at a time."""
        choice = choice_in(counts.settings)
        if self._left is not None and at_s < self._left[1] and choice == self._left[0]:
            return  # of requests before the change
        if self._before is not None and self._changed_to is not None and choice == self._before[0]:
            self.bar_choice(at_s, self._changed_to)  # somebody has undone the change
            self._forget(at_s)
        if self._counts and self._counts[-1][1].settings != counts.settings:
            self._forget(at_s)
        if self._began_s is None:
            self._began_s = at_s
        self._counts.append((at_s, counts))
        while self._counts[0][0] < at_s - _KEPT_S:
            self._counts.popleft()

    def _forget(self, at_s: float) -> None:
        self._counts.clear()
        self._before, self._looks, self._began_s = None, False, at_s

    def note_change(self, at_s: float, advice: Advice) -> None:
        """Note that advice was followed."""
        counts = [each for _, each in self._counts]
        current = choice_in(counts[-1].settings)
        self._forget(at_s)
        self._looks, self._left = advice.reason == "look", (current, at_s + _LATE_S)
        if advice.reason == "undo":
            self.bar_choice(at_s, current)
            return
        self._before, self._changed_to, self._judge_s = (current, counts), advice.choice, HOUR_S
        if self._looks:
            self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
        elif advice.better:
            self._look_s = _FIRST_LOOK_S

    def note_failure(self, at_s: float, advice: Advice) -> None:
        """Note that advice could not be followed. It is not tried again soon."""
        self.bar_choice(at_s, advice.choice)
        self._before, self._began_s = None, at_s
        if advice.reason == "look":
            self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)

    def bar_choice(self, at_s: float, choice: DraftChoice) -> None:
        """Do not change to a choice again for a day: it was slower, or could not be started."""
        self._barred[choice] = at_s + _BARRED_S

    def find_change(self, at_s: float, measured: Measured, *, may_look: bool = True) -> Advice | None:
        """Return the change to make now, by what was `measured` with these settings; None if there is none.

        Without `may_look` drafts that are off are not tried: the user wants none.
        """
        if not self._counts or self._began_s is None:
            return None
        used = reduce(UseCounts.plus, [each for _, each in self._counts])
        current, passed_s = choice_in(used.settings), at_s - self._began_s
        least = (_LOOK_STEPS, 0.0) if self._looks else (FEWEST_STEPS, self._judge_s)
        if self._before is not None and used.steps >= least[0] and passed_s >= least[1]:
            before, earlier = self._before
            ratio = self._compare_with(before, earlier, used, measured)
            if ratio is not None and ratio.low > 1:
                return Advice(
                    current.length, before.length, ratio, used.tokens, before.drafter, current.drafter, "undo"
                )
            self._judge_s *= 2
        if passed_s < _LEAST_S and not self._looks:
            return None
        if len(_list_step_times([each for _, each in self._counts])) < _FEWEST_BEFORE:
            return None  # what came all at once could not be held against what comes after a change
        self._barred = {choice: until_s for choice, until_s in self._barred.items() if until_s > at_s}
        for counts in (self._last_counts(), used):
            if (advice := find_faster(counts, measured, barred=self._barred)) is not None:
                return advice
        if may_look and not current.drafter.drafts and passed_s >= self._look_s and measured.rates:
            unknown = Interval(1.0, 0.0, math.inf, 0)
            return Advice(0, 1, unknown, used.tokens, next(iter(measured.rates)), current.drafter, "look")
        return None

    def _last_counts(self) -> UseCounts:
        """Return the newest counts that are enough for advice."""
        *older, (_, counts) = self._counts
        while counts.steps < FEWEST_STEPS and older:
            counts = older.pop()[1].plus(counts)
        return counts

    def _compare_with(
        self, before: DraftChoice, earlier: Sequence[UseCounts], used: UseCounts, measured: Measured
    ) -> Interval | None:
        """Return how many times as fast what was in use before would have been since, by the time of real steps."""
        times, earlier_times = map(_list_step_times, ([each for _, each in self._counts], earlier))
        if min(len(times), len(earlier_times)) < _FEWEST_INTERVALS:
            return None
        quicker = welch_ratio(earlier_times, times)  # the time now as a share of that before
        saved, sd = math.log(quicker.estimate), math.log(quicker.high / quicker.estimate) / 1.96
        current = choice_in(used.settings)
        if current.drafter.drafts:
            return compare_choices(used, before, measured.rates, saved, sd)
        ratio = compare_choices(reduce(UseCounts.plus, earlier), current, measured.rates, -saved, sd)
        return ratio and Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low, ratio.n)


def _list_step_times(counts: Sequence[UseCounts]) -> list[float]:
    """Return the seconds per step of the intervals that have enough steps to tell."""
    return [each.step_s for each in counts if each.step_s and each.steps >= _FEWEST_OF_ONE]
