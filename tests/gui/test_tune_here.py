"""Results on the Tune page: tuned settings, whether they still hold, and advice from use."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QComboBox
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.planning.tuned_match import TunedMatch, match_tuned_settings
from launcher.app.settings_declared import ADVICE, VALUE_AUTO, VALUE_OFF, VALUE_SUGGEST
from launcher.engine.server.last_start import save_last_model
from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui.tune.cards import TunedSettingsCard, TunedState
from launcher.gui.tune.page import TunePage
from launcher.gui.window import Window
from launcher.models.gguf import read_model
from launcher.tuning.advice import Advice
from launcher.tuning.history_environment import model_facts
from launcher.tuning.statistics import Interval
from launcher.tuning.tuned_settings import Evidence, TunedSettings, save_tuned_settings
from tests.gui.trials import tune_view, with_draft
from tests.tuning.measured import ENVIRONMENT

FIRST_PAGE = "about"
TUNED = TunedSettings(
    settings={"draft": 2, "kv": "q8_0"},
    evidence=Evidence(mtp="on", measured_s=1.8e9, environment=ENVIRONMENT),
    verified_by=("0123456789",),
)
DRAFT_3 = with_draft(3)
NEWER = replace(ENVIRONMENT, gpus=(replace(ENVIRONMENT.gpus[0], driver="590.1"),))


@pytest.fixture(autouse=True)
def current_theme(qapp: QApplication) -> None:
    theme.apply_theme(qapp, theme.current())


@pytest.fixture
def card(window: Window, qtbot: QtBot) -> TunedSettingsCard:
    made = TunedSettingsCard(window.controller)
    qtbot.addWidget(made)
    made.show()
    return made


def test_matching_tuned_settings_are_shown(card: TunedSettingsCard) -> None:
    assert card.tuned.text() == "No tuned settings yet."
    card.show_state(TunedState(match_tuned_settings(TUNED, ENVIRONMENT)))
    assert card.tuned.text() == ("Qwen3.6-35B-A3B UD-Q3_K_XL: draft 2, kv q8_0, 2027-01-15.")
    assert not card.changed.isVisible()
    assert not card.measure.isVisible()
    assert not card.advice.isVisible()


def test_the_measured_speed_is_shown_with_what_it_gained(card: TunedSettingsCard) -> None:
    evidence = TUNED.evidence.model_copy(update={"tokens_per_second": 306.4, "speedup": 2.32})
    tuned = TUNED.model_copy(update={"evidence": evidence})
    summary = "draft 2, kv q8_0, 306 t/s (2.3 times as fast as with MTP off), 2027-01-15"
    assert (tuned.summary, tuned.measured_line) == (summary, f"Measured here: {summary}.")
    off = tuned.model_copy(update={"settings": {"draft": 0}})
    assert off.measured_line == "Measured here: MTP off, 306 t/s, 2027-01-15."
    card.show_state(TunedState(match_tuned_settings(tuned, ENVIRONMENT)))
    assert card.tuned.text() == f"Qwen3.6-35B-A3B UD-Q3_K_XL: {summary}."


def test_what_is_being_saved_is_said_at_once(window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("tune")
    page: TunePage = window.page("tune")
    monkeypatch.setattr(page.tuning, "apply_winner", lambda: None)
    values: dict[str, object] = {"mtp": "on", "draft": 3, "sentence": "Draft 3.", "because": "", "settings": DRAFT_3}
    page.show_tune(tune_view(values))
    page._show_verdict(tune_view(values))
    page.verdict.buttons[0].click()
    assert page.verdict.detail.text().startswith("Saving draft 3")
    assert page.verdict.detail.isVisible()
    page._show_applied(None)
    assert page.verdict.kicker.text().startswith("✓ Saved for this computer")
    assert not page.verdict.buttons


def test_a_reading_error_is_explained(card: TunedSettingsCard, qtbot: QtBot) -> None:
    card.show_state(TunedState(match_tuned_settings(TUNED, NEWER)))
    save_last_model("qwen3.6-35b-a3b-mtp")  # a model that is no longer on this computer
    card.refresh()
    text = "qwen3.6-35b-a3b-mtp is not on this computer yet. Download it first, on Models."
    qtbot.waitUntil(lambda: card.tuned.text() == text)
    assert not card.measure.isVisible()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (match_tuned_settings(TUNED, NEWER), "Measure again. The driver was 580.82 and is 590.1."),
        (
            match_tuned_settings(TUNED, replace(ENVIRONMENT, gpus=())),
            "Not used. Measure again. The GPU was NVIDIA GeForce RTX 4090 and is none.",
        ),
        (
            match_tuned_settings(TUNED.model_copy(update={"verified_by": ()}), ENVIRONMENT),
            "Imported from another computer. Used once a measurement here confirms it.",
        ),
    ],
)
def test_outdated_tuned_settings_are_explained_with_a_button_to_measure_again(
    card: TunedSettingsCard, qtbot: QtBot, found: TunedMatch, expected: str
) -> None:
    card.show_state(TunedState(found))
    assert card.changed.text() == expected
    with qtbot.waitSignal(card.measure_requested):
        card.measure.click()
    card.show_state(TunedState())
    assert not card.measure.isVisible()


@pytest.mark.parametrize(("better", "what"), [(3, "Draft 3"), (0, "No MTP")])
def test_advice_from_use_is_shown(card: TunedSettingsCard, better: int, what: str) -> None:
    card.show_state(TunedState(advice=Advice(2, better, Interval(1.06, 1.04, 1.08, 20), 41_234)))
    assert card.advice.isVisible()
    assert card.advice.text() == (
        f"{what} would have been about 6 % faster, at least 4 % with 95 % confidence, than draft 2 over your last "
        "41,000 tokens."
    )


def test_what_advice_does_is_chosen_on_the_page_and_follows_the_settings(window: Window, qtbot: QtBot) -> None:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("tune")
    page: TunePage = window.page("tune")
    box = page.tuned_card.findChild(QComboBox)
    assert isinstance(box, QComboBox)
    assert box.currentData() == VALUE_SUGGEST
    for mode in (VALUE_AUTO, VALUE_OFF):
        with qtbot.waitSignal(window.controller.setting_changed):
            qtbot.keyClick(box, Qt.Key.Key_End if mode == VALUE_AUTO else Qt.Key.Key_Home)
        assert settings.stored_value(ADVICE) == mode
        qtbot.waitUntil(lambda mode=mode: box.currentData() == mode)  # the page reads it once more
    window.controller.change_setting(ADVICE, VALUE_AUTO)
    qtbot.waitUntil(lambda: box.currentData() == VALUE_AUTO)


@pytest.mark.thorough
def test_tuned_settings_of_the_running_model_are_found_and_measured_again(
    window: Window, qtbot: QtBot, wait_for: Callable[..., None], demo_model: Path
) -> None:
    facts = model_facts(read_model(demo_model))
    evidence = Evidence(mtp="on", environment=replace(ENVIRONMENT, model=facts, engine="built-in"))
    save_tuned_settings(TUNED.model_copy(update={"evidence": evidence}))
    window.start_demo()
    wait_for(ServerState.READY)
    with qtbot.waitSignal(window.page_shown):
        window.show_page("tune")
    page: TunePage = window.page("tune")
    qtbot.waitUntil(page.tuned_card.measure.isVisible)
    assert page.tuned_card.tuned.text().startswith(f"{facts.label_with_quant}: draft 2")
    assert "The processor was AMD Ryzen 9 7950X and is " in page.tuned_card.changed.text()
    page.tuned_card.measure.click()
    assert page.tuning.running
    assert not page.tuned_card.isEnabled()
    with qtbot.waitSignal(page.tuning.last_read):
        page.verdict.buttons[1].click()
    assert page.tuned_card.isEnabled()
