"""Pages during a search or a load, and the focus afterwards."""

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState, ServerStatus
from launcher.gui.labels import UNKNOWN
from launcher.gui.window import Window
from launcher.machine.gpus import DetectedGpus

FIRST_PAGE = "about"


def test_a_loading_model_is_shown_as_loading_everywhere(window: Window, qtbot: QtBot) -> None:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("cockpit")
    page = window.page("cockpit")
    page.controls.restart.show_advanced(True)
    page.controls.sampling.show_advanced(True)
    window.controller.bridge.drained.emit([ServerStatus(ServerState.LOADING, percent=42)])
    assert window.chip._state_label.text() == "Loading 42 %"
    rate = page.plots.rows["rate"].read_out
    assert (rate.value.text(), rate.caption.text()) == (UNKNOWN, "Loading 42 %")
    assert "Loading 42 %" in page.chat.prompt.placeholderText()
    for name, field in {**page.controls.restart.fields, **page.controls.sampling.fields}.items():
        assert field._value.text() == UNKNOWN, name
        assert not field.slider.is_known, name
    window.controller.bridge.drained.emit([ServerStatus()])
    assert rate.caption.text() == "Nothing is running."


def test_the_search_for_gpus_is_shown_before_its_result(window: Window) -> None:
    assert window.rail._gpus.text() == "Looking for GPUs ..."
    window.rail.show_gpus(DetectedGpus((), {"nvidia": "No driver is installed."}, (), ()))
    assert window.rail._gpus.text() == "no GPU"


def test_start_shows_no_steps_and_no_table_before_it_has_plans(window: Window, qtbot: QtBot) -> None:
    page = window.page("start")
    assert not page.looking.isHidden()
    assert page.table.isHidden()
    assert page.steps.isHidden()
    with qtbot.waitSignal(window.page_shown):
        window.show_page("start")
    qtbot.waitUntil(lambda: page.result is not None)
    assert not page.looking.isVisible()
    assert page.table.isVisible()
    assert page.steps.isVisible()


@pytest.mark.thorough
def test_the_focus_stays_on_the_page_after_start(window: Window, qtbot: QtBot) -> None:
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    with qtbot.waitSignal(window.page_shown):
        window.show_page("start")
    page = window.page("start")
    qtbot.waitUntil(page.card.primary.isEnabled)
    page.card.primary.setFocus()
    qtbot.keyClick(page.card.primary, Qt.Key.Key_Return)
    qtbot.waitUntil(page.card.pause.hasFocus)
    qtbot.waitUntil(page.card.primary.hasFocus)
    assert page.card.primary.text() == "Open the chat"
