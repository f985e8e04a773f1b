"""The asyncio loop of the core on its own named thread, for a face that has a loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakSet

_T = TypeVar("_T")


class Handle(Generic[_T]):
    """Work that was submitted. All methods may be called from any thread."""

    def __init__(self, future: "Future[_T]") -> None:
        self._future = future

    def cancel(self) -> None:
        """Ask the work to end; it runs its own clean-up on the loop."""
        self._future.cancel()

    def then(self, tell: Callable[[BaseException | None], None]) -> None:
        """Call `tell` on whatever thread when it has ended, with its error or None.

        Cancelling is no error, and is told at once, while the work still cleans up.
        """

        def ended(future: "Future[_T]") -> None:
            try:
                tell(future.exception())
            except FutureCancelled:
                tell(None)

        self._future.add_done_callback(ended)


class Runtime:
    """The loop. `close` cancels what still runs, waits for its clean-up, and ends the thread.

    What was submitted ends first: what it has begun beside itself, such as the pumps of a process, must still run then.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._submitted: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        self._closing = False
        made: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(made,), name="launcher-core", daemon=True)
        self._thread.start()
        self._loop = made.result()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Handle[_T]:
        """Run `work` on the loop; from any thread."""
        self._submitted.add(work)
        return Handle(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self, timeout_s: float = 15.0) -> bool:
        """End everything; return whether it ended within `timeout_s`."""
        if self._thread.is_alive():
            if not self._closing:
                self._closing = True
                asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Any,  # noqa: ANN401 -- what asyncio makes tasks of differs by Python's version
        **given: Any,  # noqa: ANN401 -- what asyncio has for its tasks
    ) -> "asyncio.Task[Any]":
        """Hold a task until it is done: what waits for a pipe is held by nobody else, and would be collected."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **given)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _wind_up(self) -> None:
        work = [task for task in asyncio.all_tasks() if task.get_coro() in self._submitted]
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work)
        self._loop.stop()

    def _run(self, made: "Future[asyncio.AbstractEventLoop]") -> None:
        try:  # here: on Windows a loop made on the main thread takes over what wakes the window for Ctrl-C
            loop = asyncio.new_event_loop()
        except OSError as error:
            made.set_exception(error)
            return
        loop.set_task_factory(self._make_task)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            made.set_result(runner.get_loop())
            loop.run_forever()
