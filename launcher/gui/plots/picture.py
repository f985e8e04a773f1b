"""Paints a chart into PNG and SVG files: a program of its own, so that the command line loads no Qt.

    python -P -m launcher.gui.plots.picture < JSON

The JSON on standard input has the chart (`tuning.chart.Chart`) and the files to write.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QGuiApplication, QImage, QPainter, QPen, QPolygonF
from PySide6.QtSvg import QSvgGenerator

from launcher.base.codec import from_json
from launcher.gui.theme import LIGHT
from launcher.tuning.chart import Chart, ChartPanel, ChartPoint, ChartSeries

_WIDTH, _SIDE = 1_000, 32
_MAIN_HEIGHT, _PANEL_HEIGHT, _PANEL_HEAD, _PANEL_GAP = 300, 110, 28, 18
_PNG_SCALE = 2
"""Pixels of a PNG file per unit, for sharp text on dense screens."""
_TITLE_PX, _TEXT_PX, _SMALL_PX = 22, 14, 12
_DOT = 4.5
_FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"
"""Fonts of about the same width, for an SVG file."""
_MOST_LABELLED = 24
"""Points of a panel up to which each has its value beside it."""
_COLOURS = (LIGHT.others, LIGHT.rate, LIGHT.temperature, LIGHT.acceptance, LIGHT.power)
_NAME_GAP = 36
"""Between the end of a panel and the names of its series, with room for the last values."""
_GRID_STEPS = (1, 2, 2.5, 5, 10)


class ChartPainter:
    """Paints one chart. All lengths are in units of an SVG file."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self._font = QFont(QGuiApplication.font())
        self._text_lines = _wrap(chart.subtitle, self._font_of(_TEXT_PX), _WIDTH - 2 * _SIDE)
        colours = sorted({series.colour for panel in chart.panels for series in panel.series})
        middle = (len(colours) - 1) / 2
        has_bars = any(
            point.low is not None for panel in chart.panels for each in panel.series for point in each.points
        )
        self._shifts = {colour: 9.0 * (at - middle) if has_bars else 0.0 for at, colour in enumerate(colours)}
        names = [series.name for panel in chart.panels for series in panel.series]
        metrics = QFontMetricsF(self._font_of(_TEXT_PX, bold=True))
        self._name_width = max((metrics.horizontalAdvance(name) for name in names if name), default=0.0)
        self._notes = [
            line for note in chart.notes for line in _wrap(note, self._font_of(_SMALL_PX), _WIDTH - 2 * _SIDE)
        ]

    @property
    def size(self) -> QSize:
        """The size of the chart."""
        head = _SIDE + 30 + 20 * len(self._text_lines) + 10
        panels = sum(_PANEL_HEAD + height + _PANEL_GAP for height in self._heights())
        return QSize(_WIDTH, round(head + panels + 46 + 17 * len(self._notes) + 16))

    def _heights(self) -> list[int]:
        return [_PANEL_HEIGHT if at else _MAIN_HEIGHT for at in range(len(self._chart.panels))]

    def paint(self, painter: QPainter) -> None:
        """Paint everything."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(QRectF(0, 0, self.size.width(), self.size.height()), QColor(LIGHT.card))
        top = float(_SIDE)
        self._write(painter, _SIDE, top + 16, self._chart.title, _TITLE_PX, bold=True)
        top += 30
        for line in self._text_lines:
            self._write(painter, _SIDE, top + 14, line, _TEXT_PX)
            top += 20
        top += 10
        left = _SIDE + self._tick_width()
        right = _WIDTH - _SIDE - (self._name_width + _NAME_GAP if self._name_width else 12)
        for panel, height in zip(self._chart.panels, self._heights(), strict=True):
            self._write(painter, _SIDE, top + 14, f"{panel.title}, {panel.unit}", _TEXT_PX, bold=True)
            area = QRectF(left, top + _PANEL_HEAD, right - left, height)
            self._paint_panel(painter, panel, area)
            top = area.bottom() + _PANEL_GAP
        self._paint_axis(painter, QRectF(left, top - _PANEL_GAP, right - left, 0))
        top += 46 - _PANEL_GAP + 14
        for line in self._notes:
            self._write(painter, _SIDE, top + 12, line, _SMALL_PX, colour=LIGHT.secondary)
            top += 17

    def _tick_width(self) -> float:
        metrics = QFontMetricsF(self._font_of(_SMALL_PX))
        texts = [text for panel in self._chart.panels for _, text in _grid(panel)]
        return max((metrics.horizontalAdvance(text) for text in texts), default=0.0) + 8

    def _paint_panel(self, painter: QPainter, panel: ChartPanel, area: QRectF) -> None:
        high = _highest(panel)
        for value, text in _grid(panel):
            y = area.bottom() - area.height() * value / high
            painter.setPen(QPen(QColor(LIGHT.border), 1))
            painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y))
            self._write(painter, area.left() - 8, y + 4, text, _SMALL_PX, colour=LIGHT.secondary, align="right")
        placed: list[QRectF] = []
        for series in panel.series:
            self._paint_series(painter, series, area, high)
            dots = self._positions(series, area, high)
            placed += [QRectF(dot.x() - _DOT, dot.y() - _DOT, 2 * _DOT, 2 * _DOT) for dot in dots]
        labelled = sum(len(series.points) for series in panel.series) <= _MOST_LABELLED
        if labelled:
            for series in panel.series:
                self._paint_values(painter, series, area, high, placed)
        self._paint_names(painter, panel, area, high)

    def _paint_series(self, painter: QPainter, series: ChartSeries, area: QRectF, high: float) -> None:
        colour = QColor(_COLOURS[series.colour % len(_COLOURS)])
        positions = self._positions(series, area, high)
        if self._chart.joined:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 2))
            painter.drawPolyline(QPolygonF(positions))
        crowded = len(series.points) > _MOST_LABELLED
        for point, position in zip(series.points, positions, strict=True):
            if point.low is not None and point.high is not None:
                top, bottom = (area.bottom() - area.height() * end / high for end in (point.high, point.low))
                painter.setPen(QPen(colour, 1.5))
                x = position.x()
                painter.drawLine(QPointF(x, max(top, area.top())), QPointF(x, min(bottom, area.bottom())))
                for end in (top, bottom):
                    if area.top() <= end <= area.bottom():  # no bar is drawn for an end outside the panel
                        painter.drawLine(QPointF(x - 4, end), QPointF(x + 4, end))
            painter.setPen(QPen(colour, 1.5))
            painter.setBrush(colour if point.measured else QColor(LIGHT.card))
            radius = 2.0 if crowded else _DOT
            painter.drawEllipse(position, radius, radius)

    def _paint_values(
        self, painter: QPainter, series: ChartSeries, area: QRectF, high: float, placed: list[QRectF]
    ) -> None:
        """Write each point's value above or below it, where nothing stands yet."""
        metrics = QFontMetricsF(self._font_of(_SMALL_PX))
        for point, position in zip(series.points, self._positions(series, area, high), strict=True):
            text = _format_value(point.y)
            width = metrics.horizontalAdvance(text) + 4
            lefts = (position.x() + _DOT + 1, position.x() - _DOT - 1 - width)
            rooms = (QRectF(left, position.y() + dy, width, 14) for dy in (-16, 2) for left in lefts)
            for room in rooms:
                inside = room.left() > area.left() and room.bottom() < area.bottom() and room.top() > area.top() - 8
                if inside and not any(room.intersects(each) for each in placed):
                    placed.append(room)
                    halo = QColor(LIGHT.card)
                    halo.setAlphaF(0.8)
                    painter.fillRect(room, halo)
                    self._write(painter, room.center().x(), room.bottom() - 3, text, _SMALL_PX, align="middle")
                    break

    def _positions(self, series: ChartSeries, area: QRectF, high: float) -> list[QPointF]:
        """Return the positions of a series, moved aside so that the intervals of two series do not hide each other."""
        shift = self._shifts.get(series.colour, 0.0)
        return [self._position(point, area, high) + QPointF(shift, 0) for point in series.points]

    def _paint_names(self, painter: QPainter, panel: ChartPanel, area: QRectF, high: float) -> None:
        """Write the names of the series at the end of their lines, moved apart."""
        named = [series for series in panel.series if series.name and series.points]
        ends = [(self._position(series.points[-1], area, high).y(), at) for at, series in enumerate(named)]
        below = -math.inf
        for y, at in sorted(ends):
            series = named[at]
            baseline = max(y + 5, below + 17)
            below = baseline
            colour = _COLOURS[series.colour % len(_COLOURS)]
            self._write(painter, area.right() + _NAME_GAP, baseline, series.name, _TEXT_PX, bold=True, colour=colour)

    def _paint_axis(self, painter: QPainter, area: QRectF) -> None:
        metrics = QFontMetricsF(self._font_of(_SMALL_PX))
        occupied = -math.inf
        for x, text in self._chart.ticks:
            at = self._x(x, area)
            width = metrics.horizontalAdvance(text)
            if at - width / 2 < occupied + 8:
                continue
            occupied = at + width / 2
            painter.setPen(QPen(QColor(LIGHT.control), 1))
            painter.drawLine(QPointF(at, area.bottom()), QPointF(at, area.bottom() + 5))
            self._write(painter, at, area.bottom() + 18, text, _SMALL_PX, align="middle")
        self._write(
            painter,
            area.center().x(),
            area.bottom() + 38,
            self._chart.axis,
            _SMALL_PX,
            colour=LIGHT.secondary,
            align="middle",
        )

    def _x(self, x: float, area: QRectF) -> float:
        values = [x for x, _ in self._chart.ticks]
        values += [point.x for panel in self._chart.panels for series in panel.series for point in series.points]
        least, most = min(values), max(values)
        margin = 0.04 * area.width()
        if most <= least:
            return area.center().x()
        return area.left() + margin + (area.width() - 2 * margin) * (x - least) / (most - least)

    def _position(self, point: ChartPoint, area: QRectF, high: float) -> QPointF:
        return QPointF(self._x(point.x, area), area.bottom() - area.height() * point.y / high)

    def _font_of(self, pixels: int, *, bold: bool = False) -> QFont:
        font = QFont(self._font)
        font.setPixelSize(pixels)
        font.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
        return font

    def _write(
        self,
        painter: QPainter,
        x: float,
        y: float,
        text: str,
        pixels: int,
        *,
        bold: bool = False,
        colour: str = LIGHT.text,
        align: str = "left",
    ) -> None:
        """Write a line of text whose baseline begins, has its middle, or ends at a position."""
        font = self._font_of(pixels, bold=bold)
        width = QFontMetricsF(font).horizontalAdvance(text)
        painter.setFont(font)
        painter.setPen(QColor(colour))
        painter.drawText(QPointF(x - {"left": 0.0, "middle": width / 2, "right": width}[align], y), text)


