"""Plots with samples of a busy machine, for their tests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState, ServerStatus
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.plots.chart import ChartWidget
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.plots.row import PlotRow
from launcher.gui.plots.samples import Samples
from launcher.machine.gpu import GpuActivity, Reading, unknown_readings
from launcher.monitor.health_watch import MEMORY_READINGS
from launcher.monitor.meter import Acceptance
from launcher.monitor.monitor import MonitorSnapshot

NO_GPU = "No NVIDIA driver was found."
SILENT = Reading.unknown("No reply is being generated.")
DRAFTS = Acceptance(200, 158, (100, 100), (86, 72))


@contextmanager
def made_controller() -> Iterator[Controller]:
    """A controller that serves nothing."""
    controller = Controller()
    yield controller
    assert controller.bridge.close()


@contextmanager
def made_panel(controller: Controller, qtbot: QtBot, qapp: QApplication) -> Iterator[PlotPanel]:
    """The plots in the dark theme, with their library loaded, as with a running server."""
    theme.choose_theme("dark")
    theme.apply_theme(qapp, theme.current())
    controller.bridge.drained.emit([ServerStatus(ServerState.READY)])
    panel = PlotPanel(controller)
    panel.resize(640, 860)
    qtbot.addWidget(panel)
    panel.show()
    qtbot.waitExposed(panel)
    panel.attach_charts()
    yield panel
    theme.choose_theme(None)


def busy_sample(time_s: float, *, gpu: bool = True, **values: float | None) -> MonitorSnapshot:
    """Return a sample of a busy machine; `values` replace its readings."""
    if gpu:
        named = {
            "gpu_temperature_c": 71.0, "gpu_power_w": 300.0, "gpu_power_limit_w": 450.0, "gpu_clock_mhz": 2_640.0,
            "vram_used_mib": 21_504.0, "gpu_use_percent": 97.0, "engine_vram_mib": 20_480.0, "others_vram_mib": 1_024.0,
            "vram_total_mib": 24_576.0,
        }  # fmt: skip
        readings = {name: Reading(value) for name, value in named.items()}
    else:
        readings = unknown_readings(NO_GPU) | dict.fromkeys(MEMORY_READINGS, Reading.unknown(NO_GPU))
    readings |= {
        "tokens_per_second": Reading(200.0), "acceptance_percent": Reading(79.0), "host_cpu_percent": Reading(50.0),
        "host_memory_used_mib": Reading(4_096.0), "host_memory_total_mib": Reading(16_384.0),
        "engine_memory_mib": Reading(1_024.0),
    }  # fmt: skip
    for name, value in values.items():
        readings[name] = SILENT if value is None else Reading(value)
    return MonitorSnapshot(time_s, readings, DRAFTS, GpuActivity((), (), {}) if gpu else GpuActivity.unknown(NO_GPU))


def fill(panel: PlotPanel, seconds: float = 300.0, *, gpu: bool = True) -> float:
    """Add samples up to now, 10 a second; return the time of the first in seconds."""
    start_s = time.monotonic() - seconds
    usual = busy_sample(start_s, gpu=gpu)
    panel.add_samples([replace(usual, time_s=start_s + i / 10) for i in range(int(seconds * 10))])
    draw_samples(panel)
    return start_s


def draw_samples(panel: PlotPanel) -> None:
    """Draw all samples."""
    panel.schedule_refresh()
    panel.draw_if_due()


def is_drawing(panel: PlotPanel) -> bool:
    """Return whether a timer of the panel runs, as before each drawing."""
    timers = panel.findChildren(QTimer, options=Qt.FindChildOption.FindDirectChildrenOnly)
    return any(timer.isActive() for timer in timers)


def chart_of(row: PlotRow) -> ChartWidget:
    assert row.chart is not None
    return row.chart


def panel_samples(panel: PlotPanel) -> Samples:
    assert panel.samples is not None
    return panel.samples


def spoken_value(row: PlotRow) -> str:
    return row.read_out.value.accessibleName()


def hover_rows(row: PlotRow) -> dict[str, str]:
    hover = chart_of(row).overlay.hover
    assert hover is not None
    return {each.name: each.value for each in hover.rows}
