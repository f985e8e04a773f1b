"""The Start page as a person uses it: real widgets, real engines, and a hub on this computer."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QFileDialog, QPushButton, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from launcher.app.first.first_steps import Step, StepProgress, StepStage
from launcher.app.planning.planner import MachineDescription
from launcher.base.errors import LauncherError
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.gui import theme
from launcher.gui.labels import ElidedLabel, Label
from launcher.gui.start.cards import MachineCard, StepsCard
from launcher.gui.start.computer_text import Fact
from launcher.gui.start.page import StartPage
from launcher.gui.start.queries import PlanRequest
from launcher.gui.widgets import ProgressLine
from launcher.gui.window import Window
from tests.app.first.test_first_start import REPO, add_to_catalogue
from tests.conftest import Hub
from tests.models.pulling import FILE

FIRST_PAGE = "about"


def press_paste(window: Window) -> None:
    keys = QKeySequence(QKeySequence.StandardKey.Paste)
    (shortcut,) = [each for each in window.findChildren(QShortcut) if each.key() == keys]
    shortcut.activated.emit()


@pytest.fixture
def no_driver_or_engine(monkeypatch: pytest.MonkeyPatch, no_driver: Path) -> None:
    """No driver and no llama-server of this computer's own."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(no_driver))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def page(no_driver_or_engine: None, window: Window) -> StartPage:
    """The page, shown for the first time."""
    window.resize(1440, 1200)
    window.show_page("start")
    page: StartPage = window.page("start")
    return page


@pytest.fixture
def planned_page(page: StartPage, qtbot: QtBot) -> StartPage:
    """The page when it has read this computer and the local files of the first plan."""
    wait_until_settled(page, qtbot)
    return page


@pytest.fixture
def own_hub_model(home: Path, hub: Hub, demo_model: Path) -> Iterator[None]:
    """A model of the user's own catalogue, on the hub."""
    folder = hub.folder / REPO
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    add_to_catalogue(home)
    yield
    shutil.rmtree(folder)


def wait_until_settled(page: StartPage, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: page.result is not None and page.flow._planning is None and page.flow._surveying is None)


def choose(page: StartPage, qtbot: QtBot, model: str) -> None:
    """Choose a model by the family, and its first row by the keyboard."""
    page.family.setCurrentIndex(page.family.findData(model))
    with qtbot.waitSignal(page.flow.planned):
        page.family.activated.emit(page.family.currentIndex())
    wait_until_settled(page, qtbot)


def click(page: StartPage, qtbot: QtBot, text: str) -> None:
    assert page.card.primary.text() == text
    qtbot.mouseClick(page.card.primary, Qt.MouseButton.LeftButton)


def stage_of(page: StartPage, step: Step) -> StepStage:
    return page.steps.progress[step].stage


def times(page: StartPage) -> float:
    """When the memory that is shown was read."""
    situation = page.result.situation if page.result is not None else None
    return situation.read_at or 0.0 if situation is not None else 0.0


def own_servers(page: StartPage) -> int:
    """The number of our servers that the page knows."""
    situation = page.result.situation if page.result is not None else None
    return len(situation.own) if situation is not None else 0


def assert_done(page: StartPage) -> bool:
    assert page.card.primary.text() == "Open the chat", (
        page.card.accessibleName(),
        page.card.primary.text(),
        page.flow.running,
        {step.value: report.stage.value for step, report in page.steps.progress.items()},
    )
    return True


def test_the_page_shows_what_it_checks_and_then_the_results(
    no_driver_or_engine: None, window: Window, qtbot: QtBot
) -> None:
    page: StartPage = window.page("start")
    seen: list[str] = []
    page.flow.phase_changed.connect(lambda _what: seen.append(page.card.accessibleName()))
    window.show_page("start")
    assert not page.card.primary.isEnabled()
    wait_until_settled(page, qtbot)
    assert "Checking GPUs, drivers" in seen[0]
    names = [each.accessibleName() for each in page.machine.findChildren(QWidget) if each.accessibleName()]
    assert any(name.startswith("GPU. No usable GPU") for name in names)
    assert any(name.startswith("Disk for models. ") for name in names)
    assert any("cores" in name for name in names)


