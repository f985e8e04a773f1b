"""Measures small pieces of work that must be fast, because they are done often or while the user waits."""

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_MOVE_LIMIT, _FIRST_LIMIT, _AGAIN_LIMIT, _KEPT_LIMIT, _LOOK_LIMIT = 0.63, 7.6, 3.8, 0.63, 0.25


def run(*, quick: bool) -> list[Row]:
    """Measure in new processes, whose caches are empty."""
    bare, result = Interpreter(), []
    for _ in range(2 if quick else 10):
        bare.start(3)
        result.append(_run_child())
    moves = [each for one in result for each in one["moves_ms"]]
    slowest = statistics.quantiles(moves, n=100)[98]
    again = [took for one in result for took in one["machine_ms"][1:]]
    ahead, looks, hashing = (
        [took for one in result for took in one[name]] for name in ("ahead_ms", "looks_ms", "hashing_ms")
    )
    return [
        bare.row("a slider's move: new memory bar and consequences", moves, "ms", 1, _MOVE_LIMIT),
        Row("the same, 99th percentile", f"{slowest:.1f} ms (n {len(moves)})"),
        bare.row("the same, the first move of all", [one["moves_ms"][0] for one in result], "ms", 1, _MOVE_LIMIT),
        Row("one step of preparing for moves, on the core's thread", format_summary(ahead, "ms", 1)),
        Row("the first of these steps", format_summary([one["ahead_ms"][0] for one in result], "ms", 1)),
        bare.row("this computer, read the first time", [one["machine_ms"][0] for one in result], "ms", 1, _FIRST_LIMIT),
        bare.row("the same, read again", again, "ms", 1, _AGAIN_LIMIT),
        bare.row("reading the stored summary of a header", [one["kept_ms"] for one in result], "ms", 1, _KEPT_LIMIT),
        bare.row("a request looked up among 500 kept conversations", looks, "ms", 1, _LOOK_LIMIT),
        Row("hashing it before, 30,000 tokens", format_summary(hashing, "ms", 1)),
    ]


def _run_child() -> dict[str, Any]:
    child = [sys.executable, "-m", "benchmarks.small_work_child"]
    result = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT)
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured
