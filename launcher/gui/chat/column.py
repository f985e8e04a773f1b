"""The turns of a conversation, one below the other, in an area that follows what grows."""

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPushButton, QScrollArea, QVBoxLayout, QWidget

from launcher.conversations.records import Message, Role
from launcher.gui import theme
from launcher.gui.chat.look import dense
from launcher.gui.chat.prompt import Question
from launcher.gui.chat.reply import Answer
from launcher.gui.words import ntr, tr

_NEAR_END, _LOWEST = 24, 90
_AT_ONCE = 10
"""Turns that are built at once of a conversation that is opened."""


@dataclass(eq=False, slots=True)
class Turn:
    """A question and what replies to it. `at` is the question's place among the messages."""

    at: int
    question: Question
    reply: QWidget


class Column(QScrollArea):
    """What is added last is kept in sight, unless the user has scrolled away from the end."""

    again_asked = Signal(object)
    edit_asked = Signal(object)
    version_asked = Signal(object, int)
    """A turn, and by how many versions back or forth"""

    def __init__(self) -> None:
        super().__init__()
        inside = QWidget()
        inside.setObjectName("conversation")
        self._layout = QVBoxLayout(inside)
        self._layout.setContentsMargins(0, 0, theme.px(theme.GAP), 0)
        self._layout.setSpacing(theme.px(theme.GAP_L))
        self._layout.addStretch()
        self.turns: list[Turn] = []
        self._earlier: Sequence[Message] = ()
        self._more: QPushButton | None = None
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWidget(inside)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumHeight(theme.px(_LOWEST))
        self.following = True
        self._coloured = False
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.timeout.connect(self._to_end)
        self.verticalScrollBar().rangeChanged.connect(self._follow)
        self.verticalScrollBar().valueChanged.connect(self._see_whether_to_follow)

    @property
    def answers(self) -> list[Answer]:
        """The replies that are shown, first one first; a compared one counts by its two."""
        return [answer for turn in self.turns for answer in _answers(turn)]

    def add(self, turn: Turn) -> None:
        """Put a turn at the end, in sight."""
        self.turns.append(turn)
        for widget in (turn.question, turn.reply):
            self._layout.insertWidget(self._layout.count() - 1, widget)
        self._connect(turn)
        self.following = True

    def exchange(self, turn: Turn, answer: Answer) -> None:
        """Put another reply into the place of a turn's."""
        self._remove(turn.reply)
        turn.reply = answer
        self._layout.insertWidget(self._layout.indexOf(turn.question) + 1, answer)
        self._connect(turn)
        self.following = True

    def cut(self, at: int) -> None:
        """Take the turns away whose questions are message `at` or a later one."""
        for turn in [turn for turn in self.turns if turn.at >= at]:
            self.turns.remove(turn)
            self._remove(turn.question)
            self._remove(turn.reply)

    def clear(self) -> None:
        """Take all turns away."""
        self.cut(0)
        self._earlier = ()
        self._show_more_button()

    def colour(self, *, coloured: bool) -> None:
        """Colour the tokens by draft step, or not, also of what is shown later."""
        self._coloured = coloured
        for answer in self.answers:
            answer.colour(coloured=coloured)

    def show_messages(self, messages: Sequence[Message]) -> None:
        """Show messages in place of all that is shown: their end; what comes before is offered."""
        self.clear()
        self._earlier = messages
        self._build_earlier()
        self.following = True

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """See what is near now."""
        super().resizeEvent(event)
        self._look()

    @Slot()
    def _build_earlier(self) -> None:
        for _ in range(_AT_ONCE):
            at = max((at for at, message in enumerate(self._earlier) if message.role is Role.USER), default=None)
            if at is None:
                self._earlier = ()
                break
            question, *replies = self._earlier[at:]
            self._earlier = self._earlier[:at]
            answer = Answer(coloured=self._coloured)
            for reply in replies:
                answer.recall(reply)
            answer.end(replies[0].footer if replies else tr("There is no reply."))
            turn = Turn(at, Question(question.text), answer)
            self.turns.insert(0, turn)
            self._layout.insertWidget(0, answer)
            self._layout.insertWidget(0, turn.question)
            self._connect(turn)
        self._show_more_button()

    def _show_more_button(self) -> None:
        if self._more is not None:
            self._remove(self._more)
            self._more = None
        count = sum(message.role is Role.USER for message in self._earlier)
        if count:
            words = ntr("Show 1 earlier question", "Show {n} earlier questions", count)
            self._more = dense(words, tr("Show what comes before, too"))
            self._more.clicked.connect(self._build_earlier)
            self._layout.insertWidget(0, self._more)

    def _connect(self, turn: Turn) -> None:
        for answer in _answers(turn):
            for body in answer.bodies:
                body.shifted.connect(self._shift)
        if isinstance(turn.reply, Answer):
            turn.reply.again_asked.connect(lambda: self.again_asked.emit(turn))
            turn.reply.edit_asked.connect(lambda: self.edit_asked.emit(turn))
            turn.reply.version_asked.connect(lambda by: self.version_asked.emit(turn, by))

    def _remove(self, widget: QWidget) -> None:
        self._layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()

    @Slot()
    def _follow(self) -> None:
        """The room that the turns take has changed."""
        if self.following and not self._soon.isActive():
            self._soon.start(0)
        self._look()

    @Slot(int)
    def _shift(self, pixels: int) -> None:
        """Go along with what is seen, before it is painted."""
        bar, following = self.verticalScrollBar(), self.following
        value = bar.value()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)  # until then its range is the old one
        if not following:
            bar.setValue(value + pixels)

    def _look(self) -> None:
        for answer in self.answers:
            for body in answer.bodies:
                body.look()

    @Slot()
    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        if self.following:  # the user may have scrolled since
            bar.setValue(bar.maximum())

    @Slot(int)
    def _see_whether_to_follow(self, value: int) -> None:
        self.following = value >= self.verticalScrollBar().maximum() - theme.px(_NEAR_END)
        self._look()


def _answers(turn: Turn) -> list[Answer]:
    return [turn.reply] if isinstance(turn.reply, Answer) else turn.reply.findChildren(Answer)
