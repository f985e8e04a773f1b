"""What the window costs: time to the first paint, processor, stalls, memory."""

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import child, command, slow_model, told

_OFFSCREEN = {"QT_QPA_PLATFORM": "offscreen"}
_PAINTED_S, _STREAM_PERCENT, _IDLE_PERCENT, _PEAK_MIB = 0.8, 20.0, 1.0, 250.0
_P99_MS, _OVER_EMPTY_MS = 20.0, 30.0
_LEAST_RATE = 200.0


def run(*, quick: bool) -> list[Row]:
    """Measure offscreen, each stream beside an empty Qt loop that meets the same noise."""
    rounds, seconds = (1, 10) if quick else (3, 20)
    painted = [_painted() for _ in range(5 if quick else 15)]
    pairs = [_beside_an_empty_loop(seconds) for _ in range(rounds)]
    streams = [stream for stream, _ in pairs]
    over_empty = [stream["max_ms"] - empty["max_ms"] for stream, empty in pairs]
    idle = [_child("idle", str(seconds)) for _ in range(rounds)]
    rate = statistics.median(stream["tokens_per_second"] for stream in streams)
    percent = [stream["cpu_percent"] for stream in streams]
    p99 = [stream["p99_ms"] for stream in streams]
    peak = [stream["peak_mib"] for stream in streams]
    return [
        _row("from the command to the window's first paint", _PAINTED_S, "s", painted, 2),
        Row(
            f"own processor time of the window at {rate:.0f} tokens/s, with plots at 10 Hz and chat",
            f"< {_STREAM_PERCENT:.0f} % of a core at {_LEAST_RATE:.0f} tokens/s or more",
            summary(percent, "%", 1),
            statistics.median(percent) < _STREAM_PERCENT and rate >= _LEAST_RATE,
        ),
        _row("the same while nothing runs", _IDLE_PERCENT, "%", [each["cpu_percent"] for each in idle], 2),
        _row("stalls of the window's loop while it streams, 99th percentile", _P99_MS, "ms", p99, 1),
        _row("longest stall over that of an empty loop beside it", _OVER_EMPTY_MS, "ms", over_empty, 1),
        _row("peak memory while it streams", _PEAK_MIB, "MiB", peak, 0),
    ]


def _row(what: str, limit: float, unit: str, values: list[float], digits: int) -> Row:
    return Row(what, f"< {limit:g} {unit}", summary(values, unit, digits), statistics.median(values) < limit)


def _painted() -> float:
    """Return the seconds from the start of the process to the first paint, as the program tells them."""
    with tempfile.TemporaryDirectory() as folder:
        painted = subprocess.run(
            [*command(), "gui", "--screenshot", str(Path(folder) / "window.png")],
            env=os.environ | _OFFSCREEN,
            stdout=subprocess.PIPE,
            check=True,
        )
    return float(json.loads(painted.stdout)["painted_s"])


def _child(*arguments: str) -> dict[str, float]:
    seconds = float(arguments[-1])
    with child("window_child", *arguments) as process:
        return told(process, seconds)


def _beside_an_empty_loop(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    with (
        child("window_child", "stream", str(slow_model()), str(seconds)) as stream,
        child("window_child", "empty", str(seconds)) as empty,
    ):
        return told(stream, seconds), told(empty, seconds)
