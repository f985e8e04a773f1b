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
    wait.__kwdefaults__["timeout"] = 180_000  # what is tested comes in its time, however busy this machine is


@pytest.fixture(autouse=True)
def nothing_left_of_windows() -> Iterator[None]:
    """Widgets of one test are deleted before the next: a style sheet is worked out for every widget that exists."""
    yield
    if QApplication.instance():
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture(autouse=True)
def left_servers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server processes that a killed run of tests leaves end after a minute, not after ten."""
    monkeypatch.setattr("launcher.app.server_process.IDLE_LIMIT_S", 60.0)


def collect_widgets() -> None:
    """Collect what earlier tests left in reference cycles, in this thread.

    A collection in the thread of the core would destroy their widgets there, and wait for ever for Qt. What is left is
    there to stay, and looked at no more, which would take a sixth of the time to open a window.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def usual_theme(qapp: QApplication) -> Iterator[None]:
    """Put theme, scale and motion back once the windows of a test, which is to ask for this first, are gone.

    A style sheet that is set earlier is worked out for each of their widgets, which takes half a second.
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
    """The window on the Cockpit, or the module's FIRST_PAGE, painted; closed at the end, which leaves nothing running.

    A module whose tests go to another page begins on a small one: the Cockpit takes most of the time to open a window.
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
    """Have the charts in a module that leaves them out."""


@pytest.fixture
def no_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the charts out, for modules that do not read them: they are a third of the work of a serving window."""
    if "charts" not in request.fixturenames:
        monkeypatch.setattr("launcher.gui.plots.panel.PlotPanel.attach_charts", lambda _panel: None)


@pytest.fixture
def wait_for(window: Window, qtbot: QtBot) -> Callable[..., None]:
    """Wait until the server is in one of the states; ready it is once the window knows its address, too."""

    def wait(*states: ServerState) -> None:
        def reached() -> None:
            state = window.controller.inputs.status.state
            assert state in states
            assert state is not ServerState.READY or window.controller.view.address

        qtbot.waitUntil(reached)

    return wait


@pytest.fixture
def demo(window: Window, wait_for: Callable[..., None]) -> Window:
    """The window with the demo running."""
    window.start_demo()
    wait_for(ServerState.READY)
    return window


@pytest.fixture
def idle_controller(qapp: QApplication, home: Path) -> Controller:
    """A controller without a window that sends no request to anybody."""
    controller = Controller()
    controller.request_reply = lambda *_: None  # type: ignore[method-assign]
    return controller


@pytest.fixture
def pane(idle_controller: Controller, qtbot: QtBot, qapp: QApplication, home: Path) -> ChatPane:
    """The chat by itself, with nothing to ask: replies are what the test says."""
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
