"""Overlay of a plot: reference lines, marks, dots at the newest values, and the read-out at the cursor."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QWidget

from launcher.gui import theme
from launcher.gui.plots.marks import GLYPH_PX, MarkKind, glyph_pixmap, mark_colour

_LEAST_LINE, _LEAST_GLYPH, _LEAST_TICK, _TICK = 14.0, 11.0, 3.0, 6
"""Least distances in pixels between two marks' lines, glyphs and ticks, and the height of a tick. A mark too close to
the last line gets a tick instead."""
_PAUSE_OPACITY = 0.25
_WIDEST_READ_OUT = 260
_UNIT_PX = 10
_WHEEL_NOTCH = 120.0
"""Qt's angle of one wheel notch, in eighths of a degree."""


@dataclass(frozen=True, slots=True)
class LabelledLine:
    """A labelled horizontal line at a share of the plot's height, `dotted` or dashed. Above 1 it is only a label."""

    share: float
    text: str
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A value's position as shares of the plot's width and height. `radius` is in pixels."""

    x: float
    y: float
    colour: str
    label: str = ""
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
        self.levels: tuple[LabelledLine, ...] = ()
        self.marks: Sequence[tuple[float, MarkKind]] = ()
        self.pauses: Sequence[tuple[float, float]] = ()
        self.dots: Sequence[Dot] = ()
        self.hover: Hover | None = None
        self.unit = self.right_top = ""
        """Unit of the left axis, and label of the right axis's upper end."""
        self._drag_share: float | None = None
        self._font = theme.font(11, tabular=True)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the overlay."""
        painter = QPainter(self)
        colours = theme.current()
        painter.setPen(QColor(colours.secondary))
        painter.setFont(theme.font(_UNIT_PX))
        left, height_above = self.area.left(), self.area.top()
        painter.drawText(QRectF(0, -1, left - 6, height_above), int(Qt.AlignmentFlag.AlignRight), self.unit)
        label_left = self.area.right() - painter.fontMetrics().horizontalAdvance(self.right_top) - GLYPH_PX
        if not self.marks or self._x(self.marks[-1][0]) < label_left:  # the newest mark's glyph takes precedence
            label_rect = QRectF(left, -1, self.area.width(), height_above)
            painter.drawText(label_rect, int(Qt.AlignmentFlag.AlignRight), self.right_top)
        painter.setFont(self._font)
        self._paint_marks(painter, colours)
        self._paint_levels(painter, colours)
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
        top, height = round(self.area.top()), round(self.area.height())
        line_colours = {kind: _line_colour(mark_colour(kind, colours), colours.card) for kind in MarkKind}
        shade = QColor(colours.secondary)
        shade.setAlphaF(_PAUSE_OPACITY)
        for start, end in self.pauses:
            left = self._x(start)
            painter.fillRect(QRectF(left, top, min(self._x(end), self.area.right()) - left, height), shade)
        glyphs = {kind: glyph_pixmap(kind, self.devicePixelRatioF(), colours) for kind in MarkKind}
        for share, kind in self.marks:
            x = round(self._x(share))
            if x - last_line >= _LEAST_LINE:
                painter.fillRect(x, top, 1, height, line_colours[kind])
                last_line = x
            elif x - last_line >= _LEAST_TICK:
                painter.fillRect(x, top, 1, _TICK, line_colours[kind])
            if x - last_glyph >= _LEAST_GLYPH:
                painter.drawPixmap(x - GLYPH_PX // 2, top - GLYPH_PX, glyphs[kind])
                last_glyph = x

    def _paint_levels(self, painter: QPainter, colours: theme.Theme) -> None:
        metrics = QFontMetrics(self._font)
        used_tops: list[float] = []
        for level in self.levels:
            colour = QColor(colours.limit)
            y = round(self._y(min(level.share, 1.0)))
            if level.share <= 1.0:
                pen = QPen(colour, 1, Qt.PenStyle.CustomDashLine)
                pen.setDashPattern([1, 3] if level.dotted else [5, 4])
                painter.setPen(pen)
                painter.drawLine(QPointF(self.area.left(), y), QPointF(self.area.right(), y))
            width = metrics.horizontalAdvance(level.text)
            above, below = y - metrics.height() - 1, y + 1
            fits_above = above >= self.area.top() and all(abs(above - other) >= metrics.height() for other in used_tops)
            label_top = above if fits_above else below
            used_tops.append(label_top)
            label_rect = QRectF(self.area.right() - width - 4, label_top, width + 4, metrics.height())
            backdrop = QColor(colours.card)
            backdrop.setAlphaF(0.8)
            painter.fillRect(label_rect, backdrop)
            painter.setPen(colour)
            painter.drawText(label_rect, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), level.text)

    def _paint_dot(self, painter: QPainter, dot: Dot) -> None:
        centre = QPointF(self._x(dot.x), self._y(dot.y))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(dot.colour))
        painter.drawEllipse(centre, dot.radius, dot.radius)
        if dot.label:
            painter.setPen(QColor(theme.current().secondary))
            painter.drawText(QPointF(centre.x() + dot.radius + 3, centre.y() + 4), dot.label)

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


@lru_cache(maxsize=64)
def _line_colour(colour: str, surface: str) -> QColor:
    """Return the colour of a mark's line. Opaque, because alpha blending takes ten times as long per line."""
    return theme.mix_colours(QColor(colour), QColor(surface), 0.45)
