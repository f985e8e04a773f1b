"""What is done so often, or at so bad a moment, that it must take next to nothing."""

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_MOVE_MS, _FIRST_MS, _AGAIN_MS, _KEPT_MS = 5.0, 60.0, 30.0, 5.0


def run(*, quick: bool) -> list[Row]:
    """Measure in processes of their own, where nothing is kept yet."""
    told = [_child() for _ in range(3 if quick else 10)]
    moves = [each for one in told for each in one["moves_ms"]]
    slowest = statistics.quantiles(moves, n=100)[98]
    return [
        _row("a slider's move: the memory bar and the consequences anew", _MOVE_MS, moves),
        Row("the same, 99th percentile", "-", f"{slowest:.1f} ms (n {len(moves)})", None),
        _row("the same, the first move of all", _MOVE_MS, [one["moves_ms"][0] for one in told]),
        _row("this computer, read the first time", _FIRST_MS, [one["machine_ms"][0] for one in told]),
        _row("the same, read again", _AGAIN_MS, [took for one in told for took in one["machine_ms"][1:]]),
        _row("what is kept of a header, read", _KEPT_MS, [one["kept_ms"] for one in told]),
    ]


def _row(what: str, limit_ms: float, took_ms: list[float]) -> Row:
    return Row(what, f"< {limit_ms:g} ms", summary(took_ms, "ms", 1), statistics.median(took_ms) < limit_ms)


def _child() -> dict[str, Any]:
    child = [sys.executable, "-m", "benchmarks.small_work_child"]
    told = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT)
    measured: dict[str, Any] = json.loads(told.stdout)
    return measured
