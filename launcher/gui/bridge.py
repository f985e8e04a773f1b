"""The one place where the core's thread meets the GUI's: events in, work out."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from launcher.base.errors import LauncherError
from launcher.runtime import Handle, Runtime

_PERIOD_MS = 33
"""30 Hz at most: one signal per log line or token would stall the window (5,000 lines/s: 112 to 292 ms)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Work that the window submitted has ended; `error` is None when it did what it should or was cancelled."""

    what: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Call:
    """Something to be called on the GUI's thread."""

    what: Callable[[Any], object]
    value: object


_T = TypeVar("_T")
Tell = Callable[[object], None]
Work = Callable[[Tell], Awaitable[_T]]
"""An async function that is handed a way to tell how far it is."""


class Bridge(QObject):
    """Frozen events from any thread go into a deque and come out in batches on the GUI's thread, 30 times a second
    at most; nothing wakes up while nothing happens."""

    drained = Signal(object)
    """A list of events. As Signal(list) Qt would convert each of them (2.2 ms for 1,650)."""
    _filled = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runtime: Runtime | None = None
        self._closed = False
        self._events: deque[object] = deque()
        self._calls: deque[_Call] = deque()
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
        if self._closed:
            return _never()
        if self._runtime is None:
            self._runtime = Runtime()
        handle = self._runtime.submit(_begin(work))
        handle.then(lambda error: self.post(Ended(what, error)))
        return handle

    def run(
        self,
        work: Work[_T],
        *,
        done: Callable[[_T], object] | None = None,
        failed: Callable[[LauncherError], object] | None = None,
        told: Callable[[Any], object] | None = None,
        cancelled: Callable[[], object] | None = None,
    ) -> Handle[None]:
        """Run `work(tell)` on the core's thread; what is given here is called on the GUI's thread, in order.

        `told` gets each value that the work hands to `tell`, `done` what it returns. An error goes to `failed`, else
        to the window's line for problems. After a cancel by the handle only `cancelled` is called, once the work has
        cleaned up. Once the bridge is closed nothing is run any more, and nothing called.
        """
        if self._closed:
            return _never()
        if self._runtime is None:
            self._runtime = Runtime()

        def tell(value: object) -> None:
            if told is not None:
                self.post(_Call(told, value))

        async def whole() -> None:
            try:
                result = await work(tell)
            except asyncio.CancelledError:
                if cancelled is not None:
                    self.post(_Call(lambda _: cancelled(), None))
                raise
            except Exception as error:  # noqa: BLE001 -- shown to the user, whatever it is
                known = error if isinstance(error, LauncherError) else unforeseen(error)
                self.post(_Call(failed, known) if failed is not None else Ended("work", known))
            else:
                if done is not None:
                    self.post(_Call(done, result))

        return self._runtime.submit(whole())

    def close(self) -> bool:
        """End the core's thread with all that runs on it; return whether it ended in time."""
        self._closed = True
        return self._runtime is None or self._runtime.close()

    @Slot()
    def _drain(self) -> None:
        self._waiting = False
        events: list[object] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, _Call):
                self._calls.append(event)
            else:
                events.append(event)
        if events:
            self.drained.emit(events)
        try:
            while self._calls and not self._closed:
                call = self._calls.popleft()
                call.what(call.value)
        finally:
            if self._calls:  # one has failed: the others are no part of that
                self._timer.start()


def _never() -> Handle[Any]:
    """Return the handle of work that is not begun."""
    future: Future[Any] = Future()
    future.cancel()
    return Handle(future)


async def _begin(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """Make the coroutine on the core's thread, where its imports may take their time."""
    return await work()


def unforeseen(error: BaseException) -> LauncherError:
    """Return an error that nobody foresaw as one that can be shown."""
    return LauncherError(
        f"Something unforeseen went wrong: {type(error).__name__}: {error}.", "The log has more; please report it."
    )
