"""Measures planning: in a process of its own, for machines of all sizes, and as the command `mtp-launcher plan`."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import format_summary, process_seconds
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command

_GPU_GIB = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
_LIMIT, _COMMAND_LIMIT = 7.5, 50
_MODELS = 40
"""The number of models that the limit is for. The time is scaled to it, so that another model in the catalogue does not
count as a slower program."""


def run(*, quick: bool) -> Iterator[Row]:
    """Plan for each size of GPU in turn, then again with the cached files, then run the command for this machine."""
    first_ms = [_time_plans(gib)[1] for gib in _GPU_GIB]
    bare, read_ms, plan_ms, models = Interpreter(), [], [], 0
    for _ in range(1 if quick else 4):
        for gib in _GPU_GIB:
            bare.start()
            took_ms, all_plans_ms, models = _time_plans(gib)
            read_ms.append(took_ms)
            plan_ms.append(all_plans_ms * _MODELS / models)
    sizes = f"{_GPU_GIB[0]} to {_GPU_GIB[-1]} GB"
    what = f"processor time of all plans, GPUs of {sizes}, the first of a process, for {_MODELS} of {models} models"
    yield bare.row(what, plan_ms, "ms", 1, _LIMIT, is_processor_time=True)
    yield Row(
        f"the same, the first time for a size, when its compute buffers are computed, for {models} models",
        format_summary(first_ms, "ms", 1),
    )
    yield Row("reading the catalogue before that", format_summary(read_ms, "ms", 1))
    bare, seconds, plan = Interpreter(), [], [*command(), "plan", "--json"]
    process_seconds(plan)  # a llama-server on PATH is asked once, then its answer is kept
    for _ in range(5 if quick else 40):
        bare.start()
        seconds.append(process_seconds(plan))
    yield bare.row("`mtp-launcher plan --json` for this machine, whole process", seconds, "s", 2, _COMMAND_LIMIT)


def _time_plans(gib: int) -> tuple[float, float, int]:
    """Return the milliseconds of processor time for the catalogue and for the plans, and the number of models."""
    child = [sys.executable, "-m", "benchmarks.plan_child", str(gib)]
    result = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT)
    read_ms, plan_ms, models = result.stdout.split()
    return float(read_ms), float(plan_ms), int(models)
