"""The second half of a tune: the best with MTP, the best without and the baseline, measured beside each other."""

import asyncio
import math
from collections.abc import Sequence

from launcher.tuning.plan_of_trials import FEWEST_PAIRS, MOST_PAIRS, balanced_orders
from launcher.tuning.records import Settings
from launcher.tuning.space import draft_of, key
from launcher.tuning.statistics import pairs_needed
from launcher.tuning.tuner_course import Course
from launcher.tuning.tuner_questions import ERROR, Measured, Question, Questions
from launcher.tuning.tuner_state import Stage
from launcher.tuning.verdict import MARGIN, Verdict
from launcher.tuning.verdict_made import made

_FIRST_LOOKS = (0.5, 0.3)
"""What the first looks at the pairs may use of the chance of error; each later one half of what is left."""
_OTHER_OFF, _NO_CHANCE = 0.01, 0.02
"""Other settings without MTP are compared when they are expected to be so much better than the baseline, and the best
of all with more than such a chance: what is clearly better with MTP is compared with the baseline alone.
"""


async def decide(course: Course) -> Verdict:
    """Choose, compare, and return the verdict."""
    baseline = course.space.off()
    on, off = await asyncio.to_thread(choose, course)
    mtp = Question(on, off or baseline) if on is not None else None
    gains = [] if off is None else [Question(each, baseline) for each in (off, on) if each is not None]
    questions = Questions(mtp, tuple(gains))
    await _compare(course, questions)
    return await asyncio.to_thread(made, course, questions)


def choose(course: Course) -> tuple[Settings | None, Settings | None]:
    """Return the best with MTP, None where nothing with MTP is left, and the best without it, None where that is the
    baseline or cannot come to be recommended.
    """
    search = course.search
    assessment, grid = search.assess(), search.grid
    scores, mean = assessment.scores, assessment.mean
    alive = [i for i in range(len(grid)) if not search.out[i]]
    off = max((i for i in alive if not draft_of(grid[i])), key=lambda i: mean[i])
    on = max((i for i in alive if draft_of(grid[i])), key=lambda i: mean[i], default=None)
    better = mean[off] - mean[0] > _OTHER_OFF
    open_ = on is None or float((scores[:, off] >= scores[:, on]).mean()) > _NO_CHANCE
    return None if on is None else grid[on], grid[off] if better and open_ else None


def share_of_look(number: int) -> float:
    """Return what a look, counted from 0, may use of the chance of error: those of all looks add up to 1 at most."""
    later = number - len(_FIRST_LOOKS)
    return _FIRST_LOOKS[number] if later < 0 else (1 - sum(_FIRST_LOOKS)) / 2 ** (later + 1)


async def _compare(course: Course, questions: Questions) -> None:
    """Answer questions with fresh pairs, looked at up to three times, and once more each time the tune is continued.

    How many there are at the first look is fixed before the first of them is measured, by the spread and the difference
    that are expected; at each later look there are twice as many. The looks share the chance of error, so stopping at
    a good moment does not flatter what is found; nor does having chosen it, since the pairs are fresh.
    """
    measured, wanted = Measured(), 0
    for number in range(len(_FIRST_LOOKS) + len(course.state.budgets)):
        still = questions.open()
        if not still:
            return
        confidence = 1 - ERROR * share_of_look(number) / len(questions.all())
        settings = _settings(still)
        a_pair = len(settings) + (len(settings) == 2) / FEWEST_PAIRS
        course.settle_passes(math.ceil(FEWEST_PAIRS * a_pair))
        if number == 0:
            wanted = await asyncio.to_thread(_pairs_wanted, course, still, confidence)
        elif number > 1:
            wanted *= 2
        affordable = 2 * int(course.left_s / course.visit_s / a_pair / 2)
        if affordable < (FEWEST_PAIRS if number == 0 else 2):
            return
        orders = balanced_orders(min(wanted, affordable), len(settings) - 1)
        stage = Stage.CONFIRM if number else Stage.VERIFY
        measured.add(settings, await course.rounds(stage, settings, orders))
        for question in still:
            question.look(measured, confidence)


def _pairs_wanted(course: Course, questions: Sequence[Question], confidence: float) -> int:
    """Return how many pairs show the least of the differences that are expected."""
    spread = math.sqrt(2) * course.visit_noise
    effects = [max(abs(_expected(course, each.candidate, each.against)), MARGIN) for each in questions]
    return min(pairs_needed(spread, min(effects), confidence=confidence), MOST_PAIRS)


def _settings(questions: Sequence[Question]) -> list[Settings]:
    """Return all settings that questions are about, what others are compared with first."""
    both = [*(each.against for each in questions), *(each.candidate for each in questions)]
    return list({key(settings): settings for settings in both}.values())


def _expected(course: Course, one: Settings, other: Settings) -> float:
    """Return by how much everything measured makes one likely to score more than the other."""
    mean = course.search.assess().mean
    return float(mean[course.search.index(one)] - mean[course.search.index(other)])
