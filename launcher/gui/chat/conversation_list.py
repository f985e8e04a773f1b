"""List of stored conversations by day: search, open, rename, export, delete."""

from pathlib import Path

from PySide6.QtCore import (
    QDate,
    QDateTime,
    QLocale,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    QRect,
    QRectF,
    QSize,
    Qt,
    QTimer,
    Signal,
    Slot,
)
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QPainter, QPalette, QShowEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from launcher.base.errors import LauncherError
from launcher.base.files import write_atomically
from launcher.base.text import one_line
from launcher.conversations.export import find_writer, make_file_name
from launcher.conversations.records import ConversationSummary, SearchHit
from launcher.conversations.store import Conversations
from launcher.gui import theme
from launcher.gui.chat.chat_store import ChatStore
from launcher.gui.labels import Label, escape_tooltip
from launcher.gui.translation import find_locale, ntr, render, tr
from launcher.gui.widgets import Banner
from launcher.gui.widgets.glyphs import paint_glyph

_SEARCH_MS = 150
_ROW_HEIGHT, _GROUP_HEIGHT, _GLYPH = 48, 32, 16
"""In pixels: height of a conversation, height of a day's heading, and size of the menu's glyph."""
_DAYS_OF_LAST_WEEK = 7
_ID_ROLE, _LINE_ROLE, _GROUP_ROLE = (Qt.ItemDataRole.UserRole + number for number in range(3))
_Index = QModelIndex | QPersistentModelIndex


def name_group(changed: QDate, today: QDate) -> str:
    """Return the heading of the conversations that were changed on a day."""
    days = changed.daysTo(today)
    if days <= 1:
        return tr("Today") if days <= 0 else tr("Yesterday")
    return tr("Last week") if days <= _DAYS_OF_LAST_WEEK else tr("Older")


def describe_conversation(summary: ConversationSummary, today: QDate) -> str:
    """Return the number of replies, and when the conversation was changed: the time, or the date if that is earlier."""
    changed = QDateTime.fromSecsSinceEpoch(int(summary.changed_s))
    if changed.date().daysTo(today) <= 1:
        when = changed.toString("HH:mm")
    else:
        when = find_locale().toString(changed.date(), QLocale.FormatType.ShortFormat)
    return f"{ntr('1 reply', '{n} replies', summary.replies)} · {when}"


