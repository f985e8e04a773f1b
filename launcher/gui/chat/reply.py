"""A reply as it comes: its thoughts folded, its blocks, its figures, and what can be done with it."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from PySide6.QtCore import QTimer, Signal, Slot
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.base.text import prose
from launcher.conversations.records import Message
from launcher.gui import theme
from launcher.gui.chat.body import Body
from launcher.gui.chat.code import CopyButton
from launcher.gui.chat.look import icon
from launcher.gui.chat.steps import Steps
from launcher.gui.chat.stream import Stream
from launcher.gui.labels import Label
from launcher.gui.words import ntr, tr

if TYPE_CHECKING:
    from launcher.engine.client import Delta

_AT_ONCE, _BUSY_S, _PAUSE_MS = 400, 0.008, 8
"""Characters that are taken in at once, for how long, and how long others then have their turn."""
_MOST_PARTS = 500
_DOT, _GLUE = " · ", "\N{NO-BREAK SPACE}"
MOST_SHOWN = 1_000_000
"""Characters that are shown. All of them are kept for the conversation."""


class Thoughts(QWidget):
    """What the model thought before it replied: its length, and the text when it is unfolded."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._shown = 0
        self._words, self._in_word = 0, False
        self._stream: Stream | None = None
        self._next = QTimer(self)
        self._next.setSingleShot(True)
        self._next.timeout.connect(self._show_more)
        self.button = QPushButton()
        self.button.setObjectName("fold")
        self.button.setCheckable(True)
        self.button.setToolTip(tr("Show what the model thought before it replied (reasoning)"))
        self.button.setIcon(icon("right"))
        self.button.toggled.connect(self._unfold)
        self.body = Body()
        self.body.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_S))
        layout.addWidget(self.button)
        layout.addWidget(self.body)
        self.hide()

    @property
    def said(self) -> str:
        """All of it, as it came."""
        return "".join(self._parts)

    def add(self, text: str) -> None:
        """Append text."""
        joined = self._in_word and not text[0].isspace()
        self._words += len(text.split()) - joined
        self._in_word = not text[-1].isspace()
        self._parts.append(text)
        self.button.setText(ntr("Thought, 1 word", "Thought, {n} words", self._words))
        self.show()
        if self._stream is not None:
            self._show_more()

    def recolour(self) -> None:
        """Take over another theme."""
        self._point()
        for block in self.body.blocks:
            block.recolour(coloured=False)

    def _point(self) -> None:
        self.button.setIcon(icon("open" if self.button.isChecked() else "right"))

    @Slot(bool)
    def _unfold(self, unfolded: bool) -> None:
        if unfolded and self._stream is None:
            self._stream = Stream(self.body, None, quiet=True)
        self.body.setVisible(unfolded)
        self._point()
        self._show_more()

    @Slot()
    def _show_more(self) -> None:
        """Show what came since; a little at a time."""
        if self._stream is None or not self.button.isChecked() or self._shown >= MOST_SHOWN:
            return
        text, until_s = self.said, perf_counter() + _BUSY_S
        while self._shown < len(text) and perf_counter() < until_s:
            now = text[self._shown : self._shown + _AT_ONCE]
            self._shown += len(now)
            self._stream.add(prose(now))
        if self._shown < len(text) and not self._next.isActive():
            self._next.start(_PAUSE_MS)


def _unbroken(footer: str) -> str:
    """Return a line of figures such that it is broken only between two of them, after the dot."""
    figures = footer.split(_DOT)
    if len(figures) == 1:
        return footer
    return f"{_GLUE}· ".join(each.replace(" ", _GLUE) for each in figures)


