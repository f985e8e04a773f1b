"""The three plans of the Simple mode, with real engines: what is chosen, and how it is started."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QHBoxLayout, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from launcher.app.planning.start_settings import ResolvedStart
from launcher.base.paths import models_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.cockpit.stop_button import StopButton
from launcher.gui.cockpit.stops import PlanStops
from launcher.gui.labels import Label
from launcher.gui.window import Window
from launcher.models.drafters import MTP, DraftChoice
from tests.app.first.test_first_start import REPO, add_to_catalogue
from tests.conftest import Hub
from tests.models.pulling import DEMO, FILE

Wait = Callable[..., None]
SMALL = "small.gguf"


@pytest.fixture(autouse=True)
def no_charts_here(no_charts: None) -> None:
    """None of these tests looks at charts."""


def show_stops(window: Window, qtbot: QtBot) -> PlanStops:
    page: CockpitPage = window.page("cockpit")
    page.panes.choose_layout("adjust")
    qtbot.waitUntil(lambda: bool(page.controls.stops.stops))
    return page.controls.stops


@pytest.fixture
def demo_stops(demo: Window, qtbot: QtBot) -> PlanStops:
    """The plans of the running demo."""
    return show_stops(demo, qtbot)


@pytest.fixture
def two_files(
    home: Path, hub: Hub, demo_model: Path, no_driver: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A model of the user's own catalogue with two files: a small one here, which is recommended, a better on the hub.

    Both hold the demo. The computer has no GPU.
    """
    monkeypatch.setenv("LD_LIBRARY_PATH", str(no_driver))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    add_to_catalogue(home)
    own = home / "config" / "models" / "mine.toml"
    small = json.dumps(SMALL)
    more = f"files = [{{ quant = 'Q4_K_M', file = {small}, size_bytes = {DEMO.files[0].size_bytes} }}, "
    text = own.read_text().replace("files = [", more).replace("quant = 'F16'\nctx", "quant = 'Q4_K_M'\nctx")
    own.write_text(text)
    for folder, name in ((hub.folder, FILE), (models_dir(), SMALL)):
        (folder / REPO).mkdir(parents=True)
        shutil.copy(demo_model, folder / REPO / name)
    yield
    shutil.rmtree(hub.folder / REPO)


def checked_buttons(stops: PlanStops) -> list[str]:
    return [name for name, button in stops.buttons.items() if button.isChecked()]


def apply_draft(stops: PlanStops, qtbot: QtBot, window: Window, wait_for: Wait, draft: int) -> None:
    page: CockpitPage = window.page("cockpit")
    qtbot.waitUntil(lambda: page.state.previewer is not None)
    page.controls.restart.fields["draft"].slider.setValue(draft)
    apply_changes(page, qtbot, window, wait_for)


def apply_changes(page: CockpitPage, qtbot: QtBot, window: Window, wait_for: Wait) -> None:
    qtbot.waitUntil(page.controls.changes.isVisible)
    with qtbot.waitSignal(window.controller.applied):
        qtbot.mouseClick(page.controls.changes.apply_button, Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: page.state.change_count == 0 and not page.state.applying)


def test_the_running_plan_is_checked_and_no_plan_is_checked_after_a_change(
    demo_stops: PlanStops, demo: Window, qtbot: QtBot
) -> None:
    page: CockpitPage = demo.page("cockpit")
    assert checked_buttons(demo_stops) == ["recommended"]
    assert demo_stops.line.text().startswith("F16, 8K context, KV f16, MTP 2.")
    page.controls.restart.fields["draft"].slider.setValue(3)
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    assert checked_buttons(demo_stops) == []
    assert demo_stops.state_label.text() == "Custom"
    qtbot.mouseClick(demo_stops.buttons["recommended"], Qt.MouseButton.LeftButton)
    assert checked_buttons(demo_stops) == ["recommended"]
    assert demo_stops.state_label.text() == ""
    assert page.state.change_count == 0
    assert not page.controls.changes.isVisible()


def test_a_running_context_one_step_from_the_recommended_one_counts_as_recommended(
    window: Window, demo_model: Path, qtbot: QtBot, wait_for: Wait
) -> None:
    """Free memory may have been a little different when the server was started."""
    options = ServeOptions(demo_model, alias="demo", built_in=True, context=12_288, draft=2, threads=1)
    window.controller.start("demo", start=ResolvedStart("demo", options))
    wait_for(ServerState.READY)
    stops = show_stops(window, qtbot)
    qtbot.waitUntil(lambda: checked_buttons(stops) == ["recommended"])
    assert stops.state_label.text() == ""
    assert stops.line.text().startswith("F16, 12K context, ")
    page: CockpitPage = window.page("cockpit")
    page.controls.restart.fields["ctx"].slider.setValue(0)
    qtbot.waitUntil(lambda: stops.state_label.text() == "Custom")


