"""Bridge between the core's thread and the GUI thread: events come in, work goes out."""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, overload

from PySide6.QtCore import QDeadlineTimer, QObject, Qt, QTimer, Signal, Slot

from launcher.base.errors import LauncherError
from launcher.base.late import asyncio
from launcher.runtime import Runtime, WorkHandle

_PERIOD_MS = 33
"""At most 30 batches a second: with a signal for each of 5,000 log lines a second, the window froze for up to 0.3 s."""


class Ended(NamedTuple):
    """Submitted work has ended. `error` is None if it succeeded or was cancelled."""

    name: str
    error: BaseException | None


class _Call(NamedTuple):
    """A callback to be called on the GUI thread, and its argument."""

    callback: Callable[[Any], object]
    value: object


_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
ReportProgress = Callable[[object], None]


class Bridge(QObject):
    """Transfers frozen events from any thread to the GUI thread, in batches.

    Events wait in a deque and are emitted at most 30 times a second, the first after a pause at once. The timer runs
    only while events wait.
    """

    drained = Signal(object)
    """A list of events. As Signal(list) Qt would convert each of them (2.2 ms for 1,650)."""
    _filled = Signal()
    """Starts the timer on the GUI thread; emitted on the thread that posts the first event of a batch."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runtime: Runtime | None = None
        self._closed = False
        self._page_work: set[WorkHandle[None]] = set()
        """Work for the pages, which ends with them."""
        self._awaited_work: set[object] = set()
        """Work with a `cancelled` callback whose last callback was not called yet."""
        self._events: deque[object] = deque()
        self._calls: deque[_Call] = deque()
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._drain_events)
        self._drain_scheduled = False
        self._pause = QDeadlineTimer(0)
        """Until it ends, the next batch waits."""
        self._filled.connect(self._schedule_drain, Qt.ConnectionType.QueuedConnection)

    def post(self, event: object) -> None:
        """Queue an event for the GUI thread. Thread-safe."""
        self._events.append(event)
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._filled.emit()

    def submit(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> WorkHandle[object]:
        """Run work on the core's thread. Its end is reported as an Ended event with this name."""
        if self._closed:
            return _cancelled_handle()
        if self._runtime is None:
            self._runtime = Runtime()
        handle = self._runtime.submit(_await_work(work))
        handle.when_done(lambda error: self.post(Ended(name, error)))
        return handle

    @overload
    def run(
        self,
        function: Callable[[*_Args], Awaitable[_T]],
        *args: *_Args,
        done: Callable[[_T], object] | None = ...,
        failed: Callable[[LauncherError], object] | None = ...,
        cancelled: Callable[[], object] | None = ...,
        outlives_pages: bool = ...,
    ) -> WorkHandle[None]: ...

    @overload
    def run(
        self,
        function: Callable[[*_Args, ReportProgress], Awaitable[_T]],
        *args: *_Args,
        reported: Callable[[Any], object] | None,
        done: Callable[[_T], object] | None = ...,
        failed: Callable[[LauncherError], object] | None = ...,
        cancelled: Callable[[], object] | None = ...,
        outlives_pages: bool = ...,
    ) -> WorkHandle[None]: ...

    @overload
    def run(
        self,
        function: Callable[[*_Args], _T],
        *args: *_Args,
        done: Callable[[_T], object] | None = ...,
        failed: Callable[[LauncherError], object] | None = ...,
        cancelled: Callable[[], object] | None = ...,
        outlives_pages: bool = ...,
    ) -> WorkHandle[None]: ...

    def run(  # type: ignore[misc]  # mypy takes `*args: Any` for fewer arguments
        self,
        function: Callable[..., Any],
        *args: Any,
        done: Callable[[Any], object] | None = None,
        failed: Callable[[LauncherError], object] | None = None,
        reported: Callable[[Any], object] | None = None,
        cancelled: Callable[[], object] | None = None,
        outlives_pages: bool = False,
    ) -> WorkHandle[None]:
        """Call `function(*args)` on the core's thread if it is async, else on a worker thread.

        The callbacks given here run on the GUI thread, in order. `done` gets the result. With `reported` the function
        gets one argument more, a callback; `reported` gets each value that the function passes to it. An error goes to
        `failed`, else to the window's error banner. If the work is cancelled by its handle, only `cancelled` is called,
        once the work has cleaned up. Work that ends in spite of a cancellation still calls `done` or `failed` if
        `cancelled` was given; otherwise nothing is called. After `close` no work is run and no callback called. Work
        that does not outlive the pages is cancelled by `cancel_page_work`.
        """
        if self._closed:
            return _cancelled_handle()
        if self._runtime is None:
            self._runtime = Runtime()

        def call_on_gui(callback: Callable[[Any], object], value: object) -> None:
            def call(value: object) -> None:
                # The result of cancelled work may already wait here; after its successor's it would show old values.
                if cancelled is not None or not handle.cancel_requested:
                    callback(value)

            self.post(_Call(call, value))

        if reported is not None:
            args = (*args, partial(call_on_gui, reported))

        async def run_and_report() -> None:
            if cancelled is not None:
                self._awaited_work.add(run_and_report)
            try:
                result = await _call_function(function, *args)
            except asyncio.CancelledError:
                if cancelled is not None:
                    call_on_gui(lambda _: cancelled(), None)
                raise
            except Exception as error:  # noqa: BLE001 -- shown to the user, whatever it is
                known = error if isinstance(error, LauncherError) else wrap_unexpected_error(error)
                if failed is not None:
                    call_on_gui(failed, known)
                else:
                    self.post(Ended("work", known))
            else:
                if done is not None:
                    call_on_gui(done, result)
            finally:
                if cancelled is not None:
                    self.post(_Call(self._awaited_work.discard, run_and_report))

        handle = self._runtime.submit(run_and_report())
        if cancelled is None and not outlives_pages:
            self._page_work.add(handle)
            # Forgotten after its last callback, not at its end: a result that still waits here is cancelled, too.
            handle.when_done(lambda _error: self.post(_Call(self._page_work.discard, handle)))
        return handle

    @property
    def is_awaited(self) -> bool:
        """Whether work with a `cancelled` callback runs: what the user has started and can stop, such as a tune."""
        return bool(self._awaited_work)

    def cancel_page_work(self) -> None:
        """Cancel the work for the pages, which are about to be deleted: none of its callbacks is called any more."""
        for handle in list(self._page_work):
            handle.cancel()

    def close(self) -> bool:
        """End the core's thread and all work on it. Returns whether it ended in time."""
        self._closed = True
        return self._runtime is None or self._runtime.close()

    @Slot()
    def _schedule_drain(self) -> None:
        self._timer.start(self._pause.remainingTime())

    @Slot()
    def _drain_events(self) -> None:
        self._drain_scheduled = False
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
                call.callback(call.value)
        finally:
            self._pause.setRemainingTime(_PERIOD_MS)
            if self._calls:  # a callback raised an exception: run the others next time
                self._schedule_drain()


