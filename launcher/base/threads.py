"""Work in threads that nobody has to wait for, not even the program's end."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def settled(future: asyncio.Future[T]) -> T:
    """Return the outcome, and wait for it even when cancelled: nothing is written any more once this has ended."""
    try:
        await asyncio.wait([future])
    finally:
        await asyncio.wait([future])
    return future.result()


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `work` in a daemon thread of its own and return its outcome as a future of the running loop.

    Cancelling the future does not end the work. asyncio.to_thread would keep the program from ending before it does.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be left to ask for it

    def settle(result: T | None, error: Exception | None) -> None:
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
        except Exception as met:  # noqa: BLE001 -- told by the future
            error = met
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
