"""Read-outs and plots on one time axis. pyqtgraph is loaded after the first paint, because it takes 0.3 s."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, isnan, log10
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.plots.history import SPANS_S, History
from launcher.machine.reading import Reading

_PADDING = 0.02
_MARGIN = 0.012
"""Of the span, so that the dot at the newest value is whole."""
_LABEL = 12
_CARD_HEIGHT = 128
_DASH = "–"  # noqa: RUF001 -- the sign for an unknown value


@dataclass(frozen=True, slots=True)
class Quantity:
    """One sampled quantity as a card shows it.

    `colour` is a role of the theme, None when it has no curve; `lasts` keeps its last value on show, with its age.
    """

    name: str
    title: str
    unit: str
    widest: str
    digits: int = 0
    colour: str | None = None
    lasts: bool = False


class ReadOut(QWidget):
    """A name, a large number, its unit. Unknown is an en dash with the reason; one that has ended says since when."""

    def __init__(self, quantity: Quantity, pixels: int) -> None:
        super().__init__()
        self._quantity = quantity
        self._shown: tuple[str, str, str] | None = None
        self._title = Label(quantity.title)
        self._title.setObjectName("secondary")
        self._title.setFont(theme.font(theme.CAPTION_PX))
        self._value = Label()
        big = theme.font(pixels, bold=True, tabular=True)
        self._value.setFont(big)
        self._unit = Label(quantity.unit)
        self._unit.setObjectName("secondary")
        small = theme.font(theme.SECTION_PX if pixels == theme.READOUT_PX else theme.BODY_PX)
        self._unit.setFont(small)
        self._unit.setContentsMargins(0, QFontMetrics(big).ascent() - QFontMetrics(small).ascent(), 0, 0)
        widest = QFontMetrics(big).horizontalAdvance(quantity.widest)
        with_unit = widest + 6 + QFontMetrics(small).horizontalAdvance(quantity.unit)
        self._reserved = max(with_unit, QFontMetrics(self._title.font()).horizontalAdvance(quantity.title))
        line = QHBoxLayout()
        line.setSpacing(6)
        line.addWidget(self._value)
        line.addWidget(self._unit, alignment=Qt.AlignmentFlag.AlignTop)
        line.addStretch()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._title)
        layout.addLayout(line)
        self.show_reading(Reading.unknown("Nothing runs."))

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Reserve the width of the widest value where there is room, so that nothing moves."""
        hint = super().sizeHint()
        return QSize(max(hint.width(), self._reserved), hint.height())

    def show_reading(self, reading: Reading, last: tuple[float, float] | None = None) -> None:
        """Show a value; without one the `last` value and its age in seconds, else a dash and why there is none."""
        title, why = self._quantity.title, ""
        if reading.value is not None:
            text = f"{reading.value:,.{self._quantity.digits}f}"
        elif self._quantity.lasts and last is not None:
            value, age_s = last
            text = f"{value:,.{self._quantity.digits}f}"
            title, why = f"{title} · {_age(age_s)}", reading.absent or ""
        else:
            text, why = _DASH, reading.absent or "Not known."
            if self._quantity.lasts:
                title = f"{title} · {why[0].lower()}{why[1:].rstrip('.')}"
        if self._shown != (title, text, why):
            self._shown = (title, text, why)
            self._title.setText(title)
            self._value.setText(text)
            self._value.setEnabled(reading.value is not None)  # what is not live is dimmed
            set_tip(self, why)
            self._value.setAccessibleName(f"{title}: {text} {self._quantity.unit} {why}".strip())


def _age(seconds: float) -> str:
    if seconds < 1.5:
        return "just now"
    return f"{seconds:.0f} s ago" if seconds < 60 else f"{seconds / 60:.0f} min ago"


