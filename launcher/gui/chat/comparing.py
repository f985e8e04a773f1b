"""One question to two settings, from its A to its end."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError
from launcher.conversations.records import Ending
from launcher.gui.chat.compare import CompareBar, Course, Pair, in_words
from launcher.gui.chat.reply import Answer
from launcher.gui.chat.talk import Talk
from launcher.gui.controller import Controller
from launcher.gui.sentences import say_error
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Reply

Send = Callable[[Answer, Mapping[str, Any], Mapping[str, Any]], None]
"""Asks for a reply: where it is shown, its sampling values, what is noted of it."""


class Comparing(QObject):
    """Both replies are kept as versions of one; the conversation goes on with A until the user chooses B."""

    over = Signal()

    def __init__(
        self, controller: Controller, talk: Talk, bar: CompareBar, send: Send, parent: QObject, *, coloured: bool
    ) -> None:
        """Raise BadOption for values of B that cannot be, before anything is asked."""
        super().__init__(parent)
        sampling, restart = bar.chosen()
        self._talk, self._send = talk, send
        self._values = sampling | restart
        self._sampling = {**controller.sampling, **sampling}
        self.pair = Pair((tr("as it runs"), in_words(self._values)), coloured=coloured)
        self._course = Course(controller, restart, self)
        self._ids: list[str] = []
        self._course.said.connect(self.pair.say_of_b)
        self._course.ready.connect(self._ask_b)
        self._course.failed.connect(self._fail)
        self._course.ended.connect(self.over)

    def end(self, message: str, answer: Answer, reply: "Reply | None", footer: str) -> None:
        """Take the end of a reply."""
        first = not self._ids
        self._ids.append(message)
        if first and not answer.said:
            self._talk.give_up(message, Ending.STOPPED if reply is None else Ending.WHOLE, footer)
            self.over.emit()
            return
        self._talk.end_reply(message, answer.said, reply, footer, steps=answer.steps, goes_on=first)
        if not first:
            texts = [each.said for each in self.pair.answers]
            ids, talk = list(self._ids), self._talk
            self.pair.chosen.connect(lambda number: talk.go_on_with(ids[number], texts[number]))
            self.pair.offer()
            self._course.come_back()
        elif reply is None:
            self.pair.say_of_b(tr("B was not asked, because A was stopped."))
            self.over.emit()
        else:
            self._course.go_to_b()

    def leave(self) -> None:
        """Ask nothing more, and let the server run as before; `over` tells."""
        self._course.leave()

    def _ask_b(self) -> None:
        """The question stands last while B is asked."""
        message, id_ = self._talk.messages.pop(), self._talk.ids.pop()
        self._send(self.pair.answers[1], self._sampling, {"compared": dict(self._values)})
        self._talk.messages.append(message)
        self._talk.ids.append(id_)

    def _fail(self, error: LauncherError) -> None:
        self.pair.say_of_b(say_error(error))
        self.over.emit()
