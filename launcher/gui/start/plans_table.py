"""The plans to choose from, one a row."""

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from launcher.gui import theme
from launcher.gui.labels import as_tip
from launcher.gui.sentences import say
from launcher.gui.start import said
from launcher.gui.theme import CELL_PADDING
from launcher.gui.widgets.badge import badge_size, paint_badge
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.models.plan import Plan

_FIT, _MODEL, _QUANT, _CONTEXT, _KV, _DRAFT, _NEEDS, _EVIDENCE = range(8)
_RIGHT = (_CONTEXT, _DRAFT, _NEEDS)
_Index = QModelIndex | QPersistentModelIndex


class _Model(QAbstractTableModel):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.plans: tuple[Plan, ...] = ()

    def show(self, plans: "tuple[Plan, ...]") -> None:
        self.beginResetModel()
        self.plans = plans
        self.endResetModel()

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        return len(self.plans)

    def columnCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008
        return 8

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
        plan, column = self.plans[index.row()], index.column()
        if role == Qt.ItemDataRole.DisplayRole:
            return _cell(plan, column)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{_heads()[column]}: {_cell(plan, column)}"
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(column)
        if role == Qt.ItemDataRole.ToolTipRole:
            tip = said.evidence_tip(plan) if column == _EVIDENCE else "\n".join(map(say, plan.reasons))
            return as_tip(tip)
        if role == Qt.ItemDataRole.ForegroundRole and column == _EVIDENCE:
            return theme.colour("secondary")
        return None


def _heads() -> tuple[str, ...]:
    return (
        tr("Fit"),
        tr("Model"),
        tr("Quant"),
        tr("Context"),
        tr("KV"),
        tr("Draft"),
        tr("Needs, MiB"),
        tr("Measured"),
    )


def _tips() -> tuple[str, ...]:
    return (
        tr("FITS: with memory to spare. TIGHT: with less than should stay free. OFFLOADS: experts on the CPU."),
        tr("The model's name in the catalogue"),
        tr("How the weights are stored (the file)"),
        tr("Tokens that the model can look back at (--ctx-size)"),
        tr("How keys and values are stored (--cache-type-k, --cache-type-v)"),
        tr("Tokens drafted ahead by the MTP head (--spec-draft-n-max)"),
        tr("Memory that it takes, in MiB"),
        tr("The nearest result that somebody published; each cell's tip names its source"),
    )


def _cell(plan: "Plan", column: int) -> str:
    setting = plan.setting
    match column:
        case 0:
            return tr(plan.status.value)
        case 1:
            return said.name_of(plan)
        case 2:
            return plan.file.quant
        case 3:
            return f"{setting.context:,}"
        case 4:
            return setting.kv
        case 5:
            return str(setting.draft) if setting.draft else tr("off")
        case 6:
            return f"{plan.required_mib:,}"
        case _:
            return said.evidence_of(plan)


def _alignment(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in _RIGHT else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


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
        if isinstance(model, _Model):
            word = model.plans[index.row()].status.value
            paint_badge(painter, rect.left() + _inset(option.widget), rect.center().y(), word)

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        model = index.model()
        word = model.plans[index.row()].status.value if isinstance(model, _Model) else ""
        return badge_size(word) + QSize(2 * theme.px(CELL_PADDING) + 6, 0)


class PlansTable(RowTable):
    """Rows can be chosen by mouse and keyboard; `chosen` tells which. It is as high as its rows."""

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__(tr("Plans to choose from"))
        self._model = _Model(self)
        self.setModel(self._model)
        self.setItemDelegateForColumn(_FIT, _FitDelegate(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = self.horizontalHeader()
        head.setSectionsClickable(False)
        head.setMinimumSectionSize(theme.px(32))
        head.setSectionResizeMode(_EVIDENCE, QHeaderView.ResizeMode.Stretch)
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
        self._model.show(plans)
        self.setColumnHidden(_MODEL, not several)
        if plans and row >= 0:
            self.selectRow(row)
        self._quiet = False
        self.setFixedHeight(self.row_height * (len(plans) + 1) + 2 * self.frameWidth() + theme.px(4))

    def _tell(self, current: QModelIndex, _before: QModelIndex) -> None:
        if current.isValid() and not self._quiet:
            self.chosen.emit(current.row())