class Answer(QWidget):
    """A reply: its thoughts folded, its text, its figures, its buttons."""

    again_asked = Signal()
    edit_asked = Signal()
    version_asked = Signal(int)
    """By so many versions back or forth."""

    def __init__(self, *, coloured: bool = False) -> None:
        super().__init__()
        self.setAccessibleName(tr("Reply"))
        self.steps = Steps()
        self._parts: list[str] = []
        self._waiting: list[str] = []
        self._waits = self._taken = 0
        self.thoughts = Thoughts()
        self.body = Body()
        self._stream = Stream(self.body, self.steps)
        self.body.coloured = coloured
        self._footer = Label()
        self._footer.setObjectName("secondary")
        self._footer.setWordWrap(True)
        self._footer.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._footer.setTextInteractionFlags(theme.SELECTABLE)
        self._footer.hide()
        self._next = QTimer(self)
        self._next.setSingleShot(True)
        self._next.timeout.connect(self._show_more)
        self._ended = self._full = False
        self._actions = QWidget()
        self.copy_button = CopyButton(lambda: prose(self.said), tr("Copy this reply (Ctrl+Shift+C the last one)"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_S))
        for widget in (self.thoughts, self.body, self._footer, self._make_actions()):
            layout.addWidget(widget)

    @property
    def said(self) -> str:
        """The reply so far, as it came."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def bodies(self) -> tuple[Body, Body]:
        """Its thoughts and its text."""
        return self.thoughts.body, self.body

    @property
    def waiting(self) -> int:
        """Characters that came and are not shown yet."""
        return self._waits

    def take(self, deltas: "Sequence[Delta]") -> None:
        """Append what came, and note its steps."""
        text, reasoning = [], []
        for delta in deltas:
            text.append(delta.content)
            reasoning.append(delta.reasoning)
            if delta.content or (delta.timings is not None and delta.timings.predicted_n and not delta.reasoning):
                self.steps.add(len(prose(delta.content)), delta.timings)
        self._say("".join(text), "".join(reasoning))

    def add(self, text: str, reasoning: str) -> None:
        """Append what came, of which nobody knows the steps."""
        self.steps.add(len(prose(text)), None)
        self._say(text, reasoning)

    def recall(self, message: Message) -> None:
        """Show a reply that was kept, with its steps as far as they are known."""
        self.steps.recall(len(prose(message.text)), message.figures)
        self._say(message.text, message.thinking)

    def colour(self, *, coloured: bool) -> None:
        """Colour the tokens by draft step, or not."""
        self.body.coloured = coloured
        self.recolour()

    def recolour(self) -> None:
        """Set all blocks anew, one a turn of the loop."""
        self.thoughts.recolour()
        blocks = iter(self.body.blocks)

        def next_one() -> None:
            block = next(blocks, None)
            if block is not None and block in self.body.blocks:
                block.recolour(coloured=self.body.coloured)
                QTimer.singleShot(0, self, next_one)

        next_one()

    def end(self, footer: str) -> None:
        """Show the figures, or why it ended."""
        self._footer.setText(_unbroken(footer))
        self._footer.setVisible(bool(footer))
        self._actions.show()
        self.copy_button.setVisible(bool(self.said))
        self._ended = True
        if not self._waits:
            self._stream.end()

    def show_versions(self, number: int, count: int) -> None:
        """Say which of several versions this is; nothing where there is one."""
        for widget in (self._earlier, self._version, self._later):
            widget.setVisible(count > 1)
        self._version.setText(tr("{number} of {count}", number=number, count=count))
        self._earlier.setEnabled(number > 1)
        self._later.setEnabled(number < count)

    def show_actions(self, *, again: bool, edit: bool) -> None:
        """Offer to ask again and to edit the question, where that can be done."""
        self.again_button.setVisible(again)
        self.edit_button.setVisible(edit)

    def _make_actions(self) -> QWidget:
        actions = self._actions
        self.again_button = QPushButton(tr("Again"))
        self.again_button.setToolTip(tr("Ask for another reply; this one is kept as an earlier version"))
        self.again_button.clicked.connect(self.again_asked)
        self.edit_button = QPushButton(tr("Edit"))
        self.edit_button.setToolTip(tr("Change the question and ask it instead (Up in an empty field: the last one)"))
        self.edit_button.clicked.connect(self.edit_asked)
        self._earlier, self._later = QPushButton(), QPushButton()
        self._earlier.setIcon(icon("left"))
        self._later.setIcon(icon("right"))
        self._earlier.setAccessibleName(tr("Earlier version"))
        self._later.setAccessibleName(tr("Later version"))
        self._earlier.setToolTip(tr("Show the version before this one"))
        self._later.setToolTip(tr("Show the version after this one"))
        self._earlier.clicked.connect(lambda: self.version_asked.emit(-1))
        self._later.clicked.connect(lambda: self.version_asked.emit(1))
        self._version = Label()
        self._version.setObjectName("secondary")
        self._version.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        row = QHBoxLayout(actions)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP))
        for button in (self.copy_button, self.again_button, self.edit_button):
            button.setObjectName("dense")
            button.setAutoDefault(True)
            row.addWidget(button)
        row.addStretch()
        for each in (self._earlier, self._version, self._later):
            each.hide()
            row.addWidget(each)
        for button in (self._earlier, self._later):
            button.setObjectName("quiet")
            button.setAutoDefault(True)
        actions.hide()
        return actions

    def _say(self, text: str, reasoning: str) -> None:
        if reasoning:
            self.thoughts.add(reasoning)
        if not text:
            return
        self._parts.append(text)
        if len(self._parts) > _MOST_PARTS:
            self._parts = ["".join(self._parts)]
        if self._full:
            return
        shown = prose(text)
        room = MOST_SHOWN - self._taken
        self._taken += len(shown)
        if len(shown) > room:
            self._full = True
            left_out = tr("What comes after {count:,} characters is not shown.", count=MOST_SHOWN)
            shown = f"{shown[:room]}\n… {left_out}"
        self._waiting.append(shown)
        self._waits += len(shown)
        if not self._next.isActive():
            self._show_more()

    @Slot()
    def _show_more(self) -> None:
        text, until_s = "".join(self._waiting), perf_counter() + _BUSY_S
        shown = 0
        while shown < len(text) and perf_counter() < until_s:
            self._stream.add(text[shown : shown + _AT_ONCE])
            shown += _AT_ONCE
        self._waiting = [text[shown:]] if shown < len(text) else []
        self._waits = max(len(text) - shown, 0)
        if self._waits:
            self._next.start(_PAUSE_MS)
        elif self._ended:
            self._stream.end()
