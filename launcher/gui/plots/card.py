"""A card: read-outs over a plot. The plot comes later than the card, because its library takes 0.3 s to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import set_tip
from launcher.gui.plots.quantities import Plot, Quantity
from launcher.gui.plots.readout import DASH, Elided, ReadOut
from launcher.gui.sentences import say
from launcher.gui.words import tr
from launcher.machine.reading import Reading

if TYPE_CHECKING:
    from launcher.gui.plots.chart import Chart
    from launcher.gui.plots.marks import Mark
    from launcher.gui.plots.overlay import Dot, Level
    from launcher.gui.plots.samples import Columns, Samples
    from launcher.gui.plots.span import Span

_ASIDE_PX = 80
_SPACE_PX = 76
_MINUTE_S = 60.0
_ALONE_PX, _READ_PX = 1.5, 3.5
"""Radius of the dot of a sample with none beside it, and of one that is read."""
_REFERENCE_ROOM = 2.5
"""A reference so many times above the highest value is named, but the axis does not reach up to it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A value to measure against, drawn as a line: `dotted` else dashed."""

    value: float
    text: str
    dotted: bool = False


class PlotCard(QFrame):
    """Shows one Plot."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self.setObjectName("card")
        self.plot = plot
        self.chart: Chart | None = None
        self.references: tuple[Reference, ...] = ()
        self.absent: str | None = None
        """Why there is nothing to plot, None when there is."""
        self._factors: dict[str, float] = {}
        self._top = plot.top or plot.least
        pixels = theme.READOUT_PX if len(plot.read_outs) == 1 else theme.SMALL_READOUT_PX
        self.read_outs = {quantity.name: ReadOut(quantity, pixels) for quantity in plot.read_outs}
        self._aside = Elided()
        self._aside.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        head = QHBoxLayout()
        head.setSpacing(theme.px(theme.GAP_M))
        for read_out in self.read_outs.values():
            read_out.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
            head.addWidget(read_out)
        head.addWidget(self._aside, 1)
        self._gone = Elided()
        self._gone.hide()
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(0)
        self._layout.addLayout(head)
        self._layout.addWidget(self._gone)
        self._space = QWidget()
        self._space.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self._space.setMinimumHeight(theme.px(_SPACE_PX))
        self._layout.addWidget(self._space, 1)
        self.show_dense(False)

    def attach(self, chart: Chart) -> None:
        """Put the plot into its place."""
        self.chart = chart
        self._layout.replaceWidget(self._space, chart)
        self._space.deleteLater()
        chart.setVisible(self.absent is None)

    def show_dense(self, dense: bool, *, times: bool = True) -> None:
        """Show the plot with less room around it, and with its `times` or, where a card below has them, without."""
        side, above, below = (theme.GAP_L, theme.GAP, theme.GAP_S) if dense else (theme.GAP_L, theme.GAP_M, theme.GAP)
        self._layout.setContentsMargins(*map(theme.px, (side, above, side, below)))
        if self.chart is not None:
            self.chart.show_times(times)

    def show_readings(self, readings: Mapping[str, Reading], samples: Samples) -> None:
        """Show the newest values. Where none of them ever was, one line says so, and why."""
        mine = {name: readings[name] for name in self.read_outs if name in readings}
        reasons = [reading.absent or "" for reading in mine.values() if reading.value is None]
        shared = len(mine) > 1 and len(reasons) == len(mine) and len(set(reasons)) == 1
        newest_s = samples.newest_s
        for name, reading in mine.items():
            before = None
            if reading.value is not None:
                before = samples.mean(name, newest_s - 2 * _MINUTE_S, newest_s - _MINUTE_S)
            self.read_outs[name].show_reading(
                reading,
                samples.last_known(name),
                minute_before=before,
                limit=_limit(name, readings),
                explains=not shared,
            )
        known = any(curve.name in samples.names for curve in self.plot.curves)
        self._set_absent(reasons[0] if shared and not known else None)
        self.show_tip(samples)

    def _set_absent(self, reason: str | None) -> None:
        if reason is not None:
            self.show_aside(say(reason))
            self._gone.show_text(f"{tr(self.plot.title)}  {DASH}  {self.aside}")
            set_tip(self._gone, self.aside)
        changed = (reason is None) != (self.absent is None)
        self.absent = reason
        if changed:
            for widget in (*self.read_outs.values(), self.chart or self._space):
                widget.setVisible(reason is None)
            self._gone.setVisible(reason is not None)
            policy = QSizePolicy.Policy.Preferred if reason is None else QSizePolicy.Policy.Maximum
            self.setSizePolicy(QSizePolicy.Policy.Preferred, policy)
            self._make_room()

    def show_aside(self, text: str, tip: str = "") -> None:
        """Show one or two lines at the right of the read-outs."""
        if self._aside.text() != text:
            self._aside.setText(text)
        set_tip(self._aside, tip or text)

    @property
    def aside(self) -> str:
        """What is said there."""
        return self._aside.text()

    def show_tip(self, samples: Samples) -> None:
        """Say against what the curves are drawn that have no axis of their own unit."""
        shares = [curve for curve in self.plot.read_outs if curve.against == "share" and curve.name in samples.names]
        if self.chart is not None and shares:
            wholes = [(curve, curve.text(self._whole(curve, samples))) for curve in shares]
            lines = [tr("{title}: 100 % is {whole} {unit}", title=tr(c.title), whole=w, unit=c.unit) for c, w in wholes]
            self.chart.overlay.setAccessibleDescription(", ".join(lines))
            set_tip(self, "\n".join(lines))

    def draw(self, samples: Samples, span: Span, marks: Sequence[Mark], columns: Callable[[int], Columns]) -> None:
        """Draw a stretch of time. `columns` divides its samples into so many pixel columns."""
        chart = self.chart
        if chart is None or not chart.isVisible():
            return
        import numpy as np

        from launcher.gui.plots.axes import nice
        from launcher.gui.plots.overlay import Dot

        part = samples.between(span.start_s, span.end_s)
        divided = columns(chart.columns)
        known = samples.names
        shown = [curve for curve in self.plot.curves if curve.name in known and curve.stands_for not in known]
        drawn = {curve.name: divided.decimate(samples.values(curve.name, part)) for curve in shown}
        highest = {name: float(np.fmax.reduce(values)) for name, values in drawn.items() if len(values)}
        highest = {name: value for name, value in highest.items() if value == value}  # nan: nothing is known of it here
        if self.plot.top is None:
            top = max((highest.get(c.name, 0.0) * c.scale for c in shown if c.against == "left"), default=0.0)
            near = [each.value for each in self.references if each.value <= _REFERENCE_ROOM * top or not top]
            self._top = nice(max([top, *near]), self.plot.least)
        self._factors = {curve.name: self._factor(curve, samples) for curve in shown if curve.name in highest}
        chart.set_range(span.length_s, self._top)
        chart.time_axis.held_at(None if span.live else _wall(samples, span.end_s))
        chart.draw(divided.times - span.end_s, [(name, drawn[name] * by) for name, by in self._factors.items()])
        chart.overlay.levels = tuple(map(self._level, self.references))
        chart.overlay.marks = [(span.share(mark.time_s), mark.kind) for mark in marks]
        dots = self._newest(samples, span) if span.live else []
        colours = chart.colours
        for name, by in self._factors.items():
            for at in divided.alone(drawn[name]):
                share, y = span.share(float(divided.times[at])), float(drawn[name][at]) * by / self._top
                dots.append(Dot(share, y, colours[name], radius=_ALONE_PX))
        chart.overlay.dots = dots

    def _level(self, reference: Reference) -> Level:
        from launcher.gui.plots.overlay import Level

        above = reference.value > self._top
        text = tr("{text}, above", text=reference.text) if above else reference.text
        return Level(reference.value / self._top, text, reference.dotted)

    def _factor(self, curve: Quantity, samples: Samples) -> float:
        """Return by what a sample is multiplied to be drawn against the left axis."""
        if curve.against == "left":
            return curve.scale
        return self._top / 100 if curve.against == "right" else 100 / self._whole(curve, samples)

    @staticmethod
    def _whole(curve: Quantity, samples: Samples) -> float:
        """Return what is 100 % of a curve that is drawn as a share: its limit, else the highest there was."""
        limit = samples.last_known(curve.reference)
        return (limit[0] if limit else samples.highest(curve.name)) or 1.0

    def _newest(self, samples: Samples, span: Span) -> list[Dot]:
        """Return a dot at the newest value of each curve, with the number of a draft position."""
        from launcher.gui.plots.chart import colour_of
        from launcher.gui.plots.overlay import Dot

        dots = []
        for curve in self.plot.curves:
            last = samples.last_known(curve.name)
            if curve.name in self._factors and last is not None and last[1] <= span.length_s and not curve.dashed:
                y = last[0] * self._factors[curve.name] / self._top
                label = str(curve.step) if curve.step and last[1] < 1 else ""
                dots.append(Dot(span.share(samples.newest_s - last[1]), y, colour_of(curve).name(), label))
        return dots

    def hover(self, samples: Samples, span: Span, index: int | None, words: Sequence[str]) -> str:
        """Show the values of one sample, None takes them away; return them as a sentence."""
        overlay = self.chart.overlay if self.chart is not None else None
        if overlay is None:
            return ""
        if index is None:
            if overlay.hover is not None:
                overlay.hover = None
                overlay.update()
            return ""
        from launcher.gui.plots.chart import colour_of
        from launcher.gui.plots.overlay import Dot, Hover, HoverRow

        x = span.share(samples.time_at(index)[0])
        rows, dots, steps = [], [], []
        for curve in (*reversed(self.plot.curves), *self.plot.also):
            value = samples.at(curve.name, index)
            drawn = curve.name in self._factors
            if curve.name not in samples.names or curve.stands_for in samples.names or (value is None and curve.step):
                continue
            colour = colour_of(curve).name()
            if value is not None and drawn and not curve.dashed:
                dots.append(Dot(x, value * self._factors[curve.name] / self._top, colour, radius=_READ_PX))
            if value is not None and curve.step:
                steps.append(curve.text(value))
            else:
                said = DASH if value is None else f"{curve.text(value)} {tr(curve.unit)}"
                rows.append(HoverRow(colour if drawn else None, tr(curve.title), said))
        if steps:
            rows.append(HoverRow(None, tr("By position"), " · ".join(steps) + " %"))
        overlay.hover = Hover(x, tuple(words), tuple(rows), tuple(dots))
        overlay.update()
        return ", ".join(f"{row.name} {row.value}" for row in rows)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Where room is short the text aside goes."""
        super().resizeEvent(event)
        self._make_room()

    def _make_room(self) -> None:
        wanted = sum(read_out.sizeHint().width() for read_out in self.read_outs.values())
        room = self.width() - wanted - theme.px(theme.GAP_M * len(self.read_outs) + theme.GAP_XL)
        self._aside.setVisible(self.absent is None and (room >= theme.px(_ASIDE_PX) or len(self.read_outs) == 1))


def _limit(name: str, readings: Mapping[str, Reading]) -> str:
    watts = readings.get("gpu_power_limit_w") if name == "gpu_power_w" else None
    return tr("of {limit:,.0f} W", limit=watts.value) if watts and watts.value else ""


def _wall(samples: Samples, time_s: float) -> float:
    """Return when a moment was, in seconds since the epoch."""
    index = samples.nearest(time_s)
    if index is None:
        return 0.0
    at_s, wall_s = samples.time_at(index)
    return wall_s + time_s - at_s
