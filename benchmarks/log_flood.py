"""What a flood of 50,000 log lines a second costs the window, whose log is open."""

import statistics

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import child, told

_CPU_PERCENT, _STALL_MS, _LEAST_RATE = 30.0, 50.0, 45_000.0


def run(*, quick: bool) -> list[Row]:
    """Offscreen, each flood beside an empty Qt loop that meets the same noise."""
    rounds, seconds = (1, 5) if quick else (3, 10)
    pairs = [_beside_an_empty_loop(seconds) for _ in range(rounds)]
    floods = [flood for flood, _ in pairs]
    rate = statistics.median(flood["lines_per_second"] for flood in floods)
    percent = [flood["cpu_percent"] for flood in floods]
    longest = [flood["max_ms"] for flood in floods]
    empty = [each["max_ms"] for _, each in pairs]
    return [
        Row(
            f"own processor time of the window in a flood of {rate:,.0f} log lines a second, the log open",
            f"< {_CPU_PERCENT:.0f} % of a core at {_LEAST_RATE:,.0f} lines/s or more",
            summary(percent, "%", 1),
            statistics.median(percent) < _CPU_PERCENT and rate >= _LEAST_RATE,
        ),
        Row(
            "longest stall of the window's loop meanwhile",
            f"< {_STALL_MS:.0f} ms",
            summary(longest, "ms", 1),
            statistics.median(longest) < _STALL_MS,
        ),
        Row("99th percentile of its stalls", "-", summary([flood["p99_ms"] for flood in floods], "ms", 1), None),
        Row("longest stall of an empty loop beside it", "-", summary(empty, "ms", 1), None),
    ]


def _beside_an_empty_loop(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    with child("fault_child", "flood", str(seconds)) as flood, child("window_child", "empty", str(seconds)) as empty:
        return told(flood, seconds), told(empty, seconds)
