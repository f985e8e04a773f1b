"""Names the programs that use most of the processor."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import psutil

_MOST_NAMES = 2
_LEAST_SHARE = 0.15
"""A program is named if it used at least this share of the CPU time of all counted programs."""


class ProgramTime(NamedTuple):
    """A process: the name of its program, when it started (seconds since the epoch), and its CPU seconds so far."""

    name: str
    started_s: float
    used_s: float


class BusyPrograms:
    """Finds the busiest programs between two calls. A call takes some milliseconds of processor time."""

    def __init__(self) -> None:
        self._before: dict[int, ProgramTime] | None = None

    def list_busiest(self, without: Collection[int]) -> tuple[str, ...]:
        """Return the names of one or two programs, the busiest first, leaving out the processes `without`.

        Empty on the first call, and if no program can be read.
        """
        before, self._before = self._before, read_program_times()
        return () if before is None else rank_programs(before, self._before, without)

    def forget(self) -> None:
        """Forget the last call, so that the next one begins anew."""
        self._before = None


def read_program_times() -> dict[int, ProgramTime]:
    """Return the processes that this user may read, by process ID."""
    times = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                used = process.cpu_times()
                times[process.pid] = ProgramTime(process.name(), process.create_time(), used.user + used.system)
        except (psutil.Error, OSError):  # it has ended, or belongs to the system; Windows has errors of its own
            continue
    return times


def rank_programs(
    before: Mapping[int, ProgramTime], after: Mapping[int, ProgramTime], without: Collection[int]
) -> tuple[str, ...]:
    """Return the programs that used most CPU seconds between two readings, all processes of a name together."""
    used: dict[str, float] = {}
    for pid, now in after.items():
        if pid in without or not now.name:
            continue
        then = before.get(pid)
        begun_s = then.used_s if then is not None and then.started_s == now.started_s else 0.0
        used[now.name] = used.get(now.name, 0.0) + max(now.used_s - begun_s, 0.0)
    total_s = sum(used.values())
    ranked = sorted(used, key=lambda name: used[name], reverse=True)
    return tuple(name for name in ranked[:_MOST_NAMES] if used[name] > 0 and used[name] >= _LEAST_SHARE * total_s)
