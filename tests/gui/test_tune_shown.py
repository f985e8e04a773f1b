"""From trials to rows, curves and the parts of a step."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.base.messages import join_messages, message
from launcher.gui import translation as words
from launcher.gui.tune.card_text import (
    answer_label,
    keep_label,
    plan_hint,
    verdict_card,
    verdict_sentence,
    workload_title,
)
from launcher.gui.tune.trial_views import (
    TuneView,
    describe_settings,
    group_trials,
    machine_text,
    rate_curves,
    read_forecasts,
    step_parts,
    trial_rows,
)
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.other_requests import OTHER_REQUESTS_SEEN
from launcher.tuning.records import RunSettings
from launcher.tuning.tune_state import Fault, Stage, Trial
from launcher.tuning.verdict import Forecast, chance_text, name_workload
from tests.gui.trials import HOME, OFF, run, trial, tune_view, with_draft


def test_the_hint_of_a_tune_names_the_drafters_that_it_will_measure() -> None:
    plan = SimpleNamespace(seconds=240.0, starts=7)
    prepared: Any = SimpleNamespace(
        plan=plan, tokens=9_000, model="/models/a.gguf", drafters=("draft-mtp", "draft-dflash", "ngram-simple")
    )
    assert plan_hint(prepared).startswith("a.gguf: about 4 min")
    assert plan_hint(prepared).endswith("9,000 tokens · MTP, DFlash, repeats")
    assert keep_label(tune_view({"settings": {"draft": 4, "drafter": "draft-dflash"}, "mtp": "on"})) == (
        "Use draft 4 by DFlash on this computer"
    )


def test_each_setting_and_each_prediction_has_a_row() -> None:
    result = trial_rows(tune_view({"settings": with_draft(3)}))
    assert [row.setting for row in result] == ["off", "draft 1", "draft 2", "draft 3", "draft 3 · n-cpu-moe 20"]
    off, one, two, three, moved = result
    assert off.rate == pytest.approx(99.3, abs=0.1)
    assert off.spread is not None  # three starts
    assert one.spread is None
    assert (off.against_off, off.accepted, off.tokens_per_step) == (1.0, None, None)
    assert (one.accepted, one.tokens_per_step) == (0.8, 1.8)
    assert (two.rate, two.spread, two.predicted, two.origin) == (165.0, 5.0, True, "predicted")
    assert three.origin == "2 starts"
    assert [row.best for row in result] == [False, False, False, True, False]
    assert moved.against_off == pytest.approx(2.4 / 13 * 10 * 1.007, rel=0.01)


def test_several_drafters_are_named_by_their_labels() -> None:
    home = {**HOME, "drafter": "draft-mtp"}
    settings = [
        {**home, "draft": 0},
        {**home, "draft": 2},
        {**home, "draft": 4, "drafter": "draft-dflash"},
        {**home, "draft": 1, "drafter": "ngram-simple"},
    ]
    trials = tuple(trial(number, each, 10.0) for number, each in enumerate(settings))
    shown = TuneView("m", "Code", Goal(), home, trials, (), {**home, "drafter": "draft-dflash"})
    assert {row.setting for row in trial_rows(shown)} == {
        *("off", "draft 2", "draft 4 by DFlash", "drafts from repeats"),
    }
    (curve,) = rate_curves(shown)
    assert [point.setting for point in curve.points] == ["off", "draft 4 by DFlash"]
    verdict = {"mtp": "on", "draft": 4, "settings": settings[2], "gain": None}
    assert keep_label(replace(shown, verdict=verdict)) == "Use draft 4 by DFlash on this computer"
    assert answer_label(settings[2]) == "Use draft 4 by DFlash now"
    assert answer_label(settings[0]) == "Use these settings now"


def test_a_failed_trial_shows_its_reason() -> None:
    failed = Trial(9, Stage.PROBE, with_draft(6), 0.0, 3.0, 3.0, (), "Out of memory.", Fault.MEMORY)
    (row,) = trial_rows(TuneView("m", "Code", Goal(), HOME, (failed,)))
    assert (row.setting, row.rate, row.origin, row.fault) == ("draft 6", None, "failed", "Out of memory.")
    assert rate_curves(TuneView("m", "Code", Goal(), HOME, (failed,))) == ()
    assert trial_rows(TuneView("m", "Code", Goal(), HOME)) == []


def test_points_of_a_curve_are_measured_or_predicted() -> None:
    (curve,) = rate_curves(tune_view())
    assert [(point.setting, point.measured) for point in curve.points] == [
        ("off", True),
        ("draft 1", True),
        ("draft 2", False),
        ("draft 3", True),
    ]
    assert [point.starts for point in curve.points] == ["", "1 start", "", "2 starts"]
    assert curve.name == "Code"
    (moved,) = rate_curves(replace(tune_view(), other_settings={"n_cpu_moe": 20}))
    assert moved.name == "Code · n-cpu-moe 20"  # the name has the settings that all points of the curve share
    (curve,) = rate_curves(tune_view(aim=Aim.ANSWER))  # with this goal the forecasts are in seconds
    assert [point.setting for point in curve.points] == ["off", "draft 1", "draft 3"]


def test_each_workload_has_its_curve() -> None:
    def trial_of_two_prompts(number: int, settings: RunSettings, easy_ms: float, hard_ms: float) -> Trial:
        runs = [
            replace(run(settings, ms), prompt=f"{name}: one") for name, ms in (("code", easy_ms), ("prose", hard_ms))
        ]
        return Trial(number, Stage.VERIFY, settings, 0.0, 10.0, 2.0, tuple(runs))

    trials = (trial_of_two_prompts(0, OFF, 10.0, 10.0), trial_of_two_prompts(1, with_draft(2), 8.0, 12.5))
    both_together, code, prose = rate_curves(TuneView("m", "Code, Prose", Goal(), HOME, trials, (), HOME))
    assert [point.rate for point in both_together.points] == pytest.approx([100.0, 100.0])
    assert (code.name, prose.name) == ("code", "prose")
    assert [point.rate for point in code.points] == pytest.approx([100.0, 125.0])
    assert [point.rate for point in prose.points] == pytest.approx([100.0, 80.0])
    assert code.role != prose.role


def test_parts_of_a_step_follow_from_the_line_through_the_draft_lengths() -> None:
    divided, about, note = step_parts(tune_view({"settings": with_draft(3)}))
    assert [part.ms for part in divided] == pytest.approx([10.07, 0.93, 3.0], abs=0.01)
    assert about == "draft 3, Code, 14.0 ms per step"
    assert note == "2.40 tokens per step. Each drafted token adds 1.00 ms. With MTP off a token takes 10.07 ms."
    uneven = ((OFF, 10.0, 1.0), (with_draft(1), 17.0, 1.5), (with_draft(3), 18.0, 2.0), (with_draft(6), 16.0, 4.0))
    shown = TuneView("m", "Code", Goal(), HOME, tuple(trial(number, *each) for number, each in enumerate(uneven)))
    divided, _, note = step_parts(shown)
    assert [(part.name, pytest.approx(part.ms)) for part in divided] == [
        ("one token, as without MTP", 10.0),
        ("MTP head and drafts together", 6.0),
    ]
    assert note == "4.00 tokens per step. Time per drafted token: unknown yet. With MTP off a token takes 10.00 ms."
    few = TuneView("m", "Code", Goal(), HOME, (trial(0, OFF, 10.0), trial(1, with_draft(1), 12.0, 1.8)))
    assert step_parts(few) == ((), "", "")


def test_disturbances_during_the_tune_are_listed() -> None:
    assert machine_text(tune_view()) == ""
    hot = trial(0, OFF, 10.0, temperature_c=68.0, clock_mhz=2_640.0)
    spoilt = trial(1, OFF, 10.0, temperature_c=73.0, clock_mhz=2_600.0, spoilt="Another program came.")
    loaded = replace(hot, others=0.63)
    assert machine_text(TuneView("m", "Code", Goal(), HOME, (hot, loaded))).endswith(
        "\nother programs: 63 % of the processor"
    )
    output = machine_text(TuneView("m", "Code", Goal(), HOME, (hot, spoilt)))
    assert output == "68 to 73 °C\nclock 2,600 to 2,640 MHz\n1 reply was repeated: Another program came."


def test_runs_of_the_history_become_trials() -> None:
    shown = tune_view()
    again = group_trials(shown.runs)
    assert [trial.runs for trial in again] == [trial.runs for trial in shown.trials]
    assert trial_rows(TuneView("m", "Code", Goal(), HOME, again, shown.forecasts, HOME)) == trial_rows(shown)


def test_draft_settings_are_not_shown_for_mtp_off() -> None:
    home: RunSettings = {"threads": 4, "draft_sampling": "greedy"}
    beside: RunSettings = {"threads": 6, "draft_sampling": "probabilistic"}
    forecasts = (Forecast(0, 100.0, 99.0, 101.0), Forecast(2, 165.0, 160.0, 170.0))
    result = trial_rows(TuneView("m", "Code", Goal(), home, (), forecasts, beside))
    assert [row.setting for row in result] == ["off · 6 threads", "draft 2 · sampled drafts · 6 threads"]


def test_the_name_of_a_workload_is_translated_in_sentences_and_captions() -> None:
    words.choose_language("zh_CN")
    try:
        assert workload_title("code, prose") == "代码, 文章"
        assert workload_title("mine.txt") == "mine.txt"
        assert words.render(name_workload("code")) == "代码"
        assert words.render(chance_text(0.995)).startswith("超过")
    finally:
        words.choose_language("en")
    assert str(name_workload("code, mine.txt")) == "code, mine.txt"


def test_a_verdict_is_translated_from_its_figures() -> None:
    values = {"mtp": "on", "draft": 2, "speedup": 1.41, "ci_low": 1.38, "ci_high": 1.44, "sentence": "Draft 2 is it."}
    assert verdict_sentence(values, "Code") == "Draft 2 is it."
    words.choose_language("zh_CN")
    try:
        received = [
            verdict_sentence(values, "Code"),
            verdict_sentence({**values, "mtp": "off", "ci_low": 0.7, "ci_high": 0.8}, "Code"),
            verdict_sentence({**values, "mtp": "off", "ci_low": 0.97, "ci_high": 1.01}, "Code"),
            verdict_sentence({**values, "mtp": "undecided", "ci_low": 0.9, "ci_high": 1.2}, "Code"),
        ]
        assert [each.isascii() for each in received] == [False] * 4
        assert ["+38 %" in received[0], "-20 %" in received[1], "+1 %" in received[2], "+20 %" in received[3]] == [
            True
        ] * 4
        gain = {
            **values,
            "mtp": "off",
            "settings": {"draft": 0, "kv": "q8_0"},
            "gain": {"estimate": 1.05, "low": 1.02, "high": 1.08},
        }
        assert "KV q8_0" in verdict_sentence(gain, "Code")
        assert "+8 %" in verdict_sentence(gain, "Code")
        same = {**values, "settings": {"draft": 2}, "gain": {"estimate": 1.41, "low": 1.38, "high": 1.44}}
        assert verdict_sentence(same, "Code") == received[0]
        short = {**values, "speedup": None, "sentence": message("Undecided: the time was too short.")}
        assert not verdict_sentence(short, "Code").isascii()
        failed = join_messages(
            message("{lost} of {fresh} comparison starts gave no result.", lost=12, fresh=12),
            message("Too many of its runs were disturbed."),
            OTHER_REQUESTS_SEEN,
        )
        lost = {
            **short,
            "settings": OFF,
            "sentence": message("Undecided: too few starts could be compared."),
            "because": failed,
        }
        card = verdict_card(tune_view(lost), [])
        assert not re.findall("[a-z]{3,}", card.sentence + card.detail)
        assert verdict_sentence({"mtp": "undecided", "sentence": "Undecided.", "speedup": None}, "Code") == "Undecided."
    finally:
        words.choose_language("en")


def test_texts_of_settings_and_goals() -> None:
    assert describe_settings(OFF, HOME) == "off"
    assert read_forecasts({}) == ()
    values: dict[str, object] = {
        "mtp": "off",
        "sentence": "Leave MTP off.",
        "because": "It is slower.",
        "settings": OFF,
    }
    card = verdict_card(tune_view(values), [])
    assert card.kicker == "Verdict · qwen.gguf · Code · 1 min 10 s · 7 replies"
    assert (card.sentence, card.detail, card.meaning) == ("Leave MTP off.", "Why: It is slower.", "good")


def test_settings_that_change_the_answers_are_marked() -> None:
    values: dict[str, object] = {
        "mtp": "on",
        "draft": 3,
        "sentence": "Draft 3.",
        "because": "",
        "settings": with_draft(3),
    }
    for row in ("quality", "mtp_quality"):
        view = tune_view({**values, row: {"answer": "beyond"}})
        assert verdict_card(view, []).meaning == "attention"
        assert keep_label(view) == "Use these settings although the answers change"
    assert keep_label(tune_view({**values, "mtp_quality": {"answer": "shown"}})) == "Use draft 3 on this computer"


def test_a_likely_verdict_is_marked_as_likely() -> None:
    values: dict[str, object] = {"mtp": "on", "sentence": "Likely (97 %).", "because": "", "settings": with_draft(3)}
    card = verdict_card(tune_view({**values, "speedup": 1.5, "likely": 0.97}), [])
    assert card.kicker.startswith("Likely · qwen.gguf")
    assert card.detail == ""


def test_the_confidence_level_is_in_the_detail() -> None:
    values: dict[str, object] = {
        "mtp": "off",
        "sentence": "Leave MTP off.",
        "because": "It is slower.",
        "settings": OFF,
    }
    card = verdict_card(tune_view({**values, "speedup": 0.8, "confidence": 0.975}), [])
    assert card.detail == "Why: It is slower. All ranges together hold with 95 % confidence."
