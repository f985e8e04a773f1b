"""Layout of the chat pane: head, conversation, the place of the stored conversations, and the bars above the prompt."""

from collections import deque
from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.chat.chat_store import ChatStore
from launcher.gui.chat.column import TurnColumn
from launcher.gui.chat.compare import CompareBar
from launcher.gui.chat.composer import Composer
from launcher.gui.chat.conversation_list import ConversationList
from launcher.gui.chat.head import ChatHead
from launcher.gui.chat.style import chat_style_sheet, glyph_icon, make_dense_button
from launcher.gui.labels import Label
from launcher.gui.translation import tr
from launcher.gui.widgets import Banner, Card
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


class ChatsColumn(Card):
    """The stored conversations beside the chat, where there is room for a column of them."""

    def __init__(self) -> None:
        super().__init__(tr("Chats"))
        self.new_button = make_dense_button(tr("New"), tr("Start a new chat (Ctrl+N). This one is saved"))
        self.head.addWidget(self.new_button)
        gap, end = theme.px(theme.GAP_M), theme.px(10)
        self.body.setContentsMargins(gap, end, gap, gap)
        self.head.setContentsMargins(theme.px(theme.GAP_S), 0, 0, 0)
        self.recolour()

    def recolour(self) -> None:
        """Apply the current theme."""
        self.setStyleSheet(chat_style_sheet())
        self.new_button.setIcon(glyph_icon("plus", "text"))


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
        self.chats_column = ChatsColumn()
        self.chats_column.setParent(self)  # its parent until it is placed beside the chat
        self.chats_column.hide()
        self.compare_bar, self.editing_bar, self.prompts = CompareBar(), EditingBar(), PromptsBar()
        self.compare_bar.hide()
        self.system = SystemPrompt()
        self._build()

    def show_title(self, title: str) -> None:
        """Show the conversation's title, shortened to fit."""
        self.head.title.setText(one_line(title) or tr("New chat"))

    @property
    def has_column(self) -> bool:
        """Whether the conversations are in their column."""
        return self.chats_column.isAncestorOf(self.conversation_list)

    def show_column(self, shown: bool) -> None:
        """Put the conversations into their column, or else where the button *Chats* shows them."""
        if shown == self.has_column:
            return
        self.chats_button.setChecked(False)
        self.head.show_list_buttons(not shown)
        (self.chats_column.body if shown else self._list_layout).addWidget(self.conversation_list)
        self.conversation_list.show()

    @Slot()
    def focus_search(self) -> None:
        """Focus the search field for conversations."""
        if not self.has_column:
            self.chats_button.setChecked(True)
        self.conversation_list.search.setFocus()
        self.conversation_list.search.selectAll()

    @Slot(bool)
    def _show_conversation_list(self, shown: bool) -> None:
        self._stack.setCurrentIndex(1 if shown else 0)
        if shown:
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
        """Give the widgets above and below the conversation the margins of its text."""
        for layout in self._aligned:
            margins = layout.contentsMargins()
            layout.setContentsMargins(left, margins.top(), right, margins.bottom())

    def _build(self) -> None:
        self.setStyleSheet(chat_style_sheet())
        gap, small = theme.px(theme.GAP_L), theme.px(theme.GAP)
        self._aligned = [QVBoxLayout(), QVBoxLayout(), QVBoxLayout(), QVBoxLayout()]
        head, notice, above, below = self._aligned
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
        self._list_layout = QVBoxLayout(list_page)
        self._list_layout.setContentsMargins(gap, small, gap, gap)
        self._list_layout.addWidget(self.conversation_list)
        self._stack = QStackedWidget()
        self._stack.addWidget(chat_page)
        self._stack.addWidget(list_page)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(1, 0, 1, 1)
        layout.setSpacing(0)
        head.setContentsMargins(gap, small + 1, gap, small)
        head.addWidget(self.head)
        notice.setContentsMargins(gap, small, gap, 0)  # takes no room while the banner is hidden
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
        self.compare_button.clicked.connect(self.compare_bar.focus_first)
        for field in self.compare_bar.fields.values():
            field.returnPressed.connect(self.prompt.setFocus)
        self.show_title("")
