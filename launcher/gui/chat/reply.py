"""A reply while it streams: folded thinking, blocks of text, figures and actions."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.base.text import visible_reply
from launcher.conversations.records import ChatMessage
from launcher.gui import theme
from launcher.gui.chat.block_stream import BlockStream
from launcher.gui.chat.body import Body
from launcher.gui.chat.code import CopyButton
from launcher.gui.chat.drafts import DraftLegend
from launcher.gui.chat.footer import SEPARATOR, split_footer
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.chat.style import glyph_icon
from launcher.gui.labels import Label, measure_line
from launcher.gui.translation import ntr, tr
from launcher.gui.widgets.blocks import make_caption

if TYPE_CHECKING:
    from launcher.engine.server.client import Delta

_CHARACTERS_AT_ONCE, _BUSY_S, _PAUSE_MS = 400, 0.008, 8
"""Characters per append, time budget per turn of the event loop, and pause between turns."""
_MOST_PARTS = 500
"""Pieces of received text that are kept before they are joined into one."""
_BESIDE_WIDTH = 620
"""Width in pixels from which the buttons are beside the figures."""
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
SHOWN_CHARACTERS = 1_000_000
"""Characters that are shown. All of them are stored with the conversation."""


class ReasoningView(QWidget):
    """The model's thinking before its reply: its length, and the text when expanded."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._shown_characters = 0
        self._words, self._in_word = 0, False
        self._ended = False
        self._stream: BlockStream | None = None
        self._continue_timer = QTimer(self)
        self._continue_timer.setSingleShot(True)
        self._continue_timer.timeout.connect(self._show_more)
        self.button = QPushButton()
        self.button.setObjectName("fold")
        self.button.setCheckable(True)
        self.button.setToolTip(tr("Show the model's thinking before the reply"))
        self.button.setIcon(glyph_icon("right"))
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
    def text(self) -> str:
        """The complete text as received."""
        return "".join(self._parts)

    def append_text(self, text: str) -> None:
        """Append text, which must not be empty."""
        continues_word = self._in_word and not text[0].isspace()
        self._words += len(text.split()) - continues_word
        self._in_word = not text[-1].isspace()
        self._parts.append(text)
        self._show_length()
        self.show()
        if self._stream is not None:
            self._show_more()

    def end_thinking(self) -> None:
        """Show that the model no longer thinks."""
        if not self._ended:
            self._ended = True
            self._show_length()

    def _show_length(self) -> None:
        if self._ended:
            self.button.setText(ntr("Thought, 1 word", "Thought, {n} words", self._words))
        else:
            self.button.setText(ntr("Thinking, 1 word", "Thinking, {n} words", self._words))

    def recolour(self) -> None:
        """Apply the current theme."""
        self._update_arrow()
        for block in self.body.blocks:
            block.recolour(coloured=False)

    def _update_arrow(self) -> None:
        self.button.setIcon(glyph_icon("open" if self.button.isChecked() else "right"))

    @Slot(bool)
    def _unfold(self, unfolded: bool) -> None:
        if unfolded and self._stream is None:
            self._stream = BlockStream(self.body, None, quiet=True)
        self.body.setVisible(unfolded)
        self._update_arrow()
        self._show_more()

    @Slot()
    def _show_more(self) -> None:
        """Show newly received text, a little per turn of the event loop."""
        if self._stream is None or not self.button.isChecked() or self._shown_characters >= SHOWN_CHARACTERS:
            return
        text, until_s = self.text, perf_counter() + _BUSY_S
        while self._shown_characters < len(text) and perf_counter() < until_s:
            piece = text[self._shown_characters :][:_CHARACTERS_AT_ONCE]
            self._shown_characters += len(piece)
            self._stream.append_text(visible_reply(piece))
        if self._shown_characters < len(text) and not self._continue_timer.isActive():
            self._continue_timer.start(_PAUSE_MS)


def _keep_figures_whole(footer: str) -> str:
    """Return a line of figures that wraps only between two figures, after the dot."""
    figures = footer.split(SEPARATOR)
    if len(figures) == 1:
        return footer
    return f"{_NO_BREAK_SPACE}· ".join(each.replace(" ", _NO_BREAK_SPACE) for each in figures)


