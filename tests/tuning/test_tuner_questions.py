"""Questions that pairs of starts answer, and the choice of the next one."""

import math

import pytest

from launcher.tuning.records import RunSettings
from launcher.tuning.statistics import Pair
from launcher.tuning.tuner import ComparedPairs, Question, Questions

BASELINE: RunSettings = {"draft": 0, "kv": "q8_0"}
ON: RunSettings = {"draft": 3, "kv": "q8_0"}
OFF: RunSettings = {"draft": 0, "kv": "f16"}
WOBBLE = (0.01, -0.01, 0.005, -0.005)


def pairs(ratio: float, spread: float = 1.0) -> list[Pair]:
    """Four pairs, two of each order, in which the second of two settings is `ratio` times as good as the first."""
    return [Pair(1.0, ratio * math.exp(spread * each), number % 2 == 0) for number, each in enumerate(WOBBLE)]


def compared_pairs(on: float, off: float = 1.0, spread: float = 1.0) -> ComparedPairs:
    found = ComparedPairs()
    sides = {(0, 1): pairs(off, spread), (0, 2): pairs(on, spread), (1, 2): pairs(on / off, spread)}
    found.add_pairs([BASELINE, OFF, ON], sides)
    return found


@pytest.mark.parametrize(
    ("ratio", "spread", "answer"),
    [(1.4, 1.0, True), (0.8, 1.0, False), (1.0, 0.5, False), (1.0, 10.0, None), (1.05, 10.0, None)],
)
def test_comparisons_are_better_worse_or_open(ratio: float, spread: float, answer: bool | None) -> None:
    question = Question(ON, BASELINE)
    question.update_answer(compared_pairs(ratio, spread=spread), 0.95)
    assert question.answer is answer
    assert question.comparison is not None
    assert question.comparison.ratio.estimate == pytest.approx(ratio)


def test_a_comparison_is_symmetric() -> None:
    both = compared_pairs(1.3, 1.1)
    there, back = both.compare_settings(ON, OFF, 0.95), both.compare_settings(OFF, ON, 0.95)
    assert there is not None
    assert back is not None
    assert there.ratio.estimate == pytest.approx(1.3 / 1.1)
    assert (back.ratio.low, back.ratio.high) == pytest.approx((1 / there.ratio.high, 1 / there.ratio.low))


def test_later_rounds_add_to_the_pairs_whatever_their_order_was() -> None:
    both = ComparedPairs()
    both.add_pairs([BASELINE, ON], {(0, 1): pairs(1.2)})
    both.add_pairs([ON, BASELINE], {(0, 1): pairs(1 / 1.2)})
    found = both.compare_settings(ON, BASELINE, 0.95)
    assert found is not None
    assert found.ratio.n == 8
    assert found.ratio.estimate == pytest.approx(1.2)


def test_two_pairs_decide_nothing() -> None:
    both = ComparedPairs()
    both.add_pairs([BASELINE, ON], {(0, 1): pairs(1.2)[:2]})
    assert both.compare_settings(ON, BASELINE, 0.95) is None
    question = Question(ON, BASELINE)
    question.update_answer(both, 0.95)
    assert (question.answer, question.comparison) == (None, None)


def test_once_mtp_is_decided_only_settings_of_the_better_side_are_compared() -> None:
    mtp, off, on = Question(ON, OFF), Question(OFF, BASELINE), Question(ON, BASELINE)
    questions = Questions(mtp, (off, on))
    assert questions.open_questions() == [mtp, off, on]
    mtp.answer = True
    assert questions.open_questions() == [on]
    mtp.answer = False
    assert questions.open_questions() == [off]
    off.answer = True
    assert questions.open_questions() == []


def test_without_working_mtp_other_settings_are_compared() -> None:
    off = Question(OFF, BASELINE)
    assert Questions(None, (off,)).open_questions() == [off]
    assert Questions(None).open_questions() == []
