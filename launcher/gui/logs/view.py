"""List view of log lines: painted directly from the model, follows the end until the user scrolls back.

It is a table with one column. A QListView would ask its model for every row's index whenever rows are added (20,000
rows, 30 times a second: a third of a core); a table with rows of equal height asks only for the visible ones.
"""

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QFontMetrics, QGuiApplication, QKeyEvent, QKeySequence, QPainter, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
)

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.logs.model import LogModel
from launcher.gui.translation import tr
from launcher.gui.widgets import paint_glyph

_Index = QModelIndex | QPersistentModelIndex
_MOST_CHARACTERS = 1_000
"""Characters of a line that can be scrolled to; its tooltip and its copy have more."""
_WIDEN_STEP = 40
"""Characters by which the column grows, so that it does not change with each longer line."""
_GLYPHS = {"E": ("cross", "bad"), "W": ("triangle", "attention")}


class _LineDelegate(QStyledItemDelegate):
    def __init__(self, view: "LogView") -> None:
        super().__init__(view)
        self._view = view
        self.characters = _WIDEN_STEP
        """Length of the longest line painted so far, rounded up."""
        self.font = theme.monospace()
        metrics = QFontMetrics(self.font)
        self.row_height = metrics.height() + theme.px(4)
        self.character_width = metrics.horizontalAdvance("m")
        self._full_time_width = metrics.horizontalAdvance("00:00:00.000") + theme.px(theme.GAP_M)
        self.glyph_side = theme.px(12)
        self.show_times(shows=True)

    def show_times(self, *, shows: bool) -> None:
        """Reserve room for the times of lines, or no room if no line has a time."""
        self.time_width = self._full_time_width if shows else 0
        self.text_left = theme.px(theme.GAP) + self.time_width + self.glyph_side + theme.px(theme.GAP)

    @property
    def width(self) -> int:
        """Width of the widest line painted so far, in pixels."""
        return self.text_left + self.characters * self.character_width + theme.px(theme.GAP_L)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        model = self._view.lines
        row = index.row()
        if row >= len(model.shown):
            return
        line = model.shown[row]
        rect: QRect = option.rect
        marked = model.is_highlighted(line)
        state = option.state
        painter.save()
        if state & QStyle.StateFlag.State_Selected or marked:
            painter.fillRect(rect, theme.colour("raised"))
        if marked:
            painter.fillRect(QRect(rect.left(), rect.top(), theme.px(3), rect.height()), theme.colour("accent"))
        painter.setFont(self.font)
        middle = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
        inside = rect.adjusted(theme.px(theme.GAP), 0, 0, 0)
        painter.setPen(theme.colour("secondary"))
        painter.drawText(inside, middle, line.time)
        if glyph := _GLYPHS.get(line.level):
            left = inside.left() + self.time_width
            side = float(self.glyph_side)
            paint_glyph(
                painter, glyph[0], QRectF(left, rect.center().y() - side / 2 + 1, side, side), theme.colour(glyph[1])
            )
        dim = line.level in ("D", "T")
        painter.setPen(theme.colour("secondary" if dim else "text"))
        text = one_line(line.message, _MOST_CHARACTERS)
        painter.drawText(rect.adjusted(self.text_left, 0, 0, 0), middle, text)
        if len(text) > self.characters:
            self._view.widen(len(text))
        if state & QStyle.StateFlag.State_HasFocus and self._view.hasFocus():
            painter.setPen(theme.colour("accent"))
            painter.drawRect(rect.adjusted(0, 0, -1, -1))
        painter.restore()


class LogView(QTableView):
    """The lines. `following_changed` is emitted when it starts or stops following the end."""

    following_changed = Signal(bool)

    def __init__(self, model: LogModel) -> None:
        super().__init__()
        self.lines = model
        self._follows = True
        self._delegate = _LineDelegate(self)
        self.setObjectName("log")
        self.setModel(model)
        self.setItemDelegate(self._delegate)
        self.setAccessibleName(tr("Lines of the log"))
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setMinimumSectionSize(self._delegate.row_height)
        self.verticalHeader().setDefaultSectionSize(self._delegate.row_height)
        self.horizontalHeader().hide()
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setCornerButtonEnabled(False)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerItem)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setToolTip(tr("Ctrl+C copies the selected lines; End follows new lines"))
        model.rowsInserted.connect(self._scroll_if_following)
        model.modelReset.connect(self._reset_columns)
        self.verticalScrollBar().actionTriggered.connect(self._follow_slider)

    @property
    def follows(self) -> bool:
        """Whether it follows the end."""
        return self._follows

    def set_following(self, follows: bool) -> None:
        """Scroll to the end and follow it, or stop following."""
        self._record_following(follows)
        self._scroll_if_following()

    def show_row(self, row: int) -> None:
        """Scroll to a row and select it."""
        self.set_following(False)
        index = self.lines.index(row)
        self.setCurrentIndex(index)
        self.scrollTo(index, QAbstractItemView.ScrollHint.PositionAtCenter)

    def widen(self, characters: int) -> None:
        """Make the column wide enough for this many characters."""
        needed = min(-(-characters // _WIDEN_STEP) * _WIDEN_STEP, _MOST_CHARACTERS)
        if needed > self._delegate.characters:
            self._delegate.characters = needed
            QTimer.singleShot(0, self, self._fit_column)  # later, because this runs during painting

    @property
    def selected_texts(self) -> list[str]:
        """The selected lines, as they were written."""
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        return [self.lines.shown[row].text for row in rows]

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Copy the selected lines with Ctrl+C, follow the end with End."""
        if event.matches(QKeySequence.StandardKey.Copy):
            if texts := self.selected_texts:
                QGuiApplication.clipboard().setText("\n".join(one_line(text, 20_000) for text in texts))
            return
        super().keyPressEvent(event)
        self._update_following()
        if event.key() == Qt.Key.Key_End:
            self.set_following(True)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802
        """Stop following when the user scrolls back."""
        super().wheelEvent(event)
        self._update_following()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Keep the end or the selected line in view."""
        super().resizeEvent(event)
        self._fit_column()
        if self._follows:
            self.scrollToBottom()
        elif self.currentIndex().isValid():
            self.scrollTo(self.currentIndex())

    @Slot()
    def _fit_column(self) -> None:
        """Make the column as wide as the lines, and at least as wide as the viewport."""
        self.setColumnWidth(0, max(self._delegate.width, self.viewport().width()))

    @Slot()
    def _reset_columns(self) -> None:
        self._delegate.show_times(shows=any(line.time for line in self.lines.shown[:200]))
        self._fit_column()
        self._scroll_if_following()

    @Slot()
    def _scroll_if_following(self) -> None:
        if self._follows:
            self.scrollToBottom()

    @Slot(int)
    def _follow_slider(self, _action: int) -> None:
        bar = self.verticalScrollBar()
        self._record_following(bar.sliderPosition() >= bar.maximum())

    def _update_following(self) -> None:
        bar = self.verticalScrollBar()
        self._record_following(bar.value() >= bar.maximum())

    def _record_following(self, follows: bool) -> None:
        if follows != self._follows:
            self._follows = follows
            self.following_changed.emit(follows)
