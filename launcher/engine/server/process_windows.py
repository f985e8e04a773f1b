"""Engine process in a Windows Job Object, which ends the engine together with this process.

The kernel closes the job handle however this process ends, and closing the last handle kills the job.
"""

import asyncio
import ctypes
import sys
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
    """An engine process in a separate Job Object. Implements EngineProcess."""

    def __init__(self, process: asyncio.subprocess.Process, job: _Job, readers: OutputReaders) -> None:
        self.identity = ProcessId.from_pid(process.pid) or ProcessId(process.pid, 0.0)
        self.exited: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self._process = process
        self._job = job
        self._readers = readers
        self._watch_task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        code = await self._process.wait()
        self._job.end()
        await self._readers.drain()
        self._job.close()  # not before, because stop() may still end the job
        self.exited.set_result(ProcessExit(code))

    async def stop(self, patience_s: tuple[float, float] = STOP_PATIENCE_S) -> ProcessExit:
        """See EngineProcess.stop. Sends the exit line, then ends the job: signals need a console."""
        if self._watch_task.cancelled():  # the event loop is shutting down and has cancelled all tasks
            self._watch_task = asyncio.create_task(self._watch())
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(_EXIT_LINE)
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
        return await start_in_job(self._command, on_line)

    def discard(self) -> None:
        """See PreparedProcess."""


async def start_in_job(command: EngineCommand, on_line: OnLine) -> JobProcess:
    """Start `command` in a kill-on-close Job Object. See process.start_process."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(command.environment),
            cwd=command.folder,
            creationflags=_CREATE_NO_WINDOW | _CREATE_NEW_PROCESS_GROUP | _CREATE_SUSPENDED,
        )
    except OSError as error:
        raise start_error(command, error.strerror or str(error)) from error
    assert process.stdout is not None  # noqa: S101 -- stdout is a pipe
    assert process.stderr is not None  # noqa: S101
    try:  # resumed only once it is in the job: before that, it could start processes outside of the job
        job = _Job()
        job.add(process.pid)
        psutil.Process(process.pid).resume()
    except (OSError, psutil.Error) as error:
        process.kill()
        await process.wait()
        raise start_error(command, str(error)) from error
    return JobProcess(process, job, OutputReaders(process.stdout, process.stderr, on_line))
