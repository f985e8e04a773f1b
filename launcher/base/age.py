"""How long this process has been running."""

import os
import sys
import time
from pathlib import Path

_IMPORTED_S = time.monotonic()


def process_age_s() -> float:
    """Return the seconds since this process was started.

    On Linux from /proc, in steps of 10 ms; elsewhere since this module was imported, which is a little less.
    """
    if sys.platform == "linux":
        stat = Path("/proc/self/stat").read_text("ascii", "replace")
        ticks = int(stat.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - _IMPORTED_S
