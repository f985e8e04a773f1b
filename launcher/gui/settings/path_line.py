"""A line for a path, the middle of which makes way where there is no room for all."""

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLineEdit, QStyle, QStyleOptionFrame

from launcher.base.text import visible
from launcher.gui import theme
from launcher.gui.labels import shown_path

_MARGIN = 2
"""Left and right of a line's text, as QLineEdit has it."""


class PathLine(QLineEdit):
    """A path; while nobody writes in it, its beginning and its end are seen."""

    @property
    def elided(self) -> str:
        """The path as it is seen while nobody writes in it."""
        mode = Qt.TextElideMode.ElideMiddle
        return self.fontMetrics().elidedText(visible(shown_path(self.text())), mode, self._room(self._option()).width())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the path, or as much of it as there is room for."""
        seen = self.elided
        if self.hasFocus() or seen == self.text():
            super().paintEvent(event)
            return
        option = self._option()
        with QPainter(self) as painter:
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelLineEdit, option, painter, self)
            painter.setPen(theme.colour("text" if self.isEnabled() else "secondary"))
            place = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft
            painter.drawText(self._room(option), place, seen)

    def _option(self) -> QStyleOptionFrame:
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        return option

    def _room(self, option: QStyleOptionFrame) -> QRect:
        inner = self.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, self)
        return inner.adjusted(_MARGIN, 0, -_MARGIN, 0)
