"""Plots of samples, and the moments at which they are drawn."""

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
from launcher.gui.plots.overlay import move_apart
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.plots.quantities import PLOTS
from launcher.gui.plots.readout import ElidedText
from launcher.machine.gpu import GpuActivity, Reading
from launcher.models.gguf import read_model
from launcher.monitor.monitor import MonitorSnapshot
from tests.gui.colour import contrast
from tests.gui.plotted import (
    NO_GPU,
    busy_sample,
    chart_of,
    draw_samples,
    fill,
    is_drawing,
    made_controller,
    made_panel,
    panel_samples,
    spoken_value,
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
    """A launch, as the controller reports it."""
    model = unpack_demo_model()
    build = asyncio.run(probe_engine(None))
    return Launch(EngineCommand([], {}, model.parent), build, read_model(model), 4_096, ServeOptions(model=model))


def test_figures_have_their_unit_and_their_change_in_a_minute(panel: PlotPanel) -> None:
    fill(panel)
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 0.1, tokens_per_second=212.5, gpu_power_w=290.0)])
    draw_samples(panel)
    assert spoken_value(panel.rows["rate"]) == "Tokens per second: 212.5 t/s +12.5 in 1 min"
    assert spoken_value(panel.rows["acceptance"]) == "Draft acceptance: 79.0 % ±0.0 in 1 min"
    assert spoken_value(panel.rows["power"]) == "Power: 290 W"
    assert spoken_value(panel.rows["vram"]).startswith("VRAM, this server: 20.0 GiB")
    assert panel.rows["acceptance"].aside == "mean length 2.58"
    assert panel.rows["clock"].aside == "no throttling"
    assert panel.rows["vram"].aside == "3.0 of 24.0 free\nGPU 97 % busy"
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 0.1, tokens_per_second=1_212.5)])
    draw_samples(panel)
    assert spoken_value(panel.rows["rate"]).startswith("Tokens per second: 1,212 t/s"), "no decimals in thousands"


def test_labels_at_line_ends_do_not_overlap(panel: PlotPanel) -> None:
    fill(panel)
    texts = {name: [each.text for each in chart_of(row).overlay.labels] for name, row in panel.rows.items()}
    assert texts["rate"] == ["now 200.0"]
    assert sorted(texts["acceptance"]) == ["1: 86 %", "2: 72 %", "all 79.0 %"]
    assert texts["vram"] == ["limit 24.0", "others 1.0", "server 20.0"]
    assert (texts["temperature"], texts["power"], texts["clock"]) == ([], ["limit 450"], ["no throttling"])
    assert move_apart([50, 52, 51], 10, 0, 100) == [50, 70, 60]
    assert move_apart([95, 99], 10, 0, 100) == [90, 100]
    assert move_apart([-20, 40], 10, 0, 100) == [0, 40]


def test_a_series_that_ended_keeps_its_last_value_with_its_age_and_a_gap(panel: PlotPanel) -> None:
    start_s = fill(panel, 60)
    panel.add_samples([busy_sample(start_s + 60 + i / 10, tokens_per_second=None) for i in range(50)])
    draw_samples(panel)
    assert spoken_value(panel.rows["rate"]) == "Tokens per second: 200.0 t/s 5 s ago"
    curve = chart_of(panel.rows["rate"]).curves["tokens_per_second"]
    assert curve.yData[-1] != curve.yData[-1]
    assert curve.yData[0] == 200.0


