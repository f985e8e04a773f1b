"""A thread that writes conversations, so that streaming never waits for a disk."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.conversations.store import Conversations, OnDelete

_PERIOD_S = 0.5
"""Seconds that a piece of a reply may wait before it is written; a crash loses at most that."""
_T = TypeVar("_T")
DatabaseWork = Callable[[Conversations], object]
ReplyPiece = tuple[str, str, str]
"""A piece of a reply: message ID, text, reasoning."""


class ConversationWriter:
    """Runs functions on the database in order, in a thread of its own, which starts with the first of them.

    Pieces of replies are collected and written at most twice a second. Errors are passed to `on_error` in that thread,
    which then goes on. With `in_memory` nothing is written to a disk, and closing loses everything. See Conversations
    for `on_delete`.
    """

    def __init__(
        self,
        on_error: Callable[[LauncherError], None],
        path: Path | None = None,
        *,
        in_memory: bool = False,
        on_delete: OnDelete = lambda _: None,
    ) -> None:
        self._on_error = on_error
        self._on_delete = on_delete
        self._path, self._in_memory = path, in_memory
        self._queue: queue.SimpleQueue[ReplyPiece | DatabaseWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: Conversations | None = None

    def run_work(self, work: Callable[[Conversations], _T], on_result: Callable[[_T], None] | None = None) -> None:
        """Run `work` with the database, and pass its result to `on_result` in the writer's thread."""

        def work_and_report(conversations: Conversations) -> None:
            result = work(conversations)
            if on_result is not None:
                on_result(result)

        self._enqueue(work_and_report)

    def append_piece(self, message_id: str, text: str, thinking: str) -> None:
        """Append text and reasoning to an unfinished reply."""
        self._enqueue((message_id, text, thinking))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is pending, close the database and end the thread. Return False if that takes over `timeout_s`."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _enqueue(self, item: "ReplyPiece | DatabaseWork") -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="conversations", daemon=True)
            self._thread.start()
        self._queue.put(item)

    def _run(self) -> None:
        pieces: list[ReplyPiece] = []
        due_s, ended = 0.0, False
        while not ended:
            work: DatabaseWork | None = None
            try:
                item = self._queue.get(timeout=max(0.0, due_s - time.monotonic()) if pieces else None)
            except queue.Empty:
                pass  # the collected pieces are due
            else:
                if isinstance(item, tuple):
                    pieces.append(item)
                    if time.monotonic() < due_s:
                        continue
                ended = item is None
                work = item if callable(item) else None
            if pieces:
                joined = _join_pieces(pieces)
                self._run_safely(lambda conversations, joined=joined: conversations.append_pieces(joined))  # type: ignore[misc]
                pieces.clear()
                due_s = time.monotonic() + _PERIOD_S
            if work is not None:
                self._run_safely(work)
        if self._open is not None:
            self._open.close()

    def _run_safely(self, work: DatabaseWork) -> None:
        """Run `work`, opening the database first if needed, and report any error."""
        try:
            if self._open is None:
                self._open = Conversations(self._path, in_memory=self._in_memory, on_delete=self._on_delete)
                self._open.clean_up()
            work(self._open)
        except LauncherError as error:
            self._on_error(error)
        except Exception as error:  # noqa: BLE001 -- reported; later work is still done
            why = f"{type(error).__name__}: {error}"
            self._on_error(LauncherError(message("An unexpected error occurred in the saved chats: {why}.", why=why)))


def _join_pieces(pieces: Iterable[ReplyPiece]) -> list[ReplyPiece]:
    """Return the pieces joined to one per message."""
    joined: dict[str, tuple[list[str], list[str]]] = {}
    for message_id, text, thinking in pieces:
        texts, thoughts = joined.setdefault(message_id, ([], []))
        texts.append(text)
        thoughts.append(thinking)
    return [(message_id, "".join(texts), "".join(thoughts)) for message_id, (texts, thoughts) in joined.items()]
