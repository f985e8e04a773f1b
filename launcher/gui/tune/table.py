"""The settings that were tried, one a row."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QSize, Qt
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
from launcher.gui.widgets.rows import Cell, Column, Rows
from launcher.gui.words import ntr, tr

_SETTING, _RATE, _VRAM, _HOW = 0, 1, 5, 7
_Index = QModelIndex | QPersistentModelIndex


class _Trials(Rows[TrialRow]):
    """Rows of which the best one stands out."""

    def __init__(self, parent: QWidget) -> None:
        columns = [
            Column(title, tip, partial(_cell, at), right=at not in (_SETTING, _HOW))
            for at, (title, tip) in enumerate(_columns())
        ]
        super().__init__(columns, parent)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """See Rows."""
        named = self.rows[index.row()].best and index.column() == _SETTING
        if role == Qt.ItemDataRole.FontRole and (named or index.column() == _RATE):
            return theme.font(theme.BODY_PX, bold=True, tabular=True)
        told = super().data(index, role)
        return f"{told}, {tr('best')}" if named and role == Qt.ItemDataRole.AccessibleTextRole else told


def _cell(at: int, row: TrialRow) -> Cell:
    text = cells(row)[at]
    unknown = text == UNKNOWN and at != _HOW
    tip = tr("Not known: {setting} was not measured so, or drafts nothing.", setting=row.setting) if unknown else ""
    return Cell(text, tip=tip, dim=at == _HOW)


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


def _columns() -> tuple[tuple[str, str], ...]:
    """Return titles and tips."""
    return (
        (tr("Setting"), tr("The draft length (--spec-draft-n-max), or MTP off")),
        (tr("t/s"), tr("Tokens a second while replying, the mean over all prompts")),
        (tr("95 %"), tr("The mean lies within this with a probability of 95 %")),
        (tr("accepted, %"), tr("Share of the drafted tokens that the model accepted")),
        (tr("tokens/step"), tr("Tokens kept from one verification step")),
        (tr("VRAM, MiB"), tr("Memory on the GPU that the server took")),
        (tr("against off"), tr("How many times as fast as with MTP off")),
        (tr("Known from"), tr("Whether it was measured, by how many pairs of runs, or predicted")),
    )


class _Delegate(QStyledItemDelegate):
    """Paints the best row's ground, over which a style sheet's cells are clear."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        model = index.model()
        if isinstance(model, _Trials) and model.rows[index.row()].best:
            painter.fillRect(option.rect, theme.colour("raised"))
        super().paint(painter, option, index)


class TrialTable(RowTable):
    """It is as high as its rows; what it is empty of, the card around it says."""

    def __init__(self) -> None:
        super().__init__(tr("Settings that were tried"))
        self._model = _Trials(self)
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
    def rows(self) -> Sequence[TrialRow]:
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
        """Give each column the room of its widest text, and share what is left evenly. Lacking room, they are near."""
        body = QFontMetrics(theme.font(theme.BODY_PX, bold=True, tabular=True))
        heads = QFontMetrics(theme.font(theme.BODY_PX))
        titles = [column.title for column in self._model.columns]
        texts = [heads.horizontalAdvance(title) for title in titles]
        most = heads.horizontalAdvance(ntr("measured, 1 start", "measured, {n} starts", 100))  # errors are longer
        for row in self._model.rows:
            widths = [body.horizontalAdvance(text) for text in cells(row)]
            widths[_HOW] = min(widths[_HOW], most)
            texts = [max(pair) for pair in zip(texts, widths, strict=True)]
        shown = [not self.isColumnHidden(column) for column in range(len(titles))]
        wide, edges = self.viewport().width(), 2 * self._inset + theme.px(theme.GAP_S)
        if sum(text + edges for text, there in zip(texts, shown, strict=True) if there) > wide:
            edges = 2 * self._inset
        need = [text + edges if there else 0 for text, there in zip(texts, shown, strict=True)]
        spare = max(wide - sum(need), 0)
        for column in range(_HOW):
            if not self.isColumnHidden(column):
                self.setColumnWidth(column, need[column] + spare // (len(titles) + 1))
        left = wide - sum(map(self.columnWidth, range(_HOW)))
        self.setColumnWidth(_HOW, max(need[_HOW], left))  # its tip has all of it

    def resizeEvent(self, event: Any) -> None:  # noqa: N802, ANN401 -- Qt's
        """Share the room anew."""
        super().resizeEvent(event)
        self.fit()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Be as narrow as need be: it can be scrolled."""
        return QSize(theme.px(120), super().minimumSizeHint().height())
