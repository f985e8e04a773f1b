"""Engine processes: start, output lines, exit, and the interface that both platforms implement."""

import asyncio
import codecs
import signal
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from launcher.base.errors import EngineMissing
from launcher.base.identity import ProcessId
from launcher.base.messages import message
from launcher.base.text import make_visible

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]

STOP_PATIENCE_S = (5.0, 2.0)
"""Seconds to wait after the first and the second stop request before the process group is killed.

llama-server waits for open streams before it ends.
"""

_ELF_64, _ELF_INTERPRETER = b"\x7fELF\x02\x01", 3  # of 64 bits, little-endian; PT_INTERP (elf.h)
_MAX_LINE = 16_384
"""Maximum characters of a line; the rest is cut off."""
_HALF_LINE_S = 1.0
"""Seconds after which an incomplete line is passed on, such as a progress bar without a line end."""
_DRAIN_S = 1.0
"""Seconds to read the remaining output after the engine has ended."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """A command line: `arguments` with the program's absolute path first, the complete environment, and the folder."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of an engine process: its exit code, negative for the signal that ended it."""

    code: int

    def __str__(self) -> str:
        if self.code < 0:
            with suppress(ValueError):
                return message("was ended by {name}", name=signal.Signals(-self.code).name)
        return message("ended with exit code {code}", code=self.code if self.code < 2**31 else f"0x{self.code:X}")


class EngineProcess(Protocol):
    """A started engine process. The future `exited` gets its exit code once it has ended and its output was read."""

    identity: ProcessId
    exited: "asyncio.Future[ProcessExit]"

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> ProcessExit:
        """Ask the process to end, ask again after `patience_s[0]` seconds, and kill it `patience_s[1]` seconds later.

        Returns its exit code.
        """


class PreparedProcess(Protocol):
    """An engine process that is ready to be started, once, or to be discarded."""

    async def start(self, on_line: OnLine) -> EngineProcess:
        """Start it. See start_prepared."""

    def discard(self) -> None:
        """Free what was prepared. Does nothing after `start`."""


def prepare_process(command: EngineCommand) -> PreparedProcess:
    """Do what takes time before `command` is started. Raises EngineMissing if that is impossible."""
    if sys.platform == "win32":
        from launcher.engine.server.process_windows import PreparedJob

        return PreparedJob(command)
    else:  # noqa: RET505 -- narrows the platform for the type checker
        from launcher.engine.server.process_posix import PreparedKeeper

        return PreparedKeeper(command)


async def start_process(command: EngineCommand, on_line: OnLine) -> EngineProcess:
    """Prepare and start `command`: see start_prepared."""
    return await start_prepared(prepare_process(command), on_line)


async def start_prepared(prepared: PreparedProcess, on_line: OnLine) -> EngineProcess:
    """Start a process that ends with this one, even if this one is killed.

    `on_line` is called with each line of its output. Raises EngineMissing if it cannot be started. If the call is
    cancelled, no process remains.
    """
    starting = asyncio.ensure_future(prepared.start(on_line))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(EngineMissing):
            process = await starting
            await process.stop((0.5, 0.5))
        raise
    finally:
        prepared.discard()  # the end of the event loop may cancel `starting` before it begins


def start_error(command: EngineCommand, reason: str) -> EngineMissing:
    """Return the error for a program that the system refuses to start."""
    program = command.arguments[0]
    # "No such file" is then what the kernel says of the file that a program names as its loader (jan #8315).
    if (loader := _find_loader(Path(program))) and not Path(loader).exists():
        return EngineMissing(
            message(
                "Cannot start {program}: this system does not have the loader that it is built for, {loader}.",
                program=program,
                loader=loader,
            ),
            message(
                "On NixOS, set programs.nix-ld.enable = true, or install llama-cpp from nixpkgs and choose its "
                "llama-server. Elsewhere, choose a llama-server that was built for this system."
            ),
            program=program,
        )
    return EngineMissing(
        message("Cannot start {program}: {reason}.", program=program, reason=reason),
        message("Check that it is a llama-server for this computer and is executable (chmod +x)."),
        program=program,
    )


def _find_loader(program: Path) -> str | None:
    """Return the loader that a 64-bit ELF program names; None for other files, and for programs without one."""
    with suppress(OSError, struct.error, ValueError), program.open("rb") as file:
        head = file.read(64)
        if not head.startswith(_ELF_64):
            return None
        offset, (size, count) = *struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        for kind, begin, length in struct.iter_unpack("<I4xQ16xQ16x", file.read(size * count)):
            if kind == _ELF_INTERPRETER:
                file.seek(begin)
                return file.read(length).rstrip(b"\0").decode()
    return None


async def open_reader(pipe: object) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a stream that reads `pipe`, and the transport that closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


async def read_lines(reader: asyncio.StreamReader, half_line_s: float = _HALF_LINE_S) -> AsyncIterator[str]:
    """Yield lines without line ends; an incomplete line is yielded after `half_line_s` seconds.

    Undecodable bytes are replaced, NULs and terminal control characters are made visible, and lines are cut after
    16,384 characters.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    while True:
        try:
            async with asyncio.timeout(half_line_s if pending else None):
                data = await reader.read(65_536)
        except TimeoutError:
            yield make_visible(pending)
            pending = ""
            continue
        if not data:
            break
        text = decoder.decode(data)
        *lines, pending = (pending + text).split("\n")
        for line in lines:
            yield make_visible(line.rstrip("\r")[:_MAX_LINE])
        pending = pending[:_MAX_LINE]
    if pending:
        yield make_visible(pending)


class OutputReaders:
    """Tasks that read an engine's stdout and stderr until their end."""

    def __init__(self, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader, on_line: OnLine) -> None:
        self._tasks = [
            asyncio.create_task(self._read_stream("stdout", stdout, on_line)),
            asyncio.create_task(self._read_stream("stderr", stderr, on_line)),
        ]

    @staticmethod
    async def _read_stream(stream: Stream, reader: asyncio.StreamReader, on_line: OnLine) -> None:
        async for line in read_lines(reader):
            on_line(stream, line)

    async def drain(self) -> None:
        """Wait until all output was read, at most `_DRAIN_S` seconds: a child of the engine may keep the pipes open."""
        _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_S)
        for task in late:
            task.cancel()
