"""One plot: curves by pyqtgraph, with an overlay of our own. Importing this takes 0.3 s: not before the first paint."""

from collections.abc import Sequence
from typing import Any

import pyqtgraph
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QFrame

from launcher.gui import theme
from launcher.gui.plots.axes import MARGIN, PADDING, TimeAxis, ValueAxis
from launcher.gui.plots.overlay import Overlay
from launcher.gui.plots.quantities import Plot, Quantity
from launcher.gui.plots.samples import Floats
from launcher.gui.words import tr

_LEAST_HEIGHT, _TIMES, _NO_TIMES = 55, 18, 6
"""In pixels: a plot without its times, and what is below it with and without them."""
_GLYPHS = 15
"""Above the plot, for the glyphs of marks."""


class _Curve(pyqtgraph.PlotCurveItem):  # type: ignore[misc]
    """A curve that fills its plot: pyqtgraph would look for its bounds several times each time it is drawn."""

    def __init__(self, *, antialias: bool) -> None:
        self.box = QRectF()
        super().__init__(connect="finite", antialias=antialias)

    def boundingRect(self) -> QRectF:  # noqa: N802 -- Qt's name
        """Return the whole plot."""
        return self.box

    def cover(self, box: QRectF) -> None:
        """Fill another stretch."""
        self.prepareGeometryChange()
        self.box = box


class Chart(pyqtgraph.PlotWidget):  # type: ignore[misc]
    """Shows what it is given; x is in seconds from the end of the span, y in the units of the left axis."""

    def __init__(self, plot: Plot) -> None:
        self.time_axis = TimeAxis()
        axes = {"bottom": self.time_axis, "left": ValueAxis("left")}
        self._curves: dict[str, Any] = {}
        self.overlay = Overlay()
        super().__init__(axisItems=axes)
        self.plot_name = plot.name
        self._plot = plot
        self._range = (0.0, 0.0)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMenuEnabled(False)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(tr("Plot: {title}", title=tr(plot.title)))
        item = self.getPlotItem()
        item.setContentsMargins(0, _GLYPHS, theme.px(8), 0)
        item.showGrid(y=True, alpha=0.2)
        item.getAxis("left").setWidth(theme.px(40))
        for axis in axes.values():
            axis.enableAutoSIPrefix(False)
        for curve in plot.curves:
            drawn = _Curve(antialias=not curve.dashed)
            self._curves[curve.name] = drawn
            self.addItem(drawn)
        item.getViewBox().disableAutoRange()
        self.overlay.setParent(self)
        self.overlay.unit = plot.unit if len(plot.read_outs) > 1 else ""  # else the read-out says it
        self.overlay.top = "100 %" if plot.right else ""  # an axis at the right would shift this plot's time
        self.overlay.setAccessibleName(self.accessibleName())
        self.recolour()
        self.show_times(True)
        self.set_range(60.0, plot.top or plot.least)

    def show_times(self, shown: bool) -> None:
        """Write the times under the plot, or leave them to the plot below it."""
        self.time_axis.setStyle(showValues=shown)
        self.time_axis.setHeight(theme.px(_TIMES if shown else _NO_TIMES))
        self.setMinimumHeight(theme.px(_LEAST_HEIGHT + (_TIMES if shown else _NO_TIMES)))

    def recolour(self) -> None:
        """Take the colours of the theme."""
        colours = theme.current()
        self.setBackground(colours.card)
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.setTextPen(pyqtgraph.mkPen(QColor(colours.secondary)))
            axis.setStyle(tickFont=theme.font(11, tabular=True), tickLength=0, hideOverlappingLabels=False)
            axis.setPen(pyqtgraph.mkPen(None))
            axis.setTickPen(pyqtgraph.mkPen(QColor(colours.secondary) if side == "left" else None))
        for curve in self._plot.curves:
            style = Qt.PenStyle.DashLine if curve.dashed else Qt.PenStyle.SolidLine
            self._curves[curve.name].setPen(pyqtgraph.mkPen(colour_of(curve), width=1, style=style))
        self.overlay.update()

    def set_range(self, length_s: float, top: float) -> None:
        """Show this many seconds, and values from 0 to `top`."""
        if (length_s, top) != self._range:
            self._range = length_s, top
            box = QRectF(-length_s, -PADDING * top, (1 + MARGIN) * length_s, (1 + 2 * PADDING) * top)
            for curve in self._curves.values():
                curve.cover(box)
            self.setXRange(-length_s, MARGIN * length_s, padding=0.0)
            self.setYRange(0.0, top, padding=PADDING)

    @property
    def colours(self) -> dict[str, str]:
        """The colours of the curves by name."""
        return {curve.name: colour_of(curve).name() for curve in self._plot.curves}

    @property
    def columns(self) -> int:
        """How many pixels there are for the span."""
        return max(1, int(self.area().width() * self.devicePixelRatioF()))

    def area(self) -> QRectF:
        """Return where values from 0 to the top, from the start to the end of the span, are painted, in pixels."""
        box: QRectF = self.getPlotItem().getViewBox().sceneBoundingRect()
        height = box.height() / (1 + 2 * PADDING)
        return QRectF(box.left(), box.top() + PADDING * height, box.width() / (1 + MARGIN), height)

    def draw(self, x: Floats, lines: Sequence[tuple[str, Floats]]) -> None:
        """Draw curves, by name; those that are not given are empty."""
        given = dict(lines)
        for name, curve in self._curves.items():
            values = given.get(name)
            if values is None:
                if curve.xData is not None and len(curve.xData):
                    curve.setData([], [])
            else:
                curve.setData(x, values)
        self.overlay.area = self.area()
        self.overlay.update()

    def resizeEvent(self, event: QResizeEvent | None) -> None:  # noqa: N802 -- Qt's name
        """Keep the overlay over the whole of it."""
        super().resizeEvent(event)
        if event is None:  # pyqtgraph's own call while it is made
            return
        self.overlay.setGeometry(self.viewport().geometry())
        self.overlay.area = self.area()


def colour_of(quantity: Quantity) -> QColor:
    """Return a curve's colour: of its role, and for draft positions lighter and lighter steps of it."""
    colours = theme.current()
    colour, card = QColor(getattr(colours, quantity.colour)), QColor(colours.card)
    if not quantity.step:
        return colour
    if card.lightnessF() > 0.5:
        towards, share = card, 0.05 + 0.04 * quantity.step
    else:
        towards, share = QColor(colours.text), 0.2 + 0.07 * quantity.step
    mixed = [round(a + (b - a) * share) for a, b in zip(_rgb(colour), _rgb(towards), strict=True)]
    return QColor(*mixed)


def _rgb(colour: QColor) -> tuple[int, int, int]:
    return colour.red(), colour.green(), colour.blue()
