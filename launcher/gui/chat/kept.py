"""What the chat keeps, and hears from the file of conversations: nothing here waits for a disk."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import QObject, Qt, Signal, Slot

from launcher import settings
from launcher.conversations.store import Conversations
from launcher.conversations.writer import Writer
from launcher.settings_declared import KEEP

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.engine.launch import Launch

_T = TypeVar("_T")


class Kept(QObject):
    """The thread that writes, as the window uses it: what it tells comes on the window's thread."""

    failed = Signal(object)
    """LauncherError: something was not kept"""
    noticed = Signal(str)
    """What the user must know of the file"""
    changed = Signal()
    """The list of conversations is another one"""
    _told = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._told.connect(self._call, Qt.ConnectionType.QueuedConnection)
        told, failed = self._told, self.failed

        def tell(call: Callable[[], object]) -> None:
            with suppress(RuntimeError):  # so Qt says that the window is gone, with whoever was to be told
                told.emit(call)

        self._tell = tell  # holds on to the signal alone, for the thread may outlive this object
        writer = Writer(lambda error: tell(lambda: failed.emit(error)), in_memory=not settings.value(KEEP))
        self._writer = writer
        self._asked = False
        self.destroyed.connect(lambda: writer.close())

    def do(self, work: Callable[[Conversations], _T], done: Callable[[_T], object] | None = None) -> None:
        """Do something with the file, after all that was asked for before; `done` gets what it returns."""
        tell = self._tell
        if not self._asked:
            self._asked = True
            self._writer.do(lambda kept: kept.notice, lambda notice: tell(lambda: self._notice(notice)))
        self._writer.do(work, (lambda result: tell(lambda: done(result))) if done else None)

    def change(self, work: Callable[[Conversations], object]) -> None:
        """Do something that changes the list, and tell when it is done."""
        self.do(work, lambda _: self.changed.emit())

    def add(self, message: str, text: str, thinking: str) -> None:
        """Append to a reply that is being written."""
        self._writer.add(message, text, thinking)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writer.close()

    @Slot(object)
    def _call(self, call: Callable[[], object]) -> None:
        call()

    def _notice(self, notice: str) -> None:
        if notice:
            self.noticed.emit(notice)


def figures_of(reply: "Reply | None") -> dict[str, object]:
    """Return a reply's figures for programs."""
    if reply is None:
        return {}
    timings, drafts = reply.timings, reply.acceptance
    figures: dict[str, object] = {"finish_reason": reply.finish_reason, "first_token_s": reply.first_token_s}
    if timings is not None:
        figures |= {"predicted_n": timings.predicted_n, "tokens_per_second": timings.tokens_per_second}
    if drafts.drafted:
        by_position = [round(share, 4) for share in drafts.rates_by_position]
        figures |= {"draft_n": drafts.drafted, "draft_n_accepted": drafts.accepted}
        figures |= {"acceptance_by_position": by_position}
    return figures


def settings_of(launch: "Launch | None", sampling: Mapping[str, object]) -> dict[str, object]:
    """Return what a reply is asked with: the server's settings and the sampling values that were chosen."""
    if launch is None:
        return dict(sampling)
    from launcher.engine import settings

    return {**{name: value for name, value in settings.settings_of(launch).items() if value}, **sampling}
