"""Combo box that leaves the wheel to the page."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QComboBox


class ComboBox(QComboBox):
    """Combo box that the wheel changes only if it already has the focus, so that pages can be scrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 -- Qt's name
        """Change the choice only with the focus."""
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()
