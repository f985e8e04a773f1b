"""Reads how much of the processor other programs, other virtual machines and throttling take from the engine."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.machine.sensors import CpuTimes, read_cpu_times
from launcher.machine.sysfs import ROOT, read_number, read_text

_CPUS = "sys/devices/system/cpu"
_THROTTLED_TIMES = ("core_throttle_total_time_ms", "package_throttle_total_time_ms")


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counts of the processor since the system started. Unknown values are None.

    `ours_s` are the CPU seconds of this program and the engine. `waiting_s` is the time in which any program waited for
    a core (pressure stall information), `throttled_s` the longest that a core was throttled. `cap_mhz` is the highest
    clock that the kernel allows now, over all cores, and `queue` how many programs run or wait now for each core.
    """

    times: CpuTimes
    ours_s: float
    engine_pid: int | None
    waiting_s: float | None = None
    throttled_s: float | None = None
    cap_mhz: float | None = None
    queue: float | None = None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Processor use of other programs over a time, as shares of 0 to 1. Unknown values are None.

    `others` are other programs, `stolen` other virtual machines. `waiting` is the share of the time in which a program
    waited for a core, `throttled` the share in which a core was throttled. `cap_mhz` and `queue` are the values of
    HostCounters at the end of the time.
    """

    others: float
    stolen: float
    waiting: float | None = None
    throttled: float | None = None
    cap_mhz: float | None = None
    queue: float | None = None


def measure_load(before: HostCounters | None, after: HostCounters | None) -> HostLoad | None:
    """Return the load between two readings. None without any, without time between them, or for another engine."""
    if before is None or after is None or before.engine_pid != after.engine_pid:
        return None
    seconds, idle_s, total_s, stolen_s = (now - then for then, now in zip(before.times, after.times, strict=True))
    if total_s <= 0 or seconds <= 0:
        return None
    others_s = total_s - idle_s - stolen_s - (after.ours_s - before.ours_s)
    return HostLoad(
        _as_share(others_s, total_s),
        _as_share(stolen_s, total_s),
        _share_between(before.waiting_s, after.waiting_s, seconds),
        _share_between(before.throttled_s, after.throttled_s, seconds),
        after.cap_mhz,
        after.queue,
    )


def _as_share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


def _share_between(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else _as_share(after_s - before_s, seconds)


class HostCounterReader:
    """Reads the counts of the processor. `root` is the root of the Linux file systems (for tests)."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        folders = (root / _CPUS).glob("cpu[0-9]*/thermal_throttle")
        self._throttled_files = [folder / name for folder in folders for name in _THROTTLED_TIMES]
        self._cap_files = [each / "scaling_max_freq" for each in (root / _CPUS).glob("cpufreq/policy[0-9]*")]
        self._own_process = psutil.Process()
        self._engine: psutil.Process | None = None

    def read(self, engine_pid: int | None) -> HostCounters | None:
        """Return the counts now. `engine_pid` is the engine's process, None if there is none.

        None if that process has ended.
        """
        try:
            if engine_pid is None:
                self._engine = None
            elif self._engine is None or self._engine.pid != engine_pid:
                self._engine = psutil.Process(engine_pid)
            ours = [self._own_process, *([self._engine] if self._engine else [])]
            ours_s = sum(sum(process.cpu_times()[:2]) for process in ours)
        except psutil.Error:
            self._engine = None
            return None
        return HostCounters(
            times=read_cpu_times(),
            ours_s=ours_s,
            engine_pid=engine_pid,
            waiting_s=_read_waiting(self._root),
            throttled_s=_largest(self._throttled_files, 1e-3),
            cap_mhz=_largest(self._cap_files, 1e-3),
            queue=_read_queue(self._root),
        )


class OtherProgramsLoad:
    """The CPU share of all programs except this one and the engine, between two calls.

    Time that a hypervisor gives to other virtual machines is included.
    """

    def __init__(self) -> None:
        self._reader = HostCounterReader()
        self._before: HostCounters | None = None

    def read_percent(self, engine_pid: int) -> float | None:
        """Return the share in percent since the last call for the same engine, 0 to 100; None if unknown."""
        before, self._before = self._before, self._reader.read(engine_pid)
        load = measure_load(before, self._before)
        return None if load is None else 100.0 * (load.others + load.stolen)


def _read_waiting(root: Path) -> float | None:
    """Return the seconds in which any program waited for a core, by the "some" line of the kernel's CPU pressure."""
    for line in (read_text(root / "proc/pressure/cpu") or "").splitlines():
        kind, *fields = line.split()
        microseconds = dict(field.partition("=")[::2] for field in fields).get("total", "")
        if kind == "some" and microseconds.isdigit():
            return int(microseconds) / 1e6
    return None


def _largest(files: Iterable[Path], scale: float) -> float | None:
    """Return the largest number in some files times `scale`. None if none of them has one."""
    return max((number * scale for each in files if (number := read_number(each)) is not None), default=None)


def _read_queue(root: Path) -> float | None:
    """Return how many programs run or wait for each core: in the load averages the first part of the fourth figure."""
    figures = (read_text(root / "proc/loadavg") or "").split()
    running = figures[3].partition("/")[0] if len(figures) > 3 else ""
    return int(running) / (os.cpu_count() or 1) if running.isdigit() else None
