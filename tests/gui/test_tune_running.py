"""Tunes from the window, on the real engine: measured, kept, paused, continued, given up, taken over, left."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from launcher.app.measuring.saved_tunes import load_tune, save_tune
from launcher.engine.server.state import SERVING, ServerState
from launcher.engine.settings import load_model_settings
from launcher.gui import theme
from launcher.gui.tune.page import TunePage
from launcher.gui.tune.view_data import TuneRequest
from launcher.gui.window import Window
from tests.cli.test_tune import WORKLOAD

FIRST_PAGE = "about"
LONG_MS = 240_000


@pytest.fixture(autouse=True)
def current_theme(qapp: QApplication) -> None:
    theme.apply_theme(qapp, theme.current())


@pytest.fixture
def workload_file(tmp_path: Path) -> Path:
    """A workload of one short reply."""
    path = tmp_path / "boats.toml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def page(window: Window, qtbot: QtBot) -> TunePage:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("tune")
    found: TunePage = window.page("tune")
    return found


def wait_for_trials(page: TunePage, qtbot: QtBot, trials: int) -> None:
    qtbot.waitUntil(
        lambda: page.tuning.last_view is not None and len(page.tuning.last_view.trials) >= trials, timeout=LONG_MS
    )


def press_verdict(page: TunePage, label: str) -> None:
    """Press a button of the verdict by its label: an early answer has one before the others."""
    next(button for button in page.verdict.buttons if button.text() == label).click()


def begun_elsewhere(page: TunePage, qtbot: QtBot) -> None:
    """Store a newer tune of another model, which the page does not know."""
    qtbot.waitUntil(page.export.isEnabled)  # the page has read the last tune
    kept = load_tune()
    assert kept is not None
    save_tune(replace(kept, model="other", options=replace(kept.options, model=Path("other.gguf"))))


def test_a_tune_ends_with_its_verdict_and_the_earlier_server_is_restored(
    window: Window, page: TunePage, workload_file: Path, qtbot: QtBot, wait_for: Callable[..., None]
) -> None:
    window.start_demo()
    wait_for(ServerState.READY)
    page.tuning.failed.connect(lambda error: pytest.fail(str(error)))
    with qtbot.waitSignal(page.tuning.ended, timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.1))
        assert not page.measure.isEnabled()
    assert page.measure.isEnabled()
    assert page.verdict.kicker.text().split(" · ")[0] in {"Verdict", "Likely"}
    assert " · demo · boats" in page.verdict.kicker.text()
    assert "MTP" in page.verdict.sentence.text() or "Undecided" in page.verdict.sentence.text()
    assert page.table.rows[0].setting == "off"
    # If another setting was better on this computer, its name is appended.
    assert [curve.name.split(" · ")[0] for curve in page.plot.curves] == ["boats"]
    wait_for(ServerState.READY)
    launch = window.controller.launch
    assert launch is not None
    assert launch.options.draft == 2
    plots = window.page("cockpit").plots
    with qtbot.waitSignal(window.controller.launched):
        window.controller.apply_settings({"draft": 1}, drain_s=0.0)
    qtbot.waitUntil(lambda: plots.references.baseline is not None)
    assert plots.references.baseline.text.startswith("MTP off ")
    qtbot.waitUntil(lambda: len(page.history.rows) == 1 and page.export.isEnabled())
    assert page.history.rows[0].sentence == page.verdict.sentence.text()
    rows = page.table.rows
    with qtbot.waitSignal(page.history.chosen):
        page.history._load_row(0)
    assert [row.setting for row in page.table.rows] == [row.setting for row in rows]
    # The history takes two starts in a row with the same settings for one, which weighs their replies otherwise.
    known = [(now.rate, before.rate) for now, before in zip(page.table.rows, rows, strict=True) if before.rate]
    assert all(now == pytest.approx(before, rel=0.5) for now, before in known)


def test_a_paused_tune_can_be_continued_and_given_up(
    window: Window, page: TunePage, workload_file: Path, qtbot: QtBot
) -> None:
    page.begin_tune(TuneRequest(file=str(workload_file), minutes=30))
    wait_for_trials(page, qtbot, 2)
    with qtbot.waitSignal(page.tuning.paused) as reply:
        press_verdict(page, "Pause")
        assert page.verdict.sentence.text().startswith("Restarting the server that ran before")
    assert reply.args == [None]
    assert not page.tuning.running
    assert window.controller.view.resting  # no server ran before the tune
    assert page.verdict.sentence.text() == "The measurement is paused."
    kept = load_tune()
    assert kept is not None
    done = len(kept.state.trials)
    press_verdict(page, "Continue")
    wait_for_trials(page, qtbot, done + 1)
    assert page.tuning.last_view is not None
    assert page.tuning.last_view.trials[:done] == kept.state.trials
    with qtbot.waitSignal(page.tuning.last_read):
        press_verdict(page, "Give up")
    assert load_tune() is None
    assert page.table.rows == ()
    assert page.measure.isEnabled()


@pytest.mark.thorough
def test_a_tune_that_waits_for_clients_lets_the_chat_go_first_and_the_server_stays(
    window: Window, page: TunePage, workload_file: Path, qtbot: QtBot, wait_for: Callable[..., None]
) -> None:
    window.start_demo()
    wait_for(ServerState.READY)
    page.tuning.failed.connect(lambda error: pytest.fail(str(error)))
    states: list[ServerState] = []
    window.controller.view_changed.connect(lambda _: states.append(window.controller.inputs.status.state))
    page.when_idle.setChecked(True)
    replies: list[object] = []
    window.controller.replied.connect(lambda reply, _footer: replies.append(reply))
    with qtbot.waitSignals([page.tuning.ended, window.controller.replied], timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.05))
        wait_for_trials(page, qtbot, 1)
        # The chat asks while the tune restarts the server, and waits for the restart's end.
        qtbot.waitUntil(lambda: window.controller.inputs.status.state not in SERVING, timeout=LONG_MS)
        window.controller.request_reply([{"role": "user", "content": "Hello"}], {"max_tokens": 400})
    assert None not in replies
    assert "waited" in page.verdict.kicker.text()
    assert {ServerState.STOPPED, ServerState.FAILED}.isdisjoint(states)
    wait_for(ServerState.READY)
    launch = window.controller.launch
    assert launch is not None
    assert launch.options.draft == 2


@pytest.mark.thorough
def test_giving_up_before_the_first_trial_keeps_the_earlier_tune(
    page: TunePage, workload_file: Path, qtbot: QtBot
) -> None:
    with qtbot.waitSignal(page.tuning.ended, timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.01))
    before = load_tune()
    assert before is not None
    page.begin_tune(TuneRequest(file=str(workload_file), minutes=30))
    with qtbot.waitSignal(page.tuning.last_read):
        page.verdict.buttons[1].click()
    assert load_tune() == before


def test_an_early_verdict_is_shown_and_can_be_used_at_once(
    window: Window, page: TunePage, workload_file: Path, qtbot: QtBot
) -> None:
    page.tuning.failed.connect(lambda error: pytest.fail(str(error)))
    with qtbot.waitSignal(page.tuning.answered, timeout=LONG_MS) as answered:
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=10))
    predicted = answered.args[0]
    assert page.verdict.sentence.text() == predicted.sentence
    assert "Pause" in [button.text() for button in page.verdict.buttons]
    with qtbot.waitSignal(page.tuning.applied, timeout=LONG_MS) as applied:
        page.tuning.apply_answer({**predicted.answer.settings, "draft": 1})
    assert applied.args == [None]
    assert not page.tuning.running
    launch = window.controller.launch
    assert launch is not None
    assert launch.options.draft == 1
    assert page.verdict.buttons[0].text() == "Continue"


@pytest.mark.thorough
def test_an_undecided_tune_can_get_more_time(page: TunePage, workload_file: Path, qtbot: QtBot) -> None:
    with qtbot.waitSignal(page.tuning.ended, timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.01))
    assert page.verdict.sentence.text() == "Undecided: the time was too short."
    (more,) = page.verdict.buttons
    assert more.text() == "Measure for 10 minutes more"
    assert page.tuning.last_view is not None
    done = page.tuning.last_view.trials
    begun_elsewhere(page, qtbot)
    more.click()
    wait_for_trials(page, qtbot, len(done) + 1)
    assert page.tuning.last_view.trials[: len(done)] == done
    with qtbot.waitSignal(page.tuning.paused):
        page.verdict.buttons[0].click()


def test_stopping_the_server_pauses_the_tune(window: Window, page: TunePage, workload_file: Path, qtbot: QtBot) -> None:
    page.begin_tune(TuneRequest(file=str(workload_file), minutes=30))
    wait_for_trials(page, qtbot, 1)
    with qtbot.waitSignal(page.tuning.paused) as reply:
        window.controller.stop()
    assert reply.args is not None
    assert reply.args[0] is not None
    assert "during the measurement" in page.verdict.detail.text() or "newer request" in page.verdict.detail.text()
    assert [button.text() for button in page.verdict.buttons] == ["Continue", "Give up"]
    qtbot.waitUntil(lambda: window.controller.view.resting)


@pytest.mark.thorough
def test_closing_the_window_pauses_the_tune_and_the_next_window_offers_to_continue(
    page: TunePage, window: Window, workload_file: Path, qtbot: QtBot
) -> None:
    page.begin_tune(TuneRequest(file=str(workload_file), minutes=30))
    wait_for_trials(page, qtbot, 2)
    with qtbot.waitSignal(window.shut_down):
        window.quit()
    again = Window(remember=False, page="tune")
    try:
        with qtbot.waitSignal(again.page_shown):
            again.show()
        other: TunePage = again.page("tune")
        qtbot.waitUntil(lambda: bool(other.verdict.buttons))
        assert other.verdict.sentence.text() == "The measurement is paused."
        assert len(other.table.rows) >= 2
        with qtbot.waitSignal(again.shut_down):
            again.quit()
        assert again.controller.bridge.close()
    finally:
        again.deleteLater()


@pytest.mark.thorough
def test_the_winner_is_served_and_kept(
    window: Window, page: TunePage, workload_file: Path, qtbot: QtBot, demo_model: Path, wait_for: Callable[..., None]
) -> None:
    with qtbot.waitSignal(page.tuning.ended, timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.05))
    kept = load_tune()
    assert kept is not None
    assert load_model_settings(kept.options.model) == {}
    begun_elsewhere(page, qtbot)
    with qtbot.waitSignal(page.tuning.applied) as reply:
        page.tuning.apply_winner()
    assert reply.args == [None]
    wait_for(ServerState.READY)
    assert load_model_settings(kept.options.model) == {"draft": 0} | load_model_settings(kept.options.model)
    assert page.verdict.kicker.text().startswith("✓ Saved for this computer")


@pytest.mark.thorough
def test_a_measurement_is_exported(
    page: TunePage, workload_file: Path, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with qtbot.waitSignal(page.tuning.ended, timeout=LONG_MS):
        page.begin_tune(TuneRequest(file=str(workload_file), minutes=0.02))
    qtbot.waitUntil(page.export.isEnabled)
    for name, kind, part in (
        ("measurement.md", "", "boats"),
        ("measurement", "CSV (*.csv)", "decode_rate"),
        ("measurement.json", "", "boats"),
    ):
        path = tmp_path / name
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, path=path, kind=kind: (str(path), kind))
        page.export.click()
        path = path if path.suffix else path.with_suffix(".csv")
        qtbot.waitUntil(lambda path=path: path.exists() and path.stat().st_size > 0)
        assert part in path.read_text("utf-8")


def test_an_error_is_reported(page: TunePage, tmp_path: Path, qtbot: QtBot) -> None:
    with qtbot.waitSignal(page.tuning.failed):
        page.begin_tune(TuneRequest(file=str(tmp_path / "none.toml")))
    assert page.verdict.kicker.text() == "Not measured"
    assert "none.toml cannot be read" in page.verdict.sentence.text()
    assert page.measure.isEnabled()
