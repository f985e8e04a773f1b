"""References for limits of time: programs that do nothing, and that run in turn with the measured work.

The same program takes three times as long on one quiet machine as on another, so a limit in seconds would judge the
machine. A limit is a multiple of what an empty program takes on the same machine at the same time.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import format_summary, paired_ratio, typical_value
from benchmarks.report import Row
from benchmarks.workplace import ROOT, child, read_result

_SECONDS = {"s": 1.0, "ms": 1e-3}


class Interpreter:
    """Starts an empty interpreter, `python -c pass`, repeatedly, and collects its wall and processor seconds."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def start(self, times: int = 1) -> None:
        """Start the interpreter `times` times. Call this in turn with the measured work."""
        for _ in range(times):
            before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            self.wall_s.append(time.perf_counter() - began_s)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def row(
        self,
        what: str,
        values: Sequence[float],
        unit: str,
        digits: int,
        limit: float,
        *,
        worst: bool = False,
        is_processor_time: bool = False,
    ) -> Row:
        """Return a row for times by the clock, or of the processor. Their median counts; with `worst` the longest."""
        value = max(values) if worst else statistics.median(values)
        start_s = statistics.median(self.cpu_s if is_processor_time else self.wall_s)
        ratio = value * _SECONDS[unit] / start_s
        reference = f"`python -c pass`: {1_000 * start_s:.1f} ms{' of processor' if is_processor_time else ''}"
        return Row(
            what,
            format_summary(values, unit, digits),
            reference,
            f"{ratio:.2g} times",
            f"< {limit:g} times",
            ratio < limit,
        )

    def share_row(
        self,
        what: str,
        percents: Sequence[float],
        digits: int,
        limit: float,
        also: str = "",
        *,
        holds: bool = True,
        worst: bool = False,
    ) -> Row:
        """Return a row for shares of a core, as starts of the interpreter a second. `also` describes a condition of the
        limit, and `holds` tells whether it was reached; else the limit was not measured.
        """
        start_s = statistics.median(self.cpu_s)
        value = max(percents) if worst else statistics.median(percents)
        ratio = value / 100 / start_s
        return Row(
            what,
            format_summary(percents, "% of a core", digits),
            f"`python -c pass`: {1_000 * start_s:.1f} ms of processor",
            f"{ratio:.2g} starts/s",
            f"< {limit:g} starts/s{also}",
            ratio < limit if holds else None,
        )

    def difference_row(
        self, what: str, values: Sequence[float], name: str, references: Sequence[float], limit: float
    ) -> Row:
        """Return a row for shares of a core, each measured beside the reference: by how many starts of the interpreter
        a second they are larger. See `Row.judged_by` for its verdict.
        """
        start_s = statistics.median(self.cpu_s)
        more = typical_value(
            [(value - reference) / 100 / start_s for value, reference in zip(values, references, strict=True)]
        )
        return Row(
            what,
            format_summary(values, "% of a core", 2),
            f"{name}: {statistics.median(references):.2f} %; `python -c pass`: {1_000 * start_s:.1f} ms of processor",
            f"{more.estimate:.2f} starts/s more (95 %: {more.lower:.2f} to {more.upper:.2f})",
            f"< {limit:g} starts/s more",
        ).judged_by(more, limit)


def ratio_row(
    what: str,
    values: Sequence[float],
    unit: str,
    digits: int,
    name: str,
    references: Sequence[float],
    limit: float,
    also: str = "",
    *,
    holds: bool = True,
) -> Row:
    """Return a row for values, each measured beside the reference in the same unit. `also` and `holds` are as in
    `Interpreter.share_row`.

    See `Row.judged_by` for its verdict.
    """
    reference, ratio = statistics.median(references), paired_ratio(values, references)
    row = Row(
        what,
        format_summary(values, unit, digits),
        f"{name}: {reference:.{digits}f} {unit}",
        f"{ratio.estimate:.2g} times (95 %: {ratio.lower:.2g} to {ratio.upper:.2g})",
        f"< {limit:g} times{also}",
    )
    return row.judged_by(ratio, limit) if holds else row


def paint_empty_window() -> float:
    """Return the seconds from the start of a process to the first paint of an empty PySide6 window."""
    with child("empty_window_child") as process:
        seconds: float = read_result(process, 10)["painted_s"]
    return seconds


class Waker:
    """A process that wakes `rate` times a second for `seconds`, and does nothing."""

    def __init__(self, rate: float, seconds: float) -> None:
        words = [sys.executable, "-m", "benchmarks.waker_child", str(rate), str(seconds)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def end(self) -> float:
        """Wait for its end and return its share of a core in percent."""
        percent: float = json.loads(self._process.communicate()[0])["cpu_percent"]
        return percent


def count_wakes(pid: int | None = None) -> int:
    """Return how often the threads of a process (this one by default) have waited and woken: their voluntary context
    switches."""
    return sum(_count_voluntary_switches(path) for path in Path(f"/proc/{pid or os.getpid()}/task").glob("*/status"))


def _count_voluntary_switches(path: Path) -> int:
    try:
        return int(path.read_text("ascii").rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    except OSError:
        return 0  # the thread has ended
