"""Safe output to a terminal: control characters of foreign text are shown, not obeyed. And questions to the user."""

import io
import os
import sys
import threading
from contextlib import suppress

from launcher.base.text import make_visible


class Terminal(io.TextIOWrapper):
    """A stream to a terminal that makes control characters visible."""

    def write(self, text: str, /) -> int:
        """Write text as `launcher.base.text.make_visible` returns it."""
        super().write(make_visible(text))
        return len(text)

    def rewrite(self, text: str) -> None:
        """Write text over the current line."""
        super().write(f"\r{make_visible(text)}")


def rewrite_line(text: str) -> None:
    """Write text over the current line on stderr, which must be a terminal."""
    if isinstance(sys.stderr, Terminal):
        sys.stderr.rewrite(text)
    else:
        sys.stderr.write(f"\r{text}")
    sys.stderr.flush()


def guard_output() -> None:
    """Replace stdout and stderr by a Terminal if they are one.

    Files and pipes get the text unchanged: an exported script must contain the exact file names.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            encoding, errors = stream.encoding, stream.errors or "replace"
            setattr(sys, name, Terminal(stream.detach(), encoding, errors, line_buffering=True))


# Questions to the user.


def can_ask() -> bool:
    """Return True if there is a terminal on which the user can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


async def confirm(question: str, *, default: bool = False) -> bool:
    """Ask a yes-or-no question and return True for yes; Enter alone gives the default answer."""
    print(f"{question} {'[Y/n]' if default else '[y/N]'} ", end="", file=sys.stderr, flush=True)
    answer = (await _read_typed_line()).strip().lower()
    return default if not answer else answer in (b"y", b"yes")


async def _read_typed_line() -> bytes:
    """Return a line that the user types. Uses a daemon thread, because Ctrl-C would wait for a thread of the pool."""
    import asyncio  # imported late: every command imports this module, and few ask a question

    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        line = os.read(0, 1_000)  # not sys.stdin, whose lock would block at exit
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(typed.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    return await typed.get()
