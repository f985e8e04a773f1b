"""The settings that were tried, one a row."""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter
from PySide6.QtWidgets import (
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from launcher.gui import theme
from launcher.gui.tune.told import TrialRow
from launcher.gui.widgets.number import UNKNOWN
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.words import tr

_SETTING, _RATE, _VRAM, _HOW = 0, 1, 5, 7
_COLUMNS = 8
_Index = QModelIndex | QPersistentModelIndex


class _Model(QAbstractTableModel):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.rows: tuple[TrialRow, ...] = ()

    def show(self, rows: Sequence[TrialRow]) -> None:
        self.beginResetModel()
        self.rows = tuple(rows)
        self.endResetModel()

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        return len(self.rows)

    def columnCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008
        return _COLUMNS

    def headerData(  # noqa: N802
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:  # noqa: ANN401
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(section)
        if role == Qt.ItemDataRole.ToolTipRole:
            return _tips()[section]
        return _heads()[section] if role == Qt.ItemDataRole.DisplayRole else None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        row, column = self.rows[index.row()], index.column()
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return cells(row)[column]
            case Qt.ItemDataRole.AccessibleTextRole:
                best = f", {tr('best')}" if row.best and column == _SETTING else ""
                return f"{_heads()[column]}: {cells(row)[column]}{best}"
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(column)
            case Qt.ItemDataRole.FontRole if column == _RATE or (row.best and column == _SETTING):
                return theme.font(theme.BODY_PX, bold=True, tabular=True)
            case Qt.ItemDataRole.ForegroundRole if column == _HOW:
                return theme.colour("secondary")
            case Qt.ItemDataRole.ToolTipRole if column == _HOW:
                return row.how
            case Qt.ItemDataRole.ToolTipRole if cells(row)[column] == UNKNOWN:
                return tr("Not known: {setting} was not measured so, or drafts nothing.", setting=row.setting)
        return None


def cells(row: TrialRow) -> tuple[str, ...]:
    """Return what a row shows; a predicted rate is not written finer than it is known."""
    digits = 0 if row.predicted else 1
    return (
        row.setting,
        _number(row.rate, digits),
        UNKNOWN if row.spread is None else f"± {row.spread:.{digits}f}",
        _number(None if row.accepted is None else 100 * row.accepted, 0),
        _number(row.tokens_per_step, 2),
        _number(row.vram_mib, 0),
        UNKNOWN if row.against_off is None else f"{row.against_off:.2f} ×",  # noqa: RUF001 -- the sign for a factor
        row.how,
    )


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _heads() -> tuple[str, ...]:
    return (
        tr("Setting"),
        tr("t/s"),
        tr("95 %"),
        tr("accepted, %"),
        tr("tokens/step"),
        tr("VRAM, MiB"),
        tr("against off"),
        tr("Known from"),
    )


def _tips() -> tuple[str, ...]:
    return (
        tr("The draft length (--spec-draft-n-max), or MTP off"),
        tr("Tokens a second while replying, the mean over all prompts"),
        tr("The mean lies within this with a probability of 95 %"),
        tr("Share of the drafted tokens that the model accepted"),
        tr("Tokens kept from one verification step"),
        tr("Memory on the GPU that the server took"),
        tr("How many times as fast as with MTP off"),
        tr("Whether it was measured, by how many pairs of runs, or predicted"),
    )


def _alignment(column: int) -> Qt.AlignmentFlag:
    left = column in (_SETTING, _HOW)
    side = Qt.AlignmentFlag.AlignLeft if left else Qt.AlignmentFlag.AlignRight
    return side | Qt.AlignmentFlag.AlignVCenter


class _Delegate(QStyledItemDelegate):
    """Paints the best row's ground, over which a style sheet's cells are clear."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        model = index.model()
        if isinstance(model, _Model) and model.rows[index.row()].best:
            painter.fillRect(option.rect, theme.colour("raised"))
        super().paint(painter, option, index)


class TrialTable(RowTable):
    """It is as high as its rows; what it is empty of, the card around it says."""

    def __init__(self) -> None:
        super().__init__(tr("Settings that were tried"))
        self._model = _Model(self)
        self.setModel(self._model)
        self.setItemDelegate(_Delegate(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = self.horizontalHeader()
        head.setSectionsClickable(False)
        head.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        own = self.style().pixelMetric(QStyle.PixelMetric.PM_FocusFrameHMargin, None, self)
        inset = theme.px(theme.CELL_PADDING) + own + 1
        head.setStyleSheet(f"QHeaderView::section {{ padding: 0 {inset}px; }}")  # as cells have
        self._inset = inset
        self.show_rows(())

    @property
    def inset(self) -> int:
        """How far its texts are from its edge, in pixels."""
        return self._inset

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """What it shows."""
        return self._model.rows

    def show_rows(self, rows: Sequence[TrialRow]) -> None:
        """Show other rows."""
        chosen = self.currentIndex().row()
        self._model.show(rows)
        self.setColumnHidden(_VRAM, bool(rows) and all(row.vram_mib is None for row in rows))
        self.fit()
        bar = self.horizontalScrollBar().sizeHint().height()
        self.setFixedHeight(self.row_height * (len(rows) + 1) + 2 * self.frameWidth() + bar)
        if 0 <= chosen < len(rows):
            self.selectRow(chosen)

    def fit(self) -> None:
        """Give each column the room of its widest text, and share what is left evenly."""
        body = QFontMetrics(theme.font(theme.BODY_PX, bold=True, tabular=True))
        heads = QFontMetrics(theme.font(theme.BODY_PX))
        edges = 2 * self._inset + theme.px(theme.GAP_S)
        need = [heads.horizontalAdvance(words) + edges for words in _heads()]
        for row in self._model.rows:
            widths = [body.horizontalAdvance(text) + edges for text in cells(row)]
            need = [max(pair) for pair in zip(need, widths, strict=True)]
        need = [0 if self.isColumnHidden(column) else width for column, width in enumerate(need)]
        spare = max(self.viewport().width() - sum(need), 0)
        for column in range(_HOW):
            if not self.isColumnHidden(column):
                self.setColumnWidth(column, need[column] + spare // (_COLUMNS + 1))
        left = self.viewport().width() - sum(map(self.columnWidth, range(_HOW)))
        self.setColumnWidth(_HOW, max(heads.horizontalAdvance(_heads()[_HOW]) + edges, left))  # its tip has all of it

    def resizeEvent(self, event: Any) -> None:  # noqa: N802, ANN401 -- Qt's
        """Share the room anew."""
        super().resizeEvent(event)
        self.fit()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Be as narrow as need be: it can be scrolled."""
        return QSize(theme.px(120), super().minimumSizeHint().height())
