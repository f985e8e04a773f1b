"""Tables of models: sortable, with glyphs beside the words and badges in place of a status."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, QSize, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent, QPainter
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
from launcher.gui.widgets.rows import SORT, Cell, Column, Rows

_T = TypeVar("_T")
_Index = QModelIndex | QPersistentModelIndex
_PADDING, _GLYPH = theme.CELL_PADDING, 13
_FEWEST, _MOST = 3, 6
"""Rows that are seen at least, and where there are so many, without scrolling."""


class _Cells(QStyledItemDelegate):
    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        table = self.parent()
        assert isinstance(table, Table)  # noqa: S101 -- for the type checker
        cell = table.cell_at(index)
        bare = QStyleOptionViewItem(option)
        self.initStyleOption(bare, index)
        if cell.glyph or cell.badge:
            bare.text = ""
        style = table.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, bare, painter, table)
        rect, inset = option.rect, theme.px(_PADDING) + 3
        if cell.badge and cell.text:
            paint_badge(painter, rect.left() + inset, rect.center().y(), cell.text)
        elif cell.glyph:
            side = float(theme.px(_GLYPH))
            place = QRectF(rect.left() + inset, rect.center().y() - side / 2, side, side)
            paint_glyph(painter, cell.glyph, place, theme.colour(cell.role))
            painter.save()
            painter.setFont(option.font)
            painter.setPen(theme.colour("text"))
            words = rect.adjusted(inset + theme.px(_GLYPH + 6), -1, 0, -1)
            painter.drawText(words, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), cell.text)
            painter.restore()

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        table = self.parent()
        assert isinstance(table, Table)  # noqa: S101
        cell = table.cell_at(index)
        padding = 2 * theme.px(_PADDING) + 8
        if cell.badge and cell.text:
            return badge_size(cell.text) + QSize(padding, 0)
        width = QFontMetrics(table.font()).horizontalAdvance(one_line(cell.text, 300)) + padding
        glyph = theme.px(_GLYPH + 6) if cell.glyph else 0
        return QSize(width + glyph, super().sizeHint(option, index).height())


class Table(RowTable, Generic[_T]):
    """Rows that can be sorted by each column, and chosen by mouse and keyboard."""

    chosen = Signal(object)
    """The row that is chosen, None when none is"""
    opened = Signal(object)
    """A row that was double-clicked, or Enter pressed on"""

    def __init__(self, name: str, columns: Sequence[Column[_T]], *, stretch: int = 0) -> None:
        super().__init__(name)
        self._rows = Rows(columns, self)
        self._sorted = QSortFilterProxyModel(self)
        self._sorted.setSortRole(SORT)
        self._sorted.setSourceModel(self._rows)
        self.setModel(self._sorted)
        self.setItemDelegate(_Cells(self))
        self.setSortingEnabled(True)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        head = self.horizontalHeader()
        head.setSectionResizeMode(stretch, QHeaderView.ResizeMode.Stretch)
        head.setMinimumSectionSize(theme.px(56))
        head.setStyleSheet(f"QHeaderView::section {{ padding: 0 {theme.px(_PADDING) + 3}px; }}")  # as cells have
        head.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.selectionModel().currentRowChanged.connect(lambda *_: self._tell())
        self.doubleClicked.connect(lambda _index: self._open())
        self._quiet = False
        self.setMinimumHeight((_FEWEST + 1) * self.row_height)

    @property
    def rows(self) -> Sequence[_T]:
        """All rows, as they were given."""
        return self._rows.rows

    @property
    def row(self) -> _T | None:
        """The row that is chosen."""
        index = self._sorted.mapToSource(self.currentIndex())
        return self._rows.rows[index.row()] if index.isValid() else None

    def shown_rows(self) -> list[_T]:
        """Return the rows in the order in which they are seen."""
        count = range(self._sorted.rowCount())
        return [self._rows.rows[self._sorted.mapToSource(self._sorted.index(at, 0)).row()] for at in count]

    def cell_at(self, index: _Index) -> Cell:
        """Return what a cell of the sorted rows says."""
        return self._rows.cell(self._sorted.mapToSource(index))

    def show_rows(self, rows: Sequence[_T], same: Callable[[_T], object] = id) -> None:
        """Show rows; the one that was chosen stays so, told by `same`, else the first one is."""
        before = same(self.row) if self.row is not None else None
        self._quiet = True
        self._rows.show(rows)
        self.show_columns()
        self.setMinimumHeight((min(max(len(rows), _FEWEST), _MOST) + 1) * self.row_height)
        shown = self.shown_rows()
        at = next((place for place, row in enumerate(shown) if same(row) == before), 0)
        if shown:
            self.selectRow(at)
        self._quiet = False
        self._tell()

    def choose(self, row: _T) -> None:
        """Choose a row."""
        shown = self.shown_rows()
        if row in shown:
            self.selectRow(shown.index(row))

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Open with Enter."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._open()
        else:
            super().keyPressEvent(event)

    def _open(self) -> None:
        if self.row is not None:
            self.opened.emit(self.row)

    def _tell(self) -> None:
        if not self._quiet:
            self.chosen.emit(self.row)
