"""Layout of the chat pane: head, conversation, list of conversations, and the bars above the prompt."""

from collections import deque
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
    Slot,
)
from PySide6.QtGui import QKeyEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.conversations.export import find_writer, make_file_name
from launcher.conversations.records import ConversationSummary, SearchHit
from launcher.conversations.store import Conversations
from launcher.gui import theme
from launcher.gui.chat.chat_store import ChatStore
from launcher.gui.chat.column import TurnColumn
from launcher.gui.chat.compare import CompareBar
from launcher.gui.chat.composer import Composer
from launcher.gui.chat.head import ChatHead
from launcher.gui.chat.style import chat_style_sheet, glyph_icon, make_dense_button
from launcher.gui.labels import Label
from launcher.gui.translation import ntr, render, tr
from launcher.gui.widgets import Banner
from launcher.gui.window_settings import open_window_settings

# Bars above the prompt (for a question being edited, for prompts from a file) and the field for the system prompt.

_SYSTEM_HEIGHT = 84


class EditingBar(QFrame):
    """Bar shown while a question is being edited, with a cancel button."""

    cancelled = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("editing")
        text = Label(tr("Editing a question. The messages after it are kept as an earlier version."))
        text.setFont(theme.font(theme.CAPTION_PX))
        text.setWordWrap(True)
        cancel = make_dense_button(tr("Cancel"), tr("Cancel editing (Esc)"))
        cancel.clicked.connect(self.cancelled)
        row = QHBoxLayout(self)
        row.setContentsMargins(
            theme.px(theme.GAP_M), theme.px(theme.GAP_S), theme.px(theme.GAP_S), theme.px(theme.GAP_S)
        )
        row.addWidget(text, 1)
        row.addWidget(cancel)
        self.hide()


class PromptsBar(QFrame):
    """Queue of prompts from a file, asked one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("editing")
        self._remaining: deque[str] = deque()
        self._count = 0
        self._name = ""
        self._text = Label()
        self._text.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._text.setWordWrap(True)
        self.alone = QCheckBox(tr("Separate chats"))
        self.alone.setChecked(True)
        self.alone.setToolTip(tr("Send each prompt without the earlier ones, so that replies can be compared"))
        stop = make_dense_button(tr("Stop"), tr("Send no more prompts. The current reply continues (Esc stops it)"))
        stop.clicked.connect(self.clear)
        row = QHBoxLayout()
        row.addWidget(self.alone)
        row.addStretch()
        row.addWidget(stop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(
            theme.px(theme.GAP_M), theme.px(theme.GAP_S), theme.px(theme.GAP_S), theme.px(theme.GAP_S)
        )
        layout.setSpacing(theme.px(theme.GAP_S))
        layout.addWidget(self._text)
        layout.addLayout(row)
        self.hide()

    @property
    def active(self) -> bool:
        """Whether prompts from a file are being asked."""
        return bool(self._count)

    def start_file(self, file: Path, prompts: tuple[str, ...]) -> None:
        """Queue the prompts of a file and show the bar."""
        self._remaining, self._count, self._name = deque(prompts), len(prompts), one_line(file.name, 60)
        self.show()

    def take_next(self) -> str | None:
        """Return the next prompt, or None when all have been asked."""
        if not self._remaining:
            self.clear()
            return None
        prompt = self._remaining.popleft()
        number = self._count - len(self._remaining)
        self._text.setText(
            tr("Prompt {number} of {count} from {file}", number=number, count=self._count, file=self._name)
        )
        return prompt

    @Slot()
    def clear(self) -> None:
        """Drop the remaining prompts."""
        self._remaining.clear()
        self._count = 0
        self.hide()


class SystemPrompt(QWidget):
    """Field for the system prompt, folded to one line, which is hidden while there is none."""

    changed = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._button = QPushButton()
        self._button.setObjectName("fold")
        self._button.setCheckable(True)
        self._button.setAutoDefault(True)
        self._button.setToolTip(tr("Instructions for the model at the start of the chat"))
        self._button.toggled.connect(self._unfold)
        self._button.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.edit = QPlainTextEdit()
        self.edit.setAccessibleName(tr("System prompt"))
        self.edit.setPlaceholderText(tr("Such as: Answer in one sentence."))
        self.edit.setTabChangesFocus(True)
        self.edit.setFixedHeight(theme.px(_SYSTEM_HEIGHT))
        self.edit.hide()
        self._last_text = ""
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_S))
        layout.addWidget(self._button)
        layout.addWidget(self.edit)
        self.edit.textChanged.connect(self._show_title)
        self._show_title()

    @property
    def text(self) -> str:
        """The system prompt."""
        return self.edit.toPlainText().strip()

    def show_text(self, text: str) -> None:
        """Set the text without emitting `changed`."""
        self._last_text = text
        self.edit.setPlainText(text)

    @Slot()
    def open_field(self) -> None:
        """Show the field, and focus it."""
        self._button.setChecked(True)
        self.edit.setFocus()

    def commit_edit(self) -> None:
        """Emit `changed` if the prompt was edited."""
        if self.text != self._last_text:
            self._last_text = self.text
            self.changed.emit(self.text)

    def recolour(self) -> None:
        """Apply the current theme."""
        self._show_title()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show as much of the prompt as fits on the line."""
        super().resizeEvent(event)
        self._show_title()

    def _show_title(self) -> None:
        text, is_open = one_line(self.text, 200), self._button.isChecked()
        title = tr("System prompt: {text}", text=text) if text and not is_open else tr("System prompt")
        room = self.width() - theme.px(32)
        self._button.setText(
            self._button.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, room).replace("&", "&&")
        )
        self._button.setAccessibleName(title)
        self._button.setIcon(glyph_icon("open" if is_open else "right"))
        self.setVisible(is_open or bool(text))

    @Slot(bool)
    def _unfold(self, unfolded: bool) -> None:
        self.edit.setVisible(unfolded)
        if unfolded:
            self.edit.setFocus()
        else:
            self.commit_edit()
        self._show_title()


