"""Plot of tokens a second by draft length: measured with an interval, or predicted; one curve per workload."""

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, QSizeF, Qt
from PySide6.QtGui import QFontMetrics, QHelpEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from launcher.base.units import format_figure
from launcher.gui import theme
from launcher.gui.translation import tr
from launcher.gui.tune.view_data import Point, WorkloadCurve
from launcher.gui.widgets import paint_glyph

_DOT, _NEAR = 4.5, 14
"""In pixels: radius of a point, and distance within which the mouse hits it."""
_GRID_STEPS = (1, 2, 2.5, 5, 10)
"""Distances of grid lines, times a power of ten."""


class DraftPlot(QWidget):
    """One column per setting, in the order of the first curve. Points have tooltips and accessible text."""

    def __init__(self) -> None:
        super().__init__()
        self._curves: tuple[WorkloadCurve, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMouseTracking(True)
        self.show_curves(())

    @property
    def curves(self) -> tuple[WorkloadCurve, ...]:
        """The curves shown."""
        return self._curves

    def show_curves(self, curves: Sequence[WorkloadCurve]) -> None:
        """Show curves; without any, a placeholder."""
        self._curves = tuple(curve for curve in curves if curve.points)
        self.setAccessibleName(tr("Tokens per second by draft length"))
        points = [point_text(curve, point) for curve in self._curves for point in curve.points]
        self.setAccessibleDescription("\n".join(points) or _placeholder_text())
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the usual size."""
        return QSize(theme.px(480), theme.px(240))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the least readable size."""
        return QSize(theme.px(200), theme.px(180))

    def position_of(self, point: Point) -> QPointF:
        """Return a point's position."""
        area, (high, _) = self._plot_area(), self._axis_scale()
        names = self._setting_names()
        x = area.left() + area.width() * (names.index(point.setting) + 0.5) / len(names)
        return QPointF(x, area.bottom() - area.height() * point.rate / high)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint grid, curves, intervals, points and names."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            if not self._curves:
                painter.setPen(theme.colour("secondary"))
                painter.setFont(theme.font(theme.BODY_PX))
                flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
                painter.drawText(
                    QRectF(self.rect()).adjusted(theme.px(16), 0, -theme.px(16), 0), int(flags), _placeholder_text()
                )
                return
            self._paint_grid(painter)
            for curve in self._curves:
                self._paint_curve(painter, curve)
            if len(self._curves) > 1:
                self._paint_curve_names(painter)
            self._paint_legend(painter)

    def event(self, event: QEvent) -> bool:
        """Show the figures of the point under the mouse."""
        if isinstance(event, QHelpEvent):
            hit = self._point_near(QPointF(event.pos()))
            if hit is None:
                QToolTip.hideText()
            else:
                QToolTip.showText(event.globalPos(), point_text(*hit), self)
            return True
        return super().event(event)

    def _point_near(self, position: QPointF) -> tuple[WorkloadCurve, Point] | None:
        candidates = []
        for curve in self._curves:
            for point in curve.points:
                gap = self.position_of(point) - position
                candidates.append((math.hypot(gap.x(), gap.y()), curve, point))
        if not candidates:
            return None
        distance, curve, point = min(candidates, key=lambda candidate: candidate[0])
        return (curve, point) if distance <= theme.px(_NEAR) else None

    def _setting_names(self) -> list[str]:
        return list(dict.fromkeys(point.setting for curve in self._curves for point in curve.points))

    def _plot_area(self) -> QRectF:
        caption = QFontMetrics(theme.font(theme.CAPTION_PX, tabular=True))
        ticks = max(caption.horizontalAdvance(f"{self._axis_scale()[0]:,.0f}"), caption.horizontalAdvance("000"))
        return QRectF(self.rect()).adjusted(
            ticks + theme.px(10), caption.height() + theme.px(16), -theme.px(4), -caption.height() - theme.px(10)
        )

    def _axis_scale(self) -> tuple[float, float]:
        """Return the axis's highest rate and the distance of its lines.

        The axis starts at 0, so that twice as fast is twice as high, and has some room above the highest interval.
        """
        high = max(max(point.rate + (point.spread or 0) for curve in self._curves for point in curve.points), 1e-6)
        power = 10 ** math.floor(math.log10(high / 4))
        step = next(each * power for each in _GRID_STEPS if each * power >= high / 4)
        return 1.16 * high, step

    def _paint_grid(self, painter: QPainter) -> None:
        area, (high, step) = self._plot_area(), self._axis_scale()
        line, text = theme.colour("secondary"), theme.colour("secondary")
        line.setAlphaF(0.2)
        digits = 1 if step >= 0.1 else 2
        if step == int(step):
            digits = 0
        for number in range(math.floor(high / step) + 1):
            rate = number * step
            y = area.bottom() - area.height() * rate / high
            painter.setPen(QPen(line, 1))
            painter.drawLine(QPointF(area.left(), round(y) + 0.5), QPointF(area.right(), round(y) + 0.5))
            painter.setPen(text)
            room = QRectF(0, y - theme.px(10), area.left() - theme.px(8), theme.px(20))
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(room, int(right), f"{rate:,.{digits}f}")
        names, metrics = self._setting_names(), painter.fontMetrics()
        width = area.width() / len(names)
        crowded = max(map(metrics.horizontalAdvance, names)) + theme.px(theme.GAP_S) > width
        for at, name in enumerate(names):
            if crowded and at % 2:
                continue
            room = QRectF(area.left() + at * width, area.bottom() + theme.px(8), width, metrics.height())
            if crowded:
                room.adjust(-width / 2, 0, width / 2, 0)
            label = metrics.elidedText(name, Qt.TextElideMode.ElideRight, int(room.width()))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignCenter), label)

    def _paint_curve(self, painter: QPainter, curve: WorkloadCurve) -> None:
        colour = theme.colour(curve.role)
        positions = [self.position_of(point) for point in curve.points]
        painter.setPen(QPen(colour, 1.3))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPolyline(QPolygonF(positions))
        high, _ = self._axis_scale()
        for point, position in zip(curve.points, positions, strict=True):
            if point.starts and len(self._curves) == 1:
                self._paint_starts(painter, point.starts, position)
            painter.setPen(QPen(colour, 1.5))
            if point.spread:
                reach = self._plot_area().height() * point.spread / high
                painter.drawLine(
                    QPointF(position.x(), position.y() - reach), QPointF(position.x(), position.y() + reach)
                )
            painter.setBrush(colour if point.measured else theme.colour("card"))
            radius = theme.px(_DOT) if point.measured else theme.px(_DOT) - 0.8
            painter.drawEllipse(position, radius, radius)

    def _paint_starts(self, painter: QPainter, text: str, position: QPointF) -> None:
        """Write the number of starts under a point that has too few for an interval, over lines that pass there.

        It stands above a point that is near the axis.
        """
        metrics = painter.fontMetrics()
        width = metrics.horizontalAdvance(text)
        left = min(max(position.x() - width / 2, 0), self.width() - width)
        painter.setPen(theme.colour("secondary"))
        gap = theme.px(_DOT) + theme.px(3)
        room = QRectF(left, position.y() + gap, width, metrics.height())
        if room.bottom() > self._plot_area().bottom():
            room.moveBottom(position.y() - gap)
        painter.fillRect(room, theme.colour("card"))
        painter.drawText(room, int(Qt.AlignmentFlag.AlignCenter), text)

    def _paint_legend(self, painter: QPainter) -> None:
        """Paint the legend at the top right and, for a single curve, its name at the left."""
        metrics, side = painter.fontMetrics(), theme.px(12)
        right = float(self.width() - theme.px(4))
        painter.setPen(theme.colour("secondary"))
        for glyph, text in (("", tr("bars 95 %")), ("ring", tr("predicted")), ("dot", tr("measured"))):
            width = metrics.horizontalAdvance(text)
            painter.drawText(QRectF(right - width, 0, width, metrics.height()), int(Qt.AlignmentFlag.AlignCenter), text)
            right -= width + theme.px(4)
            if glyph:
                glyph_rect = QRectF(right - side, (metrics.height() - side) / 2, side, side)
                painter.setBrush(Qt.BrushStyle.NoBrush)
                paint_glyph(painter, glyph, glyph_rect, theme.colour("secondary"))
                right -= side
            right -= theme.px(theme.GAP_M)
        if len(self._curves) == 1:
            name = metrics.elidedText(self._curves[0].name, Qt.TextElideMode.ElideRight, int(max(right, 0)))
            painter.setPen(theme.colour("text"))
            painter.drawText(QPointF(0, metrics.ascent()), name)

    def _paint_curve_names(self, painter: QPainter) -> None:
        """Write each curve's name beside, above or below its last point, where nothing else stands."""
        metrics, dot = painter.fontMetrics(), theme.px(_DOT)
        ends = [self.position_of(curve.points[-1]) for curve in self._curves]
        occupied = [QRectF(end.x() - dot, end.y() - dot, 2 * dot, 2 * dot) for end in ends]
        high, _ = self._axis_scale()
        for curve in sorted(self._curves, key=lambda each: -each.points[-1].rate):
            last = curve.points[-1]
            position = self.position_of(last)
            reach = self._plot_area().height() * (last.spread or 0) / high + theme.px(6)
            width = metrics.horizontalAdvance(curve.name)
            left = min(position.x() - width / 2, self.width() - width)
            beside, middle = position.x() + dot + theme.px(4), position.y() - metrics.height() / 2
            above = QPointF(left, position.y() - reach - metrics.height())
            places = [above, QPointF(left, position.y() + reach)]
            if beside + width <= self.width():
                places.insert(0, QPointF(beside, middle))
            rooms = [QRectF(place, QSizeF(width, metrics.height())) for place in places]
            free = (each for each in rooms if not any(each.intersects(other) for other in occupied))
            room = next(free, rooms[-1])
            occupied.append(room)
            painter.setPen(theme.colour(curve.role))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignCenter), curve.name)


def point_text(curve: WorkloadCurve, point: Point) -> str:
    """Return a point as text."""
    rate = format_figure(point.rate)
    if point.spread is not None:
        rate = f"{rate} ± {point.spread:,.1f}"
    facts = {"curve": curve.name, "setting": point.setting, "rate": rate}
    if point.starts:
        return tr("{curve}, {setting}: {rate} t/s, measured, {starts}", starts=point.starts, **facts)
    if point.measured:
        return tr("{curve}, {setting}: {rate} t/s, measured", **facts)
    return tr("{curve}, {setting}: {rate} t/s, predicted", **facts)


def _placeholder_text() -> str:
    return tr("Will show tokens/s with MTP off and with each draft length, with 95 % intervals.")
