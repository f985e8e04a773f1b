"""One plot: pyqtgraph curves with our own overlay. Importing it takes 0.3 s, so never before the first paint."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyqtgraph
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QFrame

from launcher.gui import theme
from launcher.gui.plots.axes import MARGIN, PADDING, TimeAxis, ValueAxis
from launcher.gui.plots.overlay import Overlay
from launcher.gui.plots.quantities import Plot, Quantity
from launcher.gui.plots.samples import Floats
from launcher.gui.translation import tr

_LEAST_HEIGHT, _AXIS_HEIGHT, _BARE_AXIS_HEIGHT = 55, 18, 6
"""In pixels: least plot height without time labels, and the height of the area below it with and without them."""
_MARKS_HEIGHT = 15
"""Height above the plot for the glyphs of marks, in pixels."""


class _PlotCurve(pyqtgraph.PlotCurveItem):  # type: ignore[misc]
    """Curve whose bounds are the plot's: pyqtgraph would compute them several times per drawing."""

    def __init__(self, *, antialias: bool) -> None:
        self.box = QRectF()
        super().__init__(connect="finite", antialias=antialias)

    def boundingRect(self) -> QRectF:  # noqa: N802 -- Qt's name
        """Return the plot's area."""
        return self.box

    def set_area(self, box: QRectF) -> None:
        """Set the plot's area."""
        self.prepareGeometryChange()
        self.box = box


class Chart(pyqtgraph.PlotWidget):  # type: ignore[misc]
    """Chart of given values. x is in seconds from the end of the span, y in units of the left axis."""

    def __init__(self, plot: Plot) -> None:
        self.time_axis = TimeAxis()
        axes = {"bottom": self.time_axis, "left": ValueAxis("left")}
        self.curves: dict[str, Any] = {}
        """The drawn curves by the name of their quantity."""
        self.overlay = Overlay()
        super().__init__(axisItems=axes, enableMenu=False)
        self.plot_name = plot.name
        self._plot = plot
        self._range = (0.0, 0.0)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(tr("Plot: {title}", title=tr(plot.title)))
        item = self.getPlotItem()
        item.setContentsMargins(0, _MARKS_HEIGHT, theme.px(8), 0)
        item.showGrid(y=True, alpha=0.2)
        item.getAxis("left").setWidth(theme.px(40))
        for axis in axes.values():
            axis.enableAutoSIPrefix(False)
        for curve in plot.curves:
            drawn = _PlotCurve(antialias=not curve.dashed)
            self.curves[curve.name] = drawn
            self.addItem(drawn)
        item.getViewBox().disableAutoRange()
        self.overlay.setParent(self)
        self.overlay.unit = plot.unit if len(plot.read_outs) > 1 else ""  # otherwise the read-out has the unit
        self.overlay.right_top = (
            "100 %" if plot.has_right_axis else ""
        )  # a right axis would shift this plot's time axis
        self.overlay.setAccessibleName(self.accessibleName())
        self.recolour()
        self.show_times(True)
        self.set_range(60.0, plot.top or plot.least)

    def show_times(self, shown: bool) -> None:
        """Show the time labels, or leave them to the plot below."""
        self.time_axis.setStyle(showValues=shown)
        self.time_axis.setHeight(theme.px(_AXIS_HEIGHT if shown else _BARE_AXIS_HEIGHT))
        self.setMinimumHeight(theme.px(_LEAST_HEIGHT + (_AXIS_HEIGHT if shown else _BARE_AXIS_HEIGHT)))

    def recolour(self) -> None:
        """Apply the theme's colours."""
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
            self.curves[curve.name].setPen(pyqtgraph.mkPen(curve_colour(curve), width=1, style=style))
        self.overlay.update()

    def set_range(self, length_s: float, top: float) -> None:
        """Show the last `length_s` seconds and values from 0 to `top`."""
        if (length_s, top) != self._range:
            self._range = length_s, top
            box = QRectF(-length_s, -PADDING * top, (1 + MARGIN) * length_s, (1 + 2 * PADDING) * top)
            for curve in self.curves.values():
                curve.set_area(box)
            self.setXRange(-length_s, MARGIN * length_s, padding=0.0)
            self.setYRange(0.0, top, padding=PADDING)

    @property
    def colours(self) -> dict[str, str]:
        """The curves' colours by name."""
        return {curve.name: curve_colour(curve).name() for curve in self._plot.curves}

    @property
    def columns(self) -> int:
        """Number of pixel columns: the span's width in device pixels."""
        return max(1, int(self.area().width() * self.devicePixelRatioF()))

    @property
    def points(self) -> dict[str, int]:
        """Number of known values drawn per curve, for curves that have any."""
        drawn = {name: curve.yData for name, curve in self.curves.items() if curve.yData is not None}
        return {name: count for name, values in drawn.items() if (count := int(np.isfinite(values).sum()))}

    def area(self) -> QRectF:
        """Return the rectangle, in pixels, from the start to the end of the span and from 0 to the top."""
        box: QRectF = self.getPlotItem().getViewBox().sceneBoundingRect()
        height = box.height() / (1 + 2 * PADDING)
        return QRectF(box.left(), box.top() + PADDING * height, box.width() / (1 + MARGIN), height)

    def draw(self, x: Floats, values_by_curve: Mapping[str, Floats]) -> None:
        """Draw curves by name. Curves that are not given are emptied."""
        for name, curve in self.curves.items():
            values = values_by_curve.get(name)
            if values is None:
                if curve.xData is not None and len(curve.xData):
                    curve.setData([], [])
            else:
                curve.setData(x, values)
        self.overlay.area = self.area()
        self.overlay.update()

    def resizeEvent(self, event: QResizeEvent | None) -> None:  # noqa: N802 -- Qt's name
        """Keep the overlay over the whole chart."""
        super().resizeEvent(event)
        if event is None:  # pyqtgraph calls it with None from its constructor
            return
        self.overlay.setGeometry(self.viewport().geometry())
        self.overlay.area = self.area()


def curve_colour(quantity: Quantity) -> QColor:
    """Return a curve's colour from its role. Each further draft position has a lighter shade of it."""
    colour = theme.colour(quantity.colour)
    if not quantity.draft_position:
        return colour
    card = theme.colour("card")
    if card.lightnessF() > 0.5:
        return theme.mix_colours(colour, card, 0.05 + 0.04 * quantity.draft_position)
    return theme.mix_colours(colour, theme.colour("text"), 0.2 + 0.07 * quantity.draft_position)
