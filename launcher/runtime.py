"""The core's asyncio loop in its own thread, for a user interface with a loop of its own."""

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from launcher.base.late import asyncio

_T = TypeVar("_T")


class WorkHandle(Generic[_T]):
    """A handle for submitted work. All methods are thread-safe."""

    def __init__(self, future: "Future[_T]") -> None:
        self._future = future
        self.cancel_requested = False
        """Whether `cancel` was called, even if the work had already ended."""

    def cancel(self) -> None:
        """Cancel the work; its clean-up runs on the loop."""
        self.cancel_requested = True
        self._future.cancel()

    def when_done(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call `callback` in any thread when the work has ended, with its error or None.

        Cancelled work counts as ended without an error at once, even while its clean-up still runs.
        """

        def report_end(future: "Future[_T]") -> None:
            try:
                callback(future.exception())
            except FutureCancelled:
                callback(None)

        self._future.add_done_callback(report_end)


class Runtime:
    """An asyncio loop in its own thread. `close` cancels all work, waits for its clean-up, and ends the thread.

    Submitted work is ended first: the tasks that it started, such as the pipe readers of a process, must still run
    during its clean-up.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._submitted: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        self._closing = False
        created: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run_loop, args=(created,), name="launcher-core", daemon=True)
        self._thread.start()
        self._loop = created.result()

    def submit(self, work: Coroutine[Any, Any, _T]) -> WorkHandle[_T]:
        """Run `work` on the loop; thread-safe."""
        self._submitted.add(work)
        return WorkHandle(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self, timeout_s: float = 15.0) -> bool:
        """Cancel all work and end the thread. Returns False if that takes longer than `timeout_s` seconds."""
        if self._thread.is_alive():
            if not self._closing:
                self._closing = True
                asyncio.run_coroutine_threadsafe(self._cancel_and_stop(), self._loop)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _make_task(
        self,
        loop: "asyncio.AbstractEventLoop",
        work: Any,  # noqa: ANN401 -- asyncio's argument type differs between Python versions
        **options: Any,  # noqa: ANN401 -- asyncio's keyword arguments
    ) -> "asyncio.Task[Any]":
        """Create a task and keep a reference until it is done.

        Without one, a task that waits for a pipe would be garbage-collected.
        """
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _cancel_and_stop(self) -> None:
        submitted = [task for task in asyncio.all_tasks() if task.get_coro() in self._submitted]
        for task in submitted:
            if not task.cancelling():  # else its clean-up runs, which may be stopping an engine
                task.cancel()
        if submitted:
            await asyncio.wait(submitted)
        self._loop.stop()

    def _run_loop(self, created: "Future[asyncio.AbstractEventLoop]") -> None:
        try:  # in this thread: on Windows a loop made on the main thread takes over the window's wake-up for Ctrl-C
            loop = asyncio.new_event_loop()
        except OSError as error:
            created.set_exception(error)
            return
        loop.set_task_factory(self._make_task)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            created.set_result(runner.get_loop())
            loop.run_forever()
