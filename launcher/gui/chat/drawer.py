"""The conversations that are kept: searched, opened, renamed, exported, deleted."""

from pathlib import Path

from PySide6.QtCore import (
    QDate,
    QDateTime,
    QLocale,
    QModelIndex,
    QPersistentModelIndex,
    QRect,
    QSize,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.conversations.export import file_name, writer_for
from launcher.conversations.records import Hit, Summary
from launcher.conversations.store import Conversations
from launcher.gui import theme
from launcher.gui.chat.kept import Kept
from launcher.gui.chat.look import dense
from launcher.gui.labels import Label
from launcher.gui.sentences import say_error
from launcher.gui.widgets import Banner
from launcher.gui.words import ntr, tr

_SEARCH_MS = 150
_ID, _LINE = Qt.ItemDataRole.UserRole, Qt.ItemDataRole.UserRole + 1


class _TwoLines(QStyledItemDelegate):
    """Paints a title with a line under it."""

    def sizeHint(  # noqa: N802 -- Qt's name
        self,
        option: QStyleOptionViewItem,  # noqa: ARG002
        index: QModelIndex | QPersistentModelIndex,  # noqa: ARG002
    ) -> QSize:
        return QSize(theme.px(120), theme.px(52))

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        rect: QRect = option.rect
        state, state_selected = option.state, option.state.State_Selected
        if state & state_selected:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("raised"))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), theme.px(6), theme.px(6))
        inside = rect.adjusted(theme.px(10), theme.px(7), -theme.px(10), -theme.px(7))
        for role, text, font, align in (
            ("text", index.data(Qt.ItemDataRole.DisplayRole), theme.font(theme.BODY_PX), Qt.AlignmentFlag.AlignTop),
            ("secondary", index.data(_LINE), theme.font(theme.CAPTION_PX, tabular=True), Qt.AlignmentFlag.AlignBottom),
        ):
            painter.setFont(font)
            painter.setPen(theme.colour(role))
            elided = painter.fontMetrics().elidedText(text or "", Qt.TextElideMode.ElideRight, inside.width())
            painter.drawText(inside, int(align | Qt.AlignmentFlag.AlignLeft), elided)


