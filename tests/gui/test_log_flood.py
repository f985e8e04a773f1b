"""A flood of log lines, as the window takes it."""

from pytestqt.qtbot import QtBot

from launcher.engine.state import LogAdded
from launcher.gui.window import Window


def test_of_a_flood_the_last_lines_are_shown_and_the_rest_is_counted(window: Window, qtbot: QtBot) -> None:
    log = window.page("cockpit").log
    for number in range(3_000):
        window.controller.bridge.post(LogAdded(f"line {number}"))
    qtbot.waitUntil(lambda: log.toPlainText().endswith("line 2999"))
    shown = log.toPlainText().splitlines()
    told = [line for line in shown if line.startswith("...")]
    left_out = sum(int(line.split()[1].replace(",", "")) for line in told)
    assert left_out + len(shown) - len(told) == 3_000