def _highest(panel: ChartPanel) -> float:
    """Return the upper end of a panel's axis, with room for values above the highest point."""
    tops = [point.y for series in panel.series for point in series.points]
    bars = [point.high for series in panel.series for point in series.points if point.high is not None]
    most = max(tops, default=1.0) or 1.0
    return 1.18 * max(most, *(min(bar, 1.5 * most) for bar in bars), 1e-9)


def _grid(panel: ChartPanel) -> Iterator[tuple[float, str]]:
    """Yield the values of grid lines, and their labels."""
    high = _highest(panel)
    power = 10 ** math.floor(math.log10(high / 5))
    step = next(each * power for each in _GRID_STEPS if each * power >= high / 5)
    digits = max(
        0, -math.floor(math.log10(step) + 1e-9) + (1 if step / 10 ** math.floor(math.log10(step)) == 2.5 else 0)
    )
    for number in range(math.floor(high / step) + 1):
        yield number * step, f"{number * step:,.{digits}f}"


def _format_value(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"


def _wrap(text: str, font: QFont, width: float) -> Sequence[str]:
    metrics, lines = QFontMetricsF(font), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and metrics.horizontalAdvance(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line for line in lines if line]


def write_png(chart: Chart, path: Path) -> None:
    """Write a chart as PNG. Raises OSError."""
    chart_painter = ChartPainter(chart)
    image = QImage(chart_painter.size * _PNG_SCALE, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(_PNG_SCALE)
    with QPainter(image) as painter:
        chart_painter.paint(painter)
    if not image.save(str(path)):
        raise OSError(f"{path} cannot be written")


def write_svg(chart: Chart, path: Path) -> None:
    """Write a chart as SVG. Raises OSError."""
    chart_painter = ChartPainter(chart)
    generator = QSvgGenerator()
    generator.setFileName(str(path))
    generator.setSize(chart_painter.size)
    generator.setViewBox(QRectF(0, 0, chart_painter.size.width(), chart_painter.size.height()))
    generator.setTitle(chart.title)
    generator.setDescription(chart.subtitle)
    with QPainter(generator) as painter:
        chart_painter.paint(painter)
    text = path.read_text(encoding="utf-8")
    family = QGuiApplication.font().family()  # another computer may lack this font
    path.write_text(text.replace(f'font-family="{family}"', f'font-family="{_FONTS}"'), encoding="utf-8")


def main() -> int:
    """Paint the chart on standard input. Returns the exit code."""
    order = json.load(sys.stdin)
    application = QGuiApplication(["mtp-launcher", "-platform", "offscreen"])
    chart = from_json(Chart, order["chart"])
    writers = {".png": write_png, ".svg": write_svg}
    try:
        for file in order["files"]:
            writers[Path(file).suffix.lower()](chart, Path(file))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    del application
    return 0


if __name__ == "__main__":
    sys.exit(main())
