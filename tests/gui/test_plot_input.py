"""The plots as a person works with them: marks, the pointer, the keys, the axis of time, and exports."""

import csv
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QFocusEvent, QImage, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.engine.server.client import Delta
from launcher.engine.server.state import Notice, PromptRead, ServerState, ServerStatus, StreamsContinued
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.plots.marks import Mark, MarkKind, MarkLog
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.plots.quantities import PLOTS, exported_quantities
from launcher.gui.plots.row import PlotRow
from launcher.gui.viewmodel import ViewModel
from launcher.monitor.health_event import Finding, FindingCode
from tests.gui.plotted import (
    busy_sample,
    chart_of,
    draw_samples,
    fill,
    hover_rows,
    made_controller,
    made_panel,
    panel_samples,
)


@pytest.fixture
def controller(qapp: QApplication, home: Path) -> Iterator[Controller]:
    with made_controller() as controller:
        yield controller


@pytest.fixture
def panel(controller: Controller, qtbot: QtBot, qapp: QApplication) -> Iterator[PlotPanel]:
    with made_panel(controller, qtbot, qapp) as panel:
        yield panel


def view_model_of(controller: Controller) -> ViewModel:
    found = controller.findChild(ViewModel)
    assert found is not None
    return found


class TestMarks:
    def test_events_of_the_controller_become_marks(self, panel: PlotPanel, controller: Controller) -> None:
        model, marks = view_model_of(controller), panel.marks
        controller.inputs  # noqa: B018 -- reads the view before anything runs
        for state in (ServerState.PREPARING, ServerState.LOADING, ServerState.WARMING_UP, ServerState.READY):
            model.update(status=ServerStatus(state), settings="8K context · draft 2")
        controller.launched.emit(object())
        model.update(replying=True)
        model.update(status=ServerStatus(ServerState.BUSY))
        controller.deltas.emit([Delta("", "", None, None)])
        controller.deltas.emit([Delta("Hello", "", None, None)])
        controller.deltas.emit([Delta(" world", "", None, None)])
        model.update(replying=False)
        model.update(status=ServerStatus(ServerState.READY))
        model.update(status=ServerStatus(ServerState.BUSY))
        hot = Finding(FindingCode.THROTTLED_HOT, "The GPU is too hot.", {})
        spill = Finding(FindingCode.SPILL, "Weights are in system memory.", {})
        controller.health_changed.emit((hot,))
        controller.health_changed.emit((hot, spill))
        controller.health_changed.emit(())
        controller.noticed.emit(Notice("a", "A setting was left out."))
        model.update(status=ServerStatus(ServerState.RESTARTING))
        model.update(status=ServerStatus(ServerState.STOPPED))
        result = marks.between(0, time.monotonic())
        assert [(mark.kind, mark.text.split(" after")[0]) for mark in result] == [
            (MarkKind.READY, "Ready: 8K context · draft 2"),
            (MarkKind.REQUEST, "Request sent"),
            (MarkKind.FIRST_TOKEN, "First token"),
            (MarkKind.REQUEST, "Request of another program"),
            (MarkKind.THROTTLING, "The GPU is too hot."),
            (MarkKind.SPILL, "Weights are in system memory."),
            (MarkKind.NOTICE, "A setting was left out."),
            (MarkKind.RESTART, "Restart"),
            (MarkKind.STOPPED, "Stopped"),
        ]

    def test_a_gap_that_is_reported_late_replaces_the_mark_of_its_restart(self, controller: Controller) -> None:
        now_s = 0.0
        marks = MarkLog(controller, lambda: None, lambda: now_s)
        view_model_of(controller).update(status=ServerStatus(ServerState.RESTARTING))
        now_s = 1.0
        view_model_of(controller).update(status=ServerStatus(ServerState.READY))
        now_s = 60.0
        controller.handed_over.emit(2.0)
        result = marks.between(0, now_s)
        assert [(mark.kind, mark.time_s) for mark in result] == [(MarkKind.HANDOVER, 0.0), (MarkKind.READY, 1.0)]

    def test_the_figures_of_a_prompt_are_marked_at_its_first_token(self, controller: Controller) -> None:
        now_s = 0.0
        marks = MarkLog(controller, lambda: None, lambda: now_s)
        view_model_of(controller).update(replying=True)
        now_s = 2.0
        controller.deltas.emit([Delta("Hello", "", None, None)])
        now_s = 5.0
        controller.bridge.drained.emit(
            [
                PromptRead(671, 6_844, 0, 1.9, 3.1),
                PromptRead(9_000, 200, 8_500, 4.0, 2.5),
                PromptRead(5, 0, 0, None, 0.0),
            ]
        )
        result = marks.between(0, now_s)
        assert [(mark.time_s, mark.text) for mark in result if mark.kind is MarkKind.FIRST_TOKEN] == [
            (2.0, "First token after 1.90 s, 671 tokens read, 6,844 reused"),
            (2.5, "First token after 4.00 s, 9,000 tokens read, 8,500 of them again, 200 reused"),
            (5.0, "5 tokens read, 0 reused"),
        ]

    def test_a_gap_in_streams_is_shaded_in_place_of_the_restart(self, panel: PlotPanel, controller: Controller) -> None:
        fill(panel)
        view_model_of(controller).update(status=ServerStatus(ServerState.RESTARTING))
        view_model_of(controller).update(status=ServerStatus(ServerState.READY))
        panel.add_samples([busy_sample(time.monotonic())])
        draw_samples(panel)
        overlay = chart_of(panel.rows["rate"]).overlay
        assert (len(overlay.marks), len(overlay.pauses)) == (2, 0)
        plain = overlay.grab().toImage()
        controller.bridge.drained.emit([StreamsContinued(20.0)])
        panel.add_samples([busy_sample(time.monotonic())])
        draw_samples(panel)
        result = panel.marks.between(0, time.monotonic())
        assert [(mark.kind, mark.text) for mark in result] == [
            (MarkKind.HANDOVER, "Handover, 20.0 s"),
            (MarkKind.READY, "Ready"),
        ]
        ((start, end),) = overlay.pauses
        assert end - start == pytest.approx(20 / panel.span.length_s)
        x, y = (overlay.area.left() + (start + end) / 2 * overlay.area.width(), overlay.area.bottom() - 3)
        assert overlay.grab().toImage().pixelColor(round(x), round(y)) != plain.pixelColor(round(x), round(y))

    def test_each_kind_of_mark_is_painted_differently(self, panel: PlotPanel) -> None:
        fill(panel)
        pictures = set()
        for kind in MarkKind:
            panel.marks._marks.clear()
            panel.marks.append(Mark(panel_samples(panel).newest_s, kind, "x"))
            panel.add_samples([busy_sample(panel_samples(panel).newest_s + 1)])
            draw_samples(panel)
            overlay = chart_of(panel.rows["rate"]).overlay
            ((share, _),) = overlay.marks
            image = overlay.grab().toImage()
            x = round(overlay.area.left() + share * overlay.area.width())
            strip = image.copy(x - 6, 0, 12, int(overlay.area.top()))
            pictures.add(bytes(strip.convertToFormat(QImage.Format.Format_RGB32).constBits()))
        assert len(pictures) == len(MarkKind)

    def test_marks_are_read_by_keyboard(self, panel: PlotPanel) -> None:
        fill(panel)
        panel.marks.append(Mark(panel_samples(panel).newest_s, MarkKind.SPILL, "Weights are in system memory."))
        panel.add_samples([busy_sample(panel_samples(panel).newest_s + 20)])
        draw_samples(panel)
        QTest.keyClick(panel, Qt.Key.Key_Left, Qt.KeyboardModifier.ControlModifier)
        draw_samples(panel)
        hover = chart_of(panel.rows["rate"]).overlay.hover
        assert hover is not None
        assert "Weights are in system memory." in hover.lines
        assert "Weights are in system memory." in panel.board.accessibleDescription()
        QTest.keyClick(panel, Qt.Key.Key_Escape)
        draw_samples(panel)
        assert chart_of(panel.rows["rate"]).overlay.hover is None