# List of stored conversations: search, open, rename, export, delete.

_SEARCH_MS = 150
_ID_ROLE, _LINE_ROLE = Qt.ItemDataRole.UserRole, Qt.ItemDataRole.UserRole + 1


class _TwoLineDelegate(QStyledItemDelegate):
    """Paints a title with a second line under it."""

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
        if option.state & option.state.State_Selected:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("raised"))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), theme.px(6), theme.px(6))
        inside = rect.adjusted(theme.px(10), theme.px(7), -theme.px(10), -theme.px(7))
        title, second_line = index.data(Qt.ItemDataRole.DisplayRole), index.data(_LINE_ROLE)
        for role, text, font, align in (
            ("text", title, theme.font(theme.BODY_PX), Qt.AlignmentFlag.AlignTop),
            ("secondary", second_line, theme.font(theme.CAPTION_PX, tabular=True), Qt.AlignmentFlag.AlignBottom),
        ):
            painter.setFont(font)
            painter.setPen(theme.colour(role))
            elided = painter.fontMetrics().elidedText(text or "", Qt.TextElideMode.ElideRight, inside.width())
            painter.drawText(inside, int(align | Qt.AlignmentFlag.AlignLeft), elided)


class _ConversationListWidget(QListWidget):
    delete_requested = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Delete with Del, open with Enter."""
        if event.key() == Qt.Key.Key_Delete:
            self.delete_requested.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentItem() is not None:
            self.itemActivated.emit(self.currentItem())
        else:
            super().keyPressEvent(event)


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
        self._filling = False
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search in all conversations"))
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
        self.list.setToolTip(tr("Enter opens, F2 renames, Del deletes"))
        self.list.setItemDelegate(_TwoLineDelegate(self.list))
        self.list.setUniformItemSizes(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setEditTriggers(QListWidget.EditTrigger.EditKeyPressed)
        self.list.itemActivated.connect(lambda item: self.opened.emit(item.data(_ID_ROLE)))
        self.list.itemChanged.connect(self._store_title)
        self.list.currentItemChanged.connect(lambda *_: self._update_buttons())
        self.list.delete_requested.connect(self.delete_selected)
        self._empty = Label()
        self._empty.setObjectName("secondary")
        self._empty.setWordWrap(True)
        self.banner = Banner()
        self.banner.closed.connect(self._delete_now)
        self._open = make_dense_button(tr("Open"), tr("Continue the selected chat (Enter)"))
        self._open.clicked.connect(lambda: self.opened.emit(self.list.currentItem().data(_ID_ROLE)))
        self._rename = make_dense_button(tr("Rename"), tr("Rename the selected chat (F2)"))
        self._rename.clicked.connect(lambda: self.list.editItem(self.list.currentItem()))
        self._export = make_dense_button(tr("Export …"), tr("Save the selected chat to a file: Markdown, JSON or text"))
        self._export.clicked.connect(self._choose_export_file)
        self._delete = make_dense_button(
            tr("Delete"), tr("Delete the selected chat (Del). You can undo this for a short time")
        )
        self._delete.clicked.connect(self.delete_selected)
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
        self._update_buttons()

    def refresh(self) -> None:
        """Reload the list."""
        text = self.search.text()

        def search(conversations: Conversations) -> tuple[str, tuple[SearchHit, ...]]:
            if text.strip():
                return text, conversations.search(text)
            return text, tuple(SearchHit(each, "") for each in conversations.list_all())

        self._store.enqueue(search, self._show_hits)

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
            from launcher.base.files import write_atomically

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
        current = self.list.currentItem().data(_ID_ROLE) if self.list.currentItem() else None
        self._filling = True
        self.list.clear()
        for hit in hits:
            item = QListWidgetItem(one_line(hit.conversation.title))
            item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
            item.setData(_ID_ROLE, hit.conversation.id)
            item.setData(_LINE_ROLE, one_line(hit.excerpt) or _summary_line(hit.conversation))
            item.setData(Qt.ItemDataRole.AccessibleDescriptionRole, item.data(_LINE_ROLE))
            self.list.addItem(item)
            if hit.conversation.id == current:
                self.list.setCurrentItem(item)
        self._filling = False
        self._empty.setVisible(not hits)
        self._empty.setText(
            tr("No chat contains all of these words.") if text.strip() else tr("Your chats will appear here.")
        )
        self._update_buttons()

    def _store_title(self, item: QListWidgetItem) -> None:
        if not self._filling:
            conversation_id, title = str(item.data(_ID_ROLE)), item.text()
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

    def _update_buttons(self) -> None:
        for button in (self._open, self._rename, self._export, self._delete):
            button.setEnabled(self.list.currentItem() is not None)


def _summary_line(summary: ConversationSummary) -> str:
    changed = QDateTime.fromSecsSinceEpoch(int(summary.changed_s))
    today = changed.date() == QDate.currentDate()
    when = changed.toString("HH:mm") if today else QLocale().toString(changed.date(), QLocale.FormatType.ShortFormat)
    return " · ".join(filter(None, (when, ntr("1 message", "{n} messages", summary.messages), summary.model)))


_LEAST_WIDTH = 280
_WIDE_KEY = "chat/wide"


class ChatFrame(QFrame):
    """Widgets of the chat pane. ChatPane connects them."""

    def __init__(self, store: ChatStore | None = None) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setMinimumWidth(theme.px(_LEAST_WIDTH))
        self.store = ChatStore() if store is None else store
        self.store.setParent(self)
        self.head, self.column, self.composer, self.banner = ChatHead(), TurnColumn(), Composer(), Banner()
        self.prompt, self.send_button = self.composer.prompt, self.composer.send_button
        self.chats_button, self.new_button = self.head.chats_button, self.head.new_button
        self.colour_button, self.compare_button = self.head.colour_button, self.head.compare_button
        self.title_row, self.from_file = self.head.row, self.head.from_file
        self.conversation_list = ConversationList(self.store)
        self.compare_bar, self.editing_bar, self.prompts = CompareBar(), EditingBar(), PromptsBar()
        self.compare_bar.hide()
        self.system = SystemPrompt()
        self._build()

    def show_title(self, title: str) -> None:
        """Show the conversation's title, shortened to fit."""
        self.head.title.setText(one_line(title) or tr("New chat"))

    @Slot()
    def focus_search(self) -> None:
        """Focus the search field for conversations."""
        self.chats_button.setChecked(True)
        self.conversation_list.search.setFocus()
        self.conversation_list.search.selectAll()

    @Slot(bool)
    def _show_conversation_list(self, shown: bool) -> None:
        self._stack.setCurrentIndex(1 if shown else 0)
        if shown:
            self.conversation_list.refresh()
            self.conversation_list.search.setFocus()
        else:
            self.conversation_list.confirm_deletion()
            self.prompt.setFocus()

    @Slot(bool)
    def _set_wide(self, wide: bool) -> None:
        open_window_settings().setValue(_WIDE_KEY, wide)
        self.column.set_wide(wide=wide)

    @Slot(int, int)
    def _align_to_text(self, left: int, right: int) -> None:
        """Give what is above and below the conversation the margins of its text."""
        for layout in self._aligned:
            margins = layout.contentsMargins()
            layout.setContentsMargins(left, margins.top(), right, margins.bottom())

    def _build(self) -> None:
        self.setStyleSheet(chat_style_sheet())
        gap, small = theme.px(theme.GAP_L), theme.px(theme.GAP)
        self._aligned = [QVBoxLayout(), QVBoxLayout()]
        above, below = self._aligned
        above.addWidget(self.system)
        below.setContentsMargins(0, small, 0, gap)
        below.setSpacing(small)
        for widget in (self.compare_bar, self.prompts, self.editing_bar, self.composer):
            below.addWidget(widget)
        chat_page = QWidget()
        chat_page.setObjectName("plain")
        column = QVBoxLayout(chat_page)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addLayout(above)
        column.addWidget(self.column, 1)
        column.addLayout(below)
        list_page = QWidget()
        list_page.setObjectName("plain")
        list_layout = QVBoxLayout(list_page)
        list_layout.setContentsMargins(gap, small, gap, gap)
        list_layout.addWidget(self.conversation_list)
        self._stack = QStackedWidget()
        self._stack.addWidget(chat_page)
        self._stack.addWidget(list_page)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(1, 0, 1, 1)
        layout.setSpacing(0)
        head = QVBoxLayout()
        head.setContentsMargins(gap, small, small, small)
        head.addWidget(self.head)
        notice = QVBoxLayout()
        notice.setContentsMargins(gap, 0, gap, 0)
        notice.addWidget(self.banner)
        layout.addLayout(head)
        layout.addWidget(line)
        layout.addLayout(notice)
        layout.addWidget(self._stack, 1)
        self.column.text_moved.connect(self._align_to_text)
        self.head.wide_button.toggled.connect(self._set_wide)
        self.head.wide_button.setChecked(bool(open_window_settings().value(_WIDE_KEY, defaultValue=False, type=bool)))
        self.head.system_entry.triggered.connect(self.system.open_field)
        self.chats_button.toggled.connect(self._show_conversation_list)
        self.compare_button.toggled.connect(self.compare_bar.setVisible)
        self.compare_button.toggled.connect(self.compare_bar.expand)
        self.show_title("")
