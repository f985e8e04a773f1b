"""Overlay of a plot: reference lines, marks, dots and texts at the newest values, and the values at the cursor."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QWidget

from launcher.gui import theme
from launcher.gui.plots.marks import GLYPH_PX, MarkKind, glyph_pixmap, mark_colour

_LEAST_LINE, _LEAST_GLYPH, _LEAST_TICK, _TICK = 14.0, 11.0, 3.0, 6
"""The least distances in pixels between two marks' lines, glyphs and ticks, and the height of a tick. A mark too close
to
the last line gets a tick instead."""
_FREQUENT_MARKS = frozenset({MarkKind.REQUEST, MarkKind.FIRST_TOKEN})
"""Marks of every request. Their lines are faint, or a few minutes of short requests would hide the curves."""
_FAINT, _STRONG = 0.8, 0.45
"""Share of the background's colour that is mixed into the colour of a faint and of a strong mark's line."""
_PAUSE_OPACITY, _LEAST_PAUSE = 0.16, 6.0
"""Opacity of the band of a pause, and its least width in pixels."""
_LABEL_GAP = 12
"""Pixels between the newest values and the texts at the ends of the lines."""
_WIDEST_READ_OUT = 260
_WHEEL_NOTCH = 120.0
"""Qt's angle of one wheel notch, in eighths of a degree."""


@dataclass(frozen=True, slots=True)
class LineLabel:
    """A text at the right end of a line at a share of the plot's height; above 1 it stands at the top.

    A reference's `line` is drawn by the overlay, "dotted" or "dashed"; the line of a curve ("") is not.
    """

    share: float
    text: str
    colour: str | None = None
    bold: bool = False
    line: Literal["", "dotted", "dashed"] = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A value's position as shares of the plot's width and height. `radius` is in pixels."""

    x: float
    y: float
    colour: str
    radius: float = 3.0


@dataclass(frozen=True, slots=True)
class HoverRow:
    """A row of the cursor's read-out."""

    colour: str | None
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Hover:
    """The cursor's read-out at `x`, a share of the plot's width: text lines first, then a row per series."""

    x: float
    lines: tuple[str, ...]
    rows: tuple[HoverRow, ...]
    dots: tuple[Dot, ...]


