"""Painted glyphs. Characters of a font are not used, because fonts may lack them or draw them at other sizes."""

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from launcher.gui import theme

_SIZE = 16.0
_LINES: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "tick": (((3.5, 8.5), (6.8, 11.8), (12.5, 4.8)),),
    "cross": (((4, 4), (12, 12)), ((12, 4), (4, 12))),
    "down": (((8, 3), (8, 12.5)), ((4, 8.7), (8, 12.7), (12, 8.7))),
    "up": (((8, 13), (8, 3.5)), ((4, 7.3), (8, 3.3), (12, 7.3))),
    "right": (((6, 4), (10.5, 8), (6, 12)),),
    "left": (((10, 4), (5.5, 8), (10, 12)),),
    "open": (((4, 6), (8, 10.5), (12, 6)),),
    "close": (((4, 10.5), (8, 6), (12, 10.5)),),
    "more": (((3.5, 8), (3.6, 8)), ((8, 8), (8.1, 8)), ((12.4, 8), (12.5, 8))),
    "pause": (((5.5, 4), (5.5, 12)), ((10.5, 4), (10.5, 12))),
    "plus": (((8, 3.5), (8, 12.5)), ((3.5, 8), (12.5, 8))),
    "minus": (((3.5, 8), (12.5, 8)),),
    "clip": (
        ((10.5, 5), (5.6, 9.9), (5.6, 11.4), (7.1, 11.4), (12.6, 5.9), (12.6, 3.6), (10.9, 2.4), (9.2, 2.9)),
        ((9.2, 2.9), (3.4, 8.7), (3.2, 11.6), (5, 13.6), (7.6, 13.4), (11.6, 9.4)),
    ),
}
_AREAS: dict[str, tuple[tuple[float, float], ...]] = {
    "play": ((5, 3.5), (12.5, 8), (5, 12.5)),
    "square": ((4, 4), (12, 4), (12, 12), (4, 12)),
    "triangle": ((8, 2.5), (14, 13), (2, 13)),
    "diamond": ((8, 2.5), (13.5, 8), (8, 13.5), (2.5, 8)),
}
NAMES = ("dot", "ring", "target", "half", "dashed", "more", *_LINES, *_AREAS)


def paint_glyph(painter: QPainter, name: str, rect: QRectF, colour: QColor) -> None:
    """Paint one of NAMES into a square."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(rect.topLeft())
    painter.scale(rect.width() / _SIZE, rect.height() / _SIZE)
    pen = QPen(colour, 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
    middle = QPointF(8, 8)
    if name in _LINES:
        painter.setPen(pen)
        for line in _LINES[name]:
            painter.drawPolyline(QPolygonF([QPointF(x, y) for x, y in line]))
    elif name in _AREAS:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in _AREAS[name]]))
    elif name == "more":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        for x in (3, 8, 13):
            painter.drawEllipse(QPointF(x, 8), 1.4, 1.4)
    elif name == "dot":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(middle, 4.5, 4.5)
    else:
        if name == "dashed":
            pen.setDashPattern([1.2, 1.9])
        painter.setPen(pen)
        painter.drawEllipse(middle, 5, 5)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        if name == "target":
            painter.drawEllipse(middle, 2.4, 2.4)
        elif name == "half":
            painter.drawPie(QRectF(3, 3, 10, 10), 90 * 16, 180 * 16)
    painter.restore()


class Glyph(QWidget):
    """A painted glyph in a colour role. It has no accessible name: text is beside it."""

    def __init__(self, name: str = "dot", role: str = "secondary", pixels: int = 16) -> None:
        super().__init__()
        self._name, self._role, self._pixels = name, role, pixels
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)

    @property
    def name(self) -> str:
        """The glyph's name."""
        return self._name

    def show_glyph(self, name: str, role: str) -> None:
        """Show another glyph."""
        if (name, role) != (self._name, self._role):
            self._name, self._role = name, role
            self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size at the text scale."""
        return QSize(theme.px(self._pixels), theme.px(self._pixels))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the glyph."""
        with QPainter(self) as painter:
            paint_glyph(painter, self._name, QRectF(self.rect()), theme.colour(self._role))
