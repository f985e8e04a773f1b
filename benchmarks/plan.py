"""Measures plans: in a process of their own, for machines of all sizes, and as a command from outside."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import process_seconds, summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command

_GPU_GIB = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
_LIMIT, _COMMAND_LIMIT = 7.5, 50


def run(*, quick: bool) -> Iterator[Row]:
    """Plan for each size of GPU in turn, then run the command for this machine."""
    bare, read_ms, plan_ms = Interpreter(), [], []
    for _ in range(1 if quick else 4):
        for gib in _GPU_GIB:
            bare.start()
            took_ms = _plan(gib)
            read_ms.append(took_ms[0])
            plan_ms.append(took_ms[1])
    sizes = f"{_GPU_GIB[0]} to {_GPU_GIB[-1]} GB"
    yield bare.row(f"all plans for a machine, GPUs of {sizes}, the first of a process", plan_ms, "ms", 1, _LIMIT)
    yield Row("the catalogue's reading before them", summary(read_ms, "ms", 1))
    bare, seconds, plan = Interpreter(), [], [*command(), "plan", "--json"]
    process_seconds(plan)  # a llama-server on PATH is asked once, then its answer is kept
    for _ in range(5 if quick else 40):
        bare.start()
        seconds.append(process_seconds(plan))
    yield bare.row("`mtp-launcher plan --json` for this machine, whole process", seconds, "s", 2, _COMMAND_LIMIT)


def _plan(gib: int) -> tuple[float, float]:
    """Return the milliseconds that the catalogue and the plans took."""
    child = [sys.executable, "-m", "benchmarks.plan_child", str(gib)]
    told = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT)
    read_ms, plan_ms = map(float, told.stdout.split())
    return read_ms, plan_ms