def test_three_clicks_from_an_empty_folder_to_a_streamed_reply(
    window: Window, planned_page: StartPage, qtbot: QtBot
) -> None:
    assert "No usable GPU found" in planned_page.card.accessibleName()
    assert "not the speed-up on a GPU" in planned_page.card.accessibleName()
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    assert {stage_of(planned_page, step) for step in Step} == {StepStage.DONE}
    click(planned_page, qtbot, "Open the chat")
    assert window.page_name == "cockpit"
    qtbot.waitUntil(lambda: window.controller.view.can_ask)
    prompt = window.page("cockpit").chat.prompt
    assert window.focusWidget() is prompt
    qtbot.keyClicks(window.focusWidget(), "What is a draft?")
    with qtbot.waitSignals([window.controller.deltas, window.controller.replied]):
        qtbot.keyClick(window.focusWidget(), Qt.Key.Key_Return)


@pytest.mark.thorough
def test_the_served_model_is_shown_until_it_stops(window: Window, page: StartPage, qtbot: QtBot) -> None:
    window.start_demo()
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    launch = window.controller.launch
    window.show_page("start")
    wait_until_settled(page, qtbot)
    for _ in range(2):
        assert assert_done(page)
        assert "MTP demo" in page.card.accessibleName()
        assert "8K context" in page.card.accessibleName()
        assert not page.steps.isVisible()
        page.check_again()
        wait_until_settled(page, qtbot)
    click(page, qtbot, "Open the chat")
    assert window.page_name == "cockpit"
    assert window.controller.launch is launch
    window.show_page("start")
    window.controller.stop()
    qtbot.waitUntil(lambda: page.card.primary.text() == "Start the demo")
    qtbot.waitUntil(page.steps.isVisible)


@pytest.mark.thorough
def test_memory_is_read_again_when_the_page_is_shown_and_when_a_server_starts_or_ends(
    own_hub_model: None, window: Window, planned_page: StartPage, qtbot: QtBot
) -> None:
    def read_since(read_at: float) -> None:
        qtbot.waitUntil(lambda: times(planned_page) > read_at and not planned_page.flow.is_reading)

    choose(planned_page, qtbot, "mine")
    planned_page.table.chosen.emit(0)
    wait_until_settled(planned_page, qtbot)
    before = times(planned_page)
    window.show_page("models")
    window.show_page("start")
    read_since(before)
    assert planned_page.plan is not None
    assert planned_page.plan.entry.id == "mine"  # the user's choice stays
    assert planned_page.result is not None
    assert any(each is planned_page.plan for each in planned_page.result.plans)
    assert planned_page.machine.age.text() == ""
    before = times(planned_page)
    window.start_demo()
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    window.show_page("start")
    read_since(before)
    qtbot.waitUntil(lambda: own_servers(planned_page) == 1)
    before = times(planned_page)
    window.controller.stop()
    read_since(before)
    assert own_servers(planned_page) == 0
    assert planned_page.plan.entry.id == "mine"


@pytest.mark.thorough
def test_another_plan_says_that_it_replaces_the_served_model(
    own_hub_model: None, window: Window, planned_page: StartPage, qtbot: QtBot
) -> None:
    window.start_demo()
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    window.show_page("start")
    choose(planned_page, qtbot, "mine")
    assert planned_page.card.primary.text() == "Download and start"
    assert "replaces it" in planned_page.banner.accessibleName()
    assert window.controller.served_name == "demo"
    qtbot.mouseClick(planned_page.banner.buttons[0], Qt.MouseButton.LeftButton)
    assert window.page_name == "cockpit"
    window.show_page("start")
    click(planned_page, qtbot, "Download and start")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    assert window.controller.served_name.startswith("mine")
    assert "MTP 2" in planned_page.card.accessibleName()


@pytest.fixture
def state_in_the_way(home: Path) -> None:
    """No folder for the state can be made."""
    home.mkdir()
    (home / "state").write_text("in the way")


@pytest.mark.thorough
def test_a_first_start_works_without_a_state_folder(
    state_in_the_way: None, planned_page: StartPage, qtbot: QtBot
) -> None:
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: assert_done(planned_page))


