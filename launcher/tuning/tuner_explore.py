"""The first half of a tune: a few draft lengths, then whatever is most likely to be best, until that is known."""

import asyncio

import numpy as np

from launcher.base.errors import NothingMeasured
from launcher.tuning.plan_of_trials import (
    COMPARED,
    FEWEST_PAIRS,
    balanced_orders,
    most_explored,
    probe_lengths,
    visits,
)
from launcher.tuning.records import Settings
from launcher.tuning.search import Assessment
from launcher.tuning.space import draft_of
from launcher.tuning.tuner_course import Course
from launcher.tuning.tuner_events import Predicted
from launcher.tuning.tuner_state import Fault, Stage

_ENOUGH_REGRET = 0.012
"""How much better the best may still be expected to be, as a logarithm, when exploring ends."""
_ENOUGH_PRECISION = 0.021
"""Standard deviation of the logarithm of every forecast by draft length at which exploring ends."""
_MOST_OF_BUDGET = 0.5
"""Exploring takes no more: on a noisy machine the rest tells more in direct comparisons."""
_SPARE = 2
_MOST_FAILURES, _PATIENCE_S = 3, 180.0
"""How often the baseline may fail to start, and how long what spoils its replies is waited for, in seconds."""
LEAST_MORE = 1 + visits(balanced_orders(FEWEST_PAIRS, 1))
"""Trials that a verdict takes at least after that of the baseline: a draft length, and pairs of the two."""
_EXPLORED = 12
"""Trials that there should be time for before prompts are asked more than once on a start."""


async def probe(course: Course) -> bool:
    """Measure the baseline, and the longest, the shortest and a middle draft; return whether the baseline was, in time.

    A draft that cannot be served is replaced by the next shorter. When the baseline has shown that the budget does not
    hold what a verdict takes at least, nothing else is tried. Raises NothingMeasured when the baseline cannot be
    measured at all.
    """
    if not await _measure_baseline(course):
        return False
    if course.affords(LEAST_MORE):
        for length in probe_lengths(course.space.drafts):
            await _probe_draft(course, length)
        await _foretell(course)
    return True


async def explore(course: Course) -> None:
    """Try what may be best until little can be gained by more of it, or only the time to verify and confirm is left.

    No more than `most_explored` are measured: where trials take hardly any time, the budget does not end it.
    """
    reserve = visits(balanced_orders(FEWEST_PAIRS, COMPARED)) + _SPARE
    last, left = None, most_explored(course.space)
    course.settle_passes(reserve + _EXPLORED)
    while left:
        if not course.affords(reserve + 1) or course.state.used_s >= _MOST_OF_BUDGET * course.budget_s:
            break
        wanted = await asyncio.to_thread(_next, course, last)
        if wanted is None:
            break
        trial = await course.visit(wanted, Stage.EXPLORE)
        last, left = trial.settings, left - (trial.error is None)
        course.settle_passes(reserve + 1)
    await _foretell(course)


def _next(course: Course, last: Settings | None) -> Settings | None:
    """Return what to try after the last, None when enough is known."""
    assessment = course.search.assess()
    wanted = course.search.next(assessment, last)
    if assessment.regret >= _ENOUGH_REGRET:
        return wanted
    vague = _least_known(course, assessment)
    return wanted if vague is not None and vague == last else vague


async def _foretell(course: Course) -> None:
    """Tell what is expected at every draft length beside the best one."""
    course.tell(await asyncio.to_thread(_predicted, course))


def _predicted(course: Course) -> Predicted:
    assessment = course.search.assess()
    shown = _shown(course, assessment)
    return Predicted(shown, course.search.forecast(assessment, shown))


async def _measure_baseline(course: Course) -> bool:
    failures, spoilt_s = 0, 0.0
    while failures < _MOST_FAILURES and spoilt_s < _PATIENCE_S and (course.left_s > 0 or not course.trials):
        trial = await course.visit(course.space.off(), Stage.PROBE)
        if trial.fault is Fault.NONE and any(course.goal.value(run) is not None for run in trial.runs):
            return True
        failures += trial.fault not in {Fault.SPOILT, Fault.TIME}
        spoilt_s += trial.seconds if trial.fault is Fault.SPOILT else 0.0
    if trial.fault is Fault.TIME:
        return False
    why = trial.error or next((run.spoilt for run in trial.runs if run.spoilt), None)
    why = why or f"Its replies do not tell {course.goal.unit}."
    raise NothingMeasured(f"The settings without MTP cannot be measured. {why}", "Serve them first, then tune.")


async def _probe_draft(course: Course, length: int) -> None:
    """Measure a draft of this length, or the next shorter one that fits and starts."""
    for draft in (each for each in reversed(course.space.drafts) if each <= length):
        settings = course.search.nearest(draft)
        if settings is None:
            continue
        if course.left_s <= 0:
            return
        trial = await course.visit(settings, Stage.PROBE)
        if trial.fault in {Fault.NONE, Fault.SPOILT}:
            return


def _shown(course: Course, assessment: Assessment) -> Settings:
    """Return the best with MTP, the best of all where nothing with MTP is left."""
    search, mean = course.search, assessment.mean
    on = [i for i, settings in enumerate(search.grid) if draft_of(settings) and not search.out[i]]
    return search.grid[max(on, key=lambda i: mean[i], default=assessment.best)]


def _least_known(course: Course, assessment: Assessment) -> Settings | None:
    """Return the least known of all draft lengths beside the best one, None when all are known well enough."""
    search = course.search
    best = _shown(course, assessment)
    beside = [i for draft in (0, *course.space.drafts) if (i := search.beside(best, draft)) is not None]
    spreads = np.std(assessment.scores[:, beside], axis=0)
    worst = int(spreads.argmax())
    return search.grid[beside[worst]] if spreads[worst] > _ENOUGH_PRECISION else None