class Overlay(QWidget):
    """Paints the overlay and emits pointer actions, in shares of the plot's width."""

    hovered = Signal(float)
    pointer_left = Signal()
    zoomed = Signal(float, float)
    dragged = Signal(float)
    reset_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setMouseTracking(True)
        self.area = QRectF()
        """The area of the values, in pixels."""
        self.labels: tuple[LineLabel, ...] = ()
        self.marks: Sequence[tuple[float, MarkKind]] = ()
        self.pauses: Sequence[tuple[float, float]] = ()
        self.dots: Sequence[Dot] = ()
        self.hover: Hover | None = None
        self.news = ""
        """Words that stand beside the newest pause."""
        self.has_glyphs = True
        """Whether the glyphs of marks are above this plot."""
        self.has_times = True
        """Whether the times are below this plot."""
        self._drag_share: float | None = None
        self._font = theme.font(11, tabular=True)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the overlay."""
        with QPainter(self) as painter:
            colours = theme.current()
            painter.setFont(self._font)
            self._paint_marks(painter, colours)
            self._paint_labels(painter, colours)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            for dot in self.dots:
                self._paint_dot(painter, dot)
            if self.hover is not None and self.area.width() > 0:
                self._paint_hover(painter, self.hover, colours)

    def _x(self, share: float) -> float:
        return self.area.left() + share * self.area.width()

    def _y(self, share: float) -> float:
        return self.area.bottom() - share * self.area.height()

    def _paint_marks(self, painter: QPainter, colours: theme.Theme) -> None:
        last_line = last_glyph = float("-inf")
        top = 0 if not self.has_glyphs else round(self.area.top())
        bottom = self.height() if not self.has_times else round(self.area.bottom())
        height = bottom - top  # through the room between the plots
        tick_colours = {kind: _mix_line(mark_colour(kind, colours), colours.card, _STRONG) for kind in MarkKind}
        faint_colours = {kind: _mix_line(mark_colour(kind, colours), colours.card, _FAINT) for kind in _FREQUENT_MARKS}
        line_colours = tick_colours | faint_colours
        for start, end in self.pauses:
            self._paint_pause(painter, QRectF(self._x(start), top, self._x(min(end, 1.0)) - self._x(start), height))
        glyphs = {kind: glyph_pixmap(kind, self.devicePixelRatioF(), colours) for kind in MarkKind}
        for share, kind in self.marks:
            x = round(self._x(share))
            if x - last_line >= _LEAST_LINE:
                painter.fillRect(x, top, 1, height, line_colours[kind])
                last_line = x
            elif x - last_line >= _LEAST_TICK:
                painter.fillRect(x, top, 1, _TICK, tick_colours[kind])
            if self.has_glyphs and x - last_glyph >= _LEAST_GLYPH:
                painter.drawPixmap(x - GLYPH_PX // 2, top - GLYPH_PX, glyphs[kind])
                last_glyph = x
        if self.news and self.has_glyphs:
            self._paint_news(painter, colours)

    def _paint_pause(self, painter: QPainter, band: QRectF) -> None:
        """Shade a pause that streams outlived, to scale but wide enough to be seen."""
        band.setWidth(max(band.width(), _LEAST_PAUSE))
        accent = QColor(theme.current().accent)
        painter.fillRect(QRectF(band.left(), band.top(), 1, band.height()), accent)
        painter.fillRect(QRectF(band.right() - 1, band.top(), 1, band.height()), accent)
        accent.setAlphaF(_PAUSE_OPACITY)
        painter.fillRect(band, accent)

    def _paint_news(self, painter: QPainter, colours: theme.Theme) -> None:
        """Write what happened beside the newest pause, on the side where there is room."""
        start, end = (self._x(each) for each in self.pauses[-1])
        metrics = QFontMetrics(self._font)
        width, height = metrics.horizontalAdvance(self.news) + 12, metrics.height() + 2
        left, right = start - width - 4, max(end, start + _LEAST_PAUSE) + GLYPH_PX
        if left < self.area.left() and right + width < self.width():
            left = right
        left = max(left, 0.0)
        box = QRectF(left, max(0.0, self.area.top() - height), width, height)
        painter.setPen(QPen(QColor(colours.accent), 1))
        painter.setBrush(QColor(colours.raised))
        painter.drawRoundedRect(box, 4, 4)
        painter.setPen(QColor(colours.text))
        painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), self.news)

    def _paint_labels(self, painter: QPainter, colours: theme.Theme) -> None:
        """Draw the reference lines, and the texts at the right ends of all lines, moved apart."""
        ends = [self._y(min(max(label.share, 0.0), 1.0)) for label in self.labels]
        left = self.area.right() + _LABEL_GAP
        for label, y in zip(self.labels, ends, strict=True):
            if label.line and label.share <= 1.0:
                pen = QPen(QColor(colours.limit), 1, Qt.PenStyle.CustomDashLine)
                pen.setDashPattern([1, 3] if label.line == "dotted" else [5, 4])
                painter.setPen(pen)
                painter.drawLine(QPointF(self.area.left(), round(y)), QPointF(self.area.right(), round(y)))
        height = QFontMetrics(self._font).height()
        places = move_apart(ends, height, height / 2, self.height() - height / 2)
        for label, y, place in zip(self.labels, ends, places, strict=True):
            if abs(place - y) > height / 3:
                painter.setPen(QColor(colours.control))
                painter.drawLine(QPointF(left - _LABEL_GAP + 4, y), QPointF(left - 2, place))
            self._font.setBold(label.bold)
            painter.setFont(self._font)
            painter.setPen(QColor(colours.text if label.bold else colours.secondary))
            room = QRectF(left, place - height / 2, self.width() - left, height)
            text = painter.fontMetrics().elidedText(label.text, Qt.TextElideMode.ElideRight, int(room.width()))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), text)
        self._font.setBold(False)
        painter.setFont(self._font)

    def _paint_dot(self, painter: QPainter, dot: Dot) -> None:
        centre = QPointF(self._x(dot.x), self._y(dot.y))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(dot.colour))
        painter.drawEllipse(centre, dot.radius, dot.radius)

    def _paint_hover(self, painter: QPainter, hover: Hover, colours: theme.Theme) -> None:
        x = round(self._x(hover.x)) + 0.5
        painter.setPen(QPen(QColor(colours.text), 1))
        painter.drawLine(QPointF(x, self.area.top()), QPointF(x, self.area.bottom()))
        for dot in hover.dots:
            self._paint_dot(painter, dot)
        metrics = QFontMetrics(self._font)
        wraps = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWordWrap)
        widest = min(_WIDEST_READ_OUT, self.width() - 32)
        line_rects = [metrics.boundingRect(0, 0, widest, 400, wraps, text) for text in hover.lines]
        gap, swatch, line = 8, 12, metrics.height()
        names_width = max((metrics.horizontalAdvance(row.name) for row in hover.rows), default=0)
        values_width = max((metrics.horizontalAdvance(row.value) for row in hover.rows), default=0)
        rows_width = swatch + names_width + 2 * gap + values_width if hover.rows else 0
        width = 2 * gap + max([rows_width, *(each.width() + 2 for each in line_rects)])
        gap_between = 4 if line_rects and hover.rows else 0
        height = gap + sum(each.height() for each in line_rects) + line * len(hover.rows) + gap_between
        left = x + 10 if x + 10 + width <= self.width() else max(0.0, x - 10 - width)
        top = max(0.0, min(self.area.top(), self.height() - height - 1.0))
        box = QRectF(left, top, width, height)
        painter.setPen(QPen(QColor(colours.border), 1))
        painter.setBrush(QColor(colours.raised))
        painter.drawRoundedRect(box, 6, 6)
        y = box.top() + gap / 2
        painter.setPen(QColor(colours.text))
        for text, size in zip(hover.lines, line_rects, strict=True):
            painter.drawText(QRectF(left + gap, y, widest, size.height()), wraps, text)
            y += size.height()
        y += gap_between
        for row in hover.rows:
            if row.colour is not None:
                painter.fillRect(QRectF(left + gap, y + line / 2 - 1, 8, 3), QColor(row.colour))
            row_rect = QRectF(left + gap + swatch, y, width - 2 * gap - swatch, line)
            painter.setPen(QColor(colours.secondary))
            painter.drawText(row_rect, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), row.name)
            painter.setPen(QColor(colours.text))
            painter.drawText(row_rect, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), row.value)
            y += line

    def share_at(self, x: float) -> float:
        """Convert an x coordinate to a share of the plot's width."""
        return (x - self.area.left()) / max(self.area.width(), 1.0)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Drag, or report the pointer's position."""
        share = self.share_at(event.position().x())
        if self._drag_share is not None:
            self.dragged.emit(share - self._drag_share)
            self._drag_share = share
        self.hovered.emit(share)

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Start dragging."""
        if event.button() is Qt.MouseButton.LeftButton:
            self._drag_share = self.share_at(event.position().x())
            self.setCursor(Qt.CursorShape.ClosedHandCursor)

    def mouseReleaseEvent(self, _event: QMouseEvent) -> None:  # noqa: N802
        """Stop dragging."""
        self._drag_share = None
        self.unsetCursor()

    def mouseDoubleClickEvent(self, _event: QMouseEvent) -> None:  # noqa: N802
        """Return to the live view."""
        self.reset_requested.emit()

    def leaveEvent(self, _event: object) -> None:  # noqa: N802
        """Report that the pointer has left."""
        self.pointer_left.emit()

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802
        """Zoom around the pointer; a sideways wheel pans."""
        sideways, forward = event.angleDelta().x() / _WHEEL_NOTCH, event.angleDelta().y() / _WHEEL_NOTCH
        if abs(sideways) > abs(forward):
            self.dragged.emit(sideways / 10)
        else:
            self.zoomed.emit(forward, self.share_at(event.position().x()))
        event.accept()


def move_apart(places: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Return positions between `low` and `high`, at least `distance` apart if they fit, as near as can be to `places`.

    Their order stays the same.
    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = [0.0] * len(places)
    floor = low
    for at in order:
        floor = moved[at] = max(places[at], floor)
        floor += distance
    ceiling = high
    for at in reversed(order):
        moved[at] = max(min(moved[at], ceiling), low)
        ceiling = moved[at] - distance
    return moved


@lru_cache(maxsize=64)
def _mix_line(colour: str, surface: str, share: float) -> QColor:
    """Return the colour of a mark's line. Opaque, because alpha blending takes ten times as long per line."""
    return theme.mix_colours(QColor(colour), QColor(surface), share)
