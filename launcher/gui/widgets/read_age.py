"""Label with the age of a memory reading."""

import time

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent, QShowEvent

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.translation import ntr, tr

FRESH_S = 10
"""Age in seconds up to which nothing is shown."""
_MINUTE_S, _HOUR_S = 60, 3_600


class ReadAge(Label):
    """Label with the age of a memory reading; empty while that is fresh. Updates itself while visible."""

    def __init__(self) -> None:
        super().__init__("")
        self.setObjectName("secondary")
        self.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._read_at: float | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setTimerType(Qt.TimerType.VeryCoarseTimer)
        self._timer.timeout.connect(self.refresh)

    def show_age(self, read_at: float | None) -> None:
        """Show the age of the reading at `read_at`, in seconds since the epoch; None shows nothing."""
        self._read_at = read_at
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Update the text to the present age."""
        age_s = 0.0 if self._read_at is None else max(0.0, time.time() - self._read_at)
        self.setText(format_age(age_s))
        if self._read_at is not None and self.isVisible():
            step_s = FRESH_S if age_s < _MINUTE_S else _MINUTE_S
            # A little later than the step, because before it the text would stay the same.
            self._timer.start(round((step_s - age_s % step_s) * 1_000) + 50)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Start the timer."""
        super().showEvent(event)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the timer."""
        super().hideEvent(event)
        self._timer.stop()


def format_age(age_s: float) -> str:
    """Return an age as text, empty while it is fresh."""
    if age_s < FRESH_S:
        return ""
    if age_s < _MINUTE_S:
        return tr("Memory read {seconds} s ago", seconds=int(age_s) // FRESH_S * FRESH_S)
    if age_s < _HOUR_S:
        return ntr("Memory read 1 minute ago", "Memory read {n} minutes ago", int(age_s) // _MINUTE_S)
    return ntr("Memory read 1 hour ago", "Memory read {n} hours ago", int(age_s) // _HOUR_S)
