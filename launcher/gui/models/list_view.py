"""The list of the library: its head, its rows as they are painted, and what a click or a key does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRect, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractItemView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QTreeView, QWidget

from launcher.base.text import make_visible
from launcher.gui import theme
from launcher.gui.models.row_text import Row, action_text
from launcher.gui.models.tree import LibraryTree
from launcher.gui.translation import tr
from launcher.gui.widgets import paint_badge, paint_glyph

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.app.models.model_library import LibraryFile, LibraryModel

_Index = QModelIndex | QPersistentModelIndex
_MODEL_HEIGHT, _FILE_HEIGHT, _HEAD_HEIGHT = 56, 34, 32
_EDGE, _TILE, _NAME_LEFT, _FILE_LEFT = 16, 32, 60, 66
_WIDTHS = {"fit": 106, "file": 104, "speed": 96, "context": 56, "size": 78}
_DROPPED = (("context", 250), ("size", 200), ("speed", 200), ("file", 200))
"""Columns that a narrow list leaves out, in this order, each while the name's column has fewer pixels than this."""
_CHEVRON = 36
_BUTTON_HEIGHT = 22
_NAME_PX, _SPEED_PX, _SMALL_PX = 14, 15, 12
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The horizontal places of the columns in a row of some width, in pixels; those without room are left out."""

    width: int
    name: tuple[int, int]
    places: dict[str, tuple[int, int]]

    @classmethod
    def for_width(cls, width: int) -> ListColumns:
        """Return the columns for a list's width."""
        shown = dict(_WIDTHS)
        room = width - theme.px(_NAME_LEFT + _CHEVRON) - sum(map(theme.px, shown.values()))
        for dropped, least in _DROPPED:
            if room >= theme.px(least):
                break
            room += theme.px(shown.pop(dropped))
        places, left = {}, theme.px(_NAME_LEFT) + max(room, 0)
        for name, wide in shown.items():
            places[name] = (left, theme.px(wide))
            left += theme.px(wide)
        return cls(width, (theme.px(_NAME_LEFT), max(room, 0) - theme.px(theme.GAP_M)), places)

    def rect(self, name: str, top: int, height: int) -> QRect | None:
        """Return the place of a column in a row; None if it is not shown."""
        place = self.places.get(name)
        return None if place is None else QRect(place[0], top, place[1], height)


