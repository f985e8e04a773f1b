"""The plans to choose from, one a row."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from launcher.gui import theme
from launcher.gui.sentences import say
from launcher.gui.start import said
from launcher.gui.theme import CELL_PADDING
from launcher.gui.widgets.badge import badge_size, paint_badge
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import Cell, Column, Rows
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.models.plan import Plan

_FIT, _MODEL = 0, 1
_Index = QModelIndex | QPersistentModelIndex


def _columns() -> "tuple[Column[Plan], ...]":
    def why(plan: "Plan") -> str:
        return "\n".join(map(say, plan.reasons))

    def column(
        title: str, tip: str, text: "Callable[[Plan], str]", *, right: bool = False, spare: int = 0
    ) -> "Column[Plan]":
        return Column(title, tip, lambda plan: Cell(text(plan), tip=why(plan)), right=right, spare=spare)

    return (
        column(
            tr("Fit"),
            tr("FITS: with memory to spare. TIGHT: with less than should stay free. OFFLOADS: experts on the CPU."),
            lambda plan: tr(plan.status.value),
        ),
        column(tr("Model"), tr("The model's name in the catalogue"), said.name_of),
        column(tr("Quant"), tr("How the weights are stored (the file)"), lambda plan: plan.file.quant),
        column(
            tr("Context"),
            tr("Tokens that the model can look back at (--ctx-size)"),
            lambda plan: f"{plan.setting.context:,}",
            right=True,
            spare=1,
        ),
        column(
            tr("KV"),
            tr("How keys and values are stored (--cache-type-k, --cache-type-v)"),
            lambda plan: plan.setting.kv,
            spare=4,
        ),
        column(
            tr("Draft"),
            tr("Tokens drafted ahead by the MTP head (--spec-draft-n-max)"),
            lambda plan: str(plan.setting.draft) if plan.setting.draft else tr("off"),
            right=True,
            spare=3,
        ),
        column(
            tr("Needs, MiB"),
            tr("Memory that it takes, in MiB"),
            lambda plan: f"{plan.required_mib:,}",
            right=True,
            spare=2,
        ),
        Column(
            tr("Measured"),
            tr("The nearest result that somebody published; each cell's tip names its source"),
            lambda plan: Cell(said.evidence_of(plan), tip=said.evidence_tip(plan), dim=True),
            spare=5,
        ),
    )


def _inset(table: QWidget) -> int:
    """Return how far the text of a cell is from its edge, in pixels."""
    return theme.px(CELL_PADDING) + table.style().pixelMetric(QStyle.PixelMetric.PM_FocusFrameHMargin, None, table) + 1


class _FitDelegate(QStyledItemDelegate):
    """Paints a badge in place of the word."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        bare = QStyleOptionViewItem(option)
        self.initStyleOption(bare, index)
        bare.text = ""
        style = option.widget.style()
        style.drawControl(style.ControlElement.CE_ItemViewItem, bare, painter, option.widget)
        rect: QRect = option.rect
        model = index.model()
        if isinstance(model, Rows):
            word = model.rows[index.row()].status.value
            paint_badge(painter, rect.left() + _inset(option.widget), rect.center().y(), word)

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        model = index.model()
        word = model.rows[index.row()].status.value if isinstance(model, Rows) else ""
        return badge_size(word) + QSize(2 * theme.px(CELL_PADDING) + 6, 0)


class PlansTable(RowTable):
    """Rows can be chosen by mouse and keyboard; `chosen` tells which. It is as high as its rows."""

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__(tr("Plans to choose from"))
        self._rows: Rows[Plan] = Rows(_columns(), self)
        self.setModel(self._rows)
        self.setItemDelegateForColumn(_FIT, _FitDelegate(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = self.horizontalHeader()
        head.setSectionsClickable(False)
        head.setMinimumSectionSize(theme.px(32))
        head.setSectionResizeMode(self._rows.columnCount() - 1, QHeaderView.ResizeMode.Stretch)
        head.setStyleSheet(f"QHeaderView::section {{ padding: 0 {_inset(self)}px; }}")  # as cells have
        self.selectionModel().currentRowChanged.connect(self._tell)
        self._quiet = False
        self.show_plans((), several=False)

    @property
    def inset(self) -> int:
        """How far its texts are from its edge, in pixels."""
        return _inset(self)

    def show_plans(self, plans: "tuple[Plan, ...]", *, several: bool, row: int = 0) -> None:
        """Show plans, of several models or of one, and choose a row without telling; -1 is none."""
        self._quiet = True
        self._rows.show(plans)
        self.setColumnHidden(_MODEL, not several)
        self.show_columns()
        if plans and row >= 0:
            self.selectRow(row)
        self._quiet = False
        self.setFixedHeight(self.row_height * (len(plans) + 1) + 2 * self.frameWidth() + theme.px(4))

    def _tell(self, current: QModelIndex, _before: QModelIndex) -> None:
        if current.isValid() and not self._quiet:
            self.chosen.emit(current.row())
