"""Access to the stored conversations from the GUI thread, without waiting for the disk."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import QObject, Qt, Signal, Slot

from launcher.app import settings
from launcher.app.settings_declared import KEEP
from launcher.conversations.store import Conversations
from launcher.conversations.writer import ConversationWriter
from launcher.gui.late import engine_settings

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.monitor.reply import Reply

_T = TypeVar("_T")


class ChatStore(QObject):
    """Runs work on the stored conversations on a writer thread, and the callbacks on the GUI thread."""

    failed = Signal(object)
    """LauncherError: something could not be stored."""
    noticed = Signal(str)
    """A notice for the user about the store's file."""
    changed = Signal()
    """The list of conversations has changed."""
    _call_requested = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._call_requested.connect(self._run_call, Qt.ConnectionType.QueuedConnection)
        requested, failed = self._call_requested, self.failed

        def request_call(call: Callable[[], object]) -> None:
            with suppress(RuntimeError):  # raised by Qt if the receiver was deleted with the window
                requested.emit(call)

        self._call_on_gui_thread = request_call  # refers to the signal only: the thread may outlive this object
        self._is_in_memory = not settings.stored_value(KEEP)
        writer = ConversationWriter(
            lambda error: request_call(lambda: failed.emit(error)),
            in_memory=self._is_in_memory,
            on_delete=settings.forget_conversations,
        )
        self._writer = writer
        self._notice_requested = False
        self._owner = object()
        """A new object for each chat that uses the store: results for an earlier chat are dropped."""
        self.destroyed.connect(lambda: writer.close())

    @property
    def keeps_chats(self) -> bool:
        """Whether chats, and what models have read of them, are kept on disk."""
        return not self._is_in_memory and bool(settings.stored_value(KEEP))

    def enqueue(self, work: Callable[[Conversations], _T], done: Callable[[_T], object] | None = None) -> None:
        """Run `work` after all earlier work. `done` gets its result on the GUI thread."""
        call_on_gui = self._call_on_gui_thread
        if not self._notice_requested:
            self._notice_requested = True
            self._writer.run_work(
                lambda conversations: conversations.notice,
                lambda notice: call_on_gui(lambda: self._report_notice(notice)),
            )
        if done is None:
            self._writer.run_work(work, None)
            return
        owner = self._owner

        def deliver(result: _T) -> None:
            if owner is self._owner:
                done(result)

        self._writer.run_work(work, lambda result: call_on_gui(lambda: deliver(result)))

    def hand_over(self) -> None:
        """Leave the store to another chat. Earlier work is still done, but its callbacks are not called."""
        self._owner = object()
        self.setParent(None)

    def enqueue_change(self, work: Callable[[Conversations], object]) -> None:
        """Run `work` after all earlier work, and emit `changed` when it is done."""
        self.enqueue(work, lambda _: self.changed.emit())

    def append_text(self, reply_id: str, text: str, thinking: str) -> None:
        """Append text and reasoning to a stored reply that is still being generated."""
        self._writer.append_piece(reply_id, text, thinking)

    def close(self) -> None:
        """Write all pending changes and close the file."""
        self._writer.close()

    @Slot(object)
    def _run_call(self, call: Callable[[], object]) -> None:
        call()

    def _report_notice(self, notice: str) -> None:
        if notice:
            self.noticed.emit(notice)


def reply_figures(reply: "Reply | None") -> dict[str, object]:
    """Return a reply's figures as they are stored and exported."""
    if reply is None:
        return {}
    timings, acceptance = reply.timings, reply.acceptance
    figures: dict[str, object] = {"finish_reason": reply.finish_reason, "first_token_s": reply.first_token_s}
    if timings is not None:
        figures |= {"prompt_n": timings.prompt_n, "cache_n": timings.cache_n, "predicted_n": timings.predicted_n}
        figures["tokens_per_second"] = timings.tokens_per_second
    if acceptance.drafted:
        by_position = [round(share, 4) for share in acceptance.rates_by_position]
        figures |= {"draft_n": acceptance.drafted, "draft_n_accepted": acceptance.accepted}
        figures |= {"acceptance_by_position": by_position}
    return figures


def reply_settings(launch: "Launch | None", sampling: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a reply as they are stored: server settings and chosen sampling values."""
    if launch is None:
        return dict(sampling)
    server_settings = {name: value for name, value in engine_settings.launched_settings(launch).items() if value}
    return {**server_settings, **sampling}
