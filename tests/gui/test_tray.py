"""The icon in the tray, and the window that goes there."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.settings_declared import CLOSE, NOTIFICATIONS, VALUE_ASK, VALUE_TRAY
from launcher.base.messages import message
from launcher.engine.server.state import ENGINE_SLOWER, Notice, ServerState
from launcher.gui.icon import make_icon
from launcher.gui.tray import Tray
from launcher.gui.window import Window

FIRST_PAGE = "about"
Wait = Callable[..., None]


@pytest.fixture
def in_front() -> list[bool]:
    """Not empty if the window is in the foreground."""
    return []


@pytest.fixture
def tray(window: Window, in_front: list[bool]) -> Tray:
    tray = Tray(window.controller, lambda: bool(in_front), window)
    window.use_tray(tray)
    return tray


@pytest.fixture
def notifications(tray: Tray, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Notifications in the order in which they came; an offscreen system shows none."""
    came: list[tuple[str, str]] = []
    monkeypatch.setattr(type(tray.icon), "showMessage", lambda _self, title, text, _icon: came.append((title, text)))
    return came


def entry(tray: Tray, text: str) -> QAction:
    (found,) = [each for each in tray.menu.actions() if each.text().startswith(text) and each.isVisible()]
    return found


def test_the_tray_starts_and_stops_the_server_and_shows_its_state(
    window: Window, tray: Tray, notifications: list[tuple[str, str]], wait_for: Wait, qtbot: QtBot
) -> None:
    assert not entry(tray, "Start").isEnabled(), "there is nothing to start yet"
    window.start_demo()
    wait_for(ServerState.READY)
    assert notifications == [("MTP demo is ready", window.controller.view.address)]
    entry(tray, "Copy the address").trigger()
    assert QGuiApplication.clipboard().text() == f"http://{window.controller.view.address}/v1"
    assert window.controller.view.address in tray.icon.toolTip()
    entry(tray, "Stop").trigger()
    wait_for(ServerState.STOPPED)
    entry(tray, "Start").trigger()
    wait_for(ServerState.READY)
    assert len(notifications) == 2


def test_a_failed_start_is_reported_with_its_reason(
    window: Window, tray: Tray, notifications: list[tuple[str, str]], wait_for: Wait, tmp_path: object, qtbot: QtBot
) -> None:
    window.controller.start("/nowhere/model.gguf")
    wait_for(ServerState.FAILED)
    qtbot.waitUntil(lambda: bool(notifications))
    ((title, text),) = notifications
    assert title == "model could not be loaded"
    assert "/nowhere/model.gguf" in text


def test_notifications_are_not_sent_while_the_window_is_visible_or_if_turned_off(
    window: Window, notifications: list[tuple[str, str]], in_front: list[bool]
) -> None:
    settings.change_setting(NOTIFICATIONS, False)
    window.controller.notify("Download finished", "a.gguf")
    assert notifications == []
    settings.reset_setting(NOTIFICATIONS)
    window.controller.notify("Download finished", "a.gguf")
    assert notifications == [("Download finished", "a.gguf")]
    in_front.append(True)
    window.controller.notify("Download finished", "b.gguf")
    assert len(notifications) == 1


@pytest.mark.thorough
def test_closing_asks_once_stores_the_answer_and_quitting_stops_the_server(
    window: Window, tray: Tray, wait_for: Wait, qtbot: QtBot
) -> None:
    window.start_demo()
    wait_for(ServerState.READY)
    window.close()
    assert window.isVisible()
    assert "in the tray" in window.notice.text.text()
    qtbot.mouseClick(window.notice.buttons[0], Qt.MouseButton.LeftButton)
    assert not window.isVisible()
    assert window.controller.view.state_text == "Ready"
    entry(tray, "Show the window").trigger()
    assert window.isVisible()
    window.close()
    assert not window.isVisible(), "it was asked once, and the answer is kept"
    entry(tray, "Quit").trigger()
    assert "Quitting unloads it" in window.notice.text.text()
    with qtbot.waitSignals([window.controller.closed, window.shut_down]):
        entry(tray, "Quit").trigger()


@pytest.mark.thorough
def test_closing_again_during_the_question_quits(window: Window, tray: Tray, wait_for: Wait, qtbot: QtBot) -> None:
    window.start_demo()
    wait_for(ServerState.READY)
    window.close()
    with qtbot.waitSignal(window.shut_down):
        window.close()
    assert window.controller.view.state_text == "Stopped"


@pytest.mark.parametrize("way", [VALUE_ASK, pytest.param(VALUE_TRAY, marks=pytest.mark.thorough)])
def test_without_a_tray_closing_asks_before_it_stops_the_server(
    window: Window, wait_for: Wait, qtbot: QtBot, way: str
) -> None:
    settings.change_setting(CLOSE, way)
    window.start_demo()
    wait_for(ServerState.READY)
    window.close()
    assert window.isVisible()
    assert window.controller.view.state_text == "Ready"
    assert "Closing this window unloads it" in window.notice.text.text()
    assert [each.text() for each in window.notice.buttons] == ["Stop and quit"]
    with qtbot.waitSignal(window.shut_down):
        qtbot.mouseClick(window.notice.buttons[0], Qt.MouseButton.LeftButton)


@pytest.fixture(params=["key", "mouse"])
def press_quit(request: pytest.FixtureRequest, window: Window, tray: Tray, qtbot: QtBot) -> Callable[[], None]:
    """Quit by Ctrl+Q, or by the entry of the tray's menu."""

    def press() -> None:
        if request.param == "key":
            qtbot.keyClick(window, Qt.Key.Key_Q, Qt.KeyboardModifier.ControlModifier)
        else:
            window.hide()  # into the tray
            entry(tray, "Quit").trigger()

    return press


def test_quitting_asks_before_it_ends_replies(
    window: Window, press_quit: Callable[[], None], wait_for: Wait, qtbot: QtBot
) -> None:
    window.start_demo()
    wait_for(ServerState.READY)
    window.activateWindow()
    qtbot.waitActive(window)
    controller = window.controller
    qtbot.waitUntil(lambda: controller.view.can_ask)
    controller.set_sampling_value("ignore_eos", True)
    window.page("cockpit").chat.send_question("Go on for ever.")
    wait_for(ServerState.BUSY)
    press_quit()
    assert window.isVisible(), "the question can be seen"
    assert window.isEnabled()
    assert window.notice.text.text().startswith("A model is loaded. Quitting unloads it")
    assert window.focusWidget() is window.notice.buttons[0]
    assert controller.view.replying
    controller.noticed.emit(Notice(ENGINE_SLOWER, message("The engine is slower.")))
    press_quit()
    assert window.isEnabled(), "the question was no longer shown"
    assert controller.view.replying
    with qtbot.waitSignal(window.shut_down):
        press_quit()


def test_without_a_server_closing_asks_nothing(window: Window, tray: Tray, qtbot: QtBot) -> None:
    with qtbot.waitSignal(window.shut_down):
        window.close()


def test_the_icon_exists_in_all_sizes(qapp: object) -> None:
    icon = make_icon()
    assert [size.width() for size in icon.availableSizes()] == [16, 24, 32, 48, 64, 128, 256]
