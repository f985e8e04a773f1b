"""Sensors of the host and of the engine, read with psutil."""

import time
from collections import deque
from typing import NamedTuple

import psutil

from launcher.base.messages import message
from launcher.machine.gpu import TOO_SHORT, Reading

_MIB = 2**20
_WINDOW_S, _SHORTEST_S = 1.0, 0.1
"""Seconds over which a CPU share is measured, and the fewest: the kernel counts CPU time in steps of 10 ms."""


class CpuTimes(NamedTuple):
    """CPU seconds since the system started, over all cores, read at `at_s` of the monotonic clock.

    `stolen_s` is what a hypervisor gave to other virtual machines; it is part of the total.
    """

    at_s: float
    idle_s: float
    total_s: float
    stolen_s: float


class HostSensors:
    """CPU and memory of the whole host, and the memory of one process."""

    def __init__(self) -> None:
        self._times = deque([read_cpu_times()])
        self._process: psutil.Process | None = None

    def watch_process(self, pid: int | None) -> None:
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
            "host_cpu_percent": self._cpu_load(),
            "host_memory_used_mib": Reading((memory.total - memory.available) / _MIB),
            "host_memory_total_mib": Reading(memory.total / _MIB),
            "engine_memory_mib": self._engine_memory(),
        }

    def _cpu_load(self) -> Reading:
        """Return the share of the CPU that was busy over the last second, in percent."""
        self._times.append(read_cpu_times())
        while len(self._times) > 2 and self._times[1].at_s < self._times[-1].at_s - _WINDOW_S:
            self._times.popleft()
        first, last = self._times[0], self._times[-1]
        total_s = last.total_s - first.total_s
        if last.at_s - first.at_s < _SHORTEST_S or total_s <= 0:
            return Reading.unknown(TOO_SHORT)
        return Reading(100.0 * min(1.0, max(0.0, 1.0 - (last.idle_s - first.idle_s) / total_s)))

    def _engine_memory(self) -> Reading:
        if self._process is None:
            return Reading.unknown(message("No engine is running."))
        try:
            resident = self._process.memory_info().rss
        except psutil.Error:
            resident = 0
        if not resident:  # the resident size of a zombie is 0
            return Reading.unknown(message("The engine has ended."))
        return Reading(resident / _MIB)


def read_cpu_times() -> CpuTimes:
    """Return the CPU seconds of this computer."""
    times = psutil.cpu_times()
    # Linux counts the time of virtual machines twice: as guest time and within user time.
    guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    idle_s, stolen_s = times.idle + getattr(times, "iowait", 0.0), getattr(times, "steal", 0.0)
    return CpuTimes(time.monotonic(), idle_s, sum(times) - guest_s, stolen_s)