class TestPointer:
    def move(self, card: PlotRow, share: float) -> None:
        overlay = chart_of(card).overlay
        x = overlay.area.left() + share * overlay.area.width()
        QTest.mouseMove(overlay, QPoint(round(x), round(overlay.area.center().y())))

    def test_hovering_shows_a_line_and_a_value_per_series_in_all_plots(self, panel: PlotPanel) -> None:
        start_s = time.monotonic() - 300
        steps = [busy_sample(start_s + i / 10, tokens_per_second=100.0 if i < 1_500 else 300.0) for i in range(3_000)]
        panel.add_samples(steps)
        draw_samples(panel)
        rate, drafts, power, vram = (panel.rows[name] for name in ("rate", "acceptance", "power", "vram"))
        chart_of(power).overlay.hovered.emit(0.25)
        assert hover_rows(rate) == {"Tokens per second": "100.0 t/s"}
        assert hover_rows(drafts) == {
            "Draft acceptance": "79.0 %",
            "Mean accepted length": "2.58 tokens",
            "By position": "86 · 72 %",
        }
        assert hover_rows(power) == {"Power": "300 W"}
        assert hover_rows(vram)["VRAM, this server"] == "20.0 GiB"
        assert hover_rows(vram)["VRAM in total"] == "24.0 GiB"
        assert hover_rows(vram)["GPU use"] == "97 %"
        xs = {chart_of(card).overlay.hover.x for card in (rate, drafts, power, vram)}  # type: ignore[union-attr]
        assert max(xs) - min(xs) < 1e-9
        chart_of(power).overlay.hovered.emit(0.75)
        assert hover_rows(rate) == {"Tokens per second": "300.0 t/s"}
        chart_of(power).overlay.pointer_left.emit()
        assert chart_of(rate).overlay.hover is None

    def test_the_system_pointer_works(self, panel: PlotPanel, qtbot: QtBot) -> None:
        fill(panel)
        with qtbot.waitSignal(chart_of(panel.rows["rate"]).overlay.hovered):
            self.move(panel.rows["rate"], 0.5)
        assert hover_rows(panel.rows["acceptance"])["Draft acceptance"] == "79.0 %"

    def test_arrow_keys_read_values(self, panel: PlotPanel) -> None:
        fill(panel)
        QTest.keyClick(panel, Qt.Key.Key_Left)
        draw_samples(panel)
        first = chart_of(panel.rows["rate"]).overlay.hover
        QTest.keyClick(panel, Qt.Key.Key_Left)
        draw_samples(panel)
        second = chart_of(panel.rows["rate"]).overlay.hover
        assert first is not None
        assert second is not None
        assert second.x < first.x
        assert "Tokens per second 200.0 t/s" in panel.board.accessibleDescription()

    def test_the_moment_chosen_by_keys_goes_with_the_focus(self, panel: PlotPanel) -> None:
        fill(panel)
        QTest.keyClick(panel, Qt.Key.Key_Left)
        draw_samples(panel)
        overlay = chart_of(panel.rows["rate"]).overlay
        for reason in (Qt.FocusReason.PopupFocusReason, Qt.FocusReason.ActiveWindowFocusReason):
            QApplication.sendEvent(panel, QFocusEvent(QEvent.Type.FocusOut, reason))
            assert overlay.hover is not None, "a menu or another window gives the focus back"
        QApplication.sendEvent(panel, QFocusEvent(QEvent.Type.FocusOut, Qt.FocusReason.MouseFocusReason))
        assert overlay.hover is None
        assert panel.board.accessibleDescription() == ""

    def test_the_wheel_zooms_all_plots_and_home_resets(self, panel: PlotPanel) -> None:
        fill(panel)
        overlay = chart_of(panel.rows["power"]).overlay
        place = overlay.area.center()
        wheel = QWheelEvent(
            place, QPointF(overlay.mapToGlobal(place.toPoint())), QPoint(), QPoint(0, 240), Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
        )  # fmt: skip
        QApplication.sendEvent(overlay, wheel)
        draw_samples(panel)
        expected = 300 / 1.25**2
        assert panel.span.length_s == pytest.approx(expected)
        ranges = {tuple(chart_of(card).viewRange()[0]) for card in panel.rows.values() if card.isVisible()}
        assert len(ranges) == 1
        assert ranges.pop()[0] == pytest.approx(-expected)
        QTest.keyClick(panel, Qt.Key.Key_Home)
        assert panel.span.length_s == 300

    def test_dragging_pans_and_holds_and_a_double_click_returns_to_live(self, panel: PlotPanel) -> None:
        fill(panel, 1_200)
        overlay = chart_of(panel.rows["rate"]).overlay
        middle = overlay.area.center().toPoint()
        QTest.mousePress(overlay, Qt.MouseButton.LeftButton, pos=middle)
        QTest.mouseMove(overlay, middle + QPoint(100, 0))
        QTest.mouseRelease(overlay, Qt.MouseButton.LeftButton, pos=middle + QPoint(100, 0))
        moved_s = 100 / overlay.area.width() * 300
        assert not panel.span.live
        assert panel.span.end_s == pytest.approx(panel_samples(panel).newest_s - moved_s, abs=1)
        draw_samples(panel)
        assert chart_of(panel.rows["rate"]).time_axis.end_wall_s == pytest.approx(time.time() - moved_s, abs=60)
        end_s = panel.span.end_s
        panel.add_samples([busy_sample(panel_samples(panel).newest_s + 5)])
        draw_samples(panel)
        assert panel.span.end_s == end_s
        QTest.mouseDClick(overlay, Qt.MouseButton.LeftButton, pos=middle)
        assert panel.span.live
        assert panel.span.end_s == panel_samples(panel).newest_s

    def test_the_button_holds_and_returns_to_live(self, panel: PlotPanel, qtbot: QtBot) -> None:
        fill(panel)
        button = panel.head._pause
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        draw_samples(panel)
        assert not panel.span.live
        assert button.text() == "Go live"
        QTest.keyClick(panel, Qt.Key.Key_Space)
        draw_samples(panel)
        assert panel.span.live
        assert button.text() == "Pause"


