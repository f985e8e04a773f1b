"""Scrolling column of a conversation's turns."""

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QScrollArea, QVBoxLayout, QWidget

from launcher.conversations.records import ChatMessage, Role
from launcher.gui import theme
from launcher.gui.chat.prompt import QuestionBubble
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.style import make_dense_button
from launcher.gui.chat.suggestions import Suggestions
from launcher.gui.translation import ntr, tr

_NEAR_END = 24
"""Pixels from the end within which the column still follows new text."""
_MIN_HEIGHT = 90
_TEXT_WIDTH, _WIDE_TEXT = 700, 1_100
"""Widths of the text at most, in pixels at 100 % scale: as reads best, and in the wide mode."""
_TURNS_AT_ONCE = 10
"""Turns that are built at once when a conversation is opened."""


@dataclass(eq=False, slots=True)
class Turn:
    """A question and its reply, or the pair of replies of a comparison.

    `index` is the question's index in the messages.
    """

    index: int
    question: QuestionBubble
    reply: QWidget


class TurnColumn(QScrollArea):
    """Scroll area that keeps the newest text in view unless the user has scrolled up."""

    regenerate_requested = Signal(object)
    edit_requested = Signal(object)
    version_requested = Signal(object, int)
    """A turn, and by how many versions to go forward (negative: back)."""
    text_moved = Signal(int, int)
    """The distances of the text from the left and the right edge, in pixels, have changed."""

    def __init__(self) -> None:
        super().__init__()
        inside = QWidget()
        inside.setObjectName("conversation")
        self._layout = QVBoxLayout(inside)
        self._layout.setSpacing(theme.px(theme.GAP_M))
        self.suggestions = Suggestions()
        self.suggestions.hide()
        self._suggests = False
        self._layout.addWidget(self.suggestions)
        self._layout.addStretch()
        self.turns: list[Turn] = []
        self._earlier: Sequence[ChatMessage] = ()
        """Messages before those that are shown."""
        self._earlier_button: QPushButton | None = None
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWidget(inside)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumHeight(theme.px(_MIN_HEIGHT))
        self.following = True
        self._coloured = self._wide = False
        self._scroll_timer = QTimer(self)
        self._scroll_timer.setSingleShot(True)
        self._scroll_timer.timeout.connect(self._scroll_to_end)
        self.verticalScrollBar().rangeChanged.connect(self._on_range_changed)
        self.verticalScrollBar().valueChanged.connect(self._update_following)

    @property
    def replies(self) -> list[ReplyView]:
        """The replies shown, in order. A comparison has two."""
        return [reply_view for turn in self.turns for reply_view in _list_replies(turn)]

    def add_turn(self, turn: Turn) -> None:
        """Append a turn and scroll to it."""
        self.turns.append(turn)
        for widget in (turn.question, turn.reply):
            self._layout.insertWidget(self._layout.count() - 1, widget)
        self._connect_turn(turn)
        self.following = True
        self._show_suggestions()

    @Slot()
    def _place_legend(self) -> None:
        """Show the legend of the colours once, under the first reply that has them."""
        replies = self.replies
        first = next((each for each in replies if each.has_drafts), None)
        for each in replies:
            each.show_legend(shown=each is first)

    def suggest_for(self, model: str | None, *, drafts: bool = False) -> None:
        """Suggest questions for a model, which may draft tokens, while there are no turns; None for no suggestions."""
        self._suggests = model is not None
        if model is not None:
            self.suggestions.show_for(model, drafts=drafts)
        self._show_suggestions()

    def _show_suggestions(self) -> None:
        self.suggestions.setVisible(self._suggests and not self.turns)

    def replace_reply(self, turn: Turn, reply_view: ReplyView) -> None:
        """Replace a turn's reply."""
        self._remove_widget(turn.reply)
        turn.reply = reply_view
        self._layout.insertWidget(self._layout.indexOf(turn.question) + 1, reply_view)
        self._connect_turn(turn)
        self.following = True

    def remove_from(self, index: int) -> None:
        """Remove the turns whose question is message `index` or a later one."""
        for turn in [turn for turn in self.turns if turn.index >= index]:
            self.turns.remove(turn)
            self._remove_widget(turn.question)
            self._remove_widget(turn.reply)
        self._place_legend()
        self._show_suggestions()

    def clear(self) -> None:
        """Remove all turns."""
        self.remove_from(0)
        self._earlier = ()
        self._show_earlier_button()

    def set_coloured(self, *, coloured: bool) -> None:
        """Turn the colouring of tokens by draft position on or off, also for later replies."""
        self._coloured = coloured
        for reply_view in self.replies:
            reply_view.set_coloured(coloured=coloured)
        self._place_legend()

    def show_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Show the end of `messages` in place of all turns. A button offers the earlier ones."""
        self.clear()
        self._earlier = messages
        self._build_earlier()
        self.following = True
        self._show_suggestions()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Place the text, and update the blocks near the viewport."""
        self._place_text()  # before the turns are laid out, which the scroll bar would make narrower for a moment
        super().resizeEvent(event)
        self._update_visible()

    def set_wide(self, *, wide: bool) -> None:
        """Let the text have the whole width, or the width that reads best."""
        self._wide = wide
        self._place_text()

    def _place_text(self) -> None:
        """Put the text into the middle, no wider than it should be."""
        width = self.viewport().width()
        most, least = theme.px(_WIDE_TEXT if self._wide else _TEXT_WIDTH), theme.px(theme.GAP_L)
        left = max((self.width() - most) // 2, least)
        right = max(width - left - most, least - (self.width() - width))
        gap = theme.px(theme.GAP_L)
        if self._layout.contentsMargins().left() != left or self._layout.contentsMargins().right() != right:
            self._layout.setContentsMargins(left, gap, right, gap)
        self.text_moved.emit(left, right + self.width() - width)

    @Slot()
    def _build_earlier(self) -> None:
        """Build the last turns of the earlier messages, and put them above the others."""
        for _ in range(_TURNS_AT_ONCE):
            questions = [index for index, message in enumerate(self._earlier) if message.role is Role.USER]
            if not questions:
                self._earlier = ()
                break
            index = questions[-1]
            question, *replies = self._earlier[index:]
            self._earlier = self._earlier[:index]
            reply_view = ReplyView(coloured=self._coloured)
            for reply in replies:
                reply_view.show_stored(reply)
            reply_view.end_reply(replies[0].footer if replies else tr("No reply yet."))
            turn = Turn(index, QuestionBubble(question.text, question.attachments), reply_view)
            self.turns.insert(0, turn)
            self._layout.insertWidget(0, reply_view)
            self._layout.insertWidget(0, turn.question)
            self._connect_turn(turn)
        self._place_legend()
        self._show_earlier_button()

    def _show_earlier_button(self) -> None:
        if self._earlier_button is not None:
            self._remove_widget(self._earlier_button)
            self._earlier_button = None
        count = sum(message.role is Role.USER for message in self._earlier)
        if count:
            label = ntr("Show 1 earlier question", "Show {n} earlier questions", count)
            self._earlier_button = make_dense_button(label, tr("Show earlier messages"))
            self._earlier_button.clicked.connect(self._build_earlier)
            self._layout.insertWidget(0, self._earlier_button)

    def _connect_turn(self, turn: Turn) -> None:
        for reply_view in _list_replies(turn):
            reply_view.ended.connect(self._place_legend)
            for body in reply_view.bodies:
                body.shifted.connect(self._keep_position)
        if isinstance(turn.reply, ReplyView):
            turn.reply.regenerate_requested.connect(lambda: self.regenerate_requested.emit(turn))
            turn.reply.edit_requested.connect(lambda: self.edit_requested.emit(turn))
            turn.reply.version_requested.connect(lambda by: self.version_requested.emit(turn, by))

    def _remove_widget(self, widget: QWidget) -> None:
        self._layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()

    @Slot()
    def _on_range_changed(self) -> None:
        """Scroll to the end after the turns have grown, if the column follows new text."""
        if self.following and not self._scroll_timer.isActive():
            self._scroll_timer.start(0)
        self._update_visible()

    @Slot(int)
    def _keep_position(self, pixels: int) -> None:
        """Scroll by the `pixels` that the turns above have grown, so that the visible text stays in place."""
        bar, following = self.verticalScrollBar(), self.following
        value = bar.value()
        # Lays out the turns now, for the scroll bar's range is stale until then.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
        if not following:
            bar.setValue(value + pixels)

    def _update_visible(self) -> None:
        for reply_view in self.replies:
            for body in reply_view.bodies:
                body.update_visible()

    @Slot()
    def _scroll_to_end(self) -> None:
        bar = self.verticalScrollBar()
        if self.following and self.turns:  # the user may have scrolled meanwhile; suggestions are read from their top
            bar.setValue(bar.maximum())

    @Slot(int)
    def _update_following(self, value: int) -> None:
        self.following = value >= self.verticalScrollBar().maximum() - theme.px(_NEAR_END)
        self._update_visible()


def _list_replies(turn: Turn) -> list[ReplyView]:
    return [turn.reply] if isinstance(turn.reply, ReplyView) else turn.reply.findChildren(ReplyView)
