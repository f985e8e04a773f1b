"""What the plots cost with an hour of samples in them: drawing, panning, zooming, standing still, hidden."""

import json
import os
import statistics
import subprocess
import sys

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_P99_MS, _FPS, _KEEP_MS = 16.0, 30.0, 1.0


def run(*, quick: bool) -> list[Row]:
    """Offscreen, at the size that the plots have in a window of 1440 x 900."""
    told = [_child(100 if quick else 300) for _ in range(1 if quick else 5)]
    p99 = [each["repaint_p99_ms"] for each in told]
    slowest = [min(each["pan_fps"], each["zoom_fps"]) for each in told]
    hover = [each["hover_p99_ms"] for each in told]
    idle = [each["idle_percent"] for each in told]
    hidden = [each["hidden_drawings"] for each in told]
    return [
        Row(
            "an hour of samples at 10 Hz on all plots: one repaint of all of them, 99th percentile",
            f"< {_P99_MS:g} ms",
            summary(p99, "ms", 1),
            statistics.median(p99) < _P99_MS,
        ),
        Row("the same in processor time", "-", summary([e["repaint_cpu_p99_ms"] for e in told], "ms", 1), None),
        Row("the same, median", "-", summary([each["repaint_ms"] for each in told], "ms", 1), None),
        Row(
            "panning and zooming through it, the slower of both (99th percentile of the frames)",
            f"> {_FPS:g} frames/s",
            summary(slowest, "frames/s", 0),
            statistics.median(slowest) > _FPS,
        ),
        Row("moving the pointer's read-out, 99th percentile", "-", summary(hover, "ms", 1), None),
        Row("keeping one sample of 24 series", f"< {_KEEP_MS:g} ms", summary([e["keep_ms"] for e in told], "ms", 3),
            statistics.median(each["keep_ms"] for each in told) < _KEEP_MS),
        Row("memory for the hour", "-", summary([each["memory_mib"] for each in told], "MiB", 1), None),
        Row("processor while nothing is sampled", "0", summary(idle, "%", 2), max(idle) < 0.1),
        Row("drawings of a hidden page while samples come", "0", summary(hidden, "", 0), max(hidden) == 0),
    ]  # fmt: skip


def _child(rounds: int) -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.plots_child", str(rounds)],
        env=os.environ | {"QT_QPA_PLATFORM": "offscreen"},
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    result: dict[str, float] = json.loads(told.stdout)
    return result
