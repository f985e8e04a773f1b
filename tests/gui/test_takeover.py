"""The window and the process of its server: either may be killed, and the other goes on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState
from launcher.gui.window import Window
from tests.app.serving.test_remote_session import owner_program
from tests.gui.test_journeys import answers, ask, button, texts

Wait = Callable[..., None]


@pytest.mark.thorough
def test_a_new_window_shows_and_stops_the_server_of_a_killed_one(
    window: Window, wait_for: Wait, qtbot: QtBot, demo_model: Path
) -> None:
    with owner_program(ServeOptions(demo_model, built_in=True)) as owned:
        owned.kill()
        window.controller.attach_running()
        wait_for(ServerState.READY)
        assert window.controller.served_name == "the demo"
        assert owned.url.removeprefix("http://") in window.controller.view.address
        ask(window, qtbot, "What is a draft?")
        with qtbot.waitSignal(window.controller.replied):
            pass
        assert answers(window)[0].text
        qtbot.mouseClick(button(window, "Stop"), Qt.MouseButton.LeftButton)
        wait_for(ServerState.STOPPED)
        assert not owned.engine.is_running()
        assert owned.process.is_running()
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        psutil.wait_procs([owned.process], 60)
        assert not owned.process.is_running()


def test_without_a_server_of_an_earlier_window_no_process_is_started(window: Window, qtbot: QtBot) -> None:
    window.controller.attach_running()
    with qtbot.waitSignal(window.shut_down):
        window.quit()
    assert window.controller.session is None


def test_a_killed_server_process_is_reported_and_restarted(demo: Window, wait_for: Wait, qtbot: QtBot) -> None:
    session = demo.controller.session
    assert session is not None
    killed = session.process
    os.kill(killed.pid, signal.SIGKILL)
    wait_for(ServerState.FAILED)
    assert "The server process ended unexpectedly" in texts(demo)
    qtbot.waitUntil(lambda: button(demo, "Start").isEnabled())
    qtbot.mouseClick(button(demo, "Start"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert session.process not in (None, killed)
    assert "ended unexpectedly" not in texts(demo)