def test_a_stop_without_a_plan_of_its_own_is_disabled_and_the_reason_is_shown_below(demo_stops: PlanStops) -> None:
    assert [name for name, button in demo_stops.buttons.items() if button.isEnabled()] == ["recommended"]
    reasons = {name: demo_stops.buttons[name].accessibleDescription() for name in ("faster", "better-quality")}
    assert reasons["faster"] == "The speed of this model is not known here."
    assert reasons["better-quality"] == "Recommended is the best that fits."
    assert demo_stops.lack_line.isVisible()
    assert demo_stops.lack_line.text().splitlines() == [
        f"Faster: {reasons['faster']}",
        f"Better quality: {reasons['better-quality']}",
    ]
    about_running = demo_stops.line.text()
    for name, reason in reasons.items():
        assert reason in demo_stops.buttons[name].toolTip()
        demo_stops.buttons[name].attended.emit(True)
        assert demo_stops.line.text() == about_running
        demo_stops.buttons[name].attended.emit(False)


def test_nothing_is_marked_as_changed_once_the_server_has_ended(
    demo_stops: PlanStops, demo: Window, qtbot: QtBot, wait_for: Wait
) -> None:
    page: CockpitPage = demo.page("cockpit")
    field = page.controls.restart.fields["draft"]
    field.slider.setValue(3)
    shown = lambda: [each.text() for each in field.findChildren(Label) if each.isVisible()]  # noqa: E731
    qtbot.waitUntil(lambda: "was MTP 2" in shown())
    demo.controller.stop()
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: "was MTP 2" not in shown())
    assert field.value is None


@pytest.mark.parametrize("mode", ["simple", "advanced"])
def test_a_button_goes_back_to_the_plan_from_settings_of_the_user(
    mode: str, demo_stops: PlanStops, demo: Window, qtbot: QtBot
) -> None:
    page: CockpitPage = demo.page("cockpit")
    page.controls.mode.button(mode).click()
    assert not demo_stops.back_button.isVisible()
    fields = page.controls.restart.fields
    fields["draft"].slider.setValue(3)
    fields["ctx"].slider.setValue(0)
    qtbot.waitUntil(lambda: page.state.change_count == 2)
    assert demo_stops.back_button.isVisible()
    assert "Recommended" in demo_stops.back_button.toolTip()
    demo_stops.back_button.setFocus()
    qtbot.keyClick(demo_stops.back_button, Qt.Key.Key_Space)
    assert (fields["draft"].value, fields["ctx"].value, page.state.change_count) == (DraftChoice(MTP, 2), 8_192, 0)
    assert not demo_stops.back_button.isVisible()
    assert demo.focusWidget() is page, "not the next button"
    page.controls.mode.button("simple").click()


def test_a_button_below_the_settings_opens_tune(demo_stops: PlanStops, demo: Window, qtbot: QtBot) -> None:
    page: CockpitPage = demo.page("cockpit")
    qtbot.mouseClick(page.controls.measure_button, Qt.MouseButton.LeftButton)
    assert demo.page_name == "tune"


def test_the_plans_belong_to_the_simple_mode(demo_stops: PlanStops, demo: Window) -> None:
    controls = demo.page("cockpit").controls
    assert demo_stops.isVisible()
    controls.mode.button("advanced").click()
    assert not demo_stops.isVisible()
    controls.mode.button("simple").click()
    assert demo_stops.isVisible()


def test_a_chosen_plan_is_applied_by_a_restart_as_changes_of_sliders_are(
    demo_stops: PlanStops, demo: Window, qtbot: QtBot, wait_for: Wait
) -> None:
    page: CockpitPage = demo.page("cockpit")
    apply_draft(demo_stops, qtbot, demo, wait_for, 3)
    assert "draft 3" in demo.controller.view.settings
    qtbot.waitUntil(lambda: bool(demo_stops.stops) and demo_stops.state_label.text() == "Custom")
    qtbot.mouseClick(demo_stops.buttons["recommended"], Qt.MouseButton.LeftButton)
    assert checked_buttons(demo_stops) == ["recommended"]
    preview = page.state.preview
    assert preview is not None
    assert [(each.name, each.old, each.new) for each in preview.changes] == [("draft", 3, 2)]
    assert page.controls.restart.fields["draft"].value == DraftChoice(MTP, 2)
    apply_changes(page, qtbot, demo, wait_for)
    assert "draft 2" in demo.controller.view.settings
    assert checked_buttons(demo_stops) == ["recommended"]


