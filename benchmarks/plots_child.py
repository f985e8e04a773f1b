"""Measures the plots with an hour of samples, ROUNDS times, and prints one line of JSON.

For comparison, a bare pyqtgraph window with one curve of as many points is painted after each paint of the plots.
"""

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy
import psutil
import pyqtgraph
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from launcher.engine.server.state import ServerState, ServerStatus
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.plots.marks import Mark, MarkKind
from launcher.gui.plots.panel import PlotPanel
from launcher.machine.gpu import GpuActivity, Reading
from launcher.monitor.meter import Acceptance
from launcher.monitor.monitor import MonitorSnapshot

_HOUR = 36_000
_WIDTH, _HEIGHT = 576, 810
_IDLE_S = 3.0


def main() -> None:
    rounds = int(sys.argv[1])
    app = QApplication([])
    theme.choose_theme("dark")
    theme.apply_theme(app, theme.current())
    controller = Controller()
    controller._view_model.update(status=ServerStatus(ServerState.READY))  # noqa: SLF001 -- plots draw samples of a running server only
    bare = pyqtgraph.PlotWidget()
    panel = PlotPanel(controller)
    panel.resize(_WIDTH, _HEIGHT)
    panel.show()
    panel.attach_charts()
    _run_loop(200)
    process, before = psutil.Process(), psutil.Process().memory_info().rss
    keep_s, some, hour = 0.0, list[MonitorSnapshot](), _make_hour()
    while chunk := list(islice(hour, 1_000)):  # so many objects at once would keep the garbage collector busy
        some = chunk
        began_s = time.perf_counter()
        panel.add_samples(some)
        keep_s += time.perf_counter() - began_s
    keep_ms = keep_s * 1e3 / _HOUR
    kept_mib = (process.memory_info().rss - before) / 2**20
    end_s = some[-1].time_s
    for n, kind in enumerate([*MarkKind] * 20):
        panel.marks.append(Mark(end_s - 3_500 + 20 * n, kind, "x"))
    panel.choose_length(3_600)
    panel.references.set_limit(Reading(282.0))
    panel.references.set_baseline(171.0)
    _run_loop(500)
    card = panel.rows["rate"]
    bare.resize(_WIDTH, _HEIGHT)
    bare.plot(numpy.random.default_rng(1).normal(214, 12, _HOUR))
    bare.show()
    _run_loop(200)
    repaint, seen, repaint_bare = [], [], []
    for _ in range(rounds):
        began_s = time.perf_counter()
        repaint.append(_time_frame(panel, lambda: None))
        seen.append((time.perf_counter() - began_s) * 1e3)
        spent_s = time.thread_time()
        bare.viewport().repaint()
        repaint_bare.append((time.thread_time() - spent_s) * 1e3)
    bare.hide()
    hover = [_time_frame(panel, partial(panel.read_at, card, n % 100 / 100), draws=False) for n in range(rounds)]
    panel.read_at(None)
    zoom = [_time_frame(panel, partial(panel.zoom, 0.5 if n % 40 < 20 else -0.5, 0.4)) for n in range(rounds)]
    panel.choose_length(900)
    pan = [_time_frame(panel, partial(panel.pan, 0.03 if n % 80 < 40 else -0.03)) for n in range(rounds)]
    panel.reset_view()
    _run_loop(500)
    spent = process.cpu_times()
    _run_loop(int(_IDLE_S * 1e3))
    now = process.cpu_times()
    idle = 100 * (now.user + now.system - spent.user - spent.system) / _IDLE_S
    panel.hide()
    drawings = panel.drawings
    for sample in some[-50:]:
        panel.add_samples([MonitorSnapshot(sample.time_s + 5, sample.readings, sample.acceptance, sample.activity)])
        _run_loop(20)
    print(
        json.dumps(
            {
                "repaint_ms": statistics.median(repaint),
                "repaint_seen_ms": statistics.median(seen),
                "repaint_p99_ms": _p99(repaint),
                "hover_p99_ms": _p99(hover),
                "bare_p99_ms": _p99(repaint_bare),
                "zoom_p99_ms": _p99(zoom),
                "pan_p99_ms": _p99(pan),
                "keep_ms": keep_ms,
                "memory_mib": kept_mib,
                "idle_percent": idle,
                "hidden_drawings": panel.drawings - drawings,
            }
        )
    )
    controller.bridge.close()


def _time_frame(panel: PlotPanel, change: Callable[[], object], *, draws: bool = True) -> float:
    """Return the milliseconds of processor time for applying one change, drawing all plots and painting them. Work left
    over from the frame before is done first, and is not counted.
    """
    QApplication.processEvents()
    spent_s = time.thread_time()
    change()
    if draws:
        panel.draw()
    for card in panel.rows.values():
        if card.chart is not None and card.chart.isVisible():
            card.chart.viewport().repaint()
    return (time.thread_time() - spent_s) * 1e3


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _run_loop(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def _make_hour() -> Iterator[MonitorSnapshot]:
    """Return an hour of samples of a busy GPU, with noise in all series, so that no series is cheap to draw."""
    noise = random.Random(1)
    start_s = time.monotonic() - _HOUR / 10
    for n in range(_HOUR):
        values = {
            "tokens_per_second": noise.gauss(214, 12) if n % 600 > 60 else None,
            "acceptance_percent": noise.gauss(79, 4) if n % 600 > 60 else None,
            "gpu_temperature_c": 65 + 8 * math.sin(n / 900) + noise.gauss(0, 0.4),
            "gpu_power_w": noise.gauss(320, 20),
            "gpu_power_limit_w": 450.0,
            "gpu_clock_mhz": 2_640 - noise.choice([0, 15, 30, 300]),
            "gpu_memory_clock_mhz": 10_501.0,
            "vram_used_mib": 21_590 + noise.gauss(0, 30),
            "engine_vram_mib": 20_470 + noise.gauss(0, 20),
            "others_vram_mib": 1_120 + noise.gauss(0, 20),
            "vram_total_mib": 24_564.0,
            "gpu_use_percent": min(100.0, noise.gauss(96, 4)),
            "host_cpu_percent": noise.gauss(30, 9),
            "host_memory_used_mib": 9_000 + noise.gauss(0, 40),
            "host_memory_total_mib": 32_000.0,
            "engine_memory_mib": 1_800 + noise.gauss(0, 9),
        }
        readings = {name: Reading(value, None if value is not None else "No reply.") for name, value in values.items()}
        drafts = Acceptance(7_000, 4_000, (1_000,) * 7, tuple(int(noise.gauss(900 - 90 * at, 30)) for at in range(7)))
        yield MonitorSnapshot(start_s + n / 10, readings, drafts if n % 600 > 60 else None, GpuActivity((), (), {}))


if __name__ == "__main__":
    main()
