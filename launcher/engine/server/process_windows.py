"""Engine process in a Windows Job Object, which ends the engine together with this process.

The kernel closes the job handle however this process ends, and closing the last handle kills the job.
"""

import asyncio
import ctypes
import subprocess
import sys
import threading
from asyncio import windows_utils
from contextlib import suppress
from ctypes import wintypes

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

assert sys.platform == "win32"  # noqa: S101 -- narrows the platform for the type checker

_EXIT_LINE = b"cmd_router_to_child:exit\n"
"""Exit request of llama.cpp's router protocol, written to the engine's standard input."""
_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
_SET_QUOTA_AND_TERMINATE = 0x0101
_CREATE_NO_WINDOW, _CREATE_NEW_PROCESS_GROUP, _CREATE_SUSPENDED = 0x08000000, 0x00000200, 0x00000004


class _BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION (winnt.h)."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    )


class _ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION (winnt.h)."""

    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class _Job:
    """A Job Object that kills its processes when its handle is closed. No child inherits the handle."""

    def __init__(self) -> None:
        self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        for name in ("CreateJobObjectW", "OpenProcess"):
            getattr(self._kernel, name).restype = wintypes.HANDLE
        self._handle = wintypes.HANDLE(self._kernel.CreateJobObjectW(None, None))
        limits = _ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
        self._check(
            self._kernel.SetInformationJobObject(
                self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
        )

    def add(self, pid: int) -> None:
        process = wintypes.HANDLE(self._kernel.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, pid))
        try:
            self._check(self._kernel.AssignProcessToJobObject(self._handle, process))
        finally:
            self._kernel.CloseHandle(process)

    def end(self) -> None:
        self._kernel.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        self._kernel.CloseHandle(self._handle)

    @staticmethod
    def _check(succeeded: int) -> None:
        if not succeeded:
            raise ctypes.WinError(ctypes.get_last_error())


class JobProcess:
    """An engine process in a separate Job Object. Implements EngineProcess.

    The process is a Popen whose pipes the event loop can read, and not one of `asyncio.create_subprocess_exec`: if the
    end of the event loop cancels that in its middle, `asyncio.run` waits for ever (seen with Python 3.11.9).
    """

    def __init__(
        self, process: "windows_utils.Popen[bytes]", job: _Job, pipes: "_Pipes", readers: OutputReaders
    ) -> None:
        self.identity = ProcessId.from_pid(process.pid) or ProcessId(process.pid, 0.0)
        self.exited: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self._ended = _signal_end(process)
        self._job = job
        self._pipes = pipes
        self._readers = readers
        self._watch_task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        code = await asyncio.shield(self._ended)
        self._job.end()
        await self._readers.drain()
        self._pipes.close()
        self._job.close()  # not before, because stop() may still end the job
        self.exited.set_result(ProcessExit(code))

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> ProcessExit:
        """See EngineProcess.stop. Sends the exit line, then ends the job: signals need a console."""
        if self._watch_task.cancelling():  # the event loop is shutting down and cancels all tasks
            self._watch_task = asyncio.create_task(self._watch())
        with suppress(OSError):
            self._pipes.input.write(_EXIT_LINE)
        done, _ = await asyncio.wait([self.exited], timeout=patience_s[0])
        if not done:
            self._job.end()
        return await asyncio.shield(self.exited)


class PreparedJob:
    """A command to start in a job. Implements PreparedProcess; there is nothing to prepare."""

    def __init__(self, command: EngineCommand) -> None:
        self._command = command

    async def start(self, on_line: OnLine) -> JobProcess:
        """See PreparedProcess."""
        process, job = _start_in_job(self._command)
        pipes = _Pipes(process)
        try:
            await pipes.connect()
        except BaseException:  # cancelled
            job.end()
            process.wait()
            pipes.close()
            job.close()
            raise
        return JobProcess(process, job, pipes, OutputReaders(pipes.output, pipes.errors, on_line))

    def discard(self) -> None:
        """See PreparedProcess."""


class _Pipes:
    """The launcher's ends of an engine's pipes, as streams of the event loop."""

    input: asyncio.WriteTransport
    output: asyncio.StreamReader
    errors: asyncio.StreamReader

    def __init__(self, process: "windows_utils.Popen[bytes]") -> None:
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self) -> None:
        """Connect them with the event loop."""
        self.input, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._transports.append(self.input)
        self.output, transport = await open_reader(self._process.stdout)
        self._transports.append(transport)
        self.errors, transport = await open_reader(self._process.stderr)
        self._transports.append(transport)

    def close(self) -> None:
        """Close all three pipes, also those that the event loop does not read or write yet."""
        for transport in self._transports:
            transport.close()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        for pipe in pipes[len(self._transports) :]:
            if pipe is not None:
                pipe.close()


def _start_in_job(command: EngineCommand) -> tuple["windows_utils.Popen[bytes]", _Job]:
    """Start `command` in a kill-on-close Job Object. Nothing can cancel it half-way. Raises EngineMissing."""
    try:
        process = windows_utils.Popen[bytes](
            [*command.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(command.environment),
            cwd=command.folder,
            creationflags=_CREATE_NO_WINDOW | _CREATE_NEW_PROCESS_GROUP | _CREATE_SUSPENDED,
        )
    except OSError as error:
        raise start_error(command, error.strerror or str(error)) from error
    try:  # resumed only once it is in the job: before that, it could start processes outside of the job
        job = _Job()
        job.add(process.pid)
        psutil.Process(process.pid).resume()
    except (OSError, psutil.Error) as error:
        process.kill()
        process.wait()
        _Pipes(process).close()
        raise start_error(command, str(error)) from error
    return process, job


def _signal_end(process: "windows_utils.Popen[bytes]") -> "asyncio.Future[int]":
    """Return a future that gets the exit code of `process`, which a thread waits for."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def wait_for_end() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(ended.set_result, code)

    threading.Thread(target=wait_for_end, name="engine-exit", daemon=True).start()
    return ended
