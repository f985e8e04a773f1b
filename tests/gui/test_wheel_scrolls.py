"""The wheel scrolls pages; widgets under the pointer keep their values."""

import pytest
from PySide6.QtCore import QPoint, QPointF
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QScrollArea,
    QScrollBar,
    QWidget,
)
from pytestqt.qtbot import QtBot

from launcher.gui.agents.page import AgentsPage
from launcher.gui.settings.page import SettingsPage
from launcher.gui.widgets import ComboBox
from launcher.gui.window import Window

FIRST_PAGE = "about"


def turn_wheel(widget: QWidget, notches: int) -> None:
    """Turn the wheel over a visible widget, by an event that the system would send to its window."""
    window = widget.window()
    at = QPointF(widget.mapTo(window, widget.rect().center()))
    QTest.wheelEvent(window.windowHandle(), at, QPoint(0, 120 * notches))


def controls(page: QWidget) -> list[QComboBox | QAbstractSpinBox | QAbstractSlider]:
    """Return the visible controls that have a value."""
    found = (*page.findChildren(QComboBox), *page.findChildren(QAbstractSpinBox), *page.findChildren(QAbstractSlider))
    return [each for each in found if each.isVisible() and not isinstance(each, QScrollBar)]


@pytest.mark.parametrize("name", ["start", "cockpit", "tune", "models", "agents", "logs", "settings"])
def test_the_wheel_changes_no_control_without_focus(window: Window, name: str, qtbot: QtBot) -> None:
    window.show_page(name)
    page: QWidget = window.page(name)
    if isinstance(page, SettingsPage):
        qtbot.waitUntil(lambda: all(row.state is not None for row in page.rows.values()))
    if isinstance(page, AgentsPage):  # agents are looked for meanwhile
        qtbot.waitUntil(lambda: page.verdict.agents.count() > 0)
    areas = window.findChildren(QScrollArea)
    for control in controls(page):
        if isinstance(control, QComboBox) and control.count() < 2:
            control.addItems(["one", "two", "three"])
        shown = control.currentText() if isinstance(control, QComboBox) else control.property("value")
        for notches in (-1, 1):
            for area in areas:
                area.ensureWidgetVisible(control)
            turn_wheel(control, notches)
            now = control.currentText() if isinstance(control, QComboBox) else control.property("value")
            assert now == shown, control.accessibleName()
            assert not control.hasFocus(), control.accessibleName()


def test_the_page_scrolls_under_a_control(window: Window, qtbot: QtBot) -> None:
    window.resize(1_000, 300)
    window.show_page("settings")
    page: QWidget = window.page("settings")
    bars = [area.verticalScrollBar() for area in page.findChildren(QScrollArea)]
    qtbot.waitUntil(lambda: any(bar.maximum() > 0 for bar in bars))
    bar = next(bar for bar in bars if bar.maximum() > 0)
    area = next(area for area in page.findChildren(QScrollArea) if area.verticalScrollBar() is bar)
    for control in controls(page):
        bar.setValue(0)
        area.ensureWidgetVisible(control)
        before = bar.value()
        turn_wheel(control, -1 if before < bar.maximum() else 1)
        assert bar.value() != before, control.accessibleName()


def test_the_wheel_changes_a_focused_list(qtbot: QtBot) -> None:
    box = ComboBox()
    qtbot.addWidget(box)
    box.addItems(["one", "two", "three"])
    with qtbot.waitExposed(box):
        box.show()
    box.activateWindow()
    box.setFocus()
    qtbot.waitUntil(box.hasFocus)
    turn_wheel(box, -1)
    assert box.currentText() == "two"
