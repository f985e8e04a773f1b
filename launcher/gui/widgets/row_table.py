"""Table with whole-row selection and a focus ring around the current row."""

from PySide6.QtCore import QAbstractItemModel, QAbstractProxyModel, QEvent, QRectF, Qt, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QStyle, QTableView, QWidget

from launcher.gui import theme
from launcher.gui.widgets.rows import TableRows

_READABLE_WIDTH = 180
"""Least width of a stretching column, in pixels: enough to read a name."""
_ROW_HEIGHT = 34
_RING_WIDTH = 2


def text_inset(table: QWidget) -> int:
    """Return the distance of a cell's text from the cell's edge, in pixels."""
    margin = table.style().pixelMetric(QStyle.PixelMetric.PM_FocusFrameHMargin, None, table)
    return theme.px(theme.CELL_PADDING) + margin + 1


class RowTable(QTableView):
    """View of a TableRows model. `name` is for screen readers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._column_hints: dict[int, int] = {}
        self._widest: dict[int, int] | None = None
        """Widths of the widest cells so far, by column, if only visible rows are measured."""
        self.unused: frozenset[int] = frozenset()
        """Columns without a known value, which stay hidden."""
        self._room = 0
        """Width of the viewport in pixels. `viewport()` would have PySide define every widget class, for 20 ms."""
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

    def setModel(self, model: QAbstractItemModel | None) -> None:  # noqa: N802 -- Qt's name
        """Show a model."""
        self._column_hints.clear()
        if model is not None:  # connected before the view's own slots, which read the widths
            for changed in (model.modelReset, model.dataChanged, model.rowsInserted, model.rowsRemoved):
                changed.connect(lambda *_: self._column_hints.clear())
        super().setModel(model)

    def sizeHintForColumn(self, column: int) -> int:  # noqa: N802
        """Return the width of a column's widest cell, in pixels. It is kept until a row changes: Qt reads it often."""
        if column not in self._column_hints:
            hint = super().sizeHintForColumn(column)
            if self._widest is not None:
                hint = self._widest[column] = max(hint, self._widest.get(column, 0))
            self._column_hints[column] = hint
        return self._column_hints[column]

    def measure_visible_rows(self) -> None:
        """Measure only the rows that are visible. A column keeps the width of the widest cell that was measured."""
        self._widest = {}
        self.horizontalHeader().setResizeContentsPrecision(0)
        self.verticalScrollBar().valueChanged.connect(self._measure_new_rows)

    @Slot()
    def _measure_new_rows(self) -> None:
        """Measure the rows that came into view."""
        self._column_hints.clear()
        head = self.horizontalHeader()
        for at in range(head.count()):
            if head.sectionResizeMode(at) == QHeaderView.ResizeMode.ResizeToContents and not head.isSectionHidden(at):
                head.resizeSection(at, max(self.sizeHintForColumn(at), head.sectionSizeHint(at)))
        self.show_columns()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Measure the columns again after a change of font or style."""
        self._column_hints.clear()
        if self._widest:
            self._widest.clear()
        super().changeEvent(event)

    def show_columns(self) -> None:
        """Show as many columns as fit. Those with the highest `spare` are hidden first; `unused` ones are always."""
        model = self.model()
        rows = model.sourceModel() if isinstance(model, QAbstractProxyModel) else model
        if not isinstance(rows, TableRows):
            return
        spare = sorted(
            (at for at, each in enumerate(rows.columns) if each.spare), key=lambda at: rows.columns[at].spare
        )
        for at in spare:
            self.setColumnHidden(at, at in self.unused)
        while spare and not self.has_room:
            self.setColumnHidden(spare.pop(), True)

    @property
    def has_room(self) -> bool:
        """Whether the visible columns fit, the stretching one at its least width."""
        return self._needed_width() <= self._room

    def _needed_width(self) -> int:
        """Return the width of all visible columns in pixels, counting the stretching one at its least width."""
        head, needed = self.horizontalHeader(), 0
        for at in range(head.count()):
            if not self.isColumnHidden(at):
                wide = max(self.sizeHintForColumn(at), head.sectionSizeHint(at))
                stretches = head.sectionResizeMode(at) == QHeaderView.ResizeMode.Stretch
                needed += min(wide, theme.px(_READABLE_WIDTH)) if stretches else wide
        return needed

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the columns that fit."""
        super().resizeEvent(event)
        is_wider_or_narrower = event.size().width() != self._room
        self._room = event.size().width()
        if self._widest is not None and event.size().height() > event.oldSize().height():
            self._measure_new_rows()
        elif is_wider_or_narrower:
            self.show_columns()

    @property
    def text_inset(self) -> int:
        """Distance of the texts from the table's edge, in pixels."""
        return text_inset(self)

    def align_head(self) -> None:
        """Align the column titles with the texts of the cells."""
        self.horizontalHeader().setStyleSheet(f"QHeaderView::section {{ padding: 0 {self.text_inset}px; }}")

    @property
    def row_height(self) -> int:
        """Height of a row and of the head, in pixels."""
        return theme.px(_ROW_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Paint the rows and the focus ring, around the whole table if it has no rows."""
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
            painter.setPen(QPen(theme.colour("accent"), _RING_WIDTH))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            radius = theme.px(theme.CONTROL_RADIUS)
            painter.drawRoundedRect(ring.adjusted(1, 1, -1, -1), radius, radius)
