"""Process identity that does not confuse a process with a later one that has the same pid."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

_SUSPENDED_STATES = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_START_TOLERANCE_S = 0.015
"""Tolerance in seconds: Linux reports the start in ticks of 10 ms (proc_pid_stat(5)), Windows more finely."""


class ProcessId(NamedTuple):
    """A pid together with the creation time of the process.

    On Linux `created_s` is seconds since boot, which do not change when the clock is set; elsewhere the system stores
    the creation time itself, in seconds since the epoch. It serves for comparisons only.
    """

    pid: int
    created_s: float

    @classmethod
    def from_pid(cls, pid: int) -> "ProcessId | None":
        """Return the identity of the running process `pid`, or None if there is none."""
        try:
            return cls(pid, _creation_time_s(psutil.Process(pid)))
        except (psutil.Error, OSError):
            return None

    def is_running(self) -> bool:
        """Return True if this same process still runs. A zombie does not count."""
        try:
            process = psutil.Process(self.pid)
            return (
                abs(_creation_time_s(process) - self.created_s) < _START_TOLERANCE_S
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except (psutil.Error, OSError):
            return False

    def is_suspended(self) -> bool:
        """Return True if this same process is suspended: by Ctrl-Z, SIGSTOP or a debugger."""
        try:
            return self.is_running() and psutil.Process(self.pid).status() in _SUSPENDED_STATES
        except psutil.Error:
            return False


def _creation_time_s(process: psutil.Process) -> float:
    """Return the creation time of a process. psutil's value on Linux moves with the clock, so /proc is read there."""
    if sys.platform != "linux":
        return process.create_time()
    after_name = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
