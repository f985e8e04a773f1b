"""A table whose rows are chosen as a whole; where it has the focus, a ring is around the row."""

from PySide6.QtCore import QAbstractProxyModel, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from launcher.gui import theme
from launcher.gui.widgets.rows import Rows

_READ = 180
"""Pixels in which a name can be read."""
_ROW = 34
_RING = 2


class RowTable(QTableView):
    """Shows what its model has; `name` is what a screen reader says of it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setFont(theme.font(theme.BODY_PX, tabular=True))
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.setWordWrap(False)
        rows, head = self.verticalHeader(), self.horizontalHeader()
        rows.hide()
        rows.setDefaultSectionSize(self.row_height)
        rows.setMinimumSectionSize(self.row_height)
        head.setHighlightSections(False)
        head.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        head.setFixedHeight(self.row_height)

    def show_columns(self) -> None:
        """Show as many columns as there is room for; what is most spare makes way first."""
        model = self.model()
        rows = model.sourceModel() if isinstance(model, QAbstractProxyModel) else model
        if not isinstance(rows, Rows) or not rows.rows:
            return
        spare = sorted(
            (at for at, each in enumerate(rows.columns) if each.spare), key=lambda at: rows.columns[at].spare
        )
        for at in spare:
            self.setColumnHidden(at, False)
        while spare and self._needed() > self.viewport().width():
            self.setColumnHidden(spare.pop(), True)

    def _needed(self) -> int:
        """Return how wide all columns are that are shown, in pixels; the one that stretches as it is read at least."""
        head, needed = self.horizontalHeader(), 0
        for at in range(head.count()):
            if not self.isColumnHidden(at):
                wide = max(self.sizeHintForColumn(at), head.sectionSizeHint(at))
                stretches = head.sectionResizeMode(at) == QHeaderView.ResizeMode.Stretch
                needed += min(wide, theme.px(_READ)) if stretches else wide
        return needed

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the columns that there is room for."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.show_columns()

    @property
    def row_height(self) -> int:
        """How high a row is, and the head, in pixels."""
        return theme.px(_ROW)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Paint the rows, and the ring; where there is no row it is around all of them."""
        super().paintEvent(event)
        if not self.hasFocus():
            return
        ring = QRectF(self.viewport().rect())
        current = self.currentIndex()
        if current.isValid():
            row = self.visualRect(current)
            ring.setTop(row.top())
            ring.setHeight(row.height())
        with QPainter(self.viewport()) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(theme.colour("accent"), _RING))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            radius = theme.px(theme.CONTROL_RADIUS)
            painter.drawRoundedRect(ring.adjusted(1, 1, -1, -1), radius, radius)
