"""The lines of this window's server on their way to the page: as they come, and of a flood some, ten times a second."""

import time

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from launcher.gui.logs.lines import Line, stamp_of, taken_apart, thinned
from launcher.gui.words import tr

_FLOOD_MS = 100


class Arrivals(QObject):
    """Takes texts in, and tells them as lines with the time they came at."""

    came = Signal(object)
    """list[Line]"""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._texts: list[str] = []
        self._left_out = 0
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(_FLOOD_MS)
        self._soon.timeout.connect(self._tell)

    @Slot(object)
    def take(self, texts: list[str]) -> None:
        """Take lines in."""
        kept, left_out = thinned(texts)
        self._texts += kept
        self._left_out += left_out
        if self._soon.isActive():
            return
        if left_out:
            self._soon.start()
        else:
            self._tell()

    @Slot()
    def _tell(self) -> None:
        kept, more = thinned(self._texts)
        left_out = self._left_out + more
        self._texts, self._left_out = [], 0
        stamp = stamp_of(time.time())
        lines = [taken_apart(text, stamp) for text in kept]
        if left_out:
            said = tr("… {count} lines are not shown here, but in the log file …", count=f"{left_out:,}")
            lines.insert(0, Line(stamp, "D", said))
        self.came.emit(lines)