class _List(QListWidget):
    delete_asked = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Delete with Del; Enter opens."""
        if event.key() == Qt.Key.Key_Delete:
            self.delete_asked.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentItem() is not None:
            self.itemActivated.emit(self.currentItem())
        else:
            super().keyPressEvent(event)


class Drawer(QWidget):
    """The list. What is deleted can be brought back until the line that says so is gone."""

    opened = Signal(str)
    """The id of a conversation"""
    gone = Signal(str)
    """One that is deleted"""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self._kept = kept
        self._deleted: str | None = None
        self._filling = False
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search in all conversations"))
        self.search.setAccessibleName(tr("Search in all conversations"))
        self.search.setToolTip(tr("Words that a conversation must hold (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(_SEARCH_MS)
        self._soon.timeout.connect(self.refresh)
        self.search.textChanged.connect(lambda _: self._soon.start())
        self.list = _List()
        self.search.returnPressed.connect(self.list.setFocus)
        self.list.setAccessibleName(tr("Conversations"))
        self.list.setToolTip(tr("Enter opens, F2 renames, Del deletes"))
        self.list.setItemDelegate(_TwoLines(self.list))
        self.list.setUniformItemSizes(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setEditTriggers(QListWidget.EditTrigger.EditKeyPressed)
        self.list.itemActivated.connect(lambda item: self.opened.emit(item.data(_ID)))
        self.list.itemChanged.connect(self._renamed)
        self.list.currentItemChanged.connect(lambda *_: self._enable())
        self.list.delete_asked.connect(self.delete)
        self._empty = Label()
        self._empty.setObjectName("secondary")
        self._empty.setWordWrap(True)
        self.banner = Banner()
        self.banner.closed.connect(self._delete_now)
        self._open = dense(tr("Open"), tr("Go on with the chosen conversation (Enter)"))
        self._open.clicked.connect(lambda: self.opened.emit(self.list.currentItem().data(_ID)))
        self._rename = dense(tr("Rename"), tr("Give the chosen conversation another name (F2)"))
        self._rename.clicked.connect(lambda: self.list.editItem(self.list.currentItem()))
        self._export = dense(tr("Export …"), tr("Write the chosen conversation into a file: Markdown, JSON or text"))
        self._export.clicked.connect(self._ask_where)
        self._delete = dense(tr("Delete"), tr("Delete the chosen conversation (Del); this can be undone for a while"))
        self._delete.clicked.connect(self.delete)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        for button in (self._open, self._rename, self._export, self._delete):
            row.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self.search)
        layout.addWidget(self.banner)
        layout.addWidget(self._empty)
        layout.addWidget(self.list, 1)
        layout.addLayout(row)
        self._empty.hide()
        self._enable()

    def refresh(self) -> None:
        """Read the list anew."""
        text = self.search.text()

        def find(kept: Conversations) -> tuple[str, tuple[Hit, ...]]:
            return text, kept.search(text) if text.strip() else tuple(Hit(each, "") for each in kept.all())

        self._kept.do(find, self._fill)

    def delete(self) -> None:
        """Take the chosen conversation out of sight, and offer to bring it back."""
        item = self.list.currentItem()
        if item is None:
            return
        self._delete_now()
        id_, title = str(item.data(_ID)), item.text()
        self._deleted = id_
        self._kept.change(lambda kept: kept.hide(id_))
        self.gone.emit(id_)
        self.banner.tell(tr("Deleted “{title}”.", title=title), "information", [(tr("Undo"), self._undo)])
        self.refresh()

    def hide_for_good(self) -> None:
        """Delete what could still be brought back."""
        self._delete_now()
        self.banner.clear()

    def export(self, id_: str, file: Path) -> None:
        """Write a conversation into a file."""

        def write(kept: Conversations) -> str:
            from launcher.base.files import write_atomically

            try:
                writer = writer_for(file)
                write_atomically(file, writer(kept.get(id_)).encode())
            except OSError as error:
                return tr("{file} cannot be written: {why}.", file=file.name, why=error.strerror or error)
            except LauncherError as error:
                return say_error(error)
            return ""

        def told(problem: str) -> None:
            if problem:
                self.banner.tell(problem, "bad")
            else:
                self.banner.tell(tr("Wrote {file}.", file=one_line(str(file))), "good")

        self._kept.do(write, told)

    def _undo(self) -> None:
        id_, self._deleted = self._deleted, None
        self.banner.clear()
        if id_ is not None:
            self._kept.change(lambda kept: kept.hide(id_, hidden=False))
            self.refresh()

    def _delete_now(self) -> None:
        id_, self._deleted = self._deleted, None
        if id_ is not None:
            self._kept.change(lambda kept: kept.delete([id_]))

    def _fill(self, found: tuple[str, tuple[Hit, ...]]) -> None:
        text, hits = found
        if text != self.search.text():
            return
        current = self.list.currentItem().data(_ID) if self.list.currentItem() else None
        self._filling = True
        self.list.clear()
        for hit in hits:
            item = QListWidgetItem(one_line(hit.conversation.title))
            item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
            item.setData(_ID, hit.conversation.id)
            item.setData(_LINE, one_line(hit.excerpt) or _about(hit.conversation))
            item.setData(Qt.ItemDataRole.AccessibleDescriptionRole, item.data(_LINE))
            self.list.addItem(item)
            if hit.conversation.id == current:
                self.list.setCurrentItem(item)
        self._filling = False
        self._empty.setVisible(not hits)
        self._empty.setText(
            tr("No conversation holds all of that.")
            if text.strip()
            else tr("Conversations that you begin are kept here.")
        )
        self._enable()

    def _renamed(self, item: QListWidgetItem) -> None:
        if not self._filling:
            id_, title = str(item.data(_ID)), item.text()
            self._kept.change(lambda kept: kept.rename(id_, title))
            self.refresh()

    def _ask_where(self) -> None:
        item = self.list.currentItem()
        if item is None:
            return
        id_ = str(item.data(_ID))
        self._kept.do(lambda kept: file_name(kept.get(id_), "md"), lambda name: self._show_dialog(id_, name))

    def _show_dialog(self, id_: str, name: str) -> None:
        dialog = QFileDialog(self, tr("Export the conversation"), name)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([tr("Markdown (*.md)"), tr("JSON (*.json)"), tr("Text (*.txt)")])
        dialog.setDefaultSuffix("md")
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix(chosen.rpartition(".")[2].rstrip(")")))
        dialog.fileSelected.connect(lambda file: self.export(id_, Path(file)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _enable(self) -> None:
        for button in (self._open, self._rename, self._export, self._delete):
            button.setEnabled(self.list.currentItem() is not None)


def _about(each: Summary) -> str:
    changed = QDateTime.fromSecsSinceEpoch(int(each.changed_s))
    today = changed.date() == QDate.currentDate()
    when = changed.toString("HH:mm") if today else QLocale().toString(changed.date(), QLocale.FormatType.ShortFormat)
    return " · ".join(filter(None, (when, ntr("1 message", "{n} messages", each.messages), each.model)))
