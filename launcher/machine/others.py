"""How much of the processor other programs take: all that is busy, less an engine and this program."""

from typing import NamedTuple

import psutil


class _Spent(NamedTuple):
    busy_s: float
    total_s: float
    ours_s: float


class OtherPrograms:
    """Their share of the processor between two questions. Time that a hypervisor gives to others counts as theirs."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._engine: psutil.Process | None = None
        self._before: _Spent | None = None

    def percent(self, engine_pid: int) -> float | None:
        """Return the share since the last question about the same engine, 0 to 100; None when that is not known."""
        try:
            if self._engine is None or self._engine.pid != engine_pid:
                self._engine, self._before = psutil.Process(engine_pid), None
            ours_s = sum(sum(process.cpu_times()[:2]) for process in (self._self, self._engine))
        except psutil.Error:
            self._engine = None
            return None
        times = psutil.cpu_times()
        guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # Linux counts it in user, too
        total_s = sum(times) - guest_s
        now = _Spent(total_s - times.idle - getattr(times, "iowait", 0.0), total_s, ours_s)
        before, self._before = self._before, now
        if before is None or now.total_s <= before.total_s:
            return None
        others_s = (now.busy_s - before.busy_s) - (now.ours_s - before.ours_s)
        return 100.0 * min(1.0, max(0.0, others_s / (now.total_s - before.total_s)))
