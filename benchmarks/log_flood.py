"""Measures the window with its log page open, while the engine prints 50,000 lines a second."""

import statistics

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import run_beside_empty_loop

_CPU_LIMIT, _STALL_LIMIT, _LEAST_RATE = 38, 6.3, 45_000.0


def run(*, quick: bool) -> list[Row]:
    """Run each flood offscreen. An empty Qt loop runs beside it, so that both are disturbed by the same noise."""
    rounds, seconds = (1, 3) if quick else (3, 10)
    bare, pairs = Interpreter(), []
    for _ in range(rounds):
        bare.start(5)
        pairs.append(run_beside_empty_loop(seconds, "fault_child", "flood", str(seconds)))
    bare.start(5)
    floods = [flood for flood, _ in pairs]
    rate = statistics.median(flood["lines_per_second"] for flood in floods)
    return [
        bare.share_row(
            f"own processor time of the window in a flood of {rate:,.0f} log lines a second, with the log page open",
            [flood["cpu_percent"] for flood in floods],
            1,
            _CPU_LIMIT,
            f" at {_LEAST_RATE:,.0f} lines/s or more",
            holds=rate >= _LEAST_RATE,
        ),
        bare.row("longest stall of the window's loop meanwhile", [f["max_ms"] for f in floods], "ms", 1, _STALL_LIMIT),
        bare.row(
            "longest processor time of one turn of that loop, which other work on the machine does not lengthen",
            [flood["busy_max_ms"] for flood in floods],
            "ms",
            1,
            _STALL_LIMIT,
        ),
        Row("99th percentile of its stalls", format_summary([flood["p99_ms"] for flood in floods], "ms", 1)),
        Row("longest stall of an empty loop beside it", format_summary([each["max_ms"] for _, each in pairs], "ms", 1)),
    ]