def test_a_sample_between_two_gaps_is_drawn_as_a_dot(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 10
    rates = [None, 150.0, None, 200.0, 210.0, None]
    panel.add_samples([busy_sample(start_s + i / 10, tokens_per_second=rate) for i, rate in enumerate(rates)])
    panel.choose_length(10)
    draw_samples(panel)
    row = panel.rows["rate"]
    shown = [(round(dot.y * row.top), dot.colour) for dot in chart_of(row).overlay.dots]
    assert shown == [(210, theme.DARK.rate.lower()), (150, theme.DARK.rate.lower())]


def test_a_dash_with_the_reason_is_shown_before_the_first_reading(panel: PlotPanel) -> None:
    assert spoken_value(panel.rows["rate"]) == "Tokens per second: – Not read yet."  # noqa: RUF001 -- an en dash
    panel.add_samples([busy_sample(time.monotonic(), tokens_per_second=None)])
    draw_samples(panel)
    assert spoken_value(panel.rows["rate"]) == "Tokens per second: – No reply is being generated."  # noqa: RUF001


def test_the_layout_does_not_move_while_figures_change(panel: PlotPanel) -> None:
    fill(panel, 130)
    read_out = panel.rows["rate"].read_out

    def read_geometries() -> list[tuple[int, ...]]:
        QApplication.processEvents()
        return [
            each.geometry().getRect() for each in (read_out, read_out.unit, read_out.caption, panel.rows["acceptance"])
        ]

    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1, tokens_per_second=999.9)])
    draw_samples(panel)
    before = read_geometries()
    for rate in (100.0, 88.8, 7.1, 999.9):
        panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1, tokens_per_second=rate)])
        draw_samples(panel)
        assert read_geometries() == before


def test_an_old_peak_leaves_no_gap_between_number_and_unit(panel: PlotPanel) -> None:
    fill(panel, 130)
    read_out = panel.rows["rate"].read_out
    quantity, places = read_out._quantity, []
    for rate in (7.1, 1_445.0, *(2.0 + step / 10 for step in range(31))):
        read_out.show_reading(quantity, Reading(rate))
        QApplication.processEvents()
        places.append(read_out.unit.x())
    assert places[1] > places[0]
    assert places[1] == places[2] == places[20]
    assert places[-1] == places[0]


@pytest.mark.parametrize("narrow", [False, True])
def test_a_fast_rate_fits_beside_its_unit(panel: PlotPanel, narrow: bool) -> None:
    row = panel.rows["rate"]
    read_out = row.read_out
    usual = read_out.value.font().pixelSize()
    row.show_narrow(narrow)
    for rate, is_lower in ((99.9, narrow), (12_345.0, True)):
        read_out.set_pixels(usual)
        read_out.show_reading(read_out._quantity, Reading(rate))
        QApplication.processEvents()
        assert read_out.value.width() >= read_out.value.sizeHint().width()
        assert read_out.unit.geometry().left() > read_out.value.geometry().right()
        assert read_out.unit.x() + read_out.unit.sizeHint().width() <= read_out.width()
        assert (read_out.value.font().pixelSize() < usual) is is_lower


def test_without_a_gpu_its_plots_are_replaced_by_one_reason_and_host_plots(panel: PlotPanel) -> None:
    fill(panel, gpu=False)
    hidden = {name for name, row in panel.rows.items() if not row.isVisible()}
    assert hidden == {plot.name for plot in PLOTS if plot.with_gpu}
    gpu, host = panel.rows["temperature"], panel.rows["host"]
    assert gpu.absent == NO_GPU
    assert NO_GPU in [label.text().removeprefix("GPU  –  ") for label in gpu.findChildren(ElidedText)]  # noqa: RUF001
    assert not chart_of(gpu).isVisible()
    assert spoken_value(panel.rows["processor"]) == "Processor: 50 %"
    assert host.aside == "12.0 of 16.0 free"
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1)])
    draw_samples(panel)
    assert gpu.absent is None
    shown = [name for name, row in panel.rows.items() if row.isVisible()]
    assert shown == ["rate", "acceptance", "vram", "temperature", "power", "clock"]


