"""Work in daemon threads, which do not delay the program's end."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def wait_to_end(future: asyncio.Future[T]) -> T:
    """Return a future's result.

    If the calling task is cancelled, still waits until the future is done before it raises CancelledError.
    """
    try:
        await asyncio.wait([future])
    finally:
        await asyncio.wait([future])
    return future.result()


def run_in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `work` in its own daemon thread and return its result as a future of the running loop.

    Cancelling the future does not stop the work. Unlike with asyncio.to_thread, the program can end before the work.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    # Marks an exception as retrieved, in case nobody awaits the future.
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def set_outcome(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as exception:  # noqa: BLE001 -- reported by the future
            error = exception
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
