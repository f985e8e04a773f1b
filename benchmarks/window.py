"""Measures the window: time to the first paint, processor time, stalls, memory."""

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter, paint_empty_window, ratio_row
from benchmarks.report import Row
from benchmarks.workplace import child, command, read_result, run_beside_empty_loop, slow_model

_OFFSCREEN = {"QT_QPA_PLATFORM": "offscreen"}
_PAINT_LIMIT, _STREAM_LIMIT, _IDLE_STARTS_PER_S, _PEAK_MIB = 2.2, 1.5, 1.1, 250.0
_P99_LIMIT, _OVER_EMPTY_LIMIT, _LEAST_RATE = 2.5, 3.8, 200.0


def run(*, quick: bool) -> Iterator[Row]:
    """Measure offscreen. An empty Qt loop runs beside each stream, so that both are disturbed by the same noise."""
    new = _measure_first_paint()
    paints = [(_measure_first_paint(), paint_empty_window()) for _ in range(6 if quick else 15)]
    painted, empty_painted = zip(*paints, strict=True)
    what, name = "from the command to the window's first paint", "an empty PySide6 window"
    yield ratio_row(what, painted, "s", 2, name, empty_painted, _PAINT_LIMIT)
    yield Row("the same the first time in a new home", format_summary([new], "s", 2))
    rounds, seconds = (1, 4) if quick else (3, 20)
    bare, pairs = Interpreter(), []
    for _ in range(rounds):
        bare.start(5)
        both_parts_s = 2 * seconds + 3  # idle, then while it streams
        pairs.append(run_beside_empty_loop(both_parts_s, "window_child", "stream", str(slow_model()), str(seconds)))
    bare.start(5)
    streams = [stream for stream, _ in pairs]
    rate = statistics.median(sum(tokens for tokens, _ in each["replies"]) / each["seconds"] for each in streams)
    yield bare.difference_row(
        "own processor time of the window while nothing runs",
        [stream["idle_percent"] for stream in streams],
        "a process that wakes as often",
        [stream["waker_percent"] for stream in streams],
        _IDLE_STARTS_PER_S,
    )
    yield ratio_row(
        f"the same at {rate:.0f} tokens/s, with plots at 10 Hz and chat",
        [stream["cpu_percent"] for stream in streams],
        "% of a core",
        1,
        "a bare window with as many curves and the same text",
        [_measure_bare_window(stream, seconds) for stream in streams],
        _STREAM_LIMIT,
        f" at {_LEAST_RATE:.0f} tokens/s or more",
        holds=rate >= _LEAST_RATE,
    )
    p99 = [stream["p99_ms"] for stream in streams]
    yield bare.row("stalls of the window's loop while it streams, 99th percentile", p99, "ms", 1, _P99_LIMIT)
    over = [stream["max_ms"] - empty["max_ms"] for stream, empty in pairs]
    yield bare.row("longest stall, less that of an empty loop that runs beside it", over, "ms", 1, _OVER_EMPTY_LIMIT)
    peak = [stream["peak_mib"] for stream in streams]
    yield Row(
        "peak memory while it streams",
        format_summary(peak, "MiB", 0),
        limit=f"< {_PEAK_MIB:g} MiB",
        kept=statistics.median(peak) < _PEAK_MIB,
    )


def _measure_first_paint() -> float:
    """Return the seconds from the start of the process to the first paint, as the program reports them."""
    with tempfile.TemporaryDirectory() as folder:
        painted = subprocess.run(
            [*command(), "gui", "--screenshot", str(Path(folder) / "window.png")],
            env=os.environ | _OFFSCREEN,
            stdout=subprocess.PIPE,
            check=True,
        )
    return float(json.loads(painted.stdout)["painted_s"])


def _measure_bare_window(stream: dict[str, Any], seconds: float) -> float:
    """Return the share of a core in percent that a bare window takes to draw the same curves and text as `stream` did.
    The bare window has pyqtgraph and a text field, reads no server and no sensors, and does not format text.
    """
    text = "".join(text for _, text in stream["replies"])
    with child("bare_stream_child", str(seconds), json.dumps(stream["curves"]), text) as process:
        percent: float = read_result(process, seconds)["cpu_percent"]
    return percent
