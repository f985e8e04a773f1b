"""A row of the panel: a read-out beside a plot. The plot is added later, because its library takes 0.3 s to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, set_tooltip
from launcher.gui.late import chart_drawing, overlays
from launcher.gui.plots.quantities import Plot, Quantity
from launcher.gui.plots.readout import ElidedText, ReadOut
from launcher.gui.translation import render, tr
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from launcher.gui.plots.chart import ChartWidget
    from launcher.gui.plots.marks import Mark
    from launcher.gui.plots.samples import Columns, Floats, Samples
    from launcher.gui.plots.span import TimeSpan

_READOUT_WIDTH, _NARROW_READOUT_WIDTH = 176, 128
_NUMBER_PX: Mapping[bool, tuple[int, int, int]] = {False: (44, 32, 20), True: (30, 24, 20)}
"""Heights of the numbers, by whether the panel is narrow: of the first row, of usual rows, of small ones."""
_LEAST_PLOT_PX, _LEAST_SMALL_PX = 58, 44
_MINUTE_S = 60.0
_LABEL_AGE_S = 1.0
"""Age of a curve's newest value up to which it is written at the line's end."""
_NEWS_S = 60.0
"""Time for which a handover's words stand beside it."""
_ISOLATED_DOT_PX, _CURSOR_DOT_PX = 1.5, 3.5
"""Radius in pixels of the dot of an isolated sample, and of a sample under the cursor."""
_REFERENCE_ROOM = 2.5
"""A reference more than this many times above the highest value has only its label; the axis is not extended to it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference value drawn as a line, `dotted` or dashed."""

    value: float
    text: str
    dotted: bool = False