@pytest.mark.thorough
def test_the_demo_is_started_again_with_its_settings(window: Window, planned_page: StartPage, qtbot: QtBot) -> None:
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    for changes in ({"draft": 3}, {"ctx": 2_048}):
        with qtbot.waitSignal(window.controller.applied):
            window.controller.apply_settings(changes, drain_s=0)
    window.controller.stop()
    qtbot.waitUntil(lambda: planned_page.card.primary.text() == "Start the demo")
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    launch = window.controller.launch
    assert launch is not None
    assert (launch.options.draft, launch.context) == (3, 2_048)


def test_a_plan_is_downloaded_and_served_as_shown(
    own_hub_model: None, planned_page: StartPage, window: Window, qtbot: QtBot
) -> None:
    choose(planned_page, qtbot, "mine")
    assert "Recommended · balanced. FITS. Mine, F16, 4K context, MTP 2" in planned_page.card.accessibleName()
    assert planned_page.card.bar.accessibleName().startswith("Memory: weights ")
    click(planned_page, qtbot, "Download and start")
    assert planned_page.card.pause.isVisible()
    assert planned_page.card.pause.text() == "Pause"
    assert not planned_page.card.primary.isVisible()
    assert not planned_page.table.isEnabled()
    qtbot.waitUntil(lambda: assert_done(planned_page))
    launch = window.controller.launch
    assert launch is not None
    assert (launch.context, launch.options.kv, launch.options.draft) == (4096, "f16", 2)
    assert planned_page.steps.progress[Step.SELF_TEST].accepted
    assert planned_page.banner.isVisible()
    planned_page.table.chosen.emit(0)
    wait_until_settled(planned_page, qtbot)
    assert planned_page.card.primary.text() == "Start"


@pytest.mark.thorough
def test_settings_of_the_user_go_before_the_plan_until_the_user_chooses_the_plan(
    own_hub_model: None, planned_page: StartPage, window: Window, qtbot: QtBot
) -> None:
    choose(planned_page, qtbot, "mine")
    assert not planned_page.card.settings_origin.isVisible()
    click(planned_page, qtbot, "Download and start")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    model = window.controller.launch.options.model
    with qtbot.waitSignal(window.controller.applied):
        window.controller.apply_settings({"draft": 3, "ctx": 2_048}, drain_s=0)
    window.controller.stop()
    qtbot.waitUntil(lambda: window.controller.launch is None)
    choose(planned_page, qtbot, "mine")
    text = "Your last settings: 2K context, draft 3. Recommended: 4K context, draft 2."
    assert planned_page.card.settings_origin.text() == text
    assert text in planned_page.card.accessibleName()
    assert "Mine, F16, 2K context, draft 3" in planned_page.card.accessibleName()
    assert planned_page.card.switch_button.text() == "Use recommended"
    qtbot.mouseClick(planned_page.card.switch_button, Qt.MouseButton.LeftButton)
    assert "Recommended · balanced. FITS. Mine, F16, 4K context, MTP 2" in planned_page.card.accessibleName()
    assert planned_page.table.model().rowCount() == 1
    qtbot.mouseClick(planned_page.card.switch_button, Qt.MouseButton.LeftButton)
    wait_until_settled(planned_page, qtbot)
    click(planned_page, qtbot, "Start")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    launch = window.controller.launch
    assert launch is not None
    assert (launch.context, launch.options.draft) == (2_048, 3)
    assert load_model_settings(model) == {"ctx": 2_048, "draft": 3}  # what the plan recommends is not the user's choice
    window.controller.stop()
    qtbot.waitUntil(lambda: window.controller.launch is None)
    save_model_settings(model, {"threads": 3})  # no plan has a number of threads
    choose(planned_page, qtbot, "mine")
    assert planned_page.card.settings_origin.text() == "Your last settings: 3 threads. Recommended: default threads."
    qtbot.mouseClick(planned_page.card.switch_button, Qt.MouseButton.LeftButton)
    assert planned_page.card.settings_origin.text().startswith("Recommended settings: default threads.")
    qtbot.mouseClick(planned_page.card.switch_button, Qt.MouseButton.LeftButton)
    assert planned_page.card.settings_origin.text().startswith("Your last settings: 3 threads.")


