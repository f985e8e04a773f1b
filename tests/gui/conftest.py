"""A window of the real program, over the real engine, offscreen."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.engine.state import State
from launcher.gui import theme
from launcher.gui.window import Window

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for wait in (QtBot.waitUntil, QtBot.waitSignal, QtBot.waitSignals, QtBot.waitActive, QtBot.waitExposed):
    wait.__kwdefaults__["timeout"] = 60_000  # what is tested comes in its time, however busy this machine is


@pytest.fixture
def window(qtbot: QtBot, qapp: QApplication, home: Path) -> Iterator[Window]:
    """The window on the Cockpit, painted; closed at the end, which must leave nothing running."""
    theme.apply(qapp, theme.current())
    window = Window(remember=False, page="cockpit")
    with qtbot.waitSignal(window.page_shown, timeout=60_000):
        window.show()
    yield window
    if not window._may_close:
        with qtbot.waitSignal(window.gone, timeout=60_000):
            window.quit()
    assert window.controller.bridge.close()
    window.deleteLater()


@pytest.fixture
def wait_for(window: Window, qtbot: QtBot) -> Callable[..., None]:
    """Wait until the server is in one of the states."""

    def wait(*states: State) -> None:
        qtbot.waitUntil(lambda: window.controller.inputs.status.state in states, timeout=60_000)

    return wait


@pytest.fixture
def demo(window: Window, wait_for: Callable[..., None]) -> Window:
    """The window with the demo running."""
    window.start_demo()
    wait_for(State.READY)
    return window
