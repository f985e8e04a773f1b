"""Card with read-outs over a plot. The plot is added later, because its library takes 0.3 s to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, set_tooltip
from launcher.gui.plots.quantities import Plot, Quantity
from launcher.gui.plots.readout import ElidedText, ReadOut
from launcher.gui.translation import render, tr
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from launcher.gui.plots.chart import Chart
    from launcher.gui.plots.marks import Mark
    from launcher.gui.plots.overlay import Dot, LabelledLine
    from launcher.gui.plots.samples import Columns, Samples
    from launcher.gui.plots.span import TimeSpan

_LEAST_ASIDE_PX = 80
"""Width in pixels below which the aside is hidden beside several read-outs."""
_PLACEHOLDER_PX = 76
"""Least height in pixels of the area where the chart is inserted later."""
_MINUTE_S = 60.0
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


class PlotRow(QFrame):
    """Card that shows one Plot."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self.setObjectName("card")
        self.plot = plot
        self.chart: Chart | None = None
        self.references: tuple[Reference, ...] = ()
        self.absent: str | None = None
        """Reason why there is nothing to plot, or None."""
        self._factors: dict[str, float] = {}
        """Factors from samples to the left axis, by the names of the drawn curves."""
        self.top = plot.top or plot.least
        """Upper end of the left axis."""
        pixels = theme.READOUT_PX if len(plot.read_outs) == 1 else theme.SMALL_READOUT_PX
        self.read_outs = {quantity.name: ReadOut(quantity, pixels) for quantity in plot.read_outs}
        self._aside = ElidedText()
        self._aside.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        head = QHBoxLayout()
        head.setSpacing(theme.px(theme.GAP_M))
        for read_out in self.read_outs.values():
            read_out.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
            head.addWidget(read_out)
        head.addWidget(self._aside, 1)
        self._absent_label = ElidedText()
        self._absent_label.hide()
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(0)
        self._layout.addLayout(head)
        self._layout.addWidget(self._absent_label)
        self._placeholder = QWidget()
        self._placeholder.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self._placeholder.setMinimumHeight(theme.px(_PLACEHOLDER_PX))
        self._layout.addWidget(self._placeholder, 1)
        self.show_dense(False)

    def attach_chart(self, chart: Chart) -> None:
        """Insert the chart."""
        self.chart = chart
        self._layout.replaceWidget(self._placeholder, chart)
        self._placeholder.deleteLater()
        chart.setVisible(self.absent is None)

    def show_dense(self, dense: bool, *, times: bool = True) -> None:
        """Set smaller or usual margins. `times`: whether the plot has time labels, or leaves them to a card below."""
        side, above, below = (theme.GAP_L, theme.GAP, theme.GAP_S) if dense else (theme.GAP_L, theme.GAP_M, theme.GAP)
        self._layout.setContentsMargins(*map(theme.px, (side, above, side, below)))
        if self.chart is not None:
            self.chart.show_times(times)

    def show_readings(
        self, readings: Mapping[str, Reading], samples: Samples, *, server_start_s: float = float("-inf")
    ) -> None:
        """Show the newest values. If none was ever known, a single line gives the reason.

        Values from before `server_start_s` belong to an earlier server and are ignored.
        """
        own_readings = {name: readings[name] for name in self.read_outs if name in readings}
        reasons = [reading.absent or "" for reading in own_readings.values() if reading.value is None]
        all_absent = len(own_readings) > 1 and len(reasons) == len(own_readings)
        same_reason = all_absent and len(set(reasons)) == 1
        newest_s = samples.newest_s
        for quantity in self.plot.read_outs:
            reading = own_readings.get(quantity.name)
            if reading is None:
                continue
            oldest_s = server_start_s if quantity.of_server else float("-inf")
            from_s, to_s = max(newest_s - 2 * _MINUTE_S, oldest_s), newest_s - _MINUTE_S
            minute_before = None
            if reading.value is not None and from_s < to_s:
                minute_before = samples.mean(quantity.name, from_s, to_s)
            last = samples.last_known(quantity.name)
            if last is not None and newest_s - last[1] < oldest_s:
                last = None
            self.read_outs[quantity.name].show_reading(
                reading,
                last,
                minute_before=minute_before,
                limit=_limit_text(quantity, readings),
                with_reason=not same_reason,
            )
        was_known = any(curve.name in samples.names for curve in self.plot.curves)
        self._set_absent(reasons[0] if same_reason and not was_known else None)
        self._show_scale_tip(samples)

    def show_nothing_runs(self) -> None:
        """Show that no server runs: keep the curves, but hide the numbers, which would look current."""
        nothing = Reading.unknown(tr("Nothing is running."))
        for read_out in self.read_outs.values():
            read_out.show_reading(nothing, with_reason=len(self.read_outs) == 1)
        if self.absent is None:
            self.show_aside("")

    def _set_absent(self, reason: str | None) -> None:
        """Replace the read-outs and the plot by a line with `reason`, or show them again if it is None."""
        if reason is not None:
            self.show_aside(render(reason))
            self._absent_label.show_text(f"{tr(self.plot.title)}  {UNKNOWN}  {self.aside}")
            set_tooltip(self._absent_label, self.aside)
        changed = (reason is None) != (self.absent is None)
        self.absent = reason
        if changed:
            for widget in (*self.read_outs.values(), self.chart or self._placeholder):
                widget.setVisible(reason is None)
            self._absent_label.setVisible(reason is not None)
            policy = QSizePolicy.Policy.Preferred if reason is None else QSizePolicy.Policy.Maximum
            self.setSizePolicy(QSizePolicy.Policy.Preferred, policy)
            self._fit_aside()

    def show_aside(self, text: str, tip: str = "") -> None:
        """Show one or two lines at the right of the read-outs."""
        if self._aside.text() != text:
            self._aside.setText(text)
        set_tooltip(self._aside, tip or text)

    @property
    def aside(self) -> str:
        """The text at the right of the read-outs."""
        return self._aside.text()

    def _show_scale_tip(self, samples: Samples) -> None:
        """Explain the scale of curves that have no axis in their own unit."""
        lines = []
        for curve in self.plot.read_outs:
            if curve.axis == "share" and curve.name in samples.names:
                full = curve.format_value(self._full_scale(curve, samples))
                lines.append(tr("{title}: 100 % is {whole} {unit}", title=tr(curve.title), whole=full, unit=curve.unit))
        if self.chart is not None and lines:
            self.chart.overlay.setAccessibleDescription(", ".join(lines))
            set_tooltip(self, "\n".join(lines))

    def draw(
        self, samples: Samples, span: TimeSpan, marks: Sequence[Mark], group_samples: Callable[[int], Columns]
    ) -> None:
        """Draw a time span. `group_samples` groups its samples into a number of pixel columns."""
        chart = self.chart
        if chart is None or not chart.isVisible():
            return
        import numpy as np

        from launcher.gui.plots.axes import round_up_nicely
        from launcher.gui.plots.overlay import Dot

        part = samples.slice_between(span.start_s, span.end_s)
        pixel_columns = group_samples(chart.columns)
        curves = [curve for curve in self.plot.curves if _is_shown(curve, samples)]
        drawn = {curve.name: pixel_columns.decimate(samples.values(curve.name, part)) for curve in curves}
        highest = {name: float(np.fmax.reduce(values)) for name, values in drawn.items() if len(values)}
        highest = {name: value for name, value in highest.items() if value == value}  # nan: nothing known in this span
        if self.plot.top is None:
            on_left_axis = [curve for curve in curves if curve.axis == "left"]
            top = max((highest.get(curve.name, 0.0) * curve.scale for curve in on_left_axis), default=0.0)
            near = [each.value for each in self.references if each.value <= _REFERENCE_ROOM * top or not top]
            self.top = round_up_nicely(max([top, *near]), self.plot.least)
        self._factors = {curve.name: self._axis_factor(curve, samples) for curve in curves if curve.name in highest}
        chart.set_range(span.length_s, self.top)
        chart.time_axis.set_held_end(None if span.live else _wall_time(samples, span.end_s))
        scaled = {name: drawn[name] * factor for name, factor in self._factors.items()}
        chart.draw(pixel_columns.times - span.end_s, scaled)
        chart.overlay.levels = tuple(map(self._reference_level, self.references))
        chart.overlay.marks = [(span.share_at(mark.time_s), mark.kind) for mark in marks]
        chart.overlay.pauses = [
            (span.share_at(mark.time_s), span.share_at(mark.time_s + mark.length_s)) for mark in marks if mark.length_s
        ]
        dots = self._newest_dots(samples, span) if span.live else []
        colours = chart.colours
        for name, factor in self._factors.items():
            for at in pixel_columns.find_isolated(drawn[name]):
                share, y = span.share_at(float(pixel_columns.times[at])), float(drawn[name][at]) * factor / self.top
                dots.append(Dot(share, y, colours[name], radius=_ISOLATED_DOT_PX))
        chart.overlay.dots = dots

    def _reference_level(self, reference: Reference) -> LabelledLine:
        from launcher.gui.plots.overlay import LabelledLine

        above = reference.value > self.top
        text = tr("{text}, above", text=reference.text) if above else reference.text
        return LabelledLine(reference.value / self.top, text, reference.dotted)

    def _axis_factor(self, curve: Quantity, samples: Samples) -> float:
        """Return the factor from a sample to the left axis."""
        if curve.axis == "left":
            return curve.scale
        if curve.axis == "right":
            return self.top / 100
        return 100 / self._full_scale(curve, samples)

    @staticmethod
    def _full_scale(curve: Quantity, samples: Samples) -> float:
        """Return the 100 % value of a curve drawn as a share: its limit, else its highest value so far."""
        limit = samples.last_known(curve.reference)
        return (limit[0] if limit else samples.highest(curve.name)) or 1.0

    def _newest_dots(self, samples: Samples, span: TimeSpan) -> list[Dot]:
        """Return a dot at each curve's newest value. Those of draft positions are labelled with the position."""
        from launcher.gui.plots.chart import curve_colour
        from launcher.gui.plots.overlay import Dot

        dots = []
        for curve in self.plot.curves:
            last = samples.last_known(curve.name)
            if curve.name in self._factors and last is not None and last[1] <= span.length_s and not curve.dashed:
                y = last[0] * self._factors[curve.name] / self.top
                label = str(curve.draft_position) if curve.draft_position and last[1] < 1 else ""
                dots.append(Dot(span.share_at(samples.newest_s - last[1]), y, curve_colour(curve).name(), label))
        return dots

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
        from launcher.gui.plots.chart import curve_colour
        from launcher.gui.plots.overlay import Dot, Hover, HoverRow

        x = span.share_at(samples.time_at(index)[0])
        rows, dots, by_position = [], [], []
        for curve in (*reversed(self.plot.curves), *self.plot.cursor_only):
            if not _is_shown(curve, samples):
                continue
            value = samples.value_at(curve.name, index)
            is_drawn = curve.name in self._factors
            colour = curve_colour(curve).name()
            if value is not None and is_drawn and not curve.dashed:
                dots.append(Dot(x, value * self._factors[curve.name] / self.top, colour, radius=_CURSOR_DOT_PX))
            if not curve.draft_position:
                text = UNKNOWN if value is None else f"{curve.format_value(value)} {tr(curve.unit)}"
                rows.append(HoverRow(colour if is_drawn else None, tr(curve.title), text))
            elif value is not None:
                by_position.append(curve.format_value(value))
        if by_position:
            rows.append(HoverRow(None, tr("By position"), " · ".join(by_position) + " %"))
        overlay.hover = Hover(x, tuple(header), tuple(rows), tuple(dots))
        overlay.update()
        return ", ".join(f"{row.name} {row.value}" for row in rows)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Hide the aside where there is no room."""
        super().resizeEvent(event)
        self._fit_aside()

    def _fit_aside(self) -> None:
        needed = sum(read_out.sizeHint().width() for read_out in self.read_outs.values())
        room = self.width() - needed - theme.px(theme.GAP_M * len(self.read_outs) + theme.GAP_XL)
        has_room = room >= theme.px(_LEAST_ASIDE_PX) or len(self.read_outs) == 1
        self._aside.setVisible(self.absent is None and has_room)


def _is_shown(curve: Quantity, samples: Samples) -> bool:
    """Return whether a series has ever had a value, and the one in whose place it is drawn has not."""
    return curve.name in samples.names and curve.stands_for not in samples.names


def _limit_text(quantity: Quantity, readings: Mapping[str, Reading]) -> str:
    limit = readings.get(quantity.reference)
    if limit is None or not limit.value:
        return ""
    return tr("of {limit} {unit}", limit=quantity.format_value(limit.value), unit=tr(quantity.unit))


def _wall_time(samples: Samples, time_s: float) -> float:
    """Convert a time of the monitor's clock to seconds since the epoch, by the nearest sample."""
    index = samples.nearest_index(time_s)
    if index is None:
        return 0.0
    sample_s, sample_wall_s = samples.time_at(index)
    return sample_wall_s + time_s - sample_s
