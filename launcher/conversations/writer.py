"""The thread that writes conversations, so that who streams them never waits for a disk."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import LauncherError
from launcher.conversations.store import Conversations

_PERIOD_S = 0.5
"""How long a piece of a reply may wait: a crash loses what came in it."""
_T = TypeVar("_T")
Work = Callable[[Conversations], object]
Piece = tuple[str, str, str]
"""Of a reply: its message, text, thinking."""


class Writer:
    """Does what it is given in order, on a thread of its own that begins with the first work.

    Pieces of replies are gathered, and written twice a second at most. What fails is told to `failed` on that thread;
    the work after it goes on. `in_memory` nothing is written to a disk, and all is forgotten at the end.
    """

    def __init__(
        self, failed: Callable[[LauncherError], None], path: Path | None = None, *, in_memory: bool = False
    ) -> None:
        self._failed = failed
        self._path, self._in_memory = path, in_memory
        self._given: queue.SimpleQueue[Piece | Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: Conversations | None = None

    def do(self, work: Callable[[Conversations], _T], told: Callable[[_T], None] | None = None) -> None:
        """Do `work` with the file, and call `told` on the writer's thread with what it returns."""

        def done(conversations: Conversations) -> None:
            result = work(conversations)
            if told is not None:
                told(result)

        self._give(done)

    def add(self, message: str, text: str, thinking: str) -> None:
        """Append to a reply that was begun."""
        self._give((message, text, thinking))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is left, close the file and end the thread; return whether it ended in time."""
        if self._thread is None:
            return True
        self._given.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _give(self, given: "Piece | Work") -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="conversations", daemon=True)
            self._thread.start()
        self._given.put(given)

    def _run(self) -> None:
        pieces: list[Piece] = []
        due_s, ended = 0.0, False
        while not ended:
            work: Work | None = None
            try:
                given = self._given.get(timeout=max(0.0, due_s - time.monotonic()) if pieces else None)
            except queue.Empty:
                pass  # the pieces are due
            else:
                if isinstance(given, tuple):
                    pieces.append(given)
                    if time.monotonic() < due_s:
                        continue
                ended = given is None
                work = given if callable(given) else None
            if pieces:
                joined = _joined(pieces)
                self._try(lambda conversations, joined=joined: conversations.add(joined))  # type: ignore[misc]
                pieces.clear()
                due_s = time.monotonic() + _PERIOD_S
            if work is not None:
                self._try(work)
        if self._open is not None:
            self._open.close()

    def _try(self, work: Work) -> None:
        try:
            if self._open is None:
                self._open = Conversations(self._path, in_memory=self._in_memory)
                self._open.settle()
            work(self._open)
        except LauncherError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 -- told, and what comes after it is still kept
            why = f"{type(error).__name__}: {error}"
            self._failed(LauncherError(f"Something unforeseen went wrong with the kept conversations: {why}."))


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return one piece for each message."""
    joined: dict[str, tuple[list[str], list[str]]] = {}
    for message, text, thinking in pieces:
        texts, thoughts = joined.setdefault(message, ([], []))
        texts.append(text)
        thoughts.append(thinking)
    return [(message, "".join(texts), "".join(thoughts)) for message, (texts, thoughts) in joined.items()]
