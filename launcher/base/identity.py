"""A process named so that a recycled pid is not mistaken for it."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

_HELD = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_SAME_START_S = 0.015
"""Linux tells the start in ticks of 10 ms (proc_pid_stat(5)); Windows finer."""


class ProcessId(NamedTuple):
    """A pid together with the time at which the process was created.

    `created_s` is seconds since the boot on Linux, which stay the same when the clock is set; elsewhere, where the
    system keeps the time of creation itself, seconds since the epoch. It is only ever compared.
    """

    pid: int
    created_s: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the identity of the running process `pid`, or None if there is none."""
        try:
            return cls(pid, _created_s(psutil.Process(pid)))
        except (psutil.Error, OSError):
            return None

    def running(self) -> bool:
        """Return whether this very process still runs. A zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return (
                abs(_created_s(process) - self.created_s) < _SAME_START_S and process.status() != psutil.STATUS_ZOMBIE
            )
        except (psutil.Error, OSError):
            return False

    def held(self) -> bool:
        """Return whether this very process runs but is held: by Ctrl-Z, SIGSTOP or a debugger."""
        try:
            return self.running() and psutil.Process(self.pid).status() in _HELD
        except psutil.Error:
            return False


def _created_s(process: psutil.Process) -> float:
    """Return when a process was created; psutil's own time on Linux moves with the clock."""
    if sys.platform != "linux":
        return process.create_time()
    after_name = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
