"""Engine process on POSIX, started through a keeper process: see keeper.py."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from launcher.base.identity import ProcessId
from launcher.engine.server.process import (
    STOP_PATIENCE_S,
    EngineCommand,
    OnLine,
    OutputReaders,
    ProcessExit,
    open_reader,
    start_error,
)

assert sys.platform != "win32"  # noqa: S101 -- narrows the platform for the type checker

_ORPHAN_S = 5.0
"""Seconds to wait until a killed engine is gone."""


class KeeperProcess:
    """An engine process started by a keeper. Implements EngineProcess.

    The keeper is a plain Popen: an asyncio subprocess would be killed when the event loop closes, and then no process
    would be left to end the engine.
    """

    def __init__(
        self, identity: ProcessId, keeper: "subprocess.Popen[bytes]", pipes: "_Pipes", readers: OutputReaders
    ) -> None:
        self.identity = identity
        self.exited: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self._keeper = keeper
        self._pipes = pipes
        self._readers = readers
        self._watch_task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        words = (await self._pipes.status.readline()).split()
        if words[:1] == [b"exited"]:
            code = int(words[1])
        else:  # the keeper was killed, so this process has to end the engine
            code = -signal.SIGKILL
            await self._kill_orphan()
        await self._readers.drain()
        await self._pipes.close()
        self.exited.set_result(ProcessExit(code))

    async def _kill_orphan(self) -> None:
        """Kill the engine's process group and poll until it is gone (waitpid is only for children of this process)."""
        if self.identity.is_running():
            descendants: list[psutil.Process] = []
            with suppress(psutil.Error):  # also in other groups and sessions; found only while the engine runs
                descendants = psutil.Process(self.identity.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(self.identity.pid, signal.SIGKILL)
            for process in descendants:
                with suppress(psutil.Error):
                    process.kill()
        deadline_s = time.monotonic() + _ORPHAN_S
        while self.identity.is_running() and time.monotonic() < deadline_s:  # noqa: ASYNC110 -- no event to wait for
            await asyncio.sleep(0.01)

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> ProcessExit:
        """See EngineProcess.stop."""
        if self._watch_task.cancelling():  # the event loop is shutting down and cancels all tasks
            self._watch_task = asyncio.create_task(self._watch())
        for request, seconds in (("stop", patience_s[0]), (f"signal {signal.SIGTERM:d}", patience_s[1])):
            self._send_to_keeper(request)
            done, _ = await asyncio.wait([self.exited], timeout=seconds)
            if done:
                return self.exited.result()
        self._send_to_keeper(f"signal {signal.SIGKILL:d}")
        return await asyncio.shield(self.exited)

    def _send_to_keeper(self, request: str) -> None:
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            with suppress(BrokenPipeError):
                self._keeper.stdin.write(f"{request}\n".encode())


class PreparedKeeper:
    """A keeper that waits for the word to start its engine. Implements PreparedProcess.

    Starting it takes 40 ms, as for any Python process; the previous engine goes on working meanwhile.
    """

    def __init__(self, command: EngineCommand) -> None:
        self._command = command
        self._is_started = False
        self._status_fd, write_fd = os.pipe()
        keeper = str(Path(__file__).with_name("keeper.py"))
        try:
            self._keeper = subprocess.Popen(  # blocks for a millisecond only: see KeeperProcess
                (sys.executable, "-I", "-S", keeper, str(write_fd), *command.arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(write_fd,),
                env=dict(command.environment),
                cwd=command.folder,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._status_fd)
            raise start_error(command, error.strerror or str(error)) from error
        finally:
            os.close(write_fd)

    async def start(self, on_line: OnLine) -> KeeperProcess:
        """See PreparedProcess."""
        self._is_started = True
        keeper = self._keeper
        assert keeper.stdin is not None  # noqa: S101 -- stdin is a pipe
        assert keeper.stdout is not None  # noqa: S101
        assert keeper.stderr is not None  # noqa: S101
        with suppress(BrokenPipeError):
            keeper.stdin.write(b"start\n")
        pipes, status = _Pipes(keeper), os.fdopen(self._status_fd, "rb", 0)
        try:
            pipes.status = await pipes.open_reader(status)
            output, errors = await pipes.open_reader(keeper.stdout), await pipes.open_reader(keeper.stderr)
            readers = OutputReaders(output, errors, on_line)
            words = (await pipes.status.readline()).split()
        except BaseException:  # cancelled
            keeper.stdin.close()  # the keeper ends its engine then, and itself
            await pipes.close()
            for pipe in (status, keeper.stdout, keeper.stderr):  # nothing else closes those that no stream reads yet
                pipe.close()
            raise
        if words[:1] != [b"started"]:
            await readers.drain()
            await pipes.close()
            reason = os.strerror(int(words[1])) if words[:1] == [b"failed"] else "its keeper process ended"
            raise start_error(self._command, reason)
        pid = int(words[1])
        return KeeperProcess(ProcessId.from_pid(pid) or ProcessId(pid, 0.0), keeper, pipes, readers)

    def discard(self) -> None:
        """See PreparedProcess."""
        if self._is_started:
            return
        self._is_started = True
        self._keeper.kill()  # the keeper has no engine yet
        self._keeper.communicate()
        os.close(self._status_fd)


class _Pipes:
    """The launcher's ends of a keeper's pipes."""

    status: asyncio.StreamReader

    def __init__(self, keeper: "subprocess.Popen[bytes]") -> None:
        self._keeper = keeper
        self._transports: list[asyncio.ReadTransport] = []

    async def open_reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        """Return a stream that reads `pipe`."""
        reader, transport = await open_reader(pipe)
        self._transports.append(transport)
        return reader

    async def close(self) -> None:
        """Wait for the keeper, which is about to exit, and close every pipe."""
        await asyncio.to_thread(self._keeper.wait)
        for transport in self._transports:
            transport.close()
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
