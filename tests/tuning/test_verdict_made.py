"""Recommendations and sentences made from answers."""

import re

import pytest

from launcher.tuning.goal import Goal
from launcher.tuning.records import RunSettings
from launcher.tuning.statistics import Interval
from launcher.tuning.tune_state import TuneState
from launcher.tuning.tuner import (
    Question,
    Questions,
    TrialRunner,
    build_verdict,
    probe_drafts,
    verdict_without_baseline,
)
from launcher.tuning.verdict import Comparison, LikelyAnswer, LikelyGain, likely_verdict, recommendation_sentence
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import draw_machine
from tools.tuner_simulation.run import WORK

MACHINE = draw_machine(0)
BASELINE = MACHINE.space().baseline_settings()
OFF: RunSettings = {**BASELINE, "kv": "f16"}
ON: RunSettings = {**BASELINE, "draft": 4}


@pytest.fixture
async def trial_runner() -> TrialRunner:
    begun = TuneState({}, 1, ((0, 3_600.0),))
    course = TrialRunner(SimulatedBench(MACHINE, 1), MACHINE.space(), WORK, Goal(), begun, lambda _: None)
    await probe_drafts(course)
    return course


def make_question(candidate: RunSettings, against: RunSettings, low: float, high: float) -> Question:
    """A question with this interval, and the answer that follows from it."""
    found = Comparison(candidate, against, Interval((low + high) / 2, low, high, 4), 0.98)
    answer = True if found.better else False if found.no_better else None
    return Question(candidate, against, found, answer)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"draft": 0, "drafter": "draft-mtp"}, {"draft": 0, "kv": "q8_0"}, "With kv q8_0 it is"),
        ({"draft": 0, "drafter": "draft-mtp"}, {"draft": 4, "drafter": "draft-dflash"}, "With draft 4 by DFlash it is"),
        ({"draft": 4, "drafter": "draft-mtp"}, {"drafter": "draft-dflash"}, "With draft 4 by DFlash it is"),
        ({"draft": 4, "drafter": "draft-dflash"}, {"kv": "q8_0"}, "With kv q8_0 it is"),
        ({"draft": 0}, {"draft": 3}, "With draft 3 it is"),
    ],
)
def test_a_recommendation_names_what_changes(before: RunSettings, after: RunSettings, sentence: str) -> None:
    gain = Comparison({"kv": "f16", **before, **after}, {"kv": "f16", **before}, Interval(1.2, 1.1, 1.3, 4), 0.98)
    assert recommendation_sentence(gain, Goal()).startswith(sentence)


@pytest.mark.parametrize(
    ("on_off", "off", "on", "mtp", "settings"),
    [
        ((1.2, 1.3), (1.0, 1.1), (1.3, 1.4), "on", ON),
        ((0.8, 0.9), (1.1, 1.2), (0.9, 1.1), "off", OFF),
        ((0.8, 0.9), (0.99, 1.1), (0.8, 0.9), "off", BASELINE),
        ((0.95, 1.1), (0.99, 1.2), (1.1, 1.2), "undecided", ON),
        ((0.95, 1.1), (0.99, 1.2), (0.99, 1.2), "undecided", BASELINE),
        ((1.01, 1.1), (0.99, 1.2), (0.99, 1.2), "undecided", BASELINE),
    ],
)
async def test_only_settings_better_than_the_baseline_are_recommended(
    trial_runner: TrialRunner,
    on_off: tuple[float, float],
    off: tuple[float, float],
    on: tuple[float, float],
    mtp: str,
    settings: RunSettings,
) -> None:
    questions = Questions(
        make_question(ON, OFF, *on_off), (make_question(OFF, BASELINE, *off), make_question(ON, BASELINE, *on))
    )
    verdict = build_verdict(trial_runner, questions)
    assert verdict.mtp == mtp
    assert verdict.settings == settings
    assert (verdict.gain is None) is (settings == BASELINE)
    if verdict.gain is not None:
        assert verdict.gain.against == BASELINE
        assert verdict.gain.ratio.low > 1
        assert "than the baseline" in verdict.sentence


async def test_a_verdict_unsure_against_the_baseline_tells_that_comparison(
    trial_runner: TrialRunner,
) -> None:
    gains = make_question(OFF, BASELINE, 0.9, 1.2), make_question(ON, BASELINE, 0.97, 1.2)
    verdict = build_verdict(trial_runner, Questions(make_question(ON, OFF, 1.05, 1.1), gains))
    assert (verdict.ci_low, verdict.ci_high) == (0.97, 1.2)
    assert "between 3.0 % slower and 20 % faster than no MTP" in verdict.sentence


async def test_speeds_in_the_sentence_agree_with_its_percentage(trial_runner: TrialRunner) -> None:
    sentence = build_verdict(trial_runner, Questions(make_question(ON, BASELINE, 0.6, 0.7))).sentence
    found = re.search(r"is (\d+) % ± 5 slower: (\d+\.\d) against (\d+\.\d) tokens/s", sentence)
    assert found is not None, sentence
    slower, on, off = map(float, found.groups())
    assert slower == 35
    assert on / off == pytest.approx(0.65, rel=0.02)  # the two speeds are rounded


@pytest.mark.parametrize(("low", "high", "mtp"), [(1.3, 1.4, "on"), (0.9, 0.95, "off"), (0.99, 1.2, "undecided")])
async def test_without_other_settings_mtp_is_compared_with_the_baseline(
    trial_runner: TrialRunner, low: float, high: float, mtp: str
) -> None:
    verdict = build_verdict(trial_runner, Questions(make_question(ON, BASELINE, low, high)))
    assert verdict.mtp == mtp
    assert verdict.settings == (ON if mtp == "on" else BASELINE)
    assert (verdict.ci_low, verdict.ci_high) == (low, high)
    assert verdict.gain == (verdict.gain and make_question(ON, BASELINE, low, high).comparison)
    assert "than the baseline" not in verdict.sentence


async def test_an_uncompared_setting_is_undecided(trial_runner: TrialRunner) -> None:
    verdict = build_verdict(trial_runner, Questions(Question(ON, BASELINE)))
    assert (verdict.mtp, verdict.settings, verdict.speedup) == ("undecided", BASELINE, None)


async def test_an_uncompared_verdict_is_as_sure_as_a_compared_one_must_be(trial_runner: TrialRunner) -> None:
    for questions in (Questions(None), Questions(Question(ON, BASELINE))):
        assert build_verdict(trial_runner, questions).confidence == 0.95
    assert verdict_without_baseline(trial_runner).confidence == 0.95


@pytest.mark.parametrize(
    "answer",
    [
        LikelyAnswer(BASELINE, None, None, 0.0, never_loads=True),
        LikelyAnswer(BASELINE, None, LikelyGain(ON, OFF, 0.0, 0.1, 9), 0.0),
    ],
)
async def test_a_forecast_without_an_answer_leaves_what_pairs_have_confirmed(
    trial_runner: TrialRunner, answer: LikelyAnswer
) -> None:
    on, off = make_question(ON, BASELINE, 1.1, 1.2), make_question(OFF, BASELINE, 0.99, 1.2)
    verdict = build_verdict(trial_runner, Questions(make_question(ON, OFF, 0.95, 1.1), (off, on)))
    assert verdict.gain is not None
    assert likely_verdict(verdict, answer, Goal(), "code") is verdict