class ListHead(QWidget):
    """The captions of the columns, aligned with the rows of a list."""

    def __init__(self, view: LibraryList) -> None:
        super().__init__()
        self._view = view
        self.setFixedHeight(theme.px(_HEAD_HEIGHT))
        self.setFont(theme.font(theme.CAPTION_PX))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the captions."""
        captions = {
            "fit": (tr("Best file for this computer"), _LEFT),
            "speed": (tr("Expected, t/s"), _RIGHT),
            "context": (tr("Context"), _RIGHT),
            "size": (tr("Size"), _RIGHT),
        }
        columns = self._view.columns
        with QPainter(self) as painter:
            painter.setPen(theme.colour("secondary"))
            left, wide = columns.name
            painter.drawText(QRect(left, 0, wide, self.height()), _LEFT, tr("Model"))
            for name, (text, flags) in captions.items():
                rect = columns.rect(name, 0, self.height())
                if rect is None:
                    continue
                if name == "fit" and (file := columns.rect("file", 0, self.height())):
                    rect = rect.united(file)
                shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
                painter.drawText(rect, flags, shown)
            painter.setPen(QPen(theme.colour("border"), 1))
            painter.drawLine(0, self.height() - 1, self.width(), self.height() - 1)


class _RowDelegate(QStyledItemDelegate):
    """Paints the rows of models and files."""

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        view = self.parent()
        assert isinstance(view, LibraryList)  # noqa: S101 -- for the type checker
        return QSize(view.viewport().width(), row_height(index))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        view = self.parent()
        assert isinstance(view, LibraryList)  # noqa: S101
        row, rect = view.tree.row_at(index), QRect(0, option.rect.top(), view.viewport().width(), option.rect.height())
        is_selected = bool(option.state & QStyle.StateFlag.State_Selected)
        is_hovered = bool(option.state & QStyle.StateFlag.State_MouseOver)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if is_selected or is_hovered:
            painter.fillRect(rect, theme.colour("selected" if is_selected else "raised"))
        if is_selected:
            painter.fillRect(QRect(0, rect.top(), theme.px(3), rect.height()), theme.colour("accent"))
        paint = _RowPainter(painter, rect, view.columns, row)
        if index.internalId():
            paint.paint_file(view.pressable(index))
        else:
            paint.paint_model(view.pressable(index), is_open=view.isExpanded(index), has_files=view.can_expand(index))
        if not (view.isExpanded(index) and not index.internalId()):
            painter.setPen(QPen(theme.colour("border"), 1))
            inset = theme.px(_FILE_LEFT if index.internalId() and not _is_last(index) else 0)
            y = rect.bottom() + 0.5  # the middle of a pixel: else antialiasing makes two faint lines of it
            painter.drawLine(QPointF(rect.left() + inset, y), QPointF(rect.right() + 1, y))
        if view.hasFocus() and view.currentIndex() == index:
            painter.setPen(QPen(theme.colour("accent"), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            radius = theme.px(theme.CONTROL_RADIUS)
            painter.drawRoundedRect(QRectF(rect).adjusted(1, 1, -1, -1), radius, radius)
        painter.restore()


class _RowPainter:
    """Paints one row at its place."""

    def __init__(self, painter: QPainter, rect: QRect, columns: ListColumns, row: Row) -> None:
        self._painter, self._rect, self._columns, self._row = painter, rect, columns, row

    def paint_model(self, button: QRect | None, *, is_open: bool, has_files: bool) -> None:
        """Paint the row of a model: two lines."""
        row, rect = self._row, self._rect
        half = rect.height() // 2
        upper, lower = rect.top() + theme.px(7), rect.top() + half + theme.px(1)
        line = half - theme.px(7)
        self._paint_tile()
        left, wide = self._columns.name
        self._paint_name(QRect(left, upper, wide, line))
        self._text(QRect(left, lower, wide, line), row.note, _SMALL_PX, role="secondary")
        if (fit := self._columns.rect("fit", rect.top(), rect.height())) and row.fit:
            paint_badge(self._painter, fit.left(), fit.center().y() + 0.5, row.fit)
        if file := self._columns.rect("file", upper, line):
            if row.action == "files":
                self._paint_button(button)
            else:
                self._text(file.adjusted(0, 0, -theme.px(8), 0), row.quant, theme.BODY_PX)
                if button is not None:
                    self._paint_button(button)
                else:
                    self._text(file.translated(0, lower - upper), row.state, _SMALL_PX, role=row.state_role)
        if speed := self._columns.rect("speed", upper, line):
            self._text(speed, row.speed, _SPEED_PX, bold=True, flags=_RIGHT)
            self._text(speed.translated(0, lower - upper), row.speed_note, _SMALL_PX, role="secondary", flags=_RIGHT)
        for name, text in (("context", row.context), ("size", row.size)):
            if place := self._columns.rect(name, rect.top(), rect.height()):
                self._text(place, text, theme.BODY_PX, flags=_RIGHT)
        if has_files:
            side = theme.px(16)
            centre = QPointF(self._columns.width - theme.px(_CHEVRON) / 2, rect.center().y())
            square = QRectF(centre.x() - side / 2, centre.y() - side / 2, side, side)
            paint_glyph(self._painter, "close" if is_open else "open", square, theme.colour("secondary"))
        self._paint_progress()

    def paint_file(self, button: QRect | None) -> None:
        """Paint the row of a file: one line."""
        row, rect = self._row, self._rect
        painter = self._painter
        left, wide = theme.px(_FILE_LEFT), sum(self._columns.name) - theme.px(_FILE_LEFT)
        name_width = min(theme.px(104), wide)
        self._text(QRect(left, rect.top(), name_width, rect.height()), row.name, theme.BODY_PX, bold=True)
        note = QRect(left + name_width, rect.top(), wide - name_width, rect.height())
        self._text(note, row.note, _SMALL_PX, role="secondary")
        if (fit := self._columns.rect("fit", rect.top(), rect.height())) and row.fit:
            paint_badge(painter, fit.left(), fit.center().y() + 0.5, row.fit)
        if file := self._columns.rect("file", rect.top(), rect.height()):
            if button is not None:
                self._paint_button(button)
            else:
                self._text(file, row.state, _SMALL_PX, role=row.state_role)
        if speed := self._columns.rect("speed", rect.top(), rect.height()):
            self._text(speed, row.speed, theme.BODY_PX, bold=True, flags=_RIGHT)
        for name, text in (("context", row.context), ("size", row.size)):
            if place := self._columns.rect(name, rect.top(), rect.height()):
                self._text(place, text, theme.BODY_PX, flags=_RIGHT)
        self._paint_progress()

    def _text(
        self, rect: QRect, text: str, pixels: int, *, bold: bool = False, role: str = "text", flags: int = _LEFT
    ) -> None:
        font = theme.font(pixels, bold=bold, tabular=True)
        self._painter.setFont(font)
        self._painter.setPen(theme.colour(role))
        shown = QFontMetrics(font).elidedText(make_visible(text), Qt.TextElideMode.ElideRight, max(rect.width(), 0))
        self._painter.drawText(rect, flags | int(Qt.TextFlag.TextSingleLine), shown)

    def _paint_name(self, rect: QRect) -> None:
        """Paint the name, and the tag beside it if there is room for both."""
        row, painter = self._row, self._painter
        used = QFontMetrics(theme.font(_NAME_PX, bold=True, tabular=True)).horizontalAdvance(row.name)
        font = theme.font(11, bold=True)
        wide = QFontMetrics(font).horizontalAdvance(row.tag) + theme.px(14)
        has_tag = bool(row.tag) and used + theme.px(theme.GAP) + wide <= rect.width()
        self._text(rect, row.name, _NAME_PX, bold=True)
        if not has_tag:
            return
        height = theme.px(18)
        pill = QRect(rect.left() + used + theme.px(theme.GAP), rect.center().y() - height // 2, wide, height)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.colour("accent"))
        painter.drawRoundedRect(pill, height / 2, height / 2)
        painter.setPen(theme.colour("on_accent"))
        painter.setFont(font)
        painter.drawText(pill, int(Qt.AlignmentFlag.AlignCenter), row.tag)

    def _paint_tile(self) -> None:
        side = theme.px(_TILE)
        rect = QRect(theme.px(_EDGE), self._rect.center().y() - side // 2 + 1, side, side)
        paint_tile(self._painter, rect, self._row.tile)

    def _paint_button(self, rect: QRect | None) -> None:
        if rect is None:
            return
        painter, font = self._painter, button_font()
        outline = QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setPen(QPen(theme.colour("accent"), 1))
        painter.setBrush(theme.colour("card"))
        radius = theme.px(theme.CONTROL_RADIUS)
        painter.drawRoundedRect(outline, radius, radius)
        painter.setFont(font)
        painter.setPen(theme.colour("accent"))
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignCenter), action_text(self._row.action))

    def _paint_progress(self) -> None:
        if self._row.fraction is None:
            return
        height = theme.px(3)
        line = QRectF(theme.px(_NAME_LEFT), self._rect.bottom() - height - theme.px(1), 0, height)
        line.setRight(self._columns.width - theme.px(_EDGE))
        self._painter.setPen(Qt.PenStyle.NoPen)
        self._painter.setBrush(theme.colour("border"))
        self._painter.drawRoundedRect(line, height / 2, height / 2)
        line.setWidth(max(line.width() * min(self._row.fraction, 1.0), float(height)))
        self._painter.setBrush(theme.colour("accent"))
        self._painter.drawRoundedRect(line, height / 2, height / 2)


def paint_tile(painter: QPainter, rect: QRect, letters: str) -> None:
    """Paint the letters of a place in a square; dashed for what is not on this computer."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    pen = QPen(theme.colour("border" if letters else "control"), 1)
    if not letters:
        pen.setStyle(Qt.PenStyle.DashLine)
    painter.setPen(pen)
    painter.setBrush(theme.colour("raised") if letters else QColor(Qt.GlobalColor.transparent))
    radius = theme.px(theme.CONTROL_RADIUS)
    painter.drawRoundedRect(QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
    if letters:
        font = theme.font(11, bold=True)
        painter.setFont(font)
        painter.setPen(theme.colour("text"))
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignCenter), letters)
    else:
        side = min(rect.width(), theme.px(16))
        square = QRectF(0, 0, side, side)
        square.moveCenter(QRectF(rect).center())
        paint_glyph(painter, "down", square, theme.colour("secondary"))
    painter.restore()


