"""The second half of a tune: the best few against the baseline in pairs, then the winner once more in fresh pairs."""

import math
from collections.abc import Sequence

from launcher.tuning.plan_of_trials import FEWEST_PAIRS, MOST_PAIRS, balanced_orders, visits
from launcher.tuning.records import Settings
from launcher.tuning.space import draft_of, key
from launcher.tuning.statistics import pairs_needed
from launcher.tuning.tuner_course import Course
from launcher.tuning.tuner_questions import ERROR, Finalists, Measured, Question
from launcher.tuning.tuner_state import Stage
from launcher.tuning.verdict import MARGIN, Verdict
from launcher.tuning.verdict_made import made

_CLEAR_SHARE = 0.2
"""What the verification may use of the chance of error, all its comparisons together, where nothing could be confirmed.
"""
_LOOKS = (0.4, 0.24, 0.16)
"""What each look at a confirmation may use of it: 2 %, 1.2 %, 0.8 %; with the verification's 1 % that is all of it."""
_RIVAL = 0.02
"""A second draft length is verified when it is expected to lie this near to the first."""
_OTHER_OFF = 0.01
"""Other settings without MTP are verified when they are expected to be this much better than the baseline."""


async def decide(course: Course) -> Verdict:
    """Verify, confirm, and return the verdict."""
    baseline = course.space.off()
    finalists = choose(course)
    verified = await _verify(course, [baseline, *finalists.listed()])
    on, off = finalists.on, finalists.off
    if on is not None and finalists.rival is not None and _expected(course, finalists.rival, on) > 0:
        on = finalists.rival
    if off is not None and _expected(course, off, baseline) <= 0:
        off = None
    mtp = None if on is None else Question(on, off or baseline)
    if mtp is not None:
        mtp.take(verified.compare(mtp.candidate, mtp.against), may_confirm=False)
    gains = []
    if off is not None and not (mtp and mtp.found and mtp.found.better):
        gains.append(Question(off, baseline))
        if mtp is not None and mtp.answer is None:
            gains.append(Question(mtp.candidate, baseline))
    await _confirm(course, [*gains, *([mtp] if mtp else [])], verified)
    return made(course, finalists, verified, mtp, gains)


def choose(course: Course) -> Finalists:
    """Return what is worth a comparison with the baseline, by all that was explored."""
    search = course.search
    assessment = search.assess()
    mean, grid = assessment.mean, search.grid
    alive = [i for i in range(len(grid)) if not search.out[i]]
    off = max((i for i in alive if not draft_of(grid[i])), key=lambda i: mean[i])
    on = max((i for i in alive if draft_of(grid[i])), key=lambda i: mean[i], default=None)
    if on is None:
        rival = None
    else:
        beside = (search.beside(grid[on], draft) for draft in course.space.drafts)
        near = [i for i in beside if i not in {None, on} and mean[on] - mean[i] < _RIVAL]
        rival = max((i for i in near if i is not None), key=lambda i: mean[i], default=None)
    return Finalists(
        on=None if on is None else grid[on],
        rival=None if rival is None else grid[rival],
        off=grid[off] if mean[off] - mean[0] > _OTHER_OFF else None,
    )


async def _verify(course: Course, settings: Sequence[Settings]) -> Measured:
    """Measure all of some settings beside each other, four times."""
    if len(settings) < 2:
        return Measured(settings, {})
    orders = balanced_orders(FEWEST_PAIRS, len(settings) - 1)
    course.settle_passes(visits(orders) + visits(balanced_orders(FEWEST_PAIRS, 1)))
    return Measured(settings, await course.rounds(Stage.VERIFY, settings, orders))


async def _confirm(course: Course, questions: Sequence[Question], verified: Measured) -> None:
    """Answer what is open with fresh pairs, looked at up to three times.

    How many there are at the first look is fixed before the first of them is measured, by the spread and the difference
    that are expected; at each later look there are twice as many. The looks share the chance of error, so neither
    choosing the winner nor stopping at a good moment flatters it. Where that leaves something open, a verification
    that was very clear counts.
    """
    still = [question for question in questions if question.answer is None]
    spread = max(verified.spread, math.sqrt(2) * course.visit_noise)
    wanted = 0
    for number, share in enumerate(_LOOKS):
        if not still:
            return
        confidence = 1 - ERROR * share / len(questions)
        settings = _settings(still)
        a_pair = len(settings) + (len(settings) == 2) / FEWEST_PAIRS
        course.settle_passes(math.ceil(FEWEST_PAIRS * a_pair))
        if number == 0:
            effects = [max(abs(_expected(course, each.candidate, each.against)), MARGIN) for each in still]
            wanted = min(pairs_needed(spread, min(effects), confidence=confidence), MOST_PAIRS)
        elif number > 1:
            wanted *= 2
        affordable = 2 * int(course.left_s / course.visit_s / a_pair / 2)
        if affordable < (FEWEST_PAIRS if number == 0 else 2):
            break
        orders = balanced_orders(min(wanted, affordable), len(settings) - 1)
        fresh = Measured(settings, await course.rounds(Stage.CONFIRM, settings, orders))
        for question in still:
            question.look(fresh, confidence)
        still = [question for question in still if question.answer is None]
    for question in still:
        clear = verified.compare(question.candidate, question.against, _CLEAR_SHARE)
        if clear is not None and clear.better:
            question.take(clear, may_confirm=True)


def _settings(questions: Sequence[Question]) -> list[Settings]:
    """Return all settings that questions are about, what others are compared with first."""
    both = [*(each.against for each in questions), *(each.candidate for each in questions)]
    return list({key(settings): settings for settings in both}.values())


def _expected(course: Course, one: Settings, other: Settings) -> float:
    """Return by how much everything measured makes one likely to score more than the other."""
    mean = course.search.assess().mean
    return float(mean[course.search.index(one)] - mean[course.search.index(other)])
