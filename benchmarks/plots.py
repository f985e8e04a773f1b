"""Measures the plots with an hour of samples, beside a bare pyqtgraph window with one curve of as many points."""

import json
import os
import statistics
import subprocess
import sys

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter, ratio_row
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_REPAINT_LIMIT, _PAN_LIMIT, _KEEP_LIMIT = 1.4, 3, 0.127


def run(*, quick: bool) -> list[Row]:
    """Measure offscreen, at the size that the plots have in a window of 1440 x 900 pixels.

    Frames are measured in processor time, which other work on the machine does not lengthen.
    """
    bare, result = Interpreter(), []
    for _ in range(3 if quick else 5):
        bare.start(5)
        result.append(_run_child(60 if quick else 300))
    one_curve = "a bare pyqtgraph window with one curve"
    curve_p99 = [each["bare_p99_ms"] for each in result]
    p99 = [each["repaint_p99_ms"] for each in result]
    slowest = [max(each["pan_p99_ms"], each["zoom_p99_ms"]) for each in result]
    idle = [each["idle_percent"] for each in result]
    hidden = [each["hidden_drawings"] for each in result]
    return [
        ratio_row(
            "an hour of samples at 10 Hz on all plots: processor time of a repaint of all of them, 99th percentile",
            p99, "ms", 1, one_curve, curve_p99, _REPAINT_LIMIT,
        ),
        Row("the same, median", format_summary([each["repaint_ms"] for each in result], "ms", 1)),
        Row("the same by the clock", format_summary([each["repaint_seen_ms"] for each in result], "ms", 1)),
        ratio_row(
            "panning or zooming through it, the slower of both, 99th percentile of the frames",
            slowest, "ms", 1, one_curve, curve_p99, _PAN_LIMIT,
        ),
        Row(
            "moving the pointer's read-out, 99th percentile",
            format_summary([each["hover_p99_ms"] for each in result], "ms", 1),
        ),
        bare.row("keeping one sample of 24 series", [each["keep_ms"] for each in result], "ms", 3, _KEEP_LIMIT),
        Row("memory for the hour of samples", format_summary([each["memory_mib"] for each in result], "MiB", 1)),
        Row(
            "processor while nothing is sampled",
            format_summary(idle, "%", 2),
            limit="< 0.1 %",
            kept=statistics.median(idle) < 0.1,
        ),
        Row(
            "drawings of a hidden page while samples come",
            format_summary(hidden, "", 0), limit="0", kept=max(hidden) == 0,
        ),
    ]  # fmt: skip


def _run_child(rounds: int) -> dict[str, float]:
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.plots_child", str(rounds)],
        env=os.environ | {"QT_QPA_PLATFORM": "offscreen"},
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    result: dict[str, float] = json.loads(completed.stdout)
    return result
