"""What the user types when a verb asks."""

import asyncio
import os
import sys
import threading
from contextlib import suppress


def can_ask() -> bool:
    """Return whether there is a terminal on which somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


async def agreed(question: str, *, usual: bool = False) -> bool:
    """Ask, and return whether the answer is yes; Enter alone is the `usual` one."""
    print(f"{question} {'[Y/n]' if usual else '[y/N]'} ", end="", file=sys.stderr, flush=True)
    answer = (await typed_line()).strip().lower()
    return usual if not answer else answer in (b"y", b"yes")


async def typed_line() -> bytes:
    """Return what the user types. Ctrl-C ends it at once: a thread of the pool would be waited for at the end."""
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        line = os.read(0, 1_000)  # not sys.stdin, whose lock could not be taken at the end
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(typed.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    return await typed.get()