def test_text_without_height_for_a_line_is_left_out_rather_than_cut(qtbot: QtBot) -> None:
    text, empty = ElidedText("+4.0 in 1 min"), ElidedText()
    line = text.fontMetrics().height()
    for label in (text, empty):
        qtbot.addWidget(label)

    def is_painted(height: int) -> bool:
        for label in (text, empty):
            label.resize(200, height)
        return text.grab().toImage() != empty.grab().toImage()

    assert not is_painted(line // 2)
    assert is_painted(line)


def test_lines_of_characters_that_the_font_lacks_are_left_out_rather_than_cut(qtbot: QtBot) -> None:
    one, both = ElidedText("1 分钟内 ±0.0"), ElidedText("1 分钟内 ±0.0\n空闲 9.5 / 24.0")
    for label in (one, both):
        qtbot.addWidget(label)
        label.resize(200, 2 * one.line_height - 1)
    assert one.grab().toImage() == both.grab().toImage()
    for label in (one, both):
        label.resize(200, 2 * one.line_height)
    assert one.grab().toImage() != both.grab().toImage()


def test_each_plot_has_its_own_scale_that_follows_the_values(panel: PlotPanel) -> None:
    fill(panel)

    def row_ends() -> dict[str, tuple[float, float]]:
        return {name: (row.bottom, row.top) for name, row in panel.rows.items() if row.isVisible()}

    assert row_ends() == {
        "rate": (0, 250), "acceptance": (40, 100), "vram": (0, 24), "temperature": (40, 90), "power": (0, 450),
        "clock": (2_400, 2_700),
    }  # fmt: skip
    drawn_at = {name: curve.yData for row in panel.rows.values() for name, curve in chart_of(row).curves.items()}
    assert drawn_at["engine_vram_mib"][-1] == pytest.approx(20.0)
    assert drawn_at["gpu_power_w"][-1] == pytest.approx(300)
    # No curve for the sum: its parts are drawn.
    assert drawn_at["vram_used_mib"] is None or not len(drawn_at["vram_used_mib"])
    odd = {"acceptance_percent": 31.0, "gpu_temperature_c": 28.0, "gpu_power_w": 461.0, "gpu_clock_mhz": 210.0}
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 0.1, **odd)])
    draw_samples(panel)
    assert row_ends() == {
        "rate": (0, 250), "acceptance": (20, 100), "vram": (0, 24), "temperature": (20, 90), "power": (0, 470),
        "clock": (0, 2_700),
    }  # fmt: skip


