"""The rows that benchmarks return, and the table of all rows."""

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from launcher import __version__
from launcher.engine.builds.probe import built_in_version
from launcher.machine.host import read_host


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `kept` is whether the limit was kept; None where there is none, or its condition was not
    reached.

    `ratio` is the measured value divided by `reference`; limits of time and of processor time are limits of this ratio.
    """

    what: str
    measured: str
    reference: str = "-"
    ratio: str = "-"
    limit: str = "-"
    kept: bool | None = None

    @property
    def verdict(self) -> str:
        if self.kept is None:
            return "no limit" if self.limit == "-" else "not measured"
        return "kept" if self.kept else "MISSED"

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