class _ConversationDelegate(QStyledItemDelegate):
    """Paints a title with a second line below it. The first conversation of a group has a heading above it."""

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size of a row, including the heading above it, if there is one."""
        heading = _GROUP_HEIGHT if index.data(_GROUP_ROLE) else 0
        return QSize(theme.px(120), theme.px(_ROW_HEIGHT) + theme.px(heading))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        """Paint a row."""
        whole: QRect = option.rect
        row, gap = find_row(whole, index), theme.px(theme.GAP)
        group = index.data(_GROUP_ROLE)
        if group:
            painter.setFont(theme.font(theme.CAPTION_PX))
            painter.setPen(theme.colour("secondary"))
            place = QRect(whole.left() + gap, whole.top(), whole.width() - gap, row.top() - whole.top() - gap // 2)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignBottom | Qt.AlignmentFlag.AlignLeft), group)
        selected = bool(option.state & option.state.State_Selected)
        hovered = bool(option.state & option.state.State_MouseOver)
        if selected or hovered:
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("raised"))
            radius = theme.px(theme.CONTROL_RADIUS)
            painter.drawRoundedRect(row.adjusted(0, 1, 0, -1), radius, radius)
            painter.restore()
            paint_glyph(painter, "more", QRectF(find_glyph(whole, index)), theme.colour("secondary"))
        inside = row.adjusted(gap, theme.px(6), -gap, -theme.px(6))
        title, second_line = index.data(Qt.ItemDataRole.DisplayRole), index.data(_LINE_ROLE)
        for role, text, font, align in (
            ("text", title, theme.font(theme.BODY_PX, bold=selected), Qt.AlignmentFlag.AlignTop),
            ("secondary", second_line, theme.font(theme.CAPTION_PX, tabular=True), Qt.AlignmentFlag.AlignBottom),
        ):
            room = inside
            if align is Qt.AlignmentFlag.AlignTop and (selected or hovered):
                room = inside.adjusted(0, 0, -theme.px(_GLYPH), 0)
            painter.setFont(font)
            painter.setPen(theme.colour(role))
            elided = painter.fontMetrics().elidedText(text or "", Qt.TextElideMode.ElideRight, room.width())
            painter.drawText(room, int(align | Qt.AlignmentFlag.AlignLeft), elided)

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:  # noqa: N802
        """Return a field for another title, which hides the row below it."""
        editor: QWidget = super().createEditor(parent, option, index)
        editor.setAutoFillBackground(True)
        editor.setBackgroundRole(QPalette.ColorRole.Base)
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: _Index) -> None:  # noqa: N802
        """Place the field over the row, below a heading."""
        row = find_row(option.rect, index)
        height = min(theme.px(theme.CONTROL_HEIGHT), row.height())
        editor.setGeometry(row.left(), row.top() + (row.height() - height) // 2, row.width(), height)


def find_row(whole: QRect, index: _Index) -> QRect:
    """Return the rectangle of a conversation within that of its item, which may also have a heading."""
    return whole.adjusted(0, theme.px(_GROUP_HEIGHT) if index.data(_GROUP_ROLE) else 0, 0, 0)


def find_glyph(whole: QRect, index: _Index) -> QRect:
    """Return the rectangle of the menu's glyph within that of a conversation's item."""
    row, size, gap = find_row(whole, index), theme.px(_GLYPH), theme.px(6)
    return QRect(row.right() - gap - size, row.top() + gap, size, size)


class _ConversationListWidget(QListWidget):
    chosen = Signal(QListWidgetItem)
    """A conversation is to be opened."""
    menu_requested = Signal(QPoint)
    """The menu of the selected conversation is wanted at a place on the screen."""
    delete_requested = Signal()

    @property
    def is_editing(self) -> bool:
        """Whether a title is being edited."""
        return self.state() is QListWidget.State.EditingState

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Delete with Del, open with Enter."""
        item = self.currentItem()
        if self.is_editing:  # the key that ends an edit comes here, too
            super().keyPressEvent(event)
        elif event.key() == Qt.Key.Key_Delete:
            self.delete_requested.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and item is not None:
            self.chosen.emit(item)
        else:
            super().keyPressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Open the conversation under the pointer, or its menu if the pointer is on the glyph."""
        super().mouseReleaseEvent(event)
        place = event.position().toPoint()
        item = self.itemAt(place)
        if item is None or event.button() is not Qt.MouseButton.LeftButton:
            return
        whole, index = self.visualItemRect(item), self.indexFromItem(item)
        if find_glyph(whole, index).adjusted(-8, -8, 8, 8).contains(place):
            self.menu_requested.emit(event.globalPosition().toPoint())
        elif find_row(whole, index).contains(place):
            self.chosen.emit(item)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:  # noqa: N802
        """Open the menu of a conversation, by the mouse or the keyboard."""
        by_mouse = event.reason() is QContextMenuEvent.Reason.Mouse
        item = self.itemAt(event.pos()) if by_mouse else self.currentItem()
        if item is not None:
            place = event.globalPos() if by_mouse else self.mapToGlobal(self.visualItemRect(item).center())
            self.setCurrentItem(item)
            self.menu_requested.emit(place)


class ConversationList(QWidget):
    """List of stored conversations. A deletion can be undone until its banner closes."""

    opened = Signal(str)
    """The ID of a conversation."""
    deleted = Signal(str)
    """The ID of a deleted conversation."""

    def __init__(self, store: ChatStore) -> None:
        super().__init__()
        self._store = store
        self._hidden_id: str | None = None
        """The conversation that is hidden and will be deleted when the banner closes."""
        self._open_id: str | None = None
        """The conversation that is open."""
        self._filling = False
        self._hits: tuple[SearchHit, ...] = ()
        self._day = QDate()
        """The day for which the conversations are grouped."""
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search chats"))
        self.search.setAccessibleName(tr("Search in all conversations"))
        self.search.setToolTip(tr("Shows chats that contain all of these words (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self._search_timer = QTimer(self)
        self._search_timer.setSingleShot(True)
        self._search_timer.setInterval(_SEARCH_MS)
        self._search_timer.timeout.connect(self.refresh)
        self.search.textChanged.connect(lambda _: self._search_timer.start())
        self.list = _ConversationListWidget()
        self.search.returnPressed.connect(self.list.setFocus)
        self.list.setAccessibleName(tr("Conversations"))
        self.list.setMouseTracking(True)
        self.list.setItemDelegate(_ConversationDelegate(self.list))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.list.setEditTriggers(QListWidget.EditTrigger.EditKeyPressed)
        self.list.chosen.connect(lambda item: self.opened.emit(str(item.data(_ID_ROLE))))
        self.list.menu_requested.connect(self._show_menu)
        self.list.itemChanged.connect(self._store_title)
        self.list.delete_requested.connect(self.delete_selected)
        self.list.itemDelegate().closeEditor.connect(lambda *_: self.refresh())
        self._empty = Label()
        self._empty.setObjectName("secondary")
        self._empty.setWordWrap(True)
        self.banner = Banner()
        self.banner.closed.connect(self._delete_now)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self.search)
        layout.addWidget(self.banner)
        layout.addWidget(self._empty)
        layout.addWidget(self.list, 1)
        self._empty.hide()
        store.changed.connect(self._refresh_visible)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Read the conversations when the list becomes visible."""
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Reload the list."""
        text = self.search.text()

        def search(conversations: Conversations) -> tuple[str, tuple[SearchHit, ...]]:
            if text.strip():
                return text, conversations.search(text)
            return text, tuple(SearchHit(each, "") for each in conversations.list_all())

        self._store.enqueue(search, self._show_hits)

    def mark_open(self, conversation_id: str | None) -> None:
        """Select the conversation that is open, None for one that is not stored yet."""
        self._open_id = conversation_id
        self._select(conversation_id)

    def make_menu(self) -> QMenu:
        """Return the menu of the selected conversation."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for text, key, act in (
            (tr("Rename"), "F2", lambda: self.list.editItem(self.list.currentItem())),
            (tr("Export …"), "", self._choose_export_file),
            (tr("Delete"), "Del", self.delete_selected),
        ):
            entry = menu.addAction(f"{text}\t{key}" if key else text)
            entry.triggered.connect(lambda _checked=False, act=act: act())
        return menu

    def delete_selected(self) -> None:
        """Hide the selected conversation and offer to undo that. It is deleted when the banner closes."""
        item = self.list.currentItem()
        if item is None:
            return
        self._delete_now()
        conversation_id, title = str(item.data(_ID_ROLE)), item.text()
        self._hidden_id = conversation_id
        self._store.enqueue_change(lambda conversations: conversations.hide(conversation_id))
        self.deleted.emit(conversation_id)
        self.banner.show_message(
            tr("Deleted “{title}”.", title=title), "information", [(tr("Undo"), self._undo_deletion)]
        )
        self.refresh()

    def confirm_deletion(self) -> None:
        """Delete the hidden conversation for good; it can no longer be restored."""
        self._delete_now()
        self.banner.clear()

    def export_conversation(self, conversation_id: str, file: Path) -> None:
        """Write a conversation to a file, in the format of its suffix."""

        def write(conversations: Conversations) -> str:
            try:
                writer = find_writer(file)
                write_atomically(file, writer(conversations.read_conversation(conversation_id)).encode())
            except OSError as error:
                return tr("Cannot write {file}: {why}.", file=file.name, why=error.strerror or error)
            except LauncherError as error:
                return render(error.message)
            return ""

        def show_result(problem: str) -> None:
            if problem:
                self.banner.show_message(problem, "bad")
            else:
                self.banner.show_message(tr("Wrote {file}.", file=one_line(str(file))), "good")

        self._store.enqueue(write, show_result)

    @Slot()
    def _refresh_visible(self) -> None:
        if self.isVisible():
            self.refresh()

    @Slot(QPoint)
    def _show_menu(self, place: QPoint) -> None:
        self.make_menu().popup(place)

    def _undo_deletion(self) -> None:
        conversation_id, self._hidden_id = self._hidden_id, None
        self.banner.clear()
        if conversation_id is not None:
            self._store.enqueue_change(lambda conversations: conversations.hide(conversation_id, hidden=False))
            self.refresh()

    def _delete_now(self) -> None:
        conversation_id, self._hidden_id = self._hidden_id, None
        if conversation_id is not None:
            self._store.enqueue_change(lambda conversations: conversations.delete([conversation_id]))

    def _show_hits(self, result: tuple[str, tuple[SearchHit, ...]]) -> None:
        text, hits = result
        if text != self.search.text():
            return  # the text has changed since, and a newer search is under way
        self._empty.setVisible(not hits)
        self._empty.setText(
            tr("No chat contains all of these words.") if text.strip() else tr("Your chats will appear here.")
        )
        if self.list.is_editing or (hits == self._hits and self._day == QDate.currentDate()):
            return  # the list is read again when the editor closes
        self._hits, self._day = hits, QDate.currentDate()
        current = self.list.currentItem()
        selected = self._open_id if current is None else str(current.data(_ID_ROLE))
        self._filling = True
        self.list.clear()
        group = ""
        for hit in hits:
            self.list.addItem(self._make_item(hit, group))
            group = name_group(QDateTime.fromSecsSinceEpoch(int(hit.conversation.changed_s)).date(), self._day)
        self._filling = False
        self._select(selected)

    def _make_item(self, hit: SearchHit, group_before: str) -> QListWidgetItem:
        """Return the item of a conversation, with a heading if the one before it is in another group."""
        summary = hit.conversation
        item = QListWidgetItem(one_line(summary.title))
        item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
        item.setData(_ID_ROLE, summary.id)
        item.setData(_LINE_ROLE, one_line(hit.excerpt) or describe_conversation(summary, self._day))
        group = name_group(QDateTime.fromSecsSinceEpoch(int(summary.changed_s)).date(), self._day)
        item.setData(_GROUP_ROLE, group if group != group_before else "")
        item.setData(Qt.ItemDataRole.AccessibleDescriptionRole, f"{group}: {item.data(_LINE_ROLE)}")
        keys = tr("Enter opens, F2 renames, Del deletes")
        item.setToolTip(escape_tooltip("\n".join(filter(None, (summary.title, summary.model, keys)))))
        return item

    def _select(self, conversation_id: str | None) -> None:
        """Select a conversation, or none."""
        items = (self.list.item(number) for number in range(self.list.count()))
        found = next((item for item in items if item.data(_ID_ROLE) == conversation_id), None)
        if found is None:
            self.list.setCurrentRow(-1)
        elif found is not self.list.currentItem():
            self.list.setCurrentItem(found)

    def _store_title(self, item: QListWidgetItem) -> None:
        if not self._filling:
            conversation_id, title = str(item.data(_ID_ROLE)), item.text()
            self._hits = ()
            self._store.enqueue_change(lambda conversations: conversations.rename(conversation_id, title))
            self.refresh()

    def _choose_export_file(self) -> None:
        item = self.list.currentItem()
        if item is None:
            return
        conversation_id = str(item.data(_ID_ROLE))
        self._store.enqueue(
            lambda conversations: make_file_name(conversations.read_conversation(conversation_id), "md"),
            lambda name: self._show_export_dialog(conversation_id, name),
        )

    def _show_export_dialog(self, conversation_id: str, name: str) -> None:
        dialog = QFileDialog(self, tr("Export the conversation"), name)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([tr("Markdown (*.md)"), tr("JSON (*.json)"), tr("Text (*.txt)")])
        dialog.setDefaultSuffix("md")
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix(chosen.rpartition(".")[2].rstrip(")")))
        dialog.fileSelected.connect(lambda file: self.export_conversation(conversation_id, Path(file)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()