def test_pause_keeps_received_data_and_resume_continues(
    own_hub_model: None, planned_page: StartPage, qtbot: QtBot, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(planned_page, qtbot, "mine")
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))
    click(planned_page, qtbot, "Download and start")
    qtbot.waitUntil(lambda: bool(planned_page.steps.progress[Step.MODEL].progress.done_bytes))
    with qtbot.waitSignal(planned_page.flow.paused):
        qtbot.mouseClick(planned_page.card.pause, Qt.MouseButton.LeftButton)
    assert stage_of(planned_page, Step.MODEL) is StepStage.PAUSED
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.requests()
    click(planned_page, qtbot, "Resume")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    (request,) = [each for each in hub.requests() if each["server"] == "store"]
    assert int(request["Range"].removeprefix("bytes=").split("-")[0]) > 0


def test_a_failed_step_is_reported_and_can_be_repeated(
    own_hub_model: None, planned_page: StartPage, qtbot: QtBot, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(planned_page, qtbot, "mine")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with qtbot.waitSignal(planned_page.flow.failed):
        click(planned_page, qtbot, "Download and start")
    assert stage_of(planned_page, Step.MODEL) is StepStage.FAILED
    assert planned_page.banner.isVisible()
    assert planned_page.card.demo.isVisible()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    click(planned_page, qtbot, "Retry")
    assert not planned_page.banner.isVisible()
    qtbot.waitUntil(lambda: assert_done(planned_page))


@pytest.mark.thorough
def test_a_stop_from_outside_during_loading_pauses(planned_page: StartPage, window: Window, qtbot: QtBot) -> None:
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: window.controller.view.state_text.startswith(("Loading", "Warming")))
    with qtbot.waitSignal(planned_page.flow.paused):
        window.controller.stop()
    qtbot.waitUntil(lambda: planned_page.card.primary.text() == "Resume")
    click(planned_page, qtbot, "Resume")
    qtbot.waitUntil(lambda: assert_done(planned_page))


@pytest.mark.thorough
def test_a_pause_before_the_first_step_starts_nothing(planned_page: StartPage, window: Window, qtbot: QtBot) -> None:
    click(planned_page, qtbot, "Start the demo")
    assert planned_page.card.pause.text() == "Cancel"
    qtbot.waitUntil(lambda: window.controller.view.state_text != "Stopped")
    with qtbot.waitSignal(planned_page.flow.paused):
        qtbot.mouseClick(planned_page.card.pause, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.controller.view.state_text == "Stopped")
    click(planned_page, qtbot, "Resume")
    qtbot.waitUntil(lambda: assert_done(planned_page))


def test_plans_for_a_described_computer_are_chosen_by_keyboard(planned_page: StartPage, qtbot: QtBot) -> None:
    planned_page.read_and_plan(
        PlanRequest("qwen3.6-35b-a3b-mtp", described=MachineDescription(gpu_memory_gib=(24,), host_memory_gib=64))
    )
    qtbot.waitUntil(lambda: planned_page.result is not None and planned_page.result.request.described is not None)
    wait_until_settled(planned_page, qtbot)
    assert planned_page.plan is not None
    first = planned_page.card.accessibleName()
    assert first.startswith("Recommended · balanced. FITS. Qwen3.6-35B-A3B, UD-IQ4_NL, 128K context, MTP 2")
    assert planned_page.card.primary.text() == "Download and start"
    assert planned_page.table.model().rowCount() > 3
    planned_page.table.setFocus()
    qtbot.keyClick(planned_page.table, Qt.Key.Key_Down)
    assert planned_page.plan is planned_page.result.plans[1]
    assert planned_page.card.accessibleName().startswith("Chosen by you · balanced")
    with qtbot.waitSignal(planned_page.flow.planned):
        planned_page.goal.setCurrentIndex(planned_page.goal.findData("long-context"))
        planned_page.goal.activated.emit(planned_page.goal.currentIndex())
    wait_until_settled(planned_page, qtbot)
    assert "long context" in planned_page.card.accessibleName()


