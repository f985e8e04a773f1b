"""The chat pane: ask, watch the reply stream, stop it; under each reply its figures."""

from typing import TYPE_CHECKING

from PySide6.QtCore import QSizeF, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QKeyEvent, QTextCursor
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QTextEdit,
    QVBoxLayout,
    QWidget,
)

from launcher.base.text import prose
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.viewmodel import View

if TYPE_CHECKING:
    from launcher.engine.client import Delta

_PROMPT_HEIGHT = 76
_SHORT_BUBBLE = 240
_NARROWEST = 300
_LONGEST_LINE, _AT_ONCE, _PAUSE_MS = 2_000, 16_000, 15
_MOST_SHOWN, _MOST_ASKED = 400_000, 20_000
"""Characters that are shown. All of them are kept for the conversation."""


class Prompt(QPlainTextEdit):
    """Where the user writes: Enter sends, Shift+Enter breaks the line."""

    sent = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("prompt")
        self.setAccessibleName("Your message")
        self.setTabChangesFocus(True)
        self.setFixedHeight(_PROMPT_HEIGHT)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Send, or write."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        else:
            super().keyPressEvent(event)


class Text(QTextEdit):
    """Read-only text that is as high as what it holds, and is appended to without laying out all of it again.

    Nothing in it is a link or a picture, whatever it says. It takes a little of what came at a time, and starts a new
    line where one is too long (Qt lays a line out in a time that grows with its square), so that the window answers.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self.setObjectName("reply")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Thoughts" if quiet else "Reply")
        self.setTextInteractionFlags(theme.SELECTABLE)
        self.setFont(theme.font(theme.CAPTION_PX if quiet else theme.BODY_PX))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self._parts: list[str] = []
        self._waiting = ""
        self._shown = self._column = 0
        self._next = QTimer(self)
        self._next.setSingleShot(True)
        self._next.timeout.connect(self._show_more)
        self._fit(self.document().size())

    @property
    def said(self) -> str:
        """All that was appended, as it came."""
        return "".join(self._parts)

    def add(self, text: str) -> None:
        """Append text."""
        self._parts.append(text)
        room = _MOST_SHOWN - self._shown - len(self._waiting)
        if room > 0:
            self._waiting += text[:room]
            if len(text) > room:
                self._waiting += f"\n… What comes after {_MOST_SHOWN:,} characters is not shown."
        if not self._next.isActive():
            self._show_more()

    @Slot()
    def _show_more(self) -> None:
        now, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        if not now:
            return
        self._shown += len(now)
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(self._broken(prose(now)))
        if self._waiting:
            self._next.start(_PAUSE_MS)

    def _broken(self, text: str) -> str:
        """Return text with no line longer than _LONGEST_LINE, counted from where the last one ended."""
        lines: list[str] = []
        for line in text.split("\n"):
            room = _LONGEST_LINE - (self._column if not lines else 0)
            pieces = [line[:room], *(line[at : at + _LONGEST_LINE] for at in range(room, len(line), _LONGEST_LINE))]
            self._column = len(pieces[-1]) + (self._column if not lines and len(pieces) == 1 else 0)
            lines += pieces
        return "\n".join(lines)

    @Slot(QSizeF)
    def _fit(self, size: QSizeF) -> None:
        height = max(int(size.height()) + 4, self.fontMetrics().height() + 4)
        if height != self.height():
            self.setFixedHeight(height)


class Question(QWidget):
    """What the user asked, in a bubble at the right."""

    def __init__(self, text: str) -> None:
        super().__init__()
        text = text if len(text) <= _MOST_ASKED else f"{text[:_MOST_ASKED]} …"
        bubble = Label(text)
        bubble.setObjectName("bubble")
        bubble.setTextInteractionFlags(theme.SELECTABLE)
        bubble.setMargin(theme.GAP_M)
        bubble.setAccessibleName(f"You asked: {text}")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(theme.GAP_XL, 0, 0, 0)
        short = "\n" not in text and bubble.fontMetrics().horizontalAdvance(text) < _SHORT_BUBBLE
        bubble.setWordWrap(not short)
        layout.addStretch(1)
        layout.addWidget(bubble, 0 if short else 12)


class Answer(QWidget):
    """A reply: its thoughts folded, its text, its figures."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Reply")
        self._thoughts = Text(quiet=True)
        self._thoughts.hide()
        self._words, self._in_word = 0, False
        self._fold = QPushButton()
        self._fold.setObjectName("fold")
        self._fold.setCheckable(True)
        self._fold.hide()
        self._fold.toggled.connect(self._unfold)
        self._text = Text()
        self._footer = Label()
        self._footer.setObjectName("secondary")
        self._footer.setWordWrap(True)
        self._footer.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._footer.setTextInteractionFlags(theme.SELECTABLE)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.GAP_S)
        for widget in (self._fold, self._thoughts, self._text, self._footer):
            layout.addWidget(widget)

    def add(self, text: str, reasoning: str) -> None:
        """Append what came."""
        if reasoning:
            joined = self._in_word and not reasoning[0].isspace()
            self._words += len(reasoning.split()) - joined
            self._in_word = not reasoning[-1].isspace()
            self._thoughts.add(reasoning)
            self._name_fold()
            self._fold.show()
        if text:
            self._text.add(text)

    def _name_fold(self) -> None:
        self._fold.setText(f"{'▾' if self._fold.isChecked() else '▸'} Thought, {self._words} words")

    @Slot(bool)
    def _unfold(self, unfolded: bool) -> None:
        self._thoughts.setVisible(unfolded)
        self._name_fold()

    def end(self, footer: str) -> None:
        """Show the figures, or why it ended."""
        self._footer.setText(footer)

    @property
    def text(self) -> str:
        """The reply so far."""
        return self._text.said


