"""Sortable tables of models, with glyphs and fit badges."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, QSize, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.widgets import paint_badge, paint_glyph
from launcher.gui.widgets.badge import badge_size
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import SORT_ROLE, Cell, Column, TableRows

_T = TypeVar("_T")
_Index = QModelIndex | QPersistentModelIndex
_GLYPH_SIZE, _GLYPH_GAP = 13, 6
"""In pixels: side of a glyph, and its distance from the text."""
_FEWEST_ROWS, _MOST_ROWS = 3, 6
"""Rows that are visible at least and, if there are as many, without scrolling."""


class _CellDelegate(QStyledItemDelegate):
    """Paints a cell's glyph before its text, or a badge instead of the text."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        table = self.parent()
        assert isinstance(table, ModelTable)  # noqa: S101 -- for the type checker
        cell = table.cell_at(index)
        bare = QStyleOptionViewItem(option)
        self.initStyleOption(bare, index)
        if cell.glyph or cell.badge:
            bare.text = ""
        style = table.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, bare, painter, table)
        rect, inset = option.rect, table.text_inset
        if cell.badge and cell.text:
            paint_badge(painter, rect.left() + inset, rect.center().y(), cell.text)
        elif cell.glyph:
            side = float(theme.px(_GLYPH_SIZE))
            glyph_rect = QRectF(rect.left() + inset, rect.center().y() - side / 2, side, side)
            paint_glyph(painter, cell.glyph, glyph_rect, theme.colour(cell.role))
            painter.save()
            painter.setFont(option.font)
            painter.setPen(theme.colour("text"))
            text_rect = rect.adjusted(inset + theme.px(_GLYPH_SIZE + _GLYPH_GAP), -1, 0, -1)
            painter.drawText(text_rect, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), cell.text)
            painter.restore()

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        table = self.parent()
        assert isinstance(table, ModelTable)  # noqa: S101
        cell = table.cell_at(index)
        padding = 2 * table.text_inset + 2
        if cell.badge and cell.text:
            return badge_size(cell.text) + QSize(padding, 0)
        width = table.fontMetrics().horizontalAdvance(one_line(cell.text, 300)) + padding
        glyph = theme.px(_GLYPH_SIZE + _GLYPH_GAP) if cell.glyph else 0
        return QSize(width + glyph, table.row_height)


class ModelTable(RowTable, Generic[_T]):
    """Table with sortable columns and selectable rows."""

    chosen = Signal(object)
    """The selected row, or None."""
    opened = Signal(object)
    """The row that was double-clicked or activated with Enter."""

    def __init__(self, name: str, columns: Sequence[Column[_T]], *, stretch: int = 0) -> None:
        super().__init__(name)
        self._rows = TableRows(columns, self)
        self._sorted = QSortFilterProxyModel(self)
        self._sorted.setSortRole(SORT_ROLE)
        self._sorted.setSourceModel(self._rows)
        self.setModel(self._sorted)
        self.setItemDelegate(_CellDelegate(self))
        self.setSortingEnabled(True)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        head = self.horizontalHeader()
        head.setSectionResizeMode(stretch, QHeaderView.ResizeMode.Stretch)
        head.setMinimumSectionSize(theme.px(56))
        self.align_head()
        head.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.selectionModel().currentRowChanged.connect(lambda *_: self._emit_chosen())
        self.doubleClicked.connect(lambda _index: self._open())
        self._filling = False
        self.setMinimumHeight((_FEWEST_ROWS + 1) * self.row_height)

    @property
    def rows(self) -> Sequence[_T]:
        """All rows in their original order."""
        return self._rows.rows

    @property
    def row(self) -> _T | None:
        """The selected row, or None."""
        index = self._sorted.mapToSource(self.currentIndex())
        return self._rows.rows[index.row()] if index.isValid() else None

    def list_shown_rows(self) -> list[_T]:
        """Return the rows in display order."""
        indices = [self._sorted.index(number, 0) for number in range(self._sorted.rowCount())]
        return [self._rows.rows[self._sorted.mapToSource(index).row()] for index in indices]

    def cell_at(self, index: _Index) -> Cell:
        """Return the cell at a sorted position."""
        return self._rows.cell_at(self._sorted.mapToSource(index))

    def show_rows(self, rows: Sequence[_T], key: Callable[[_T], object] = id) -> None:
        """Show rows. The row with the selected row's `key` stays selected, else the first row is selected."""
        selected_key = key(self.row) if self.row is not None else None
        self._filling = True
        self._rows.show_rows(rows)
        self.show_columns()
        self.setMinimumHeight((min(max(len(rows), _FEWEST_ROWS), _MOST_ROWS) + 1) * self.row_height)
        shown = self.list_shown_rows()
        if shown:
            self.selectRow(next((number for number, row in enumerate(shown) if key(row) == selected_key), 0))
        self._filling = False
        self._emit_chosen()

    def choose_row(self, row: _T) -> None:
        """Select a row."""
        shown = self.list_shown_rows()
        if row in shown:
            self.selectRow(shown.index(row))

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Open the row with Enter."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._open()
        else:
            super().keyPressEvent(event)

    def _open(self) -> None:
        if self.row is not None:
            self.opened.emit(self.row)

    def _emit_chosen(self) -> None:
        if not self._filling:
            self.chosen.emit(self.row)
