"""How long `mtp-launcher --version` takes, from outside, and beside it a Python that does nothing."""

import statistics
import sys

from benchmarks.measure import process_seconds, summary
from benchmarks.report import Row
from benchmarks.workplace import command

_LIMIT_S = 0.25


def run(*, quick: bool) -> list[Row]:
    """Run both in turn."""
    ours, bare = [*command(), "--version"], [sys.executable, "-c", "pass"]
    for warm_up in (ours, bare):
        process_seconds(warm_up)
    pairs = [(process_seconds(ours), process_seconds(bare)) for _ in range(10 if quick else 40)]
    seconds = [pair[0] for pair in pairs]
    ratios = [mine / least for mine, least in pairs]
    return [
        Row(
            "`mtp-launcher --version`, whole process",
            f"< {_LIMIT_S} s",
            summary(seconds, "s", 3),
            statistics.median(seconds) < _LIMIT_S,
        ),
        Row("the same, as a multiple of `python -c pass`", "-", summary(ratios, "times", 1), None),
    ]