def plan_described(page: StartPage, qtbot: QtBot, family: str | None, gib: int, host_gib: int = 64) -> None:
    here = MachineDescription(gpu_memory_gib=(gib,), host_memory_gib=host_gib)
    with qtbot.waitSignal(page.flow.planned):
        page.read_and_plan(PlanRequest(family, described=here))
    wait_until_settled(page, qtbot)


def card_texts(page: StartPage) -> list[str]:
    """All texts of the plan's card, in the order of its labels."""
    return [each.text().replace("\u00a0", " ") for each in page.card.findChildren(Label) if each.isVisible()]


@pytest.mark.parametrize("language", ["en", "zh_CN"])
def test_reasons_and_expected_speed_equal_those_of_the_plan_command(
    language: str, planned_page: StartPage, qtbot: QtBot
) -> None:
    from launcher.gui import translation

    plan_described(planned_page, qtbot, "qwen3.6-35b-a3b-mtp", 24)
    translation.choose_language(language)
    try:
        planned_page.table.selectRow(1)
        planned_page.table.selectRow(0)
        plan = planned_page.plan
        assert plan is not None
        last_first = translation.render(plan.reasons[3]).replace("\u00a0", " ")
        qtbot.waitUntil(lambda: last_first in card_texts(planned_page))
        result = card_texts(planned_page)
        assert plan.forecast is not None
        for reason in plan.reasons[:4]:  # for this file, against the next best, without a desktop, for the best quality
            assert translation.render(reason).replace("\u00a0", " ") in result
        figures = (plan.forecast.tokens_per_second, plan.forecast.low, plan.forecast.high, plan.forecast.without_mtp)
        assert any(all(f"{figure:,.0f}" in text for figure in figures) for text in result)
        assert translation.render(plan.reasons[-1]) not in result
        qtbot.mouseClick(planned_page.card.more_button, Qt.MouseButton.LeftButton)
        everything = [translation.render(each) for each in (*plan.reasons, *plan.cautions)]
        qtbot.waitUntil(lambda: [text for text in card_texts(planned_page) if text in everything] == everything)
        qtbot.mouseClick(planned_page.card.more_button, Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: card_texts(planned_page) == result)
    finally:
        translation.choose_language("en")


def test_a_model_that_is_too_big_is_not_proposed_but_a_smaller_one(planned_page: StartPage, qtbot: QtBot) -> None:
    plan_described(planned_page, qtbot, "llama-3.3-70b", 8)
    assert planned_page.card.badge.text() == "TOO BIG"
    assert (planned_page.card.primary.text(), planned_page.card.primary.objectName()) == ("Download anyway", "")
    text = planned_page.banner.text.text()
    assert "cannot work well here: there is too little memory. What fits: " in text
    assert "(qwen" not in text  # the model's name is not the one for the terminal
    assert not any("tokens/s" in each for each in card_texts(planned_page))  # no speed is forecast
    areas = [area for area in planned_page.findChildren(QScrollArea) if area.isVisible()]
    # No page has to be scrolled.
    qtbot.waitUntil(lambda: all(area.verticalScrollBar().maximum() == 0 for area in areas))
    show = planned_page.banner.buttons[0]
    assert show.text() == "Show its plan"
    with qtbot.waitSignal(planned_page.flow.planned):
        qtbot.mouseClick(show, Qt.MouseButton.LeftButton)
    wait_until_settled(planned_page, qtbot)
    assert planned_page.card.badge.text() != "TOO BIG"
    assert (planned_page.card.primary.text(), planned_page.card.primary.objectName()) == (
        "Download and start",
        "primary",
    )


def test_a_file_is_chosen_and_planned(
    planned_page: StartPage, qtbot: QtBot, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(demo_model), ""))
    with qtbot.waitSignal(planned_page.flow.planned):
        qtbot.mouseClick(planned_page.file_button, Qt.MouseButton.LeftButton)
    wait_until_settled(planned_page, qtbot)
    assert planned_page.plan is not None
    assert planned_page.plan.entry.id == str(demo_model)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))  # the dialog was closed
    qtbot.mouseClick(planned_page.file_button, Qt.MouseButton.LeftButton)
    assert not planned_page.flow.is_reading


