"""The one place where the core's thread meets the GUI's: events in, work out."""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from launcher.runtime import Handle, Runtime

_PERIOD_MS = 33
"""30 Hz at most: one signal per log line or token would stall the window (5,000 lines/s: 112 to 292 ms)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Work that the window submitted has ended; `error` is None when it did what it should or was cancelled."""

    what: str
    error: BaseException | None


class Bridge(QObject):
    """Frozen events from any thread go into a deque and come out in batches on the GUI's thread, 30 times a second
    at most; nothing wakes up while nothing happens."""

    drained = Signal(list)
    _filled = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runtime: Runtime | None = None
        self._events: deque[object] = deque()
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_PERIOD_MS)
        self._timer.timeout.connect(self._drain)
        self._waiting = False
        self._filled.connect(self._timer.start, Qt.ConnectionType.QueuedConnection)

    def post(self, event: object) -> None:
        """Hand an event over; from any thread."""
        self._events.append(event)
        if not self._waiting:
            self._waiting = True
            self._filled.emit()

    def submit(self, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> Handle[object]:
        """Run work on the core's thread; its end comes back as an Ended event named `what`."""
        if self._runtime is None:
            self._runtime = Runtime()
        handle = self._runtime.submit(_begin(work))
        handle.then(lambda error: self.post(Ended(what, error)))
        return handle

    def close(self) -> bool:
        """End the core's thread with all that runs on it; return whether it ended in time."""
        return self._runtime is None or self._runtime.close()

    @Slot()
    def _drain(self) -> None:
        self._waiting = False
        batch = []
        while self._events:
            batch.append(self._events.popleft())
        if batch:
            self.drained.emit(batch)


async def _begin(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """Make the coroutine on the core's thread, where its imports may take their time."""
    return await work()
