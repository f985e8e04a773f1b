"""Formats and parses numbers for users, with an en dash for an unknown value; also the age of the process."""

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path


def format_percent(share: float | None) -> str:
    """Return a share as "82 %", or an en dash if it is unknown."""
    return "–" if share is None else f"{100 * share:.0f} %"  # noqa: RUF001 -- an en dash is intended


def format_figure(value: float | None) -> str:
    """Return a measured value as "1,193.4", or below 10 with three significant digits; an en dash if it is unknown."""
    if value is None:
        return "–"  # noqa: RUF001
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def format_rate(tokens_per_second: float | None) -> str:
    """Return a rate as "96.2 t/s", or an en dash if it is unknown."""
    return "–" if tokens_per_second is None else f"{tokens_per_second:,.1f} t/s"  # noqa: RUF001


# Parsing of amounts, such as 128K tokens or 16GB of memory.

TOKEN_UNITS = {"": 1, "K": 2**10, "M": 2**20}
"""Units of a number of tokens, for `parse_amount`."""
_AMOUNT = re.compile(r"(\d{1,12}|\d{1,3}(?:,\d{3}){1,3}|\d{0,12}\.\d{1,12})\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_amount(text: str, units: Mapping[str, int]) -> float | None:
    """Return the number in `text` times its unit, which is a key of `units` in any case; None for any other text.

    Negative numbers are parsed; the range checks reject them.
    """
    sign = -1 if text.strip().startswith("-") else 1
    found = _AMOUNT.fullmatch(text.strip().removeprefix("-"))
    factor = units.get(found[2].upper()) if found else None
    if found is None or factor is None:
        return None
    return sign * float(found[1].replace(",", "")) * factor


# Age of this process.

STARTED_VARIABLE = "MTP_LAUNCHER_STARTED"
"""Environment variable with the uptime at which the program was started, if a start script does other work first."""

_IMPORTED_S = time.monotonic()


def process_age_s() -> float:
    """Return the seconds since the program was started.

    On Linux since the time in STARTED_VARIABLE, else since the start of the process in steps of 10 ms. Elsewhere since
    this module was imported, which is a little less.
    """
    if sys.platform == "linux":
        if uptime_s := os.environ.get(STARTED_VARIABLE):
            return float(Path("/proc/uptime").read_text("ascii").split()[0]) - float(uptime_s)
        stat = Path("/proc/self/stat").read_text("ascii", "replace")
        start_ticks = int(stat.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - _IMPORTED_S