class PlotRow(QWidget):
    """Row that shows one Plot."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self.setObjectName("plotRow")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.plot = plot
        self.chart: ChartWidget | None = None
        self.references: tuple[Reference, ...] = ()
        self.absent: str | None = None
        """Reason why there is nothing to plot, or None."""
        self.bottom, self.top = plot.bottom or 0.0, plot.top or plot.least
        """Ends of the axis."""
        self._drawn_names: frozenset[str] = frozenset()
        self._aside = ""
        self.read_out = ReadOut(plot.read_outs[0], small=plot.small)
        self._absent_label = ElidedText()
        self._absent_label.hide()
        column = self._column = QVBoxLayout()
        column.setSpacing(0)
        column.addWidget(self.read_out, 1)
        column.addWidget(self._absent_label)
        self._placeholder = QWidget()
        self._placeholder.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.least_height = theme.px(_LEAST_SMALL_PX if plot.small else _LEAST_PLOT_PX)
        self._placeholder.setMinimumHeight(self.least_height)
        self._layout = QHBoxLayout(self)
        self._layout.setContentsMargins(0, 1, 0, 0)
        self._layout.setSpacing(0)
        self._layout.addLayout(column)
        self._layout.addWidget(self._placeholder, 1)
        self.show_narrow(False)

    def attach_chart(self, chart: ChartWidget) -> None:
        """Insert the chart."""
        self.chart = chart
        self._layout.replaceWidget(self._placeholder, chart)
        self._placeholder.deleteLater()
        chart.setVisible(self.absent is None)

    def show_narrow(self, narrow: bool) -> None:
        """Give the read-out less room, or the usual one."""
        first, usual, small = _NUMBER_PX[narrow]
        self.read_out.set_pixels(small if self.plot.small else first if self.plot.name == "rate" else usual)
        self.read_out.setFixedWidth(theme.px(_NARROW_READOUT_WIDTH if narrow else _READOUT_WIDTH))
        above = theme.px(2 if self.plot.small else theme.GAP)
        self._column.setContentsMargins(theme.px(theme.GAP_M if narrow else theme.GAP_L), above, 0, 0)

    def show_readings(
        self,
        readings: Mapping[str, Reading],
        samples: Samples,
        *,
        has_gpu: bool,
        server_start_s: float = float("-inf"),
    ) -> None:
        """Show the newest value. If none was ever known of a machine's quantity, a single line gives the reason.

        Values from before `server_start_s` belong to an earlier server and are ignored.
        """
        found = find_reading(self.plot, readings, samples, server_start_s)
        if found is None:
            return
        quantity, reading, last = found
        newest_s = samples.newest_s
        oldest_s = server_start_s if quantity.of_server else float("-inf")
        from_s, to_s = max(newest_s - 2 * _MINUTE_S, oldest_s), newest_s - _MINUTE_S
        minute_before = None
        if reading.value is not None and from_s < to_s:
            minute_before = samples.mean(quantity.name, from_s, to_s)
        self.read_out.show_reading(quantity, reading, last, minute_before=minute_before)
        was_known = any(curve.name in samples.names for curve in self.plot.curves)
        can_be_absent = self.plot.small or self.plot.with_gpu is not None
        is_absent = can_be_absent and reading.value is None and not was_known
        self._set_absent((reading.absent or tr("Unknown.")) if is_absent else None, has_gpu=has_gpu)

    def show_no_server(self, reason: str) -> None:
        """Show why no server answers: keep the curves, but hide the number, which would look current."""
        self.read_out.show_reading(self.plot.read_outs[0], Reading.unknown(reason))
        if self.absent is None:
            self.show_aside("")

    def _set_absent(self, reason: str | None, *, has_gpu: bool) -> None:
        """Replace the read-out and the plot by a line with `reason`, or show them again if it is None."""
        if reason is not None:
            title = tr(self.plot.title) if has_gpu else tr("GPU")
            self._absent_label.setText(f"{title}  {UNKNOWN}  {render(reason)}")
            set_tooltip(self._absent_label, render(reason))
        changed = (reason is None) != (self.absent is None)
        self.absent = reason
        if changed:
            self.read_out.setVisible(reason is None)
            (self.chart or self._placeholder).setVisible(reason is None)
            self._absent_label.setVisible(reason is not None)
            policy = QSizePolicy.Policy.Preferred if reason is None else QSizePolicy.Policy.Maximum
            self.setSizePolicy(QSizePolicy.Policy.Preferred, policy)

    def show_aside(self, text: str, tip: str = "") -> None:
        """Show lines below the number; those of a small row stand at the end of its line."""
        self._aside = text
        self.read_out.show_aside("" if self.plot.small else text, tip)
        if self.plot.small:
            set_tooltip(self, tip or text)

    @property
    def aside(self) -> str:
        """The text below the number, or at the line's end."""
        return self._aside

    def draw(
        self,
        samples: Samples,
        span: TimeSpan,
        marks: Sequence[Mark],
        group_samples: Callable[[int], Columns],
        *,
        is_idle: bool = False,
    ) -> None:
        """Draw a time span. `group_samples` groups its samples into a number of pixel columns.

        `is_idle`: no server runs, so that the newest values are out of date.
        """
        chart = self.chart
        if chart is None or not chart.isVisible():
            return
        part = samples.slice_between(span.start_s, span.end_s)
        pixel_columns = group_samples(chart.columns)
        curves = [curve for curve in self.plot.curves if _is_shown(curve, samples)]
        drawn = {curve.name: pixel_columns.decimate(samples.values(curve.name, part)) * curve.scale for curve in curves}
        limit = self._find_limit(samples)
        self.bottom, self.top = self._find_range(tuple(drawn.values()), limit)
        self._drawn_names = frozenset(drawn)
        chart.set_range(span.length_s, self.bottom, self.top)
        chart.time_axis.set_held_end(None if span.live else _wall_time(samples, span.end_s))
        chart.draw(pixel_columns.times - span.end_s, drawn)
        overlay = chart.overlay
        overlay.marks = [(span.share_at(mark.time_s), mark.kind) for mark in marks]
        pauses = [mark for mark in marks if mark.length_s]
        overlay.pauses = [(span.share_at(each.time_s), span.share_at(each.time_s + each.length_s)) for each in pauses]
        is_news = pauses and samples.newest_s - pauses[-1].time_s - pauses[-1].length_s < _NEWS_S
        overlay.news = pauses[-1].text if is_news else ""
        dots, labels = self._newest_dots(samples, span) if span.live else ([], [])
        colours = chart.colours
        for name, values in drawn.items():
            for at in pixel_columns.find_isolated(values):
                share, y = span.share_at(float(pixel_columns.times[at])), self._height_share(float(values[at]))
                dots.append(overlays.Dot(share, y, colours[name], radius=_ISOLATED_DOT_PX))
        overlay.dots = dots
        references = self.references if limit is None else (*self.references, limit)
        overlay.labels = (*map(self._reference_label, references), *(() if is_idle else labels))

    def _find_limit(self, samples: Samples) -> Reference | None:
        """Return the highest value that the curves can have, such as the memory of the card."""
        for curve in self.plot.curves:
            known = samples.last_known(curve.limit) if curve.limit else None
            if known is not None and known[0] > 0:
                return Reference(known[0] * curve.scale, tr("limit {value}", value=curve.format_value(known[0])))
        return None

    def _find_range(self, drawn: Sequence[Floats], limit: Reference | None) -> tuple[float, float]:
        """Return the ends of the axis for the values in sight. See Plot."""
        from launcher.gui.plots.axes import round_up_nicely

        plot = self.plot
        ends = [(float(np.fmin.reduce(each)), float(np.fmax.reduce(each))) for each in drawn if len(each)]
        ends = [each for each in ends if each[0] == each[0]]  # nan: nothing known in this span
        low, high = min((each[0] for each in ends), default=0.0), max((each[1] for each in ends), default=0.0)
        usual_top = limit.value if limit is not None else plot.top
        if plot.bottom is None:
            bottom = floor(low / plot.grain) * plot.grain
            return bottom, max(bottom + plot.grain, ceil(high / plot.grain) * plot.grain)
        bottom = min(plot.bottom, floor(low / plot.grain) * plot.grain) if ends else plot.bottom
        if usual_top is not None:
            return bottom, usual_top if high <= usual_top else ceil(high / plot.grain) * plot.grain
        near = [each.value for each in self.references if each.value <= _REFERENCE_ROOM * high or not high]
        return bottom, round_up_nicely(max([high, *near]), plot.least)

    def _height_share(self, value: float) -> float:
        return (value - self.bottom) / (self.top - self.bottom)

    def _reference_label(self, reference: Reference) -> overlays.LineLabel:
        above = reference.value > self.top
        text = tr("{text}, above", text=reference.text) if above else reference.text
        return overlays.LineLabel(
            self._height_share(reference.value), text, line="dotted" if reference.dotted else "dashed"
        )

    def _newest_dots(self, samples: Samples, span: TimeSpan) -> tuple[list[overlays.Dot], list[overlays.LineLabel]]:
        """Return a dot at each curve's newest value, and the text at the line's end."""
        dots, labels = [], []
        for curve in self.plot.curves:
            last = samples.last_known(curve.name)
            if curve.name not in self._drawn_names or last is None or last[1] > span.length_s:
                continue
            y, colour = self._height_share(last[0] * curve.scale), chart_drawing.curve_colour(curve).name()
            dots.append(overlays.Dot(span.share_at(samples.newest_s - last[1]), y, colour))
            value = curve.format_value(last[0])
            text = tr(curve.label, value=value, n=curve.draft_position) if curve.label else self._aside
            if text and last[1] < _LABEL_AGE_S:
                is_main = bool(curve.label) and curve is self.plot.read_outs[0]
                labels.append(overlays.LineLabel(y, text, colour, bold=is_main))
        return dots, labels

    def show_values_at(self, samples: Samples, span: TimeSpan, index: int | None, header: Sequence[str]) -> str:
        """Show the read-out of one sample below the lines of `header`; None hides it. Returns the values as text."""
        overlay = self.chart.overlay if self.chart is not None else None
        if overlay is None:
            return ""
        if index is None:
            if overlay.hover is not None:
                overlay.hover = None
                overlay.update()
            return ""
        x = span.share_at(samples.time_at(index)[0])
        rows, dots, by_position = [], [], []
        for curve in (*reversed(self.plot.curves), *self.plot.cursor_only):
            if not _is_shown(curve, samples):
                continue
            value = samples.value_at(curve.name, index)
            is_drawn = curve.name in self._drawn_names
            colour = chart_drawing.curve_colour(curve).name()
            if value is not None and is_drawn:
                dots.append(overlays.Dot(x, self._height_share(value * curve.scale), colour, radius=_CURSOR_DOT_PX))
            if not curve.draft_position:
                text = UNKNOWN if value is None else f"{curve.format_value(value)} {tr(curve.unit)}"
                rows.append(overlays.HoverRow(colour if is_drawn else None, tr(curve.title), text))
            elif value is not None:
                by_position.append(curve.format_value(value))
        if by_position:
            rows.append(overlays.HoverRow(None, tr("By position"), " · ".join(by_position) + " %"))
        overlay.hover = overlays.Hover(x, tuple(header), tuple(rows), tuple(dots))
        overlay.update()
        return ", ".join(f"{row.name} {row.value}" for row in rows)


