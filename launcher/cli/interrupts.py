"""Ctrl-C and SIGTERM while a verb runs."""

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

INTERRUPTED, TERMINATED = 130, 143


def run_interruptible(verb: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a verb in a loop of its own and return its exit code.

    Ctrl-C or SIGTERM cancels it; then the code is 130 or 143, unless the verb takes that for its ordinary end. A second
    Ctrl-C waits for nothing: the process ends with 130, and its engine with it, by its keeper or its job. Either comes
    between two steps of the loop, so nothing is broken off in the middle, and no exception has to find its way out.
    """
    import asyncio

    got: list[int] = []

    async def interruptible() -> int:
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(verb())

        def end(number: int) -> None:
            if number == signal.SIGINT and signal.SIGINT in got:
                os._exit(INTERRUPTED)
            got.append(number)
            running.cancel()

        def end_soon(number: int, _frame: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: the verb has ended
                loop.call_soon_threadsafe(end, number)

        if sys.platform == "win32":
            signal.signal(signal.SIGINT, end_soon)
        else:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, end, number)
        return await running

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        return TERMINATED if signal.SIGTERM in got else INTERRUPTED