class ChatPane(QFrame):
    """The conversation and the prompt."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.setObjectName("card")
        self.setMinimumWidth(_NARROWEST)
        self.messages: list[dict[str, str]] = []
        self._answer: Answer | None = None
        self._can_ask = self._replying = False
        title = Label("Chat")
        title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self._new = QPushButton("New chat")
        self._new.setToolTip("Forget this conversation and begin another")
        self._new.clicked.connect(self.clear)
        head = QHBoxLayout()
        head.addWidget(title)
        head.addStretch()
        head.addWidget(self._new)
        self._conversation = QWidget()
        self._conversation.setObjectName("conversation")
        self._column = QVBoxLayout(self._conversation)
        self._column.setContentsMargins(0, 0, theme.GAP, 0)
        self._column.setSpacing(theme.GAP_L)
        self._column.addStretch()
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setWidget(self._conversation)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.verticalScrollBar().rangeChanged.connect(self._follow)
        self._following = True
        self._area.verticalScrollBar().valueChanged.connect(self._see_whether_to_follow)
        self.prompt = Prompt()
        self.prompt.sent.connect(self._send)
        self._button = QPushButton("Send")
        self._button.setObjectName("primary")
        self._button.clicked.connect(self._send_or_stop)
        below = QHBoxLayout()
        below.addStretch()
        below.addWidget(self._button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.GAP_L, theme.GAP_M, theme.GAP_L, theme.GAP_L)
        layout.setSpacing(theme.GAP_M)
        layout.addLayout(head)
        layout.addWidget(self._area, 1)
        layout.addWidget(self.prompt)
        layout.addLayout(below)
        controller.deltas.connect(self._take)
        controller.replied.connect(self._take_reply)
        controller.view_changed.connect(self._show_view)
        self._show_view(controller.view)

    @Slot(object)
    def _show_view(self, view: View) -> None:
        self.show_abilities(can_ask=view.can_ask, replying=view.replying, hint=view.prompt_hint)

    @Slot(object)
    def _take(self, deltas: "list[Delta]") -> None:
        text, reasoning = (each.content for each in deltas), (each.reasoning for each in deltas)
        self.add("".join(text), "".join(reasoning))

    @Slot(object, str)
    def _take_reply(self, _reply: object, footer: str) -> None:
        self.end(footer)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the reply with Esc, wherever in the pane the focus is."""
        if event.key() == Qt.Key.Key_Escape:
            self._controller.stop_reply()
        else:
            super().keyPressEvent(event)

    def show_abilities(self, *, can_ask: bool, replying: bool, hint: str) -> None:
        """Enable what is possible now."""
        self._can_ask = can_ask
        self._replying = replying
        self._button.setText("Stop reply" if replying else "Send")
        self._button.setEnabled(can_ask or replying)
        self._new.setEnabled(not replying)
        self.prompt.setPlaceholderText(hint)

    def ask(self, text: str) -> None:
        """Put a question into the conversation and ask it."""
        self.messages.append({"role": "user", "content": text})
        self._add(Question(text))
        self._answer = Answer()
        self._add(self._answer)
        self._following = True
        self._controller.ask(list(self.messages))

    def add(self, text: str, reasoning: str) -> None:
        """Append to the reply that is under way."""
        if self._answer is not None:
            self._answer.add(text, reasoning)

    def end(self, footer: str) -> None:
        """End the reply that is under way; what came of it stays in the conversation."""
        if self._answer is not None:
            self._answer.end(footer)
            if self._answer.text:
                self.messages.append({"role": "assistant", "content": self._answer.text})
            else:  # a question that got no answer, as one that was too long, is not asked again with the next
                self.messages.pop()
            self._answer = None

    @Slot()
    def clear(self) -> None:
        """Begin a new conversation."""
        self.messages.clear()
        while self._column.count() > 1:
            item = self._column.takeAt(0)
            widget = item.widget() if item else None
            if widget is not None:
                widget.deleteLater()
        self.prompt.setFocus()

    def _add(self, widget: QWidget) -> None:
        self._column.insertWidget(self._column.count() - 1, widget)

    @Slot()
    def _send(self) -> None:
        text = self.prompt.toPlainText().strip()
        if text and self._can_ask:
            self.prompt.clear()
            self.ask(text)

    @Slot()
    def _send_or_stop(self) -> None:
        if self._replying:
            self._controller.stop_reply()
        else:
            self._send()

    @Slot()
    def _follow(self) -> None:
        if self._following:
            bar = self._area.verticalScrollBar()
            QTimer.singleShot(0, bar, lambda: bar.setValue(bar.maximum()))

    @Slot(int)
    def _see_whether_to_follow(self, value: int) -> None:
        self._following = value >= self._area.verticalScrollBar().maximum() - 24