def test_a_stopped_model_is_started_with_the_plan_and_not_as_it_was_before(
    demo_stops: PlanStops, demo: Window, qtbot: QtBot, wait_for: Wait
) -> None:
    apply_draft(demo_stops, qtbot, demo, wait_for, 3)
    demo.controller.stop()
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: demo_stops.buttons["recommended"].isEnabled() and demo.controller.launch is None)
    assert checked_buttons(demo_stops) == []
    qtbot.mouseClick(demo_stops.buttons["recommended"], Qt.MouseButton.LeftButton)
    assert (demo_stops.start_button.text(), demo_stops.start_button.isVisible()) == ("Start", True)
    qtbot.mouseClick(demo_stops.start_button, Qt.MouseButton.LeftButton)
    assert not demo_stops.start_button.isVisible()
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: not demo_stops.is_starting)
    assert "draft 2" in demo.controller.view.settings
    qtbot.waitUntil(lambda: checked_buttons(demo_stops) == ["recommended"])


def test_a_plan_with_another_file_is_downloaded_and_replaces_the_running_one(
    two_files: None, window: Window, qtbot: QtBot, wait_for: Wait
) -> None:
    window.controller.start("mine:Q4_K_M")
    wait_for(ServerState.READY)
    stops = show_stops(window, qtbot)
    qtbot.waitUntil(lambda: checked_buttons(stops) == ["recommended"])
    recommended, better = stops.buttons["recommended"], stops.buttons["better-quality"]
    recommended.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(recommended, Qt.Key.Key_Right)
    assert QApplication.focusWidget() is better
    assert checked_buttons(stops) == ["better-quality"]
    assert stops.line.text().startswith("F16, ")
    assert stops.line.text().endswith("To download: 8.6 MB.")
    assert stops.start_button.text() == "Download and start"
    wanted = dict(stops.stops["better-quality"].settings)
    launch = window.controller.launch
    qtbot.mouseClick(stops.start_button, Qt.MouseButton.LeftButton)
    assert stops.pause_button.isVisible()
    assert not better.isEnabled()
    qtbot.waitUntil(lambda: not stops.is_starting)
    assert window.controller.launch is not launch
    assert window.controller.launch is not None
    options = window.controller.launch.options
    assert options.model.name == FILE
    assert (options.context, options.draft, options.kv) == (wanted["ctx"], wanted["draft"], wanted["kv"])
    qtbot.waitUntil(lambda: bool(stops.stops) and checked_buttons(stops) == ["better-quality"])
    assert stops.stops["recommended"].missing_bytes == 0


def test_moving_a_slider_takes_back_the_choice_of_another_file(
    two_files: None, window: Window, qtbot: QtBot, wait_for: Wait
) -> None:
    window.controller.start("mine:Q4_K_M")
    wait_for(ServerState.READY)
    stops = show_stops(window, qtbot)
    page: CockpitPage = window.page("cockpit")
    page.controls.restart.fields["draft"].slider.setValue(1)
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    qtbot.mouseClick(stops.buttons["better-quality"], Qt.MouseButton.LeftButton)
    assert stops.start_button.isVisible()
    assert page.state.change_count == 0
    page.controls.restart.fields["draft"].slider.setValue(3)
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    assert not stops.start_button.isVisible()
    assert checked_buttons(stops) == []


def test_the_choices_stand_below_one_another_where_there_is_little_room(demo: Window, qtbot: QtBot) -> None:
    page: CockpitPage = demo.page("cockpit")
    holder, alone = QWidget(), PlanStops(page.state, demo.controller)
    qtbot.addWidget(holder)
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.addWidget(alone)
    holder.resize(400, 400)
    holder.show()
    qtbot.waitUntil(lambda: bool(alone.stops))  # afterwards no plan arrives for a widget that is deleted
    buttons = list(alone.buttons.values())
    needed = sum(each.column_width for each in buttons)

    def count_columns_and_rows(width: int) -> tuple[int, int]:
        """Return the number of columns and rows of the buttons."""
        holder.resize(width, 400)
        return len({each.x() for each in buttons}), len({each.y() for each in buttons})

    for width, expected in ((needed, (3, 1)), (needed - 1, (1, 3)), (needed, (3, 1))):
        qtbot.waitUntil(lambda width=width, expected=expected: count_columns_and_rows(width) == expected)
        assert all(each.x() + each.width() <= alone.width() for each in buttons)


def test_buttons_beside_one_another_are_as_high_as_the_highest(qtbot: QtBot) -> None:
    holder = QWidget()
    qtbot.addWidget(holder)
    column, row = QVBoxLayout(holder), QHBoxLayout()
    column.addLayout(row)
    column.addStretch()
    buttons = [StopButton("Faster"), StopButton("推荐\n(highest)")]
    for button in buttons:
        row.addWidget(button)
    holder.resize(400, 400)
    holder.show()
    QApplication.processEvents()
    lower, higher = buttons
    assert lower.sizeHint().height() < higher.sizeHint().height() == higher.height() == lower.height()
