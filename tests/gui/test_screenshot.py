"""Screenshot mode on the real engine."""

import json
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from launcher.gui.screenshot import ScreenshotTaker
from launcher.gui.window import Window


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
