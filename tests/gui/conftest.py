"""A window of the real program, over the real engine, offscreen."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui.chat.pane import ChatPane
from launcher.gui.controller import Controller
from launcher.gui.window import Window

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for wait in (QtBot.waitUntil, QtBot.waitSignal, QtBot.waitSignals, QtBot.waitActive, QtBot.waitExposed):
    wait.__kwdefaults__["timeout"] = 180_000  # conditions are waited for long enough on a busy machine, too


@pytest.fixture(autouse=True)
def nothing_left_of_windows() -> Iterator[None]:
    """Delete the widgets of a test before the next one: style sheets are computed for every widget that exists."""
    yield
    if QApplication.instance():
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture(autouse=True)
def left_servers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have server processes that a killed test run leaves end after a minute, not after ten."""
    monkeypatch.setattr("launcher.app.serving.server_process.IDLE_LIMIT_S", 60.0)


def collect_widgets() -> None:
    """Collect reference cycles that earlier tests left, in this thread.

    A collection in the thread of the core would destroy their widgets there, and wait for Qt for ever. Objects that
    remain are excluded from later collections, which would take a sixth of the time to open a window.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def usual_theme(qapp: QApplication) -> Iterator[None]:
    """Reset theme, scale and motion after the windows of a test are deleted. It must be a test's first fixture.

    A style sheet that is set earlier is computed for each of their widgets, which takes half a second.
    """
    yield
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    theme.set_scale(100)
    theme.set_motion(None)
    theme.choose_theme(None)
    theme.apply_theme(qapp, theme.current())


@pytest.fixture
def window(
    request: pytest.FixtureRequest, qtbot: QtBot, qapp: QApplication, home: Path, forked_sessions: None
) -> Iterator[Window]:
    """A painted window that shows the Cockpit, or the FIRST_PAGE of the test module. It is closed at the end.

    A module that tests another page sets FIRST_PAGE to a small page, because the Cockpit takes most of the time in
    which a window opens.
    """
    collect_widgets()
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page=getattr(request.module, "FIRST_PAGE", "cockpit"))
    with qtbot.waitSignal(window.page_shown):
        window.show()
    gone: list[bool] = []
    window.shut_down.connect(lambda: gone.append(True))
    yield window
    if not gone:
        with qtbot.waitSignal(window.shut_down):
            window.quit()
    assert window.controller.bridge.close()
    window.deleteLater()


@pytest.fixture
def charts() -> None:
    """Keep the charts in a module that uses `no_charts`."""


@pytest.fixture
def no_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the charts out in modules that do not test them: they are a third of the work of a window with a server."""
    if "charts" not in request.fixturenames:
        monkeypatch.setattr("launcher.gui.plots.panel.PlotPanel.attach_charts", lambda _panel: None)


@pytest.fixture
def wait_for(window: Window, qtbot: QtBot) -> Callable[..., None]:
    """Return a function that waits until the server is in one of the states; READY includes that the window knows its
    address."""

    def wait(*states: ServerState) -> None:
        def check_state() -> None:
            state = window.controller.inputs.status.state
            assert state in states
            assert state is not ServerState.READY or window.controller.view.address

        qtbot.waitUntil(check_state)

    return wait


@pytest.fixture
def demo(window: Window, wait_for: Callable[..., None]) -> Window:
    """The window with the demo running."""
    window.start_demo()
    wait_for(ServerState.READY)
    return window


@pytest.fixture
def idle_controller(qapp: QApplication, home: Path) -> Controller:
    """A controller without a window that sends no requests."""
    controller = Controller()
    controller.request_reply = lambda *_: None  # type: ignore[method-assign]
    return controller


@pytest.fixture
def pane(idle_controller: Controller, qtbot: QtBot, qapp: QApplication, home: Path) -> ChatPane:
    """A chat pane without a server: the test provides the replies."""
    theme.apply_theme(qapp, theme.current())
    pane = ChatPane(idle_controller)
    qtbot.addWidget(pane)
    pane.resize(420, 700)
    with qtbot.waitActive(pane):  # keys of a window that is not active go nowhere
        pane.show()
        pane.activateWindow()
    pane.enable_actions(can_ask=True, replying=False, hint="")
    return pane


@pytest.fixture
def chat(demo: Window, qtbot: QtBot) -> ChatPane:
    """The chat of a window that serves the demo, ready for a question."""
    found: ChatPane = demo.page("cockpit").chat
    qtbot.waitUntil(lambda: demo.controller.view.can_ask)
    return found
