"""An engine behind its keeper (POSIX): see keeper.py."""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.base.identity import ProcessId
from launcher.engine.process import STOP_PATIENCE_S, Command, Exit, OnLine, Pumps, cannot_start

assert sys.platform != "win32"  # noqa: S101 -- narrows the platform for the type checker

_ORPHAN_S = 5.0


class KeptProcess:
    """An engine behind its keeper."""

    def __init__(
        self, identity: ProcessId, keeper: asyncio.subprocess.Process, status: asyncio.StreamReader, pumps: Pumps
    ) -> None:
        self.identity = identity
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._keeper = keeper
        self._watching = asyncio.create_task(self._watch(status, pumps))

    async def _watch(self, status: asyncio.StreamReader, pumps: Pumps) -> None:
        words = (await status.readline()).split()
        if words[:1] == [b"exited"]:
            code = int(words[1])
        else:  # somebody killed the keeper: nobody else looks after the engine now
            code = -signal.SIGKILL
            await self._kill_orphan()
        await pumps.drain()
        await self._keeper.wait()
        self.exited.set_result(Exit(code))

    async def _kill_orphan(self) -> None:
        """Kill the engine's group and wait until it is gone; it is not our child, so there is nothing to wait on."""
        if self.identity.running():
            with suppress(ProcessLookupError):
                os.killpg(self.identity.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + _ORPHAN_S
        while self.identity.running() and time.monotonic() < deadline_s:  # noqa: ASYNC110 -- no event tells
            await asyncio.sleep(0.01)

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> Exit:
        """See EngineProcess.stop."""
        for request, seconds in (("stop", patience_s[0]), (f"signal {signal.SIGTERM:d}", patience_s[1])):
            self._tell(request)
            done, _ = await asyncio.wait([self.exited], timeout=seconds)
            if done:
                return self.exited.result()
        self._tell(f"signal {signal.SIGKILL:d}")
        return await asyncio.shield(self.exited)

    def _tell(self, request: str) -> None:
        if self._keeper.stdin is not None and not self._keeper.stdin.is_closing():
            self._keeper.stdin.write(f"{request}\n".encode())


async def start_kept(command: Command, on_line: OnLine) -> KeptProcess:
    """Start `command` behind a keeper. See process.start."""
    read_fd, write_fd = os.pipe()
    status = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(status), os.fdopen(read_fd, "rb", 0)
    )
    try:
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(write_fd)),
            *command.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(write_fd,),
            env=dict(command.environment),
            cwd=command.folder,
            start_new_session=True,
        )
    finally:
        os.close(write_fd)
    pumps = Pumps(keeper, on_line)
    words = (await status.readline()).split()
    if words[:1] != [b"started"]:
        await keeper.wait()
        await pumps.drain()
        reason = os.strerror(int(words[1])) if words[:1] == [b"failed"] else "its keeper process ended"
        raise cannot_start(command, reason)
    pid = int(words[1])
    return KeptProcess(ProcessId.of(pid) or ProcessId(pid, 0.0), keeper, status, pumps)
