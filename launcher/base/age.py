"""How long this process has been running."""

import os
import sys
import time
from pathlib import Path

STARTED_VARIABLE = "MTP_LAUNCHER_STARTED"
"""Set to the first field of /proc/uptime by what started the program, when it did other things before."""

_IMPORTED_S = time.monotonic()


def process_age_s() -> float:
    """Return the seconds since the program was started.

    On Linux by the clock that was handed in, else from /proc, in steps of 10 ms; elsewhere since this module was
    imported, which is a little less.
    """
    if sys.platform == "linux":
        if handed_in := os.environ.get(STARTED_VARIABLE):
            return float(Path("/proc/uptime").read_text("ascii").split()[0]) - float(handed_in)
        stat = Path("/proc/self/stat").read_text("ascii", "replace")
        ticks = int(stat.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - _IMPORTED_S
