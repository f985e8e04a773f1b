"""Button that deletes something: where that is a loss, a second press within seconds confirms."""

from PySide6.QtCore import QSize, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QPushButton

from launcher.gui.translation import tr

_CONFIRM_MS = 6_000
"""Milliseconds in which a second press confirms."""
_WIDEST = "999.99 GB"


class ConfirmButton(QPushButton):
    """Emits `confirmed` at the second press. The first one asks, with how much is deleted.

    Its width has room for both from the beginning: a press never moves another button to where this one was.
    """

    confirmed = Signal()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text, self._freed = text, ""
        self.confirm_timer = QTimer(self)
        self.confirm_timer.setSingleShot(True)
        self.confirm_timer.setInterval(_CONFIRM_MS)
        self.confirm_timer.timeout.connect(self._show_text)
        self.clicked.connect(self._press)

    def show_loss(self, text: str, freed: str) -> None:
        """Show what the button does, and how much it deletes, such as "2.9 GB"; with "" the first press is enough."""
        self._text, self._freed = text, freed
        self._show_text()

    def reset(self) -> None:
        """Forget a first press, because the button means something else now."""
        self.confirm_timer.stop()
        self._show_text()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size that the wider of the two texts needs."""
        hint, question = super().sizeHint(), tr("Delete {size}?", size=_WIDEST)
        flag = Qt.TextFlag.TextShowMnemonic  # as the style measures it
        shown, *both = (self.fontMetrics().size(flag, text).width() for text in (self.text(), self._text, question))
        return QSize(hint.width() + max(both) - shown, hint.height())

    @Slot()
    def _press(self) -> None:
        if self._freed and not self.confirm_timer.isActive():
            self.confirm_timer.start()
            self._show_text()
        else:
            self.reset()
            self.confirmed.emit()

    @Slot()
    def _show_text(self) -> None:
        asks = self.confirm_timer.isActive()
        self.setText(tr("Delete {size}?", size=self._freed) if asks else self._text)
