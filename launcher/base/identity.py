"""A process named so that a recycled pid is not mistaken for it."""

from typing import NamedTuple

import psutil

_SAME_START_S = 0.5
"""psutil derives the start time from the boot time, which may be re-read between two calls."""


class ProcessId(NamedTuple):
    """A pid together with the time the process was created (seconds since the epoch)."""

    pid: int
    created_s: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the identity of the running process `pid`, or None if there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def running(self) -> bool:
        """Return whether this very process still runs. A zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return (
                abs(process.create_time() - self.created_s) < _SAME_START_S and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False
