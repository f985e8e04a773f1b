"""What the plots show of samples, and when they draw."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.engine.builds.probe import probe_engine
from launcher.engine.demo import unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.process import EngineCommand
from launcher.engine.server.state import ServerState, ServerStatus
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import UNKNOWN
from launcher.gui.plots.chart import curve_colour
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.plots.quantities import PLOTS
from launcher.machine.gpu import GpuActivity, Reading
from launcher.models.gguf import read_model
from launcher.monitor.monitor import MonitorSnapshot
from tests.gui.colour import contrast
from tests.gui.plotted import (
    NO_GPU,
    chart_of,
    drawn,
    fill,
    is_drawing,
    kept,
    made_controller,
    made_panel,
    said,
    sampled,
)


@pytest.fixture
def controller(qapp: QApplication, home: Path) -> Iterator[Controller]:
    with made_controller() as controller:
        yield controller


@pytest.fixture
def panel(controller: Controller, qtbot: QtBot, qapp: QApplication) -> Iterator[PlotPanel]:
    with made_panel(controller, qtbot, qapp) as panel:
        yield panel


@pytest.fixture
def launch(home: Path) -> Launch:
    """What was launched, as the controller tells of it."""
    model = unpack_demo_model()
    build = asyncio.run(probe_engine(None))
    return Launch(EngineCommand([], {}, model.parent), build, read_model(model), 4_096, ServeOptions(model=model))


def test_numbers_come_with_their_unit_and_their_change_in_a_minute(panel: PlotPanel) -> None:
    fill(panel)
    panel.add_samples([sampled(kept(panel).newest_s + 0.1, tokens_per_second=212.5, gpu_power_w=290.0)])
    drawn(panel)
    rate, drafts, gpu, vram = (panel.rows[name] for name in ("rate", "acceptance", "gpu", "vram"))
    assert said(rate) == ["Tokens per second: 212.5 t/s +12.5 in 1 min"]
    assert said(drafts) == ["Draft acceptance: 79.0 % ±0.0 in 1 min"]
    assert said(gpu)[1] == "Power: 290 of 450 W −10 in 1 min"  # noqa: RUF001 -- a minus sign
    assert said(vram)[0].startswith("VRAM, this server: 20.0 GiB")
    assert drafts.aside == "mean length 2.58\n0.86 · 0.72 by position"
    assert gpu.aside == "no throttling\nin 5 min"
    assert vram.aside == "of 24.0 GiB\n3.0 free"


def test_what_ended_keeps_its_last_value_with_its_age_and_the_plot_has_a_gap(panel: PlotPanel) -> None:
    start_s = fill(panel, 60)
    panel.add_samples([sampled(start_s + 60 + i / 10, tokens_per_second=None) for i in range(50)])
    drawn(panel)
    assert said(panel.rows["rate"]) == ["Tokens per second: 200.0 t/s 5 s ago"]
    curve = chart_of(panel.rows["rate"]).curves["tokens_per_second"]
    assert curve.yData[-1] != curve.yData[-1]
    assert curve.yData[0] == 200.0


def test_a_sample_between_two_gaps_is_a_dot(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 10
    rates = [None, 150.0, None, 200.0, 210.0, None]
    panel.add_samples([sampled(start_s + i / 10, tokens_per_second=rate) for i, rate in enumerate(rates)])
    panel.choose_length(10)
    drawn(panel)
    card = panel.rows["rate"]
    shown = [(round(dot.y * card.top), dot.colour) for dot in chart_of(card).overlay.dots]
    assert shown == [(210, theme.DARK.rate.lower()), (150, theme.DARK.rate.lower())]


def test_before_anything_runs_a_dash_says_why(panel: PlotPanel) -> None:
    assert said(panel.rows["rate"]) == ["Tokens per second: – Nothing is running."]  # noqa: RUF001 -- an en dash
    panel.add_samples([sampled(time.monotonic(), tokens_per_second=None)])
    drawn(panel)
    assert said(panel.rows["rate"]) == ["Tokens per second: – No reply is being generated."]  # noqa: RUF001


def test_nothing_moves_while_numbers_change(panel: PlotPanel) -> None:
    fill(panel, 130)
    read_out = panel.rows["rate"].read_outs["tokens_per_second"]

    def places() -> list[tuple[int, ...]]:
        QApplication.processEvents()
        return [
            each.geometry().getRect() for each in (read_out, read_out.unit, read_out.change, panel.rows["acceptance"])
        ]

    panel.add_samples([sampled(kept(panel).newest_s + 1, tokens_per_second=999.9)])
    drawn(panel)
    before = places()
    for rate in (100.0, 88.8, 7.1, 999.9):
        panel.add_samples([sampled(kept(panel).newest_s + 1, tokens_per_second=rate)])
        drawn(panel)
        assert places() == before


def test_without_a_gpu_its_plots_are_absent_for_one_reason_and_the_host_is_shown(panel: PlotPanel) -> None:
    fill(panel, gpu=False)
    gpu, vram, host = (panel.rows[name] for name in ("gpu", "vram", "host"))
    assert gpu.absent == NO_GPU
    assert gpu.aside == NO_GPU
    assert not chart_of(gpu).isVisible()
    assert vram.isHidden()
    assert said(host)[2] == "Processor: 50 % ±0 in 1 min"
    assert host.aside == "of 16.0 GiB\n12.0 free"
    assert set(chart_of(host).curves) > {"host_cpu_percent"}
    panel.add_samples([sampled(kept(panel).newest_s + 1)])
    drawn(panel)
    assert gpu.absent is None
    assert vram.isVisible()
    assert host.isHidden()


def test_curves_are_drawn_to_their_own_scales(panel: PlotPanel) -> None:
    fill(panel)
    gpu, vram = panel.rows["gpu"], panel.rows["vram"]
    drawn_at = {name: curve.yData[-1] for name, curve in chart_of(gpu).curves.items()}
    assert drawn_at["gpu_temperature_c"] == pytest.approx(71)
    assert drawn_at["gpu_power_w"] == pytest.approx(100 * 300 / 450)
    assert drawn_at["gpu_clock_mhz"] == pytest.approx(100)
    assert "Power: 100 % is 450 W" in gpu.toolTip()
    drawn_at = {name: curve.yData for name, curve in chart_of(vram).curves.items()}
    assert drawn_at["engine_vram_mib"][-1] == pytest.approx(20.0)
    assert drawn_at["gpu_use_percent"][-1] == pytest.approx(0.97 * vram.top)
    assert drawn_at["vram_used_mib"] is None or not len(drawn_at["vram_used_mib"])  # it is said by its parts


def test_where_the_driver_does_not_tell_whose_memory_it_is_all_that_is_used_is_drawn(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 10
    panel.add_samples([sampled(start_s + i / 10, engine_vram_mib=None, others_vram_mib=None) for i in range(100)])
    drawn(panel)
    assert chart_of(panel.rows["vram"]).curves["vram_used_mib"].yData[-1] == pytest.approx(21.0)


def test_a_peak_of_one_sample_is_seen_in_an_hour(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 3_600
    usual, peak = sampled(start_s), sampled(start_s, tokens_per_second=900.0)
    batch = [replace(peak if i == 17_777 else usual, time_s=start_s + i / 10) for i in range(36_000)]
    panel.add_samples(batch)
    panel.choose_length(3_600)
    drawn(panel)
    curve = chart_of(panel.rows["rate"]).curves["tokens_per_second"]
    assert len(curve.yData) <= 2 * (chart_of(panel.rows["rate"]).columns + 2)
    assert max(curve.yData) == 900.0


def test_the_limit_and_the_rate_without_mtp_are_lines_and_the_mean_is_a_share_of_the_limit(panel: PlotPanel) -> None:
    fill(panel)
    panel.references.set_limit(Reading(250.0))
    panel.references.set_baseline(171.2)
    drawn(panel)
    levels = chart_of(panel.rows["rate"]).overlay.levels
    assert [(level.text, level.dotted) for level in levels] == [("limit 250", False), ("without MTP 171", True)]
    assert panel.rows["rate"].aside == "mean of 5 min 200.0\n80 % of the limit"
    panel.references.set_limit(Reading(5_000.0))
    drawn(panel)
    assert chart_of(panel.rows["rate"]).overlay.levels[0].text == "limit 5,000, above"
    assert panel.rows["rate"].top < 1_000
    panel.references.set_limit(Reading.unknown("Nobody tells the bandwidth."))
    panel.references.set_baseline(None)
    drawn(panel)
    assert chart_of(panel.rows["rate"]).overlay.levels == ()
    assert panel.rows["rate"].aside.endswith("limit not known")
    assert "Nobody tells the bandwidth." in panel.rows["rate"]._aside.toolTip()


def test_another_server_begins_with_no_figures_of_the_one_before(
    panel: PlotPanel, controller: Controller, launch: Launch
) -> None:
    """The old one's mean stood over the new one's limit: "302.6 t/s, 466 % of the limit"."""
    fill(panel, 130)
    controller.launched.emit(launch)
    panel.references.set_limit(Reading(65.0))
    drawn(panel)
    rate, drafts = panel.rows["rate"], panel.rows["acceptance"]
    assert rate.aside == ""
    assert drafts.aside == ""
    panel.add_samples([sampled(time.monotonic() + 1, tokens_per_second=None, acceptance_percent=None)])
    drawn(panel)
    assert said(rate) == ["Tokens per second: – No reply is being generated."]  # noqa: RUF001 -- an en dash
    assert said(drafts) == ["Draft acceptance: – No reply is being generated."]  # noqa: RUF001
    panel.add_samples([sampled(kept(panel).newest_s + 1, tokens_per_second=39.0, engine_vram_mib=2_048.0)])
    drawn(panel)
    assert said(rate) == ["Tokens per second: 39.0 t/s"]
    assert rate.aside == "mean of 5 min 39.0\n60 % of the limit"
    assert said(panel.rows["gpu"])[0] == "Temperature: 71 °C ±0 in 1 min"  # of the machine, whatever it serves
    assert said(panel.rows["vram"])[0] == "VRAM, this server: 2.0 GiB"


@pytest.mark.parametrize("status", [ServerStatus(), ServerStatus(ServerState.FAILED)])
def test_when_nothing_runs_no_number_looks_like_now(
    panel: PlotPanel, controller: Controller, status: ServerStatus
) -> None:
    fill(panel)
    panel.references.set_limit(Reading(250.0))
    drawn(panel)
    assert panel.head._text.text() == "Live"
    controller.bridge.drained.emit([status])
    panel.add_samples([sampled(kept(panel).newest_s + 0.1)])  # one that was on its way
    drawn(panel)
    assert panel.head._text.text() == "Nothing is running."
    for card in panel.rows.values():
        assert [read_out.value.text() for read_out in card.read_outs.values()] == [UNKNOWN] * len(card.read_outs)
        assert card.aside == ""
    assert said(panel.rows["rate"]) == ["Tokens per second: – Nothing is running."]  # noqa: RUF001
    assert chart_of(panel.rows["rate"]).curves["tokens_per_second"].yData[0] == 200.0  # what was is still to be read
    controller.bridge.drained.emit([ServerStatus(ServerState.LOADING)])
    panel.add_samples([sampled(kept(panel).newest_s + 0.1)])
    drawn(panel)
    assert panel.head._text.text() == "Live"
    assert said(panel.rows["gpu"])[0].startswith("Temperature: 71 °C")


def test_throttling_is_said_with_its_reason_and_for_five_minutes_after(panel: PlotPanel) -> None:
    start_s = fill(panel, 60)
    hot = sampled(start_s + 61)
    panel.add_samples([MonitorSnapshot(hot.time_s, hot.readings, None, GpuActivity((), ("power limit",), {}))])
    drawn(panel)
    assert panel.rows["gpu"].aside == "throttled by\npower limit"
    panel.add_samples([sampled(start_s + 61 + 125)])
    drawn(panel)
    assert panel.rows["gpu"].aside == "power limit\n2 min ago"
    panel.add_samples([sampled(start_s + 61 + 301)])
    drawn(panel)
    assert panel.rows["gpu"].aside == "no throttling\nin 5 min"


def test_samples_that_came_before_the_plots_are_kept(controller: Controller, qtbot: QtBot) -> None:
    panel = PlotPanel(controller)
    qtbot.addWidget(panel)
    controller.sampled.emit([sampled(1.0), sampled(1.1)])
    assert panel.samples is None
    panel.attach_charts()
    assert len(kept(panel)) == 2


def test_the_plots_load_by_themselves_after_the_first_paint(controller: Controller, qtbot: QtBot) -> None:
    panel = PlotPanel(controller)
    qtbot.addWidget(panel)
    assert panel.samples is None
    panel.show()
    qtbot.waitUntil(lambda: panel.samples is not None)


def test_hidden_nothing_is_drawn_and_shown_again_all_that_came_is_there(panel: PlotPanel, qtbot: QtBot) -> None:
    fill(panel)
    panel.hide()
    before = panel.drawings
    panel.add_samples([sampled(kept(panel).newest_s + 1, tokens_per_second=432.1)])
    panel.draw_if_due()
    assert panel.drawings == before
    assert not is_drawing(panel)
    panel.show()
    qtbot.waitUntil(lambda: panel.drawings > before)
    assert said(panel.rows["rate"])[0].startswith("Tokens per second: 432.1 t/s")


def test_without_samples_no_timer_runs(panel: PlotPanel, qtbot: QtBot) -> None:
    fill(panel)
    qtbot.waitUntil(lambda: not is_drawing(panel))


def test_another_theme_recolours_the_plots(panel: PlotPanel, qapp: QApplication) -> None:
    fill(panel)
    theme.choose_theme("light")
    theme.apply_theme(qapp, theme.current())
    QApplication.processEvents()
    chart = chart_of(panel.rows["rate"])
    assert chart.curves["tokens_per_second"].opts["pen"].color() == QColor(theme.LIGHT.rate)
    assert chart.backgroundBrush().color() == QColor(theme.LIGHT.card)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_steps_of_a_hue_are_told_apart_from_the_card(name: str, qapp: QApplication) -> None:
    theme.choose_theme(name)
    colours = [curve_colour(curve).name() for plot in PLOTS if plot.name == "acceptance" for curve in plot.curves]
    card = theme.current().card
    theme.choose_theme(None)
    assert len(set(colours)) == len(colours)
    assert all(contrast(colour, card) >= 3 for colour in colours)


@pytest.mark.parametrize("gpu", [True, False])
def test_in_a_window_of_1280_by_800_all_plots_are_seen_and_the_times_once(
    panel: PlotPanel, qtbot: QtBot, gpu: bool
) -> None:
    fill(panel, gpu=gpu)
    panel.resize(432, 570)
    fill(panel, gpu=gpu)
    shown = [card for card in panel.rows.values() if card.isVisible()]
    assert [card.plot for card in shown] == [plot for plot in PLOTS if plot.with_gpu in (None, gpu)]
    area = panel.board.parentWidget()
    if len(shown) <= 4:  # there is room for four; more scroll
        qtbot.waitUntil(lambda: panel.board.height() <= area.height())
    charts = [chart_of(card) for card in shown if card.absent is None]
    assert [each.time_axis.style["showValues"] for each in charts] == [False] * (len(charts) - 1) + [True]
    panel.resize(432, 860)
    assert all(each.time_axis.style["showValues"] for each in charts)
