"""Runs a module in a short process of its own, such as one with Qt, or one that reads files of strangers."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

import launcher

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import runpy; runpy.run_module(sys.argv[2], run_name='__main__')"
"""Started with -P, so that no file of the current folder is imported in place of a module."""
_DRAIN_S = 1.0
"""Seconds to read the remaining output after the process has ended.

A program that it started, such as a desktop service, may keep its pipes open for as long as it runs.
"""


class ModuleFailed(Exception):
    """The process failed; the text is the last line of what it printed as an error."""


class _Output(asyncio.SubprocessProtocol):
    """Collects the output of a process, and signals when it has ended and when its pipes are closed."""

    def __init__(self) -> None:
        self.printed, self.errors = bytearray(), bytearray()
        self.ended, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Collect `data`."""
        (self.printed if fd == 1 else self.errors).extend(data)

    def process_exited(self) -> None:
        """Signal that the process has ended."""
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the base class names it
        """Signal that the process has ended and its pipes are closed."""
        self.closed.set()


async def run_module(module: str, order: bytes = b"", *, limit_s: float) -> bytes:
    """Run `module` with `order` as its standard input, and return what it prints.

    Raises ModuleFailed if it fails, and TimeoutError if it takes longer than `limit_s` seconds.
    """
    root = Path(launcher.__file__).parents[1]
    # Process.wait() and communicate() of asyncio wait until the pipes are closed: see _DRAIN_S.
    process, output = await asyncio.get_running_loop().subprocess_exec(
        _Output, sys.executable, "-P", "-c", _PROGRAM, str(root), module
    )
    try:
        async with asyncio.timeout(limit_s):
            standard_input = cast("asyncio.WriteTransport", process.get_pipe_transport(0))
            standard_input.write(order)
            standard_input.close()
            await output.ended.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(output.closed.wait(), _DRAIN_S)
    finally:
        process.close()  # kills it if it still runs
        await output.ended.wait()
    if process.get_returncode():
        raise ModuleFailed((output.errors.decode("utf-8", "replace").strip().splitlines() or ["?"])[-1])
    return bytes(output.printed)
