"""A list to choose from that leaves the wheel to the page."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QComboBox


class ComboBox(QComboBox):
    """The wheel turns it only while it has the focus, which no wheel gives it, so that pages can be scrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 -- Qt's name
        """Turn only with the focus."""
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()
