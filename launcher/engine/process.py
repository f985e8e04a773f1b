"""An engine as a process that cannot outlive us: start, lines of output, stop, exit."""

import asyncio
import codecs
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from launcher.base.errors import EngineMissing
from launcher.base.identity import ProcessId
from launcher.base.text import visible
from launcher.base.words import part

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]

STOP_PATIENCE_S = (5.0, 2.0)
"""After the first and the second request to stop; then the group is killed (llama-server waits for open streams)."""

_MAX_LINE = 16_384
_HALF_LINE_S = 1.0
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: `arguments` with the program's absolute path first, and its whole environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path


@dataclass(frozen=True, slots=True)
class Exit:
    """How an engine ended: its exit code, negative for the signal that ended it."""

    code: int

    def __str__(self) -> str:
        if self.code < 0:
            with suppress(ValueError):
                return part(f"was ended by {signal.Signals(-self.code).name}")
        return part(f"ended with exit code {self.code}")


class EngineProcess(Protocol):
    """A started engine."""

    identity: ProcessId
    exited: "asyncio.Future[Exit]"

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> Exit:
        """Ask it to end, ask again after the first patience, kill it after the second; return how it ended."""


async def start(command: Command, on_line: OnLine) -> EngineProcess:
    """Start `command` so that it ends when we do, whatever ends us; `on_line` gets each line of its output.

    Raises EngineMissing when it cannot be started. Cancelled, it leaves no process.
    """
    if sys.platform == "win32":
        from launcher.engine.process_windows import start_in_job as begin
    else:
        from launcher.engine.process_posix import start_kept as begin
    starting = asyncio.ensure_future(begin(command, on_line))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(EngineMissing):
            process = await starting
            await process.stop((0.5, 0.5))
        raise


def cannot_start(command: Command, reason: str) -> EngineMissing:
    """Return the error for a program that the system will not start."""
    program = command.arguments[0]
    return EngineMissing(
        f"{program} cannot be started: {reason}.",
        "Check that it is a llama-server for this computer and that it may be executed (chmod +x).",
        program=program,
    )


async def read_lines(reader: asyncio.StreamReader, half_line_s: float = _HALF_LINE_S) -> AsyncIterator[str]:
    """Yield lines without their ends; what is no line yet after `half_line_s` is yielded as one.

    Undecodable bytes are replaced, NULs and all else that a terminal would obey made visible, lines over 16,384
    characters are cut.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    while True:
        try:
            async with asyncio.timeout(half_line_s if pending else None):
                data = await reader.read(65_536)
        except TimeoutError:
            yield visible(pending)
            pending = ""
            continue
        if not data:
            break
        text = decoder.decode(data)
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            yield visible(line.rstrip("\r")[:_MAX_LINE])
        pending = pending[:_MAX_LINE]
    if pending:
        yield visible(pending)


class Pumps:
    """The tasks that read an engine's output until it ends."""

    def __init__(self, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader, on_line: OnLine) -> None:
        self._tasks = [
            asyncio.create_task(self._pump("stdout", stdout, on_line)),
            asyncio.create_task(self._pump("stderr", stderr, on_line)),
        ]

    @staticmethod
    async def _pump(stream: Stream, reader: asyncio.StreamReader, on_line: OnLine) -> None:
        async for line in read_lines(reader):
            on_line(stream, line)

    async def drain(self) -> None:
        """Wait until all output was read, but not for what another holder of the pipes may still write."""
        _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_S)
        for task in late:
            task.cancel()
