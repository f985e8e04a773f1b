"""Language, theme and text size apply at once: all pages are rebuilt, and no state is lost."""

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from launcher.app.settings_declared import KEEP, LANGUAGE, TEXT_SCALE
from launcher.engine.server.state import ServerState
from launcher.gui import appearance, theme, translation
from launcher.gui.settings.page import SettingsPage
from launcher.gui.translation import render, tr
from launcher.gui.window import Window
from launcher.models.drafters import MTP, DraftChoice

FIRST_PAGE = "settings"
Wait = Callable[..., None]


@pytest.fixture(autouse=True)
def usual_language(usual_theme: None, qapp: QApplication) -> Iterator[None]:
    """English before and after."""
    appearance.choose_language(qapp, "en")
    yield
    appearance.choose_language(qapp, "en")


def change(window: Window, qtbot: QtBot, name: str, value: object) -> SettingsPage:
    """Change a setting on the Settings page; return the page that is built in its place."""
    if window.page_name != "settings":
        with qtbot.waitSignal(window.page_shown):
            window.show_page("settings")
    before: SettingsPage = window.page("settings")
    qtbot.waitUntil(lambda: before.rows[name].state is not None)
    before.change_setting(name, value)
    qtbot.waitUntil(lambda: window.page("settings") is not before)
    page: SettingsPage = window.page("settings")
    qtbot.waitUntil(lambda: page.rows[name].state is not None)
    return page


def texts(window: Window) -> list[str]:
    """Return what can be read in a window."""
    kinds = (QLabel, QAbstractButton)
    return [each.text() for kind in kinds for each in window.findChildren(kind) if each.isVisible() and each.text()]


def test_a_language_applies_at_once_in_both_directions(window: Window, qtbot: QtBot) -> None:
    english = {*texts(window)} - {"Looking for GPUs ..."}  # the search may end meanwhile
    change(window, qtbot, LANGUAGE, "zh_CN")
    assert translation.chosen_language() == "zh_CN"
    assert not {"Settings", "Theme", "Start", "Stopped", "Window"} & set(texts(window))
    assert tr("Settings") in texts(window)
    change(window, qtbot, LANGUAGE, "en")
    qtbot.waitUntil(lambda: english <= set(texts(window)))


def test_a_window_whose_size_changes_while_its_pages_are_built_anew_goes_on(window: Window, qtbot: QtBot) -> None:
    wider = window.width() + 40
    # The window grows during the rebuild, as with a larger text.
    window.rail.destroyed.connect(lambda: window.resize(wider, window.height()))
    change(window, qtbot, TEXT_SCALE, 110)
    assert window.width() >= wider


class ShownWindows(QObject):
    """Notes each widget that is shown as a window of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        if event.type() is QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.names.append(type(watched).__name__)
        return False


def test_no_part_of_the_new_pages_flashes_as_a_window(demo: Window, qtbot: QtBot, qapp: QApplication) -> None:
    for name in demo.page_names:
        demo.page(name)
    qtbot.waitUntil(lambda: demo.page("cockpit").state.previewer is not None)
    shown = ShownWindows()
    qapp.installEventFilter(shown)
    change(demo, qtbot, LANGUAGE, "zh_CN")
    qtbot.waitUntil(lambda: demo.page("cockpit").state.previewer is not None)
    qapp.removeEventFilter(shown)
    assert shown.names == []


def test_a_text_size_applies_at_once_and_the_slider_keeps_the_focus(window: Window, qtbot: QtBot) -> None:
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    page: SettingsPage = window.page("settings")
    page.show_setting(TEXT_SCALE)
    qtbot.waitUntil(page.rows[TEXT_SCALE].control.isEnabled)
    page.rows[TEXT_SCALE].control.slider.setFocus()  # type: ignore[attr-defined]
    rail = window.rail.width()
    page = change(window, qtbot, TEXT_SCALE, 150)
    assert theme.text_scale() == 1.5
    assert window.rail.width() == round(rail * 1.5)
    qtbot.waitUntil(page.rows[TEXT_SCALE].control.slider.hasFocus)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keeps", [True, False])
def test_the_state_of_pages_survives_a_change_of_the_look(
    window: Window, wait_for: Wait, qtbot: QtBot, keeps: bool
) -> None:
    from launcher.app import settings

    if not keeps:
        settings.change_setting(KEEP, False)
    window.start_demo()
    wait_for(ServerState.READY)
    cockpit = window.page("cockpit")
    qtbot.waitUntil(lambda: window.controller.view.can_ask and cockpit.plots.samples is not None)
    with qtbot.waitSignal(window.controller.replied):
        cockpit.chat.send_question("What is a draft?")
    qtbot.waitUntil(lambda: not window.controller.view.replying)
    messages = cockpit.chat.messages
    cockpit.chat.prompt.setPlainText("half a")
    qtbot.waitUntil(lambda: cockpit.state.previewer is not None)
    cockpit.state.request_value("draft", 5)
    window.page("logs")
    window.page("models")
    launch, lines, marks = window.controller.launch, len(window.page("logs").lines.all_lines), len(cockpit.plots.marks)
    change(window, qtbot, LANGUAGE, "zh_CN")
    assert window.controller.launch is launch, "nothing was restarted"
    settings_text = tr("{context} context · {drafts}", context="8K", drafts=render(DraftChoice(MTP, 2).label()))
    assert window.controller.view.settings == settings_text != "8K context · draft 2"
    window.show_page("cockpit")
    now = window.page("cockpit")
    assert now is not cockpit
    qtbot.waitUntil(lambda: now.chat.messages == messages)
    assert now.chat.prompt.toPlainText() == "half a"
    assert len(now.plots.marks) >= marks
    qtbot.waitUntil(lambda: now.plots.samples is not None and len(now.plots.samples) > 0)
    qtbot.waitUntil(lambda: now.state.preview is not None and now.state.change_count == 1)
    qtbot.waitUntil(lambda: len(window.page("logs").lines.all_lines) >= lines)
    with qtbot.waitSignal(window.controller.replied):
        now.chat.send_question("And then?")
    qtbot.waitUntil(lambda: len(now.chat.messages) == len(messages) + 2)


def test_a_change_of_the_look_waits_for_a_running_reply(demo: Window, qtbot: QtBot) -> None:
    controller, before = demo.controller, demo.page("cockpit")
    qtbot.waitUntil(lambda: controller.view.can_ask)
    controller.set_sampling_value("ignore_eos", True)
    before.chat.send_question("Go on for ever.")
    qtbot.waitUntil(lambda: any(each.text for each in before.chat.column.replies))
    demo.show_page("settings")
    page: SettingsPage = demo.page("settings")
    qtbot.waitUntil(lambda: page.rows[LANGUAGE].state is not None)
    page.change_setting(LANGUAGE, "zh_CN")
    qtbot.waitUntil(demo.notice.isVisible)
    assert demo.page("cockpit") is before
    controller.stop_reply()
    qtbot.waitUntil(lambda: demo.page("settings") is not page and tr("Settings") in texts(demo))
    assert not demo.notice.isVisible()