def find_reading(
    plot: Plot, readings: Mapping[str, Reading], samples: Samples, server_start_s: float
) -> tuple[Quantity, Reading, tuple[float, float] | None] | None:
    """Return what a plot's read-out shows: the quantity, its reading, and its last known value with its age.

    The last value is None if it is from before `server_start_s` and belongs to a server. Returns None if nothing of the
    plot is read.
    """
    own = [(quantity, readings[quantity.name]) for quantity in plot.read_outs if quantity.name in readings]
    if not own:
        return None
    quantity, reading = next((each for each in own if each[1].value is not None), own[0])
    last = samples.last_known(quantity.name)
    if last is not None and quantity.of_server and samples.newest_s - last[1] < server_start_s:
        last = None
    return quantity, reading, last


def _is_shown(curve: Quantity, samples: Samples) -> bool:
    """Return whether a curve has had a value, and the curve in whose place it may be shown has not."""
    return curve.name in samples.names and curve.stands_for not in samples.names


def _wall_time(samples: Samples, time_s: float) -> float:
    """Convert a time of the monitor's clock to seconds since the epoch, by the nearest sample."""
    index = samples.nearest_index(time_s)
    if index is None:
        return 0.0
    sample_s, sample_wall_s = samples.time_at(index)
    return sample_wall_s + time_s - sample_s
