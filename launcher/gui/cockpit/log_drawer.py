"""The engine's log at the bottom of the page."""

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QPlainTextEdit

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.words import tr

_LINES = 5_000
_POLLING = "update_slots: all slots are idle"
"""What the engine prints whenever it is asked for its figures; the log file has it."""
_MOST_LINES = 200
"""Of the log in one batch: 6,000 a second, more than anybody can read. In a flood the widget takes no more."""


class LogDrawer(QPlainTextEdit):
    """Follows what the controller tells of the log."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("log")
        self.setAccessibleName(tr("The engine's log"))
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setMaximumBlockCount(_LINES)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setFont(theme.monospace())
        self.setFixedHeight(theme.px(140))
        self.hide()
        controller.logged.connect(self.take_log)

    @Slot(object)
    def take_log(self, lines: list[str]) -> None:
        """Append lines, all at once."""
        lines = [line for line in lines if _POLLING not in line]
        if len(lines) > _MOST_LINES:
            left_out = len(lines) - _MOST_LINES
            lines = [f"... {left_out:,} lines are not shown here, but in the log file ...", *lines[-_MOST_LINES:]]
        if lines:
            self.appendPlainText("\n".join(map(one_line, lines)))