class PlotCard(QFrame):
    """A card of read-outs with a plot under them."""

    def __init__(self, quantities: Sequence[Quantity], limits: tuple[float, float | None]) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setMinimumHeight(_CARD_HEIGHT)
        self._quantities = tuple(quantities)
        self._limits = limits
        self._plot: Any = None
        self._range = (0.0, 0.0)
        self._curves: dict[str, Any] = {}
        self._dots: dict[str, Any] = {}
        pixels = theme.READOUT_PX if len(quantities) == 1 else theme.SMALL_READOUT_PX
        self._read_outs = {quantity.name: ReadOut(quantity, pixels) for quantity in quantities}
        self._aside = Label()
        self._aside.setObjectName("secondary")
        self._aside.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._aside.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._aside.setWordWrap(True)
        self._aside.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        head = QHBoxLayout()
        head.setSpacing(theme.GAP_L)
        for read_out in self._read_outs.values():
            read_out.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
            head.addWidget(read_out)
        head.addWidget(self._aside, 1)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(theme.GAP_L, theme.GAP_M, theme.GAP_L, theme.GAP_M)
        self._layout.setSpacing(theme.GAP)
        self._layout.addLayout(head)
        self._space = QWidget()
        self._space.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self._layout.addWidget(self._space, 1)

    def attach(self, pyqtgraph: Any, colours: theme.Theme) -> None:  # noqa: ANN401 -- untyped library
        """Put the plot into its place."""
        self._plot = plot = pyqtgraph.PlotWidget(axisItems=_axes(pyqtgraph))
        plot.setFrameShape(QFrame.Shape.NoFrame)
        plot.setMenuEnabled(False)
        plot.setMouseEnabled(x=False, y=False)
        plot.hideButtons()
        plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plot.setMinimumHeight(36)
        plot.setAccessibleName("Plot of " + ", ".join(quantity.title for quantity in self._quantities))
        item = plot.getPlotItem()
        item.setContentsMargins(0, 8, 24, 0)
        item.showGrid(y=True, alpha=0.2)
        item.getAxis("left").setWidth(40)
        for side in ("left", "bottom"):
            item.getAxis(side).enableAutoSIPrefix(False)
        for quantity in self._quantities:
            if quantity.colour is not None:
                self._curves[quantity.name] = plot.plot([], [], connect="finite")
                self._dots[quantity.name] = plot.plot([], [], symbol="o", symbolSize=7, pen=None)
        self._show_range(SPANS_S[0], 0.0)
        self._layout.replaceWidget(self._space, plot)
        self._space.deleteLater()
        self.recolour(pyqtgraph, colours)

    def recolour(self, pyqtgraph: Any, colours: theme.Theme) -> None:  # noqa: ANN401
        """Give the plot the colours of a theme."""
        if self._plot is None:
            return
        self._plot.setBackground(colours.card)
        for side in ("left", "bottom"):
            axis = self._plot.getPlotItem().getAxis(side)
            axis.setTextPen(pyqtgraph.mkPen(QColor(colours.secondary)))
            axis.setStyle(tickFont=theme.font(11, tabular=True), tickLength=0, hideOverlappingLabels=False)
            axis.setPen(pyqtgraph.mkPen(None))
            axis.setTickPen(pyqtgraph.mkPen(QColor(colours.secondary)))
        for quantity in self._quantities:
            if quantity.colour is not None:
                colour = QColor(getattr(colours, quantity.colour))
                self._curves[quantity.name].setPen(pyqtgraph.mkPen(colour, width=1))
                self._dots[quantity.name].setSymbolBrush(colour)
                self._dots[quantity.name].setSymbolPen(None)

    def show_readings(self, readings: Mapping[str, Reading], history: History) -> None:
        """Show the newest values."""
        for name, read_out in self._read_outs.items():
            if name in readings:
                read_out.show_reading(readings[name], history.last_known(name))

    def show_aside(self, text: str) -> None:
        """Show a short text at the right of the read-outs."""
        if self._aside.text() != text:
            self._aside.setText(text)

    def draw(self, history: History, now_s: float, span_s: float) -> None:
        """Draw the last `span_s` seconds."""
        if self._plot is None:
            return
        top = 0.0
        for name, curve in self._curves.items():
            times, values = history.since(name, now_s - span_s)
            before = [time_s - now_s for time_s in times]  # the data moves, not the axis: it need not be laid out anew
            curve.setData(before, values)
            dotted = _dotted(values)
            self._dots[name].setData([before[i] for i in dotted], [values[i] for i in dotted])
            top = max([top, *(value for value in values if not isnan(value))])
        self._show_range(span_s, top)

    def _show_range(self, span_s: float, top: float) -> None:
        low, high = self._limits
        wanted = span_s, high or _nice(top)
        if wanted != self._range:
            self._range = wanted
            self._plot.setXRange(-span_s, _MARGIN * span_s, padding=0.0)
            self._plot.setYRange(low, wanted[1], padding=_PADDING)