def test_all_used_memory_is_drawn_if_the_driver_does_not_list_processes(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 10
    panel.add_samples([busy_sample(start_s + i / 10, engine_vram_mib=None, others_vram_mib=None) for i in range(100)])
    draw_samples(panel)
    assert chart_of(panel.rows["vram"]).curves["vram_used_mib"].yData[-1] == pytest.approx(21.0)


def test_a_peak_of_one_sample_is_visible_in_an_hour(panel: PlotPanel) -> None:
    start_s = time.monotonic() - 3_600
    usual, peak = busy_sample(start_s), busy_sample(start_s, tokens_per_second=900.0)
    batch = [replace(peak if i == 17_777 else usual, time_s=start_s + i / 10) for i in range(36_000)]
    panel.add_samples(batch)
    panel.choose_length(3_600)
    draw_samples(panel)
    curve = chart_of(panel.rows["rate"]).curves["tokens_per_second"]
    assert len(curve.yData) <= 2 * (chart_of(panel.rows["rate"]).columns + 2)
    assert max(curve.yData) == 900.0


def test_the_limit_and_the_rate_without_mtp_are_drawn_as_lines(panel: PlotPanel) -> None:
    fill(panel)
    panel.references.set_limit(Reading(250.0))
    panel.references.set_baseline(171.2)
    draw_samples(panel)
    levels = chart_of(panel.rows["rate"]).overlay.labels
    assert [(each.text, each.line) for each in levels] == [
        ("limit 250", "dashed"), ("MTP off 171", "dotted"), ("now 200.0", ""),
    ]  # fmt: skip
    assert panel.rows["rate"].aside == "mean of 5 min 200.0\n80 % of the limit"
    panel.references.set_limit(Reading(125.0))
    draw_samples(panel)
    assert panel.rows["rate"].aside == "mean of 5 min 200.0\n1.6 times the limit without drafts"
    panel.references.set_limit(Reading(5_000.0))
    draw_samples(panel)
    assert chart_of(panel.rows["rate"]).overlay.labels[0].text == "limit 5,000, above"
    assert panel.rows["rate"].top < 1_000
    panel.references.set_limit(Reading.unknown("Nobody tells the bandwidth."))
    panel.references.set_baseline(None)
    draw_samples(panel)
    assert [each.text for each in chart_of(panel.rows["rate"]).overlay.labels] == ["now 200.0"]
    assert panel.rows["rate"].aside.endswith("limit not known")
    assert "Nobody tells the bandwidth." in panel.rows["rate"].read_out.caption.toolTip()


@pytest.mark.parametrize(("seconds", "span"), [(40, "40 s"), (130, "2 min"), (400, "5 min")])
def test_the_mean_rate_says_over_which_time_it_was_taken(panel: PlotPanel, seconds: float, span: str) -> None:
    fill(panel, seconds)
    assert panel.rows["rate"].aside.startswith(f"mean of {span} 200.0")


def test_another_server_starts_without_earlier_figures(
    panel: PlotPanel, controller: Controller, launch: Launch
) -> None:
    """The old one's mean stood over the new one's limit: "302.6 t/s, 466 % of the limit"."""
    fill(panel, 130)
    controller.launched.emit(launch)
    panel.references.set_limit(Reading(65.0))
    draw_samples(panel)
    rate, drafts = panel.rows["rate"], panel.rows["acceptance"]
    assert rate.aside == ""
    assert drafts.aside == ""
    panel.add_samples([busy_sample(time.monotonic() + 1, tokens_per_second=None, acceptance_percent=None)])
    draw_samples(panel)
    assert spoken_value(rate) == "Tokens per second: – No reply is being generated."  # noqa: RUF001 -- an en dash
    assert spoken_value(drafts) == "Draft acceptance: – No reply is being generated."  # noqa: RUF001
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1, tokens_per_second=39.0, engine_vram_mib=2_048.0)])
    draw_samples(panel)
    assert spoken_value(rate) == "Tokens per second: 39.0 t/s"
    assert rate.aside == "mean of 1 s 39.0\n60 % of the limit"
    # The machine's temperature stays, whichever server runs.
    assert spoken_value(panel.rows["temperature"]) == "Temperature: 71 °C"
    assert spoken_value(panel.rows["vram"]) == "VRAM, this server: 2.0 GiB"


@pytest.mark.parametrize("status", [ServerStatus(), ServerStatus(ServerState.FAILED)])
def test_without_a_server_no_figure_looks_current(
    panel: PlotPanel, controller: Controller, status: ServerStatus
) -> None:
    fill(panel)
    panel.references.set_limit(Reading(250.0))
    draw_samples(panel)
    assert panel.head._text.text() == "Live"
    labels = lambda: [each.text for each in chart_of(panel.rows["rate"]).overlay.labels]  # noqa: E731
    assert labels() == ["limit 250", "now 200.0"]
    controller.bridge.drained.emit([status])
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 0.1)])  # a sample that was taken before the stop
    draw_samples(panel)
    assert panel.head._text.text() == "Nothing is running."
    for row in panel.rows.values():
        assert row.read_out.value.text() == UNKNOWN
        assert row.aside == ""
    assert labels() == ["limit 250"]
    assert spoken_value(panel.rows["rate"]) == "Tokens per second: – Nothing is running."  # noqa: RUF001
    assert chart_of(panel.rows["rate"]).curves["tokens_per_second"].yData[0] == 200.0  # the earlier curve stays
    controller.bridge.drained.emit([ServerStatus(ServerState.LOADING)])
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 0.1)])
    draw_samples(panel)
    assert panel.head._text.text() == "Live"
    assert spoken_value(panel.rows["temperature"]) == "Temperature: 71 °C"