def test_a_warning_about_the_computer_is_as_high_as_its_text(qtbot: QtBot) -> None:
    card = MachineCard(lambda: None, lambda: None)
    qtbot.addWidget(card)
    card.show_facts((Fact("Disk", "1 GB free", warnings=("Free disk space.",)), Fact("System", "Linux")), None)
    card.resize(296, 900)
    card.show()
    row = next(each for each in card.findChildren(Label) if each.text() == "Free disk space.").parentWidget()
    assert row is not None
    qtbot.waitUntil(lambda: 0 < row.height() < 60)


def test_the_report_is_copied(planned_page: StartPage, qtbot: QtBot) -> None:
    qtbot.mouseClick(planned_page.machine.copy_button, Qt.MouseButton.LeftButton)
    assert "GPU: No usable GPU" in QGuiApplication.clipboard().text()


def test_without_the_network_the_demo_is_offered(
    page: StartPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page.read_and_plan(PlanRequest(described=MachineDescription(gpu_memory_gib=(24,))))
    qtbot.waitUntil(lambda: page.result is not None and page.result.request.described is not None)
    wait_until_settled(page, qtbot)
    assert "There is no network" in page.card.accessibleName()
    assert page.card.primary.text() == "Start the demo"


def test_every_control_has_a_name_and_a_tooltip(planned_page: StartPage) -> None:
    for each in planned_page.findChildren(QPushButton):
        assert each.text(), each
        assert each.accessibleName() or each.text()
    for each in (
        planned_page.card.primary,
        planned_page.card.pause,
        planned_page.card.demo,
        planned_page.card.ask_button,
        planned_page.family,
        planned_page.goal,
    ):
        assert each.toolTip(), each.accessibleName()


@pytest.fixture(params=[80, 200])
def text_scale(request: pytest.FixtureRequest) -> Iterator[None]:
    """A text scale in per cent, taken before the window is built."""
    theme.set_scale(request.param)
    yield
    theme.set_scale(100)


def test_no_text_is_clipped_at_any_text_scale(text_scale: None, planned_page: StartPage, window: Window) -> None:
    window.resize(1000, 640)
    for button in planned_page.findChildren(QPushButton):
        if button.isVisible():
            assert button.fontMetrics().horizontalAdvance(button.text()) <= button.width(), button.text()
    for label in planned_page.findChildren(Label):
        if label.isVisible() and label.wordWrap():
            assert label.heightForWidth(label.width()) <= label.height(), label.text()
    assert all(area.widget().width() <= planned_page.width() for area in planned_page.findChildren(QScrollArea))


@pytest.mark.thorough
def test_a_stopped_model_is_offered_again(planned_page: StartPage, window: Window, qtbot: QtBot) -> None:
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: assert_done(planned_page))
    window.controller.stop()
    qtbot.waitUntil(lambda: planned_page.card.primary.text() == "Start the demo")
    assert not planned_page.banner.isVisible()


@pytest.mark.thorough
def test_an_unrelated_problem_does_not_end_a_first_start(planned_page: StartPage, window: Window, qtbot: QtBot) -> None:
    click(planned_page, qtbot, "Start the demo")
    qtbot.waitUntil(lambda: window.controller.view.state_text != "Stopped")
    window.controller.show_problem(LauncherError("A setting could not be kept."))
    qtbot.waitUntil(lambda: assert_done(planned_page))


