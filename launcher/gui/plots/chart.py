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

_AXIS_HEIGHT, _BARE_AXIS_HEIGHT = 20, 5
"""Height in pixels of the area below the plot with and without time labels."""
_MARKS_HEIGHT, _ROOM_ABOVE = 17, 6
"""Height in pixels above the first plot, for the glyphs of marks, and above the others."""
_AXIS_WIDTH = 44
GUTTER, NARROW_GUTTER = 118, 84
"""Width in pixels beside the plot for the texts at the ends of its lines."""


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


class ChartWidget(pyqtgraph.PlotWidget):  # type: ignore[misc]
    """Chart of given values, at least `least_height` pixels high without the times.

    x is in seconds from the end of the span, y in units of the value axis.
    """

    def __init__(self, plot: Plot, least_height: int) -> None:
        self._least_height = least_height
        self.time_axis = TimeAxis()
        axes = {"bottom": self.time_axis, "left": ValueAxis("left")}
        self.curves: dict[str, Any] = {}
        """The drawn curves by the name of their quantity."""
        self.overlay = Overlay()
        super().__init__(axisItems=axes, enableMenu=False)
        self.plot_name = plot.name
        self._plot = plot
        self._range = (0.0, 0.0, 0.0)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName(tr("Plot: {title}", title=tr(plot.title)))
        item = self.getPlotItem()
        item.showGrid(y=True, alpha=0.2)
        item.getAxis("left").setWidth(theme.px(_AXIS_WIDTH))
        for axis in axes.values():
            axis.enableAutoSIPrefix(False)
        for curve in plot.curves:
            self.curves[curve.name] = _PlotCurve(antialias=True)
            self.addItem(self.curves[curve.name])
        item.getViewBox().disableAutoRange()
        self.overlay.setParent(self)
        self.overlay.setAccessibleName(self.accessibleName())
        self.recolour()
        self.show_ends(first=True, last=True, narrow=False)
        self.set_range(60.0, plot.bottom or 0.0, plot.top or plot.least)

    def show_ends(self, *, first: bool, last: bool, narrow: bool) -> None:
        """Set the room around the plot: the `first` one has the glyphs of marks above, the `last` one the times below.

        In a `narrow` panel the texts at the right have less room.
        """
        above = theme.px(_MARKS_HEIGHT if first else _ROOM_ABOVE)
        self.getPlotItem().setContentsMargins(0, above, theme.px(NARROW_GUTTER if narrow else GUTTER), 0)
        self.overlay.has_glyphs = first
        self.time_axis.setStyle(showValues=last)
        below = theme.px(_AXIS_HEIGHT if last else _BARE_AXIS_HEIGHT)
        self.time_axis.setHeight(below)
        self.overlay.has_times = last
        self.setMinimumHeight(self._least_height + (below if last else 0))

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
            self.curves[curve.name].setPen(pyqtgraph.mkPen(curve_colour(curve), width=1))
        self.overlay.update()

    def set_range(self, length_s: float, bottom: float, top: float) -> None:
        """Show the last `length_s` seconds and values from `bottom` to `top`."""
        if (length_s, bottom, top) != self._range:
            self._range = length_s, bottom, top
            height = top - bottom
            box = QRectF(-length_s, bottom - PADDING * height, (1 + MARGIN) * length_s, (1 + 2 * PADDING) * height)
            for curve in self.curves.values():
                curve.set_area(box)
            self.setXRange(-length_s, MARGIN * length_s, padding=0.0)
            self.setYRange(bottom, top, padding=PADDING)

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
        """Return the rectangle, in pixels, of the span and of the value axis."""
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
