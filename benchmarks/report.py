"""The rows that benchmarks return, and the table of all rows."""

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from benchmarks.measure import Interval
from launcher import __version__
from launcher.engine.builds.probe import built_in_version
from launcher.machine.host import read_host


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `kept` is whether the limit was kept; None where there is none, or its condition was not
    reached, or where pairs leave it `unclear`: the ratio is beyond the limit, its 95 % interval reaches below.

    `ratio` is the measured value divided by `reference`; limits of time and of processor time are limits of this ratio.
    """

    what: str
    measured: str
    reference: str = "-"
    ratio: str = "-"
    limit: str = "-"
    kept: bool | None = None
    unclear: bool = False

    @property
    def verdict(self) -> str:
        if self.unclear:
            return "unclear"
        if self.kept is None:
            return "no limit" if self.limit == "-" else "not measured"
        return "kept" if self.kept else "MISSED"

    def judged_by(self, ratio: Interval, limit: float, *, at_least: bool = False) -> "Row":
        """Return the row with the verdict of pairs: a limit is kept if the estimate keeps it, and missed if no part of
        the interval does. `at_least`: the ratio is not to be below the limit, instead of below it.
        """
        kept, best = (
            (ratio.estimate >= limit, ratio.upper >= limit)
            if at_least
            else (ratio.estimate < limit, ratio.lower < limit)
        )
        unclear = best and not kept
        return replace(self, kept=None if unclear else kept, unclear=unclear)

    def __str__(self) -> str:
        cells = (self.what, self.measured, self.reference, self.ratio, self.limit, self.verdict)
        return f"| {' | '.join(cells)} |"


def format_table(rows: Iterable[Row]) -> str:
    """Return the rows as a markdown table."""
    head = ["| what | measured | reference | ratio | limit | verdict |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *map(str, rows)])


def describe_machine(load_before: str) -> str:
    """Return the machine and the day, in lines."""
    host = read_host()
    facts = {
        "Processor": f"{host.cpu or host.machine}, {os.cpu_count()} cores",
        "Load average": f"{load_before} before, {read_load()} after",
        "System": host.system.partition(", kernel")[0],
        "Python": platform.python_version(),
        "MTP Launcher": f"{__version__}, engine xllamacpp {built_in_version() or 'absent'}",
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def read_load() -> str:
    """Return the load average of the last minute, or that this system has none."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
