"""Readings of a process's resources, and whether they grew."""

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Resources of the program (with its keeper) and the engine; sizes in MiB, `age_s` since the engine's start.

    `rss` is resident memory, `sockets` is the number of open sockets in any state, `log` is the size of all log files.
    """

    time_s: float
    age_s: float
    program_rss: float
    program_files: int
    program_threads: int
    program_sockets: int
    engine_rss: float
    engine_files: int
    engine_threads: int
    engine_sockets: int
    log: float


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity early and late: the medians over the second and the last fifth of the time, and the maximum. `allowed`
    is the limit of its growth, None if it is only reported.
    """

    what: str
    early: float
    late: float
    most: float
    allowed: float | None

    @property
    def is_allowed(self) -> bool:
        return self.allowed is None or self.late - self.early <= self.allowed


def read_resources(program: psutil.Process, logs: Path, began_s: float) -> ResourceUse | None:
    """Return the resources in use now, None while there is no engine (during a restart)."""
    with suppress(psutil.Error):
        engine = next((each for each in program.children(recursive=True) if _is_engine(each)), None)
        if engine is not None:
            log = sum(path.stat().st_size for path in logs.glob("engine-*")) / _MIB
            now_s = time.monotonic() - began_s
            return ResourceUse(
                now_s, time.time() - engine.create_time(), *_read_process(program), *_read_process(engine), log
            )
    return None


def _is_engine(process: psutil.Process) -> bool:
    words = process.cmdline()
    return any(word.endswith("builtin.py") for word in words) and not any(word.endswith("keeper.py") for word in words)


def _read_process(process: psutil.Process) -> tuple[float, int, int, int]:
    with process.oneshot():
        rss = process.memory_info().rss / _MIB
        return rss, process.num_fds(), process.num_threads(), len(process.net_connections("inet"))


ALLOWED: dict[str, float | None] = {
    "program_rss": 5.0,
    "program_files": 3.0,
    "program_threads": 1.0,
    "program_sockets": 3.0,
    "engine_rss": None,
    "engine_files": 6.0,
    "engine_threads": 6.0,
    "engine_sockets": 6.0,
}
"""Allowed growth of a median until the end; connections come and go with each request.

Each connection takes a thread of the engine's HTTP server, which starts threads when it has too few and ends them
later. Its memory grows without this program, too: see docs/faults.md.
"""
_SERIES_S, _SERIES_MIB = 600.0, 1.3
"""The monitor's series grow for ten minutes: 12 series of 6,000 samples of 16 bytes, in arrays with an eighth of spare
room.
"""
LOG_MIB = 9.0
"""Four files of 2 MiB and one batch."""


def compute_growths(samples: Sequence[ResourceUse]) -> list[Growth]:
    """Compare the second fifth of the time with the last.

    The program is one process all the while. The engine is a new one after each restart, so of it only the last run
    counts, which is the longest.
    """
    end_s = samples[-1].time_s
    last_run = _last_run(samples)
    first_s = last_run[0].time_s
    found = []
    for name, allowed in ALLOWED.items():
        begin_s, source = (0.0, samples) if name.startswith("program") else (first_s, last_run)
        fifth = (end_s - begin_s) / 5
        early = [getattr(each, name) for each in source if fifth <= each.time_s - begin_s < 2 * fifth]
        late = [getattr(each, name) for each in source if each.time_s >= end_s - fifth]
        most = max(getattr(each, name) for each in samples)
        if name == "program_rss" and allowed is not None:
            allowed += _SERIES_MIB * (min(end_s, _SERIES_S) - min(1.5 * fifth, _SERIES_S)) / _SERIES_S
        found.append(Growth(name, statistics.median(early), statistics.median(late), most, allowed))
    return found


def _last_run(samples: Sequence[ResourceUse]) -> Sequence[ResourceUse]:
    starts = [i for i in range(1, len(samples)) if samples[i].age_s < samples[i - 1].age_s]
    return samples[starts[-1] if starts else 0 :]
