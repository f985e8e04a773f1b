"""What is sampled of the host and of one process, by psutil."""

import time
from collections import deque
from typing import NamedTuple

import psutil

from launcher.machine.reading import Reading

_MIB = 2**20
_WINDOW_S, _SHORTEST_S = 1.0, 0.1
"""The kernel counts processor time in steps of 10 ms: a share over less than 0.1 s says nothing."""


class _Times(NamedTuple):
    at_s: float
    idle_s: float
    total_s: float


class HostSensors:
    """Processor and memory of the whole host, and the memory of one process."""

    def __init__(self) -> None:
        self._times = deque([_cpu_times()])
        self._process: psutil.Process | None = None

    def watch(self, pid: int | None) -> None:
        """Sample the memory of process `pid` from now on; None stops it."""
        if pid == (self._process.pid if self._process else None):
            return
        try:
            self._process = None if pid is None else psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def sample(self) -> dict[str, Reading]:
        """Return the readings by name; the name ends in the unit."""
        memory = psutil.virtual_memory()
        return {
            "host_cpu_percent": self._cpu(),
            "host_memory_used_mib": Reading((memory.total - memory.available) / _MIB),
            "host_memory_total_mib": Reading(memory.total / _MIB),
            "engine_memory_mib": self._engine_memory(),
        }

    def _cpu(self) -> Reading:
        """Return the share of the processor that was busy over the last second."""
        self._times.append(_cpu_times())
        while len(self._times) > 2 and self._times[1].at_s < self._times[-1].at_s - _WINDOW_S:
            self._times.popleft()
        first, last = self._times[0], self._times[-1]
        total_s = last.total_s - first.total_s
        if last.at_s - first.at_s < _SHORTEST_S or total_s <= 0:
            return Reading.unknown("Not measured for long enough yet.")
        return Reading(100.0 * min(1.0, max(0.0, 1.0 - (last.idle_s - first.idle_s) / total_s)))

    def _engine_memory(self) -> Reading:
        if self._process is None:
            return Reading.unknown("No engine is running.")
        try:
            resident = self._process.memory_info().rss
        except psutil.Error:
            resident = 0
        if not resident:  # a zombie's is 0
            return Reading.unknown("The engine has ended.")
        return Reading(resident / _MIB)


def _cpu_times() -> _Times:
    times = psutil.cpu_times()
    guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # Linux counts it in user, too
    return _Times(time.monotonic(), times.idle + getattr(times, "iowait", 0.0), sum(times) - guest_s)
