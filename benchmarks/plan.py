"""How long plans take: in a process of their own, for machines of all sizes, and as a command from outside."""

import statistics
import subprocess
import sys

from benchmarks.measure import process_seconds, summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command

_GPU_GIB = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
_LIMIT_MS, _LIMIT_S = 50, 0.6


def run(*, quick: bool) -> list[Row]:
    """Plan for each size of GPU in turn, then run the command for this machine."""
    rounds = 1 if quick else 4
    plan = [*command(), "plan", "--json"]
    process_seconds(plan)  # a llama-server on PATH is asked once, then its answer is kept
    seconds = [process_seconds(plan) for _ in range(10 if quick else 40)]
    read_ms, plan_ms = zip(*(_plan(gib) for _ in range(rounds) for gib in _GPU_GIB), strict=True)
    sizes = f"{_GPU_GIB[0]} to {_GPU_GIB[-1]} GB"
    return [
        Row(
            f"all plans for a machine, GPUs of {sizes}, the first of a process",
            f"< {_LIMIT_MS} ms",
            summary(plan_ms, "ms", 1),
            statistics.median(plan_ms) < _LIMIT_MS,
        ),
        Row("the catalogue's reading before them", "-", summary(read_ms, "ms", 1), None),
        Row(
            "`mtp-launcher plan --json` for this machine, whole process",
            f"< {_LIMIT_S} s",
            summary(seconds, "s", 2),
            statistics.median(seconds) < _LIMIT_S,
        ),
    ]


def _plan(gib: int) -> tuple[float, float]:
    """Return the milliseconds that the catalogue and the plans took."""
    child = [sys.executable, "-m", "benchmarks.plan_child", str(gib)]
    told = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT)
    read_ms, plan_ms = map(float, told.stdout.split())
    return read_ms, plan_ms