def _cancelled_handle() -> WorkHandle[Any]:
    """Return the cancelled handle of work that was never started."""
    future: Future[Any] = Future()
    future.cancel()
    return WorkHandle(future)


async def _call_function(function: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 -- its result
    """Call an async function here, and any other one on a worker thread; an awaitable that it returns is awaited here.

    So a lambda that uses a module of `gui/late.py` imports it on the worker thread.
    """
    if iscoroutinefunction(function):
        return await function(*args)
    calling = asyncio.get_running_loop().run_in_executor(None, partial(function, *args))
    try:
        result = await asyncio.shield(calling)
    except asyncio.CancelledError:
        calling.add_done_callback(_close_result)
        raise
    return await result if isawaitable(result) else result


def _close_result(future: "asyncio.Future[Any]") -> None:
    """Close the coroutine that a function has returned after its work was cancelled: nobody awaits it."""
    if not future.cancelled() and future.exception() is None and iscoroutine(future.result()):
        future.result().close()


async def _await_work(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """Create the coroutine on the core's thread, where slow imports do not block the GUI."""
    return await work()


def wrap_unexpected_error(error: BaseException) -> LauncherError:
    """Wrap an unexpected exception in an error that can be shown to the user."""
    return LauncherError(
        f"Something unforeseen went wrong: {type(error).__name__}: {error}.", "The log has more; please report it."
    )