class TestExport:
    def rows(self, path: Path) -> list[dict[str, str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_the_exported_table_has_the_shown_values_with_units_and_both_times(
        self, panel: PlotPanel, qtbot: QtBot, tmp_path: Path
    ) -> None:
        fill(panel, 600)
        end_s = panel_samples(panel).newest_s + 0.1
        panel.marks.append(Mark(end_s - 0.05, MarkKind.NOTICE, "=a notice, with a comma"))
        panel.add_samples([busy_sample(end_s, tokens_per_second=None)])
        panel.choose_length(60)
        draw_samples(panel)
        with qtbot.waitSignal(panel.exported) as caught:
            panel.export_csv(tmp_path)
        rows = self.rows(Path(caught.args[0]))
        assert 600 <= len(rows) <= 602
        first, last = rows[0], rows[-1]
        assert float(first["time before the last row [s]"]) == pytest.approx(-60, abs=0.2)
        assert float(last["time before the last row [s]"]) == 0
        stamp = datetime.fromisoformat(last["time (UTC)"])
        assert stamp.timestamp() == pytest.approx(time.time(), abs=30)
        assert first["Tokens per second [t/s]"] == "200.000"
        assert last["Tokens per second [t/s]"] == ""
        assert first["Power [W]"] == "300.00"
        assert first["VRAM, this server [GiB]"] == "20.000"
        assert first["Position 2 [%]"] == "72.00"
        assert last["marks"] == "'=a notice, with a comma"

    def test_the_exported_picture_shows_the_plots(self, panel: PlotPanel, qtbot: QtBot, tmp_path: Path) -> None:
        fill(panel)
        with qtbot.waitSignal(panel.exported) as caught:
            panel.export_png(tmp_path)
        picture = QImage(caught.args[0])
        assert picture.size() == 2 * panel.board.size(), "sharp on any screen"
        blue = QColor(theme.DARK.rate)
        colours = {
            picture.pixelColor(x, y).rgb() for x in range(0, picture.width(), 2) for y in range(picture.height())
        }
        assert blue.rgb() in colours

    def test_a_missing_folder_is_reported_in_place(self, panel: PlotPanel, qtbot: QtBot, tmp_path: Path) -> None:
        fill(panel)
        panel.export_csv(tmp_path / "missing")
        qtbot.waitUntil(lambda: "could not be written" in panel.head._text.text())

    def test_two_exports_in_one_second_have_different_names(
        self, panel: PlotPanel, qtbot: QtBot, tmp_path: Path
    ) -> None:
        fill(panel)
        for count in (1, 2):
            with qtbot.waitSignal(panel.exported):
                panel.export_csv(tmp_path)
            assert len(list(tmp_path.iterdir())) == count

    def test_without_samples_nothing_is_exported(self, panel: PlotPanel, tmp_path: Path) -> None:
        panel.export_csv(tmp_path)
        assert panel.head._text.text() == "There is nothing to export yet."

    def test_every_quantity_is_exported_once(self) -> None:
        titles = [
            (quantity.title.format(n=quantity.draft_position), quantity.unit) for quantity in exported_quantities()
        ]
        assert len(set(titles)) == len(titles)
        assert {quantity.name for plot in PLOTS for quantity in plot.curves} <= {
            each.name for each in exported_quantities()
        }
