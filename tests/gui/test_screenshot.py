"""Pictures of the window with the real engine: screenshot mode, and what the pictures of the docs show."""

import json
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from launcher.engine.server.registry import list_entries
from launcher.engine.server.state import ServerState
from launcher.gui.screenshot import ScreenshotTaker
from launcher.gui.window import Window
from tools.screenshots.scene import show_handover


def test_after_a_question_without_a_reply_no_other_is_asked(
    window: Window, qtbot: QtBot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, controller = tmp_path / "window.png", window.controller
    controller.set_sampling_value("ignore_eos", True)  # the demo's own replies end within one turn of the loop
    controller.deltas.connect(controller.stop_reply)
    ScreenshotTaker(window, picture, 0.5, live=True, waits_for_file=False)
    with qtbot.waitSignal(window.shut_down):
        window.start_demo()
    report = json.loads(capsys.readouterr().out)
    assert (report["problem"], report["painted_s"]) == ("Stopped by you.", 0.5)
    assert window.exit_code == 1
    assert QImage(str(picture)).size() == window.size()
    assert len(window.page("cockpit").chat.column.turns) == 1


def test_a_handover_is_seen_by_a_window_that_is_busy_meanwhile(demo: Window) -> None:
    """Such a window gets the states of a whole restart in one batch."""
    controller = demo.controller
    states: list[ServerState] = []
    first_pid = list_entries()[0].first.engine_pid

    def block_window() -> None:
        """Keep the window's thread busy until another engine serves."""
        deadline = time.monotonic() + 60
        while (entry := list_entries()[0].first).engine_pid == first_pid or entry.state not in ("ready", "busy"):
            assert time.monotonic() < deadline

    demo.page("cockpit").state.applying_changed.connect(lambda begins: begins and QTimer.singleShot(0, block_window))
    show_handover(demo, lambda: states.append(controller.inputs.status.state))
    assert states in ([ServerState.RESTARTING], [ServerState.LOADING])