def test_throttling_is_shown_with_its_reason_and_for_five_minutes_after(panel: PlotPanel) -> None:
    start_s = fill(panel, 60)
    hot = busy_sample(start_s + 61)
    panel.add_samples([MonitorSnapshot(hot.time_s, hot.readings, None, GpuActivity((), ("power limit",), {}))])
    draw_samples(panel)
    assert panel.rows["clock"].aside == "throttled: power limit"
    panel.add_samples([busy_sample(start_s + 61 + 125)])
    draw_samples(panel)
    assert panel.rows["clock"].aside == "power limit, 2 min ago"
    panel.add_samples([busy_sample(start_s + 61 + 301)])
    draw_samples(panel)
    assert panel.rows["clock"].aside == "no throttling"


def test_samples_before_the_plots_were_built_are_kept(controller: Controller, qtbot: QtBot) -> None:
    panel = PlotPanel(controller)
    qtbot.addWidget(panel)
    controller.sampled.emit([busy_sample(1.0), busy_sample(1.1)])
    assert panel.samples is None
    panel.attach_charts()
    assert len(panel_samples(panel)) == 2


def test_plots_are_built_after_the_first_paint(controller: Controller, qtbot: QtBot) -> None:
    panel = PlotPanel(controller)
    qtbot.addWidget(panel)
    assert panel.samples is None
    panel.show()
    qtbot.waitUntil(lambda: panel.samples is not None)


def test_hidden_plots_draw_nothing_and_catch_up_when_shown(panel: PlotPanel, qtbot: QtBot) -> None:
    fill(panel)
    panel.hide()
    before = panel.drawings
    panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1, tokens_per_second=432.1)])
    panel.draw_if_due()
    assert panel.drawings == before
    assert not is_drawing(panel)
    panel.show()
    qtbot.waitUntil(lambda: panel.drawings > before)
    assert spoken_value(panel.rows["rate"]).startswith("Tokens per second: 432.1 t/s")


def test_the_timer_stops_without_new_samples(panel: PlotPanel, qtbot: QtBot) -> None:
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
def test_shades_of_a_series_are_distinguishable_from_the_card(name: str, qapp: QApplication) -> None:
    theme.choose_theme(name)
    colours = [curve_colour(curve).name() for plot in PLOTS if plot.name == "acceptance" for curve in plot.curves]
    card = theme.current().card
    theme.choose_theme(None)
    assert len(set(colours)) == len(colours)
    assert all(contrast(colour, card) >= 3 for colour in colours)


@pytest.mark.parametrize("gpu", [True, False])
def test_at_1280_by_800_all_plots_are_visible_with_one_time_axis(panel: PlotPanel, qtbot: QtBot, gpu: bool) -> None:
    fill(panel, gpu=gpu)
    panel.resize(432, 570)
    fill(panel, gpu=gpu)
    shown = [row for row in panel.rows.values() if row.isVisible()]
    assert [row.plot for row in shown] == [plot for plot in PLOTS if plot.with_gpu in (None, gpu)]
    area = panel.board.parentWidget()
    qtbot.waitUntil(lambda: panel.board.height() <= area.height())
    charts = [chart_of(row) for row in shown if row.absent is None]
    assert [each.time_axis.style["showValues"] for each in charts] == [False] * (len(charts) - 1) + [True]
    assert [each.overlay.has_glyphs for each in charts] == [True] + [False] * (len(charts) - 1)
    assert {(round(each.area().left()), round(each.area().right())) for each in charts} == {
        (round(charts[0].area().left()), round(charts[0].area().right()))
    }, "one time axis"
    heights = [each.area().height() for each in charts]
    assert heights[0] == max(heights), "tokens per second first"