def _dotted(values: Sequence[float]) -> list[int]:
    """Return which samples get a dot: the newest value, and those between two gaps, which no line would show."""
    known = [not isnan(value) for value in values]
    edges = [False, *known, False]
    alone = [i for i in range(len(values)) if known[i] and not edges[i] and not edges[i + 2]]
    newest = next((i for i in range(len(values) - 1, -1, -1) if known[i]), None)
    return alone if newest is None or newest in alone else [*alone, newest]


def _nice(value: float) -> float:
    """Return a round number a little above `value`."""
    if value <= 0:
        return 100.0
    step = 10.0 ** (len(str(int(value))) - 1)
    return next(step * factor for factor in (1, 2, 3, 4, 5, 6, 8, 10, 12) if step * factor >= value * 1.05)


def _axes(pyqtgraph: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an axis of times before now, "-4 min ... now", and one of values with four or five ticks."""

    class TimeAxis(pyqtgraph.AxisItem):  # type: ignore[misc]
        def tickValues(self, low: float, _high: float, _size: float) -> list[tuple[float, list[float]]]:  # noqa: N802
            step = next(step for step in (2.0, 5.0, 10.0, 20.0, 60.0) if -low / step <= 6 or step == 60.0)
            return [(step, [-step * back for back in range(int(-low / step + 0.01) + 1)])]

        def tickStrings(self, values: list[float], _scale: float, spacing: float) -> list[str]:  # noqa: N802
            return [_before(-value, spacing) for value in values]

    class ValueAxis(pyqtgraph.AxisItem):  # type: ignore[misc]
        def boundingRect(self) -> Any:  # noqa: ANN401, N802
            # With a grid pyqtgraph forgets the room that labels at the ends need, and leaves them out.
            return super().boundingRect().adjusted(0, -_LABEL, 0, _LABEL)

        def tickValues(self, low: float, high: float, _size: float) -> list[tuple[float, list[float]]]:  # noqa: N802
            top = high - (high - low) * _PADDING / (1 + 2 * _PADDING)
            step = _step(top)
            return [(step, [step * i for i in range(int(top / step + 0.01) + 1)])]

        def tickStrings(self, values: list[float], _scale: float, _spacing: float) -> list[str]:  # noqa: N802
            return [f"{value:,.0f}" for value in values]

    return {"bottom": TimeAxis("bottom"), "left": ValueAxis("left")}


def _step(top: float) -> float:
    """Return the distance of ticks that gives four or five of them up to `top`."""
    power = 10.0 ** floor(log10(max(top, 1.0)))
    return next(step for step in (0.25 * power, 0.5 * power, power, 2 * power, 2.5 * power) if top / step <= 4.01)


def _before(seconds: float, spacing: float) -> str:
    if seconds < spacing / 2:
        return "now"
    return f"-{seconds / 60:.0f} min" if spacing >= 60 else f"-{seconds:.0f} s"