class ReplyView(QWidget):
    """A reply: folded thinking, text, figures and buttons."""

    regenerate_requested = Signal()
    edit_requested = Signal()
    version_requested = Signal(int)
    """Number of versions to go forward (negative: back)."""
    ended = Signal()
    """The reply has ended."""

    def __init__(self, *, coloured: bool = False) -> None:
        super().__init__()
        self.setAccessibleName(tr("Reply"))
        self.steps = VerificationSteps()
        self._parts: list[str] = []
        """The text as received, in pieces."""
        self._waiting: list[str] = []
        """Text that is not shown yet, in pieces."""
        self._waiting_characters = 0
        self._queued_characters = 0
        """Characters that are shown or waiting."""
        self.reasoning = ReasoningView()
        self.body = Body()
        self._stream = BlockStream(self.body, self.steps)
        self.body.coloured = coloured
        self._footer = make_caption()
        self._footer.setTextInteractionFlags(theme.SELECTABLE)
        self._footer.hide()
        self._rate = Label()
        self._rate.setFont(theme.font(theme.CAPTION_PX, bold=True, tabular=True))
        self._rate.setTextInteractionFlags(theme.SELECTABLE)
        self._rate.hide()
        self._continue_timer = QTimer(self)
        self._continue_timer.setSingleShot(True)
        self._continue_timer.timeout.connect(self._show_more)
        self._ended = self._truncated = self._is_awaited = False
        self.copy_button = CopyButton(
            lambda: visible_reply(self.text), tr("Copy this reply. Ctrl+Shift+C copies the last one")
        )
        layout = self._column = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_S))
        self._actions = self._make_actions()
        for widget in (self.reasoning, self.body):
            layout.addWidget(widget)
        self._legend: DraftLegend | None = None
        self._foot = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._foot.setSpacing(theme.px(theme.GAP_S))
        figures = QHBoxLayout()
        figures.setSpacing(theme.px(theme.GAP))
        figures.addWidget(self._rate, 0, Qt.AlignmentFlag.AlignTop)
        figures.addWidget(self._footer, 1, Qt.AlignmentFlag.AlignTop)
        self._foot.addLayout(figures, 1)
        self._foot.addWidget(self._actions)
        layout.addLayout(self._foot)

    @property
    def text(self) -> str:
        """The reply so far, as received."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def bodies(self) -> tuple[Body, Body]:
        """The bodies of the thinking and of the text."""
        return self.reasoning.body, self.body

    @property
    def waiting(self) -> int:
        """Characters received but not shown yet."""
        return self._waiting_characters

    def await_text(self) -> None:
        """Show that the reply is awaited, until its first text or its end."""
        self._is_awaited = True
        self._footer.setText(tr("Waiting for the first token ..."))
        self._footer.show()

    def add_deltas(self, deltas: "Sequence[Delta]") -> None:
        """Append deltas and record their verification steps."""
        text, reasoning = [], []
        for delta in deltas:
            text.append(delta.content)
            reasoning.append(delta.reasoning)
            # A token may have no text of its own, such as half of a character; it still counts for its step.
            if delta.content or (delta.timings is not None and delta.timings.predicted_n and not delta.reasoning):
                self.steps.add_token(len(visible_reply(delta.content)), delta.timings)
        self._queue_text("".join(text), "".join(reasoning))

    def append_text(self, text: str, reasoning: str) -> None:
        """Append text whose steps are not known."""
        self.steps.add_token(len(visible_reply(text)), None)
        self._queue_text(text, reasoning)

    def show_stored(self, message: ChatMessage) -> None:
        """Show a stored reply, with its steps if they were stored."""
        self.steps.restore_steps(len(visible_reply(message.text)), message.figures)
        self._queue_text(message.text, message.thinking)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the buttons beside the figures where there is room."""
        super().resizeEvent(event)
        beside = self.width() >= theme.px(_BESIDE_WIDTH)
        directions = QBoxLayout.Direction
        direction = directions.LeftToRight if beside else directions.TopToBottom
        if direction is not self._foot.direction():
            self._foot.setDirection(direction)
            self._align_foot()

    def _align_foot(self) -> None:
        """Put the figures, and the buttons if they are beside them, on one baseline."""
        labels = (self._rate, self._footer)
        above = [measure_line(label.text(), label.font())[0] for label in labels]
        baseline = max(above)
        if self._foot.direction() is QBoxLayout.Direction.LeftToRight:
            ascent, descent = measure_line(self.edit_button.text(), self.edit_button.font())
            baseline = max(baseline, (self._actions.sizeHint().height() - ascent - descent) // 2 + ascent)
        for label, ascent in zip(labels, above, strict=True):
            label.setContentsMargins(0, baseline - ascent, 0, 0)

    @property
    def has_drafts(self) -> bool:
        """Whether the reply has ended, and tokens from drafts are coloured in it."""
        return self._ended and self.body.coloured and self.steps.last_position > 0

    def show_legend(self, *, shown: bool) -> None:
        """Show or hide the legend of the colours, below the text."""
        if shown and self._legend is None:
            self._legend = DraftLegend(self.steps)
            self._column.insertWidget(self._column.indexOf(self.body) + 1, self._legend)
        if self._legend is not None:
            self._legend.setVisible(shown)

    def set_coloured(self, *, coloured: bool) -> None:
        """Turn the colouring of tokens by draft position on or off."""
        self.body.coloured = coloured
        self.recolour()

    def recolour(self) -> None:
        """Recolour all blocks, one per turn of the event loop."""
        self.reasoning.recolour()
        blocks = iter(self.body.blocks)

        def recolour_next() -> None:
            block = next(blocks, None)
            if block is not None and block in self.body.blocks:
                block.recolour(coloured=self.body.coloured)
                QTimer.singleShot(0, self, recolour_next)

        recolour_next()

    def end_reply(self, footer: str) -> None:
        """Mark the reply as ended, and show a footer: its figures, or why it ended."""
        rate, rest = split_footer(footer)
        for label, text in ((self._rate, rate), (self._footer, _keep_figures_whole(rest))):
            label.setText(text)
            label.setVisible(bool(text))
        self._actions.show()
        self._align_foot()
        self.copy_button.setVisible(bool(self.text))
        self._ended = True
        self.reasoning.end_thinking()
        if not self.text and self.reasoning.text:
            self.reasoning.button.setChecked(True)  # a reply without text shows its reasoning at least
        if not self._waiting_characters:
            self._stream.end_text()
        self.ended.emit()

    def show_versions(self, number: int, count: int) -> None:
        """Show which of several versions this is; nothing if there is only one."""
        for widget in (self._earlier, self._version, self._later):
            widget.setVisible(count > 1)
        self._version.setText(tr("{number} of {count}", number=number, count=count))
        self._earlier.setEnabled(number > 1)
        self._later.setEnabled(number < count)

    def show_actions(self, *, can_resend: bool) -> None:
        """Show or hide the buttons that send the question again: Regenerate and Edit."""
        self.regenerate_button.setVisible(can_resend)
        self.edit_button.setVisible(can_resend)

    def _make_actions(self) -> QWidget:
        self.regenerate_button = QPushButton(tr("Regenerate"))
        self.regenerate_button.setToolTip(tr("Generate another reply. This one is kept as an earlier version"))
        self.regenerate_button.clicked.connect(self.regenerate_requested)
        self.edit_button = QPushButton(tr("Edit"))
        self.edit_button.setToolTip(tr("Edit this message and send it again. Up in an empty field edits the last one"))
        self.edit_button.clicked.connect(self.edit_requested)
        self._earlier, self._later = QPushButton(), QPushButton()
        self._earlier.setIcon(glyph_icon("left"))
        self._later.setIcon(glyph_icon("right"))
        self._earlier.setAccessibleName(tr("Earlier version"))
        self._later.setAccessibleName(tr("Later version"))
        self._earlier.setToolTip(tr("Show the previous version"))
        self._later.setToolTip(tr("Show the next version"))
        self._earlier.clicked.connect(lambda: self.version_requested.emit(-1))
        self._later.clicked.connect(lambda: self.version_requested.emit(1))
        self._version = Label()
        self._version.setObjectName("secondary")
        self._version.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        actions = QWidget()
        row = QHBoxLayout(actions)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP_S))
        for button in (self.copy_button, self.regenerate_button, self.edit_button):
            button.setObjectName("quiet")
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

    def _queue_text(self, text: str, reasoning: str) -> None:
        if self._is_awaited and (text or reasoning):
            self._is_awaited = False
            self._footer.hide()
        if reasoning:
            self.reasoning.append_text(reasoning)
        if not text:
            return
        self.reasoning.end_thinking()
        self._parts.append(text)
        if len(self._parts) > _MOST_PARTS:
            self._parts = ["".join(self._parts)]
        if self._truncated:
            return
        shown = visible_reply(text)
        room = SHOWN_CHARACTERS - self._queued_characters
        self._queued_characters += len(shown)
        if len(shown) > room:
            self._truncated = True
            left_out = tr("Text after the first {count:,} characters is not shown.", count=SHOWN_CHARACTERS)
            shown = f"{shown[:room]}\n… {left_out}"
        self._waiting.append(shown)
        self._waiting_characters += len(shown)
        if not self._continue_timer.isActive():
            self._show_more()

    @Slot()
    def _show_more(self) -> None:
        text, until_s = "".join(self._waiting), perf_counter() + _BUSY_S
        shown = 0
        while shown < len(text) and perf_counter() < until_s:
            self._stream.append_text(text[shown : shown + _CHARACTERS_AT_ONCE])
            shown += _CHARACTERS_AT_ONCE
        self._waiting = [text[shown:]] if shown < len(text) else []
        self._waiting_characters = max(len(text) - shown, 0)
        if self._waiting_characters:
            self._continue_timer.start(_PAUSE_MS)
        elif self._ended:
            self._stream.end_text()
