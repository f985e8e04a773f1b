"""A thread that writes conversations, so that streaming never waits for a disk."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.conversations.store import Conversations

_PERIOD_S = 0.5
"""Seconds that a piece of a reply may wait before it is written; a crash loses at most that."""
_T = TypeVar("_T")
DatabaseWork = Callable[[Conversations], object]
ReplyPiece = tuple[str, str, str]
"""A piece of a reply: message ID, text, reasoning."""


class ConversationWriter:
    """Runs work on the database in order, in its own thread, which starts with the first work.

    Pieces of replies are collected and written at most twice a second. Errors are passed to `failed` in that thread;
    the following work goes on. With `in_memory` nothing is written to a disk, and everything is lost at the end.
    """

    def __init__(
        self, failed: Callable[[LauncherError], None], path: Path | None = None, *, in_memory: bool = False
    ) -> None:
        self._failed = failed
        self._path, self._in_memory = path, in_memory
        self._given: queue.SimpleQueue[ReplyPiece | DatabaseWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: Conversations | None = None

    def run_work(self, work: Callable[[Conversations], _T], told: Callable[[_T], None] | None = None) -> None:
        """Run `work` with the database, and pass its result to `told` in the writer's thread."""

        def done(conversations: Conversations) -> None:
            result = work(conversations)
            if told is not None:
                told(result)

        self._give(done)

    def append_piece(self, message: str, text: str, thinking: str) -> None:
        """Append to an unfinished reply."""
        self._give((message, text, thinking))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is pending, close the database and end the thread; return True if it ended within `timeout_s`
        seconds.
        """
        if self._thread is None:
            return True
        self._given.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _give(self, given: "ReplyPiece | DatabaseWork") -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="conversations", daemon=True)
            self._thread.start()
        self._given.put(given)

    def _run(self) -> None:
        pieces: list[ReplyPiece] = []
        due_s, ended = 0.0, False
        while not ended:
            work: DatabaseWork | None = None
            try:
                given = self._given.get(timeout=max(0.0, due_s - time.monotonic()) if pieces else None)
            except queue.Empty:
                pass  # the collected pieces are due
            else:
                if isinstance(given, tuple):
                    pieces.append(given)
                    if time.monotonic() < due_s:
                        continue
                ended = given is None
                work = given if callable(given) else None
            if pieces:
                joined = _join_pieces(pieces)
                self._try(lambda conversations, joined=joined: conversations.append_pieces(joined))  # type: ignore[misc]
                pieces.clear()
                due_s = time.monotonic() + _PERIOD_S
            if work is not None:
                self._try(work)
        if self._open is not None:
            self._open.close()

    def _try(self, work: DatabaseWork) -> None:
        try:
            if self._open is None:
                self._open = Conversations(self._path, in_memory=self._in_memory)
                self._open.clean_up()
            work(self._open)
        except LauncherError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 -- reported; later work is still done
            why = f"{type(error).__name__}: {error}"
            self._failed(LauncherError(message("An unexpected error occurred in the saved chats: {why}.", why=why)))


def _join_pieces(pieces: Iterable[ReplyPiece]) -> list[ReplyPiece]:
    """Return the pieces joined to one per message."""
    joined: dict[str, tuple[list[str], list[str]]] = {}
    for row, text, thinking in pieces:
        texts, thoughts = joined.setdefault(row, ([], []))
        texts.append(text)
        thoughts.append(thinking)
    return [(row, "".join(texts), "".join(thoughts)) for row, (texts, thoughts) in joined.items()]
