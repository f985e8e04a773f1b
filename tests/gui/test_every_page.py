"""Every page, opened, used and resized while a reply is written: nothing is raised, and Qt warns of nothing."""

from collections import Counter
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QAbstractSlider,
    QApplication,
    QComboBox,
    QLineEdit,
    QPushButton,
    QScrollBar,
    QToolTip,
    QWidget,
)
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from launcher.app.settings_declared import LANGUAGE, TEXT_SCALE, THEME
from launcher.gui import appearance
from launcher.gui.pages import PAGES
from launcher.gui.window import Window
from tests.gui.test_journeys import ask, make_replies_endless

SIZES = ((1000, 640), (2560, 1440), (940, 520), (1440, 900))
MOST_OF_A_CLASS = 3
"""Widgets of one class that are used on a page: more of them would take time and show the same."""
KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_End, Qt.Key.Key_Home, Qt.Key.Key_Up, Qt.Key.Key_Left)
OFFSCREEN_WARNING = "This plugin does not support "


@pytest.fixture(autouse=True)
def usual_language(usual_theme: None, qapp: QApplication) -> Iterator[None]:
    """English before and after."""
    appearance.choose_language(qapp, "en")
    yield
    appearance.choose_language(qapp, "en")


@pytest.mark.thorough
@pytest.mark.parametrize("look", ["light", "dark"])
def test_no_page_raises_or_warns(
    demo: Window, qtbot: QtBot, qtlog: object, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """An exception within Qt's calls fails a test by itself."""
    make_replies_endless(demo, monkeypatch)
    demo.controller.change_setting(THEME, look)
    ask(demo, qtbot, "Go on for ever.")
    for spec in PAGES:
        demo.show_page(spec.name)
        page = demo.page(spec.name)
        for layout in ("watch", "adjust", "chat") if spec.name == "cockpit" else ("",):
            if layout:
                page.switches.button(layout).click()
            for size in SIZES:
                demo.resize(*size)
                QApplication.processEvents()
                demo.grab()
            used: Counter[type] = Counter()
            for widget in _shown_widgets(page):
                used[type(widget)] += 1
                if used[type(widget)] <= MOST_OF_A_CLASS:
                    _use_widget(widget, qtbot)
    demo.controller.stop_reply()
    qtbot.waitUntil(lambda: not demo.controller.view.replying)
    for name, value in ((LANGUAGE, "zh_CN"), (TEXT_SCALE, 150)):
        demo.show_page("settings")
        demo.controller.change_setting(name, value)  # while the page reads the settings
        with qtbot.waitSignal(demo.page_shown):
            pass
        for spec in PAGES:
            demo.show_page(spec.name)
            demo.grab()
    qtbot.waitUntil(lambda: not demo.controller.bridge.is_awaited)
    messages = [each.message for each in qtlog.records]
    assert [each for each in messages if not each.startswith(OFFSCREEN_WARNING)] == []


def _shown_widgets(page: QWidget) -> Iterator[QWidget]:
    """Yield the usable widgets of a page. The caller may use them one by one, even if that deletes others."""
    for widget in page.findChildren(QWidget):
        if isValid(widget) and widget.isVisible() and widget.isEnabled():
            yield widget


def _use_widget(widget: QWidget, qtbot: QtBot) -> None:
    """Show a widget's tooltip, list or menu, and what keys choose in it. Nothing is started, stopped or deleted."""
    QApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, QPoint(3, 3), widget.mapToGlobal(QPoint(3, 3))))
    QToolTip.hideText()
    if isinstance(widget, QPushButton) and widget.menu() is not None:
        menu = widget.menu()
        menu.popup(widget.mapToGlobal(QPoint()))
        menu.grab()
        menu.close()
    elif isinstance(widget, QPushButton) and widget.isCheckable():
        widget.click()
    elif isinstance(widget, QComboBox):
        widget.showPopup()
        QApplication.processEvents()
        widget.hidePopup()
    elif isinstance(widget, QLineEdit):
        qtbot.keyClicks(widget, "ab")
        widget.clear()
    elif isinstance(widget, QAbstractItemView) or (
        isinstance(widget, QAbstractSlider) and not isinstance(widget, QScrollBar)
    ):
        for key in KEYS:
            if isValid(widget):
                qtbot.keyClick(widget, key)
    QApplication.processEvents()
