"""CPU share of other programs: the total load without an engine and this program."""

from typing import NamedTuple

import psutil


class _CpuTimes(NamedTuple):
    busy_s: float
    total_s: float
    ours_s: float


class OtherProgramsLoad:
    """The CPU share of other programs between two calls. Time that a hypervisor gives to other machines is included."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._engine: psutil.Process | None = None
        self._before: _CpuTimes | None = None

    def read_percent(self, engine_pid: int) -> float | None:
        """Return their share in percent since the last call for the same engine, 0 to 100; None if unknown."""
        try:
            if self._engine is None or self._engine.pid != engine_pid:
                self._engine, self._before = psutil.Process(engine_pid), None
            ours_s = sum(sum(process.cpu_times()[:2]) for process in (self._self, self._engine))
        except psutil.Error:
            self._engine = None
            return None
        times = psutil.cpu_times()
        # Linux includes it in user time as well.
        guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        total_s = sum(times) - guest_s
        now = _CpuTimes(total_s - times.idle - getattr(times, "iowait", 0.0), total_s, ours_s)
        before, self._before = self._before, now
        if before is None or now.total_s <= before.total_s:
            return None
        others_s = (now.busy_s - before.busy_s) - (now.ours_s - before.ours_s)
        return 100.0 * min(1.0, max(0.0, others_s / (now.total_s - before.total_s)))
