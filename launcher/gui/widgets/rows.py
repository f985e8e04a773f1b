"""Table model whose cells come from column functions."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QWidget

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.labels import escape_tooltip

_T = TypeVar("_T")
_Index = QModelIndex | QPersistentModelIndex
_LONGEST, _LONGEST_TIP = 300, 2_000
"""Characters of a cell's text and of its tooltip that are shown."""
SORT_ROLE = Qt.ItemDataRole.UserRole
"""Item role of the sort key."""


class Cell(NamedTuple):
    """A cell: text with an optional glyph or tile of two letters before it, or a badge instead.

    `order` is the sort key. `share`, 0 to 1, is shown as a bar before the text.
    """

    text: str
    order: Any = None
    glyph: str = ""
    role: str = "secondary"
    badge: bool = False
    tip: str = ""
    dim: bool = False
    tile: str = ""
    share: float | None = None


class Column(NamedTuple, Generic[_T]):
    """A column: title, tooltip, a function from row to cell, and whether its texts are aligned right."""

    title: str
    tip: str
    cell: Callable[[_T], Cell]
    right: bool = False
    spare: int = 0
    """In a narrow table the columns with the highest number are hidden first; 0 always stays."""


class TableRows(QAbstractTableModel, Generic[_T]):
    """The model of a table."""

    def __init__(self, columns: Sequence[Column[_T]], parent: QWidget) -> None:
        super().__init__(parent)
        self.columns = columns
        self.rows: Sequence[_T] = ()
        self._cells: dict[tuple[int, int], Cell] = {}
        """Cells by column and row: a view asks for each of them once per role, whenever it is painted or measured."""

    def show_rows(self, rows: Sequence[_T]) -> None:
        """Replace the rows."""
        self.beginResetModel()
        self.rows = rows
        self._cells.clear()
        self.endResetModel()

    def cell_at(self, index: _Index) -> Cell:
        """Return the cell at an index."""
        place = index.column(), index.row()
        if place not in self._cells:
            self._cells[place] = self.columns[place[0]].cell(self.rows[place[1]])
        return self._cells[place]

    def has_cell(self, index: _Index) -> bool:
        """Return whether an index has a cell. A screen reader may keep an index from before a change."""
        return 0 <= index.row() < len(self.rows) and 0 <= index.column() < len(self.columns)

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        """Return the number of rows."""
        return len(self.rows)

    def columnCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008
        """Return the number of columns."""
        return len(self.columns)

    def headerData(  # noqa: N802
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401
        """Return a column's title or tooltip."""
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self.columns):
            return None
        column = self.columns[section]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.title
        if role == Qt.ItemDataRole.ToolTipRole:
            return column.tip
        return _alignment(column) if role == Qt.ItemDataRole.TextAlignmentRole else None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return a cell's data for display, screen readers or sorting; None for a cell that is gone."""
        if not self.has_cell(index):
            return None
        cell = self.cell_at(index)
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return one_line(cell.text, _LONGEST)
            case Qt.ItemDataRole.AccessibleTextRole:
                return f"{self.columns[index.column()].title}: {one_line(cell.text, _LONGEST)}"
            case Qt.ItemDataRole.ToolTipRole:
                return escape_tooltip((cell.tip or cell.text)[:_LONGEST_TIP])
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(self.columns[index.column()])
            case Qt.ItemDataRole.ForegroundRole if cell.dim:
                return theme.colour("secondary")
            case _ if role == SORT_ROLE:
                return cell.text.casefold() if cell.order is None else cell.order
        return None


def _alignment(column: Column[Any]) -> Qt.AlignmentFlag:
    return (Qt.AlignmentFlag.AlignRight if column.right else Qt.AlignmentFlag.AlignLeft) | Qt.AlignmentFlag.AlignVCenter