def button_font() -> QFont:
    """Return the font of a row's button."""
    return theme.font(_SMALL_PX, bold=True)


def row_height(index: _Index) -> int:
    """Return the height of a row, in pixels."""
    return theme.px(_FILE_HEIGHT if index.internalId() else _MODEL_HEIGHT)


def _is_last(index: _Index) -> bool:
    return index.row() == index.model().rowCount(index.parent()) - 1


class LibraryList(QTreeView):
    """The rows. `describe` returns their texts."""

    chosen = Signal(object, object)
    """The selected LibraryModel, and LibraryFile or None; (None, None) if nothing is selected."""
    acted = Signal(object, object)
    """The button of a row was pressed, or Enter on it, or a double click: LibraryModel, and LibraryFile or None."""
    pressed_row = Signal()
    """A row was clicked or opened by a key: its details are wanted."""
    opened = Signal(object)
    """The files of a LibraryModel are shown."""

    def __init__(self, describe: Callable[[LibraryModel, LibraryFile | None], Row]) -> None:
        super().__init__()
        self.setObjectName("library")
        self.tree = LibraryTree(describe, self)
        self.columns = ListColumns.for_width(theme.px(800))
        self._filling = False
        self._follows_first = True
        """Whether nothing was chosen yet, so that the first row is selected, whichever that is."""
        self.setModel(self.tree)
        self.setItemDelegate(_RowDelegate(self))
        self.setAccessibleName(tr("Models"))
        self.setHeaderHidden(True)
        self.setRootIsDecorated(False)
        self.setIndentation(0)
        self.setExpandsOnDoubleClick(False)
        self.setMouseTracking(True)
        self.setTabKeyNavigation(False)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.verticalScrollBar().setSingleStep(theme.px(_FILE_HEIGHT))
        self.setMinimumHeight(theme.px(3 * _MODEL_HEIGHT))
        self.selectionModel().currentChanged.connect(self._handle_current)
        self.expanded.connect(self._emit_opened)

    @property
    def models(self) -> list[LibraryModel]:
        """The models in the order in which they are shown."""
        return list(self.tree.models)

    @property
    def model_row(self) -> LibraryModel | None:
        """The selected model."""
        return self.tree.model_at(self.currentIndex())

    @property
    def file_row(self) -> LibraryFile | None:
        """The selected file; None if the row of a model is selected."""
        return self.tree.file_at(self.currentIndex())

    def show_models(self, models: list[LibraryModel], *, complete: bool = True) -> None:
        """Show models; selection, open rows and the scroll position stay.

        Until the models are `complete`, the best one may come later: the first row is selected unless one was chosen.
        """
        model, file = self.model_row, self.file_row
        open_keys = [each.key for at, each in enumerate(self.tree.models) if self.isExpanded(self.tree.index(at, 0))]
        scrolled = self.verticalScrollBar().value()
        self._filling = True
        if self.tree.show_models(models):
            for key in open_keys:
                self.setExpanded(self.tree.find_index(key), True)
            if model is not None and not self._follows_first:
                self.setCurrentIndex(self.tree.find_index(model.key, file.key if file is not None else None))
            if models and (self._follows_first or not self.currentIndex().isValid()):
                self.setCurrentIndex(self.tree.index(0, 0))
            self.verticalScrollBar().setValue(scrolled)
        self._filling = False
        self._follows_first = self._follows_first and not complete
        self.chosen.emit(self.model_row, self.file_row)

    def choose(self, key: str, file_key: str | None = None) -> bool:
        """Select a model, or a file of it, and scroll to it. Returns whether it is shown."""
        index = self.tree.find_index(key, file_key)
        if index.isValid():
            self._follows_first = False
            if index.parent().isValid():
                self.setExpanded(index.parent(), True)
            self.setCurrentIndex(index)
            self.scrollTo(index)
        return index.isValid()

    def can_expand(self, index: _Index) -> bool:
        """Return whether a row has files below it."""
        return not index.internalId() and self.tree.rowCount(index) > 1

    def pressable(self, index: _Index) -> QRect | None:
        """Return where a row's button is, in the viewport; None if it has none."""
        row = self.tree.row_at(index)
        place = self.columns.rect("file", 0, 0)
        if not row.action or place is None:
            return None
        rect = self.visualRect(index)
        width = QFontMetrics(button_font()).horizontalAdvance(action_text(row.action)) + theme.px(20)
        height = theme.px(_BUTTON_HEIGHT)
        centred = rect.top() + (rect.height() - height) // 2
        lower = rect.top() + rect.height() // 2 + theme.px(1)
        top = centred if index.internalId() or row.action == "files" else lower
        return QRect(place.left(), top, min(width, place.width() - theme.px(4)), height)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Place the columns for the width."""
        self.columns = ListColumns.for_width(self.viewport().width())
        super().resizeEvent(event)
        self.columns = ListColumns.for_width(self.viewport().width())
        self.viewport().update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Press a row's button, or show or hide its files."""
        super().mouseReleaseEvent(event)
        index = self.indexAt(event.position().toPoint())
        if not index.isValid() or event.button() != Qt.MouseButton.LeftButton:
            return
        button = self.pressable(index)
        if button is not None and button.adjusted(-2, -5, 2, 5).contains(event.position().toPoint()):
            self.acted.emit(self.tree.model_at(index), self.tree.file_at(index))
        elif self.can_expand(index) and event.position().x() >= self.viewport().width() - theme.px(_CHEVRON):
            self.setExpanded(index, not self.isExpanded(index))
        else:
            self.pressed_row.emit()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Do what Enter does, except on a button or the arrow."""
        super().mouseDoubleClickEvent(event)
        index, place = self.indexAt(event.position().toPoint()), event.position().toPoint()
        button = self.pressable(index) if index.isValid() else None
        is_arrow = place.x() >= self.viewport().width() - theme.px(_CHEVRON)
        if index.isValid() and not is_arrow and (button is None or not button.contains(place)):
            self.acted.emit(self.tree.model_at(index), self.tree.file_at(index))

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Enter does what the row's main button does; Space shows or hides its files."""
        index = self.currentIndex()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and index.isValid():
            self.pressed_row.emit()
            self.acted.emit(self.tree.model_at(index), self.tree.file_at(index))
        elif event.key() == Qt.Key.Key_Space and self.can_expand(index):
            self.setExpanded(index, not self.isExpanded(index))
        else:
            super().keyPressEvent(event)

    @Slot()
    def _handle_current(self) -> None:
        if not self._filling:
            self._follows_first = False
            self.chosen.emit(self.model_row, self.file_row)

    def _emit_opened(self, index: QModelIndex) -> None:
        model = self.tree.model_at(index)
        if model is not None:
            self.opened.emit(model)
