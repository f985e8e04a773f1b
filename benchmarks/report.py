"""What every benchmark hands in, and the one table it ends in."""

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
    """One line of the table. `kept` says whether the limit was kept; None when there is no limit."""

    what: str
    limit: str
    measured: str
    kept: bool | None

    @property
    def verdict(self) -> str:
        return {True: "kept", False: "MISSED", None: "no limit"}[self.kept]


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a markdown table."""
    lines = ["| what | limit | measured | verdict |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.limit} | {row.measured} | {row.verdict} |" for row in rows]
    return "\n".join(lines)


def machine(load_before: str) -> str:
    """Return the machine and the day, in lines."""
    host = read_host()
    facts = {
        "Processor": f"{host.cpu or host.machine}, {os.cpu_count()} cores",
        "Load average": f"{load_before} before, {load()} after",
        "System": host.system.partition(", kernel")[0],
        "Python": platform.python_version(),
        "MTP Launcher": f"{__version__}, engine xllamacpp {built_in_version() or 'absent'}",
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def load() -> str:
    """Return the load average of the last minute, or that this system has none."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
