"""Thin progress line."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QPainter, QPaintEvent
from PySide6.QtWidgets import QProgressBar, QSizePolicy

from launcher.gui import theme

_THICKNESS = 6
"""Pixels at 100 % text scale."""


class ProgressLine(QProgressBar):
    """A line from 0 to 1, hatched if the progress is unknown. `name` is for screen readers."""

    def __init__(self, name: str, role: str = "accent") -> None:
        super().__init__()
        self._role = role
        self._fraction: float | None = 0.0
        self.setRange(0, 1000)
        self.setTextVisible(False)
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_fraction(self, fraction: float | None) -> None:
        """Show progress of 0 to 1; None: unknown."""
        self._fraction = None if fraction is None else min(max(fraction, 0.0), 1.0)
        self.setValue(round(1000 * (self._fraction or 0.0)))
        self.update()

    def show_role(self, role: str) -> None:
        """Change the colour role."""
        self._role = role
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the usual size."""
        return QSize(theme.px(120), theme.px(_THICKNESS))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the minimum size."""
        return QSize(theme.px(40), theme.px(_THICKNESS))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the line."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            height = theme.px(_THICKNESS)
            line = QRectF(0, (self.height() - height) / 2, self.width(), height)
            painter.setBrush(theme.colour("border"))
            painter.drawRoundedRect(line, height / 2, height / 2)
            if self._fraction is None:
                painter.setBrush(QBrush(theme.colour(self._role), Qt.BrushStyle.BDiagPattern))
            else:
                painter.setBrush(theme.colour(self._role))
                line.setWidth(max(line.width() * self._fraction, height if self._fraction else 0))
            painter.drawRoundedRect(line, height / 2, height / 2)