class TestNamedModel:
    @pytest.fixture(autouse=True)
    def _repository(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "someone" / "Named-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, folder / "named-Q8_0.gguf")

    def named(self, page: StartPage, qtbot: QtBot, name: str) -> None:
        with qtbot.waitSignal(page.flow.planned):
            page.plan_named(name)
        wait_until_settled(page, qtbot)

    def test_a_file_and_then_a_family_can_be_planned(
        self, planned_page: StartPage, qtbot: QtBot, demo_model: Path
    ) -> None:
        self.named(planned_page, qtbot, str(demo_model))
        assert planned_page.plan is not None
        assert planned_page.plan.entry.id == str(demo_model)
        assert planned_page.card.primary.text() == "Start"
        choose(planned_page, qtbot, "qwen3.5-9b-mtp")
        assert (planned_page.request.named, planned_page.name_field.text()) == (None, "")
        assert planned_page.result is not None
        assert {plan.entry.id for plan in planned_page.result.plans} == {"qwen3.5-9b-mtp"}

    def test_a_pasted_link_is_planned_from_its_header(
        self, planned_page: StartPage, window: Window, qtbot: QtBot, hub: Hub
    ) -> None:
        window.show_page("logs")
        QGuiApplication.clipboard().setText(f"{hub.url}/someone/Named-GGUF/blob/main/named-Q8_0.gguf")
        with qtbot.waitSignal(planned_page.flow.planned):
            press_paste(window)
        wait_until_settled(planned_page, qtbot)
        assert window.page_name == "start"
        assert planned_page.plan is not None
        assert (planned_page.plan.entry.repo, planned_page.plan.file.quant) == ("someone/Named-GGUF", "Q8_0")
        assert planned_page.plan.estimate.weights_exact
        assert planned_page.card.primary.text() == "Download and start"

    def test_a_pasted_text_that_is_no_model_is_ignored(self, planned_page: StartPage, window: Window) -> None:
        for text in ("", "some words", "https://example.com/a/b", "one/two\nthree/four"):
            QGuiApplication.clipboard().setText(text)
            press_paste(window)
            assert planned_page.request.named is None

    @pytest.mark.cases(2)
    @pytest.mark.parametrize(
        "name", ["someone/nothing", "/nowhere/model.gguf", "https://example.com/a/b", "https://x.org", "some words"]
    )
    def test_an_error_keeps_the_shown_plans(self, name: str, planned_page: StartPage, qtbot: QtBot) -> None:
        before = planned_page.result
        self.named(planned_page, qtbot, name)
        assert planned_page.result is before
        assert planned_page.banner.isVisible()
        assert "mtp-launcher" not in planned_page.banner.text.text()  # the window names no command
        assert planned_page.name_field.text() == name  # the name stays in the field, to be corrected
        assert planned_page.request.named is None


class TestHeadersOfEstimatedFiles:
    def test_the_question_is_asked_once_and_exact_figures_replace_the_estimate(
        self, planned_page: StartPage, qtbot: QtBot, hub: Hub, demo_model: Path
    ) -> None:
        folder = hub.folder / "unsloth" / "Qwen3.5-4B-MTP-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, folder / "Qwen3.5-4B-Q4_K_M.gguf")
        hub.requests()
        with qtbot.waitSignal(planned_page.flow.planned):
            planned_page.plan_named("qwen3.5-4b-mtp:Q4_K_M")
        wait_until_settled(planned_page, qtbot)
        assert planned_page.plan is not None
        assert not planned_page.plan.estimate.weights_exact
        assert "Read the headers" in planned_page.banner.text.text()
        assert planned_page.banner.buttons[0].text() == "Read headers"
        assert hub.requests() == []
        with qtbot.waitSignal(planned_page.flow.planned):
            qtbot.mouseClick(planned_page.banner.buttons[0], Qt.MouseButton.LeftButton)
        wait_until_settled(planned_page, qtbot)
        assert planned_page.plan is not None
        assert planned_page.plan.estimate.weights_exact
        assert "Read the headers" not in planned_page.banner.text.text()
        shutil.rmtree(folder)


def test_the_state_of_a_step_has_the_room_of_its_bar_once_that_has_gone(qtbot: QtBot) -> None:
    card = StepsCard()
    qtbot.addWidget(card)
    card.resize(700, 200)
    card.show()
    (state,) = [each for each in card.findChildren(ElidedLabel) if each.accessibleDescription() == "Self-test"][1:]
    card.show_step(StepProgress(Step.SELF_TEST, StepStage.RUNNING))
    qtbot.waitUntil(card.findChildren(ProgressLine)[-1].isVisible)
    assert state.geometry().right() < card.findChildren(ProgressLine)[-1].x()
    card.show_step(StepProgress(Step.SELF_TEST, StepStage.DONE))
    qtbot.waitUntil(lambda: state.geometry().right() > card.findChildren(ProgressLine)[-1].x())
