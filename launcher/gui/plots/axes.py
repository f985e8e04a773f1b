"""Axes of the plots. Time axes show the time before now or the clock time; value axes have round values."""

from datetime import datetime
from math import ceil, floor, log10
from typing import Any

import pyqtgraph
from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from launcher.gui.translation import tr

PADDING = 0.02
"""Fraction of the height, below and above the values."""
MARGIN = 0.012
"""Fraction of the time span, so that the dot at the newest value is not cut."""
_STEPS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0)
_VALUE_LABEL_PX, _TIME_LABEL_PX = 12, 26
"""Room beyond the ends of a value axis and of a time axis, so that the outermost labels are not cut."""
_LOW_PX = 46
"""Height in pixels below which a plot has ticks at its ends only."""
_ROUNDING = 0.01
"""Tolerance when ticks are counted, so that rounding errors do not lose the last one."""


def round_up_nicely(value: float, least: float) -> float:
    """Return a round number slightly above `value`, but at least `least`."""
    value = max(value * 1.05, least)
    step = 10.0 ** floor(log10(value))
    return next(step * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * factor >= value)


def tick_step(top: float, most_ticks: int) -> float:
    """Return a tick distance for which 0 to `top` has at most `most_ticks` ticks above 0."""
    power = 10.0 ** floor(log10(top))
    steps = (factor * power for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10))
    return next(step for step in steps if top / step <= most_ticks + _ROUNDING)


def ticks_before(length_s: float, most_ticks: int) -> tuple[float, list[float]]:
    """Return the distance of time ticks, and their positions, both in seconds relative to the end (0 and below)."""
    step = next((step for step in _STEPS_S if length_s / step <= most_ticks), _STEPS_S[-1])
    return step, [-step * n for n in range(int(length_s / step + _ROUNDING) + 1)]


def ticks_by_clock(end_wall_s: float, length_s: float, most_ticks: int) -> tuple[float, list[float]]:
    """Return distance and positions of ticks, like `ticks_before`, at round times of the local clock."""
    step, _ = ticks_before(length_s, most_ticks)
    offset_s = datetime.fromtimestamp(end_wall_s).astimezone().utcoffset()
    local_s = end_wall_s + (offset_s.total_seconds() if offset_s else 0.0)
    first = ceil((local_s - length_s) / step)
    return step, [step * n - local_s for n in range(first, floor(local_s / step) + 1)]


def format_time_before_now(seconds: float, step_s: float) -> str:
    """Return the label of a tick at this many seconds before now."""
    if seconds < step_s / 2:
        return tr("now")
    if step_s >= 60:
        return tr("-{minutes:.0f} min", minutes=seconds / 60)
    return tr("-{seconds:.0f} s", seconds=seconds)


def format_clock_time(wall_s: float, step_s: float) -> str:
    """Return the label of a tick at a local time."""
    return f"{datetime.fromtimestamp(wall_s):{'%H:%M' if step_s >= 60 else '%H:%M:%S'}}"  # noqa: DTZ006


class PixmapAxis(pyqtgraph.AxisItem):  # type: ignore[misc]
    """Axis cached as a pixmap: replaying pyqtgraph's QPicture takes 1.4 ms per axis."""

    picture: Any

    def paint(self, painter: QPainter, _option: object, widget: QWidget | None) -> None:
        """Paint the cached pixmap. pyqtgraph sets it to None to invalidate it."""
        box = self.boundingRect()
        if self.picture is None:
            ratio = widget.devicePixelRatioF() if widget is not None else 1.0
            pixmap = QPixmap((box.size() * ratio).toSize())
            pixmap.setDevicePixelRatio(ratio)
            pixmap.fill(Qt.GlobalColor.transparent)
            with QPainter(pixmap) as pixmap_painter:
                pixmap_painter.translate(-box.topLeft())
                pixmap_painter.setFont(self.style["tickFont"])
                specs = self.generateDrawSpecs(pixmap_painter)
                if specs is not None:
                    self.drawPicture(pixmap_painter, *specs)
            self.picture = pixmap
        painter.drawPixmap(box.topLeft(), self.picture)


class TimeAxis(PixmapAxis):
    """Time axis in seconds from the end of the span: "-4 min ... now" while live, clock times while held."""

    def __init__(self) -> None:
        super().__init__("bottom")
        self.end_wall_s: float | None = None
        """End of a held span, in seconds since the epoch; None while live."""

    def boundingRect(self) -> Any:  # noqa: ANN401, N802 -- pyqtgraph's
        """Leave room for the labels at the ends."""
        return super().boundingRect().adjusted(-_TIME_LABEL_PX, 0, _TIME_LABEL_PX, 0)

    def set_held_end(self, end_wall_s: float | None) -> None:
        """Show clock times up to `end_wall_s` (seconds since the epoch), or times before now if it is None."""
        if end_wall_s != self.end_wall_s:
            self.end_wall_s = end_wall_s
            self.picture = None
            self.update()

    def tickValues(self, low: float, _high: float, size: float) -> list[tuple[float, list[float]]]:  # noqa: N802 -- pyqtgraph's
        """Return the ticks."""
        most_ticks = max(2, min(6, int(size / 80)))
        if self.end_wall_s is None:
            return [ticks_before(-low, most_ticks)]
        return [ticks_by_clock(self.end_wall_s, -low, most_ticks)]

    def tickStrings(self, values: list[float], _scale: float, spacing: float) -> list[str]:  # noqa: N802
        """Return the tick labels."""
        if self.end_wall_s is None:
            return [format_time_before_now(-value, spacing) for value in values]
        return [format_clock_time(self.end_wall_s + value, spacing) for value in values]


class ValueAxis(PixmapAxis):
    """Value axis with round values, or in a low plot with its two ends."""

    def boundingRect(self) -> Any:  # noqa: ANN401, N802
        """Leave room for labels at the ends: with a grid, pyqtgraph does not, and omits them."""
        return super().boundingRect().adjusted(0, -_VALUE_LABEL_PX, 0, _VALUE_LABEL_PX)

    def tickValues(self, low: float, high: float, size: float) -> list[tuple[float, list[float]]]:  # noqa: N802
        """Return the ticks."""
        padding = PADDING * (high - low) / (1 + 2 * PADDING)
        bottom, top = low + padding, high - padding
        if size < _LOW_PX:
            return [(top - bottom, [bottom, top])]
        step = tick_step(top - bottom, max(1, min(4, int(size / 24))))
        count = int((top - bottom) / step + _ROUNDING)
        return [(step, [bottom + step * n for n in range(count + 1)])]

    def tickStrings(self, values: list[float], _scale: float, spacing: float) -> list[str]:  # noqa: N802
        """Return the tick labels."""
        digits = 1 if round(10 * spacing, 6).is_integer() else 2
        if spacing == int(spacing) or spacing >= 10:
            digits = 0
        return [f"{round(value, digits) + 0.0:,.{digits}f}" for value in values]  # + 0.0 turns "-0" into "0"
