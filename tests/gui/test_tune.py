"""The Tune page: its state before a measurement, and its widgets."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetrics, QHelpEvent, QImage
from PySide6.QtWidgets import QApplication, QFileDialog, QScrollArea, QToolTip
from pytestqt.qtbot import QtBot

from launcher.base.errors import BadOption
from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label, escape_tooltip
from launcher.gui.tune import card_text
from launcher.gui.tune.cards import BUDGETS_MIN, WORKLOADS, StepCard, TrialTable, VerdictCard, row_texts
from launcher.gui.tune.draft_plot import DraftPlot, point_text
from launcher.gui.tune.page import TunePage
from launcher.gui.tune.trial_views import TuneView
from launcher.gui.tune.view_data import (
    Point,
    StepPart,
    TrialRow,
    TuneRequest,
    VerdictText,
    WorkloadAnswer,
    WorkloadCurve,
)
from launcher.gui.window import Window
from launcher.tuning.goal import Goal
from launcher.tuning.history import history_file
from launcher.tuning.statistics import Interval
from launcher.tuning.tune_state import Stage
from launcher.tuning.tuner import QuietAwaited, QuietEnded, TrialPlanned
from launcher.tuning.verdict import Comparison, verdict_sentence
from tests.gui.walk import hidden_by_parents, list_clipped_texts

FIRST_PAGE = "about"
ROWS = (
    TrialRow("off", 171.2, 1.1, vram_mib=18_900, against_off=1.0, origin="6 starts"),
    TrialRow("draft 1", 203.4, 4.2, 0.86, 1.86, 20_409, 1.19, "predicted", predicted=True),
    TrialRow("draft 2", 241.3, 1.6, 0.79, 2.58, 20_472, 1.41, "6 starts", best=True),
)
CODE = WorkloadCurve(
    "code",
    "rate",
    (Point("off", 171.2, 1.1), Point("draft 1", 203.0, 4.0, measured=False), Point("draft 2", 241.3, 9.0)),
)
PROSE = WorkloadCurve("prose", "acceptance", (Point("off", 112.0), Point("draft 2", 126.0, 3.0)))


@pytest.fixture(autouse=True)
def current_theme(qapp: QApplication) -> None:
    theme.apply_theme(qapp, theme.current())


@pytest.fixture
def page(window: Window, qtbot: QtBot) -> TunePage:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("tune")
    found: TunePage = window.page("tune")
    return found


@pytest.fixture
def plot(qtbot: QtBot) -> Iterator[DraftPlot]:
    shown = DraftPlot()
    qtbot.addWidget(shown)
    shown.resize(600, 300)
    shown.show_curves((CODE, PROSE))
    shown.show()
    yield shown
    QToolTip.hideText()


def fill(page: TunePage) -> None:
    buttons = [("Use draft 2", lambda: None), ("Why", lambda: None)]
    sentence = "Draft 2 is 41 % ± 3 faster than no MTP for code, 12 % ± 3 for prose."
    page.verdict.show_verdict(VerdictText(sentence, "Verdict · 9 min 12 s · 36 runs", "A detail.", buttons=buttons))
    page.plot.show_curves((CODE, PROSE))
    page.show_rows(ROWS)
    page.step.show_parts(
        (StepPart("verify 3 tokens", 7.4), StepPart("draft 2 tokens", 2.1)), "draft 2, code", "A note."
    )
    page.workloads.show_amounts({"code": "6 prompts", "mine": "none yet"})


def buttons() -> list[tuple[str, Callable[[], object]]]:
    return [("Pause", lambda: None), ("Give up", lambda: None)]


def colour_at(widget: DraftPlot, place: QPoint) -> str:
    image: QImage = widget.grab().toImage()
    return image.pixelColor(place).name().upper()


def test_an_empty_page_says_what_will_be_shown(page: TunePage, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: "yet" in page.verdict.sentence.text())  # the page has read that there is no measurement
    assert page.verdict.sentence.text() == "No measurements on this computer yet."
    assert page.verdict.buttons == []
    assert page.verdict.is_first
    assert not any(each.isVisible() for each in (page.table, page.plot, page.step, page.tuned_card))
    qtbot.waitUntil(lambda: page.verdict.height() > page.height() / 2)
    assert not page.export.isEnabled()
    assert page.measure.isEnabled()
    assert not page.history.isVisible()


def test_a_tune_is_planned_before_it_starts(page: TunePage, qtbot: QtBot) -> None:
    with qtbot.waitSignal(page.tuning.planned) as reply:
        pass
    assert reply.args is not None
    plan = reply.args[0].plan
    assert page.budget.slider.accessibleDescription().count("demo: about ") == 1
    assert f"{plan.starts} starts" in page.budget.slider.accessibleDescription()
    assert page.workloads.buttons["published"].amount == "1 prompt"
    assert page.workloads.buttons["mine"].amount == "none yet"
    with qtbot.waitSignal(page.tuning.planned) as again:
        page.goal.setCurrentIndex(1)
    assert again.args is not None
    assert again.args[0].goal.aim == "answer"


def test_budgets_that_are_too_short_are_not_offered(page: TunePage, qtbot: QtBot) -> None:
    with qtbot.waitSignal(page.tuning.planned, timeout=60_000) as reply:
        pass
    assert reply.args is not None
    prepared = reply.args[0]
    assert page.budget.slider.maximum() == len(BUDGETS_MIN) - 1
    slow = replace(prepared, measured=True, plan=replace(prepared.plan, least_s=700.0))
    with qtbot.waitSignal(page.tuning.planned, timeout=60_000) as again:  # planned again for the shortest time offered
        page.tuning.planned.emit(slow)
        assert page.budget.value == 15
        assert page.budget.slider.maximum() == len(BUDGETS_MIN) - 1 - BUDGETS_MIN.index(15)
    assert again.args is not None


def test_workloads_are_chosen_by_mouse_and_arrow_keys(page: TunePage, qtbot: QtBot) -> None:
    assert list(page.workloads.buttons) == [each.name for each in WORKLOADS]
    assert page.workloads.value == "code"
    code, prose = page.workloads.buttons["code"], page.workloads.buttons["prose"]
    code.setFocus()
    with qtbot.waitSignal(page.workloads.chosen) as reply:
        qtbot.keyClick(code, Qt.Key.Key_Down)
    assert reply.args == ["prose"]
    assert prose.isChecked()
    reasoning = page.workloads.buttons["reasoning"]
    qtbot.mouseClick(reasoning, Qt.MouseButton.LeftButton, pos=QPoint(reasoning.width() - 5, 5))
    assert page.workloads.value == "reasoning"
    page.workloads.show_amounts({"reasoning": "4 prompts"})
    assert reasoning.accessibleDescription() == "4 prompts"
    assert code.accessibleDescription() == ""


def test_several_workloads_can_be_chosen(page: TunePage, qtbot: QtBot) -> None:
    buttons = page.workloads.buttons
    page.workloads.several.click()
    for name in ("prose", "code", "code", "long"):  # taken up, left out, taken up, taken up
        qtbot.mouseClick(buttons[name], Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    assert page.request.workload == "code,prose,long"
    with qtbot.waitSignal(page.tuning.planned, timeout=60_000) as planned:
        page.workloads.chosen.emit("long")
    assert planned.args is not None
    assert list(planned.args[0].workload.parts) == ["code", "prose", "long"]
    page.workloads.several.click()
    assert page.request.workload == "code"
    page.workloads.several.click()
    qtbot.mouseClick(buttons["code"], Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    assert page.request.workload == "code"  # at least one workload stays chosen


def test_a_cancelled_file_dialog_changes_nothing(
    page: TunePage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page.workloads.several.click()
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))
    qtbot.mouseClick(page.workloads.buttons["mine"], Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    assert page.request == TuneRequest("code")
    own = tmp_path / "own.txt"
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(own), ""))
    qtbot.mouseClick(page.workloads.buttons["mine"], Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    qtbot.mouseClick(page.workloads.buttons["prose"], Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
    assert page.request == TuneRequest("code,prose,mine", str(own))


def test_a_wait_for_quiet_is_shown_until_the_trial_begins(page: TunePage, qtbot: QtBot) -> None:
    page.show_tune(TuneView("demo", "Code", Goal(), {}))
    page.verdict.show_verdict(VerdictText("Measuring.", buttons=buttons()))
    page.tuning.trial_planned.emit(TrialPlanned(0, Stage.PROBE, {"draft": 0}, 20.0, 600.0))
    measuring = page.verdict.sentence.text()
    page.tuning.delayed.emit(QuietAwaited(30.0, "Other programs used 90 % of the processor."))
    assert page.verdict.kicker.text() == "Waiting for quiet"
    assert page.verdict.detail.text() == "The measurement goes on when it is quiet, after 30 s at the latest."
    assert page.verdict.sentence.text() == "Other programs used 90 % of the processor."
    page.tuning.delayed.emit(QuietEnded(4.0))
    assert page.verdict.sentence.text() == measuring


def test_the_verdict_of_each_workload_is_below_the_overall_one(page: TunePage) -> None:
    known = {"ci_low": 1.3, "ci_high": 1.52, "likely": 0.97, "settings": {"draft": 3}, "draft": 3}
    on = {"workload": "code", "mtp": "on", **known}
    off = {**on, "workload": "my", "mtp": "undecided", "likely": None, "ci_low": 0.9, "ci_high": 1.1}
    verdict = {
        "mtp": "on",
        "settings": {"draft": 3},
        "because": "",
        "sentence": "Draft 3. And more.",
        "overall": "Draft 3.",
        "workloads": [on, off],
    }
    view = TuneView("demo", "Code, My", Goal(), {"draft": 0}, verdict=verdict)
    card = card_text.verdict_card(view, [])
    assert card.sentence == "Draft 3."
    assert list(card.answers) == [
        WorkloadAnswer("Code", "draft 3", "+30 % … +52 %", "97 %"),
        WorkloadAnswer("my", "not clear yet", "-10 % … +10 %", UNKNOWN),
    ]
    page.verdict.show_verdict(card)
    shown = [label.text() for label in page.verdict.findChildren(Label)]
    assert "+30 % … +52 %" in shown
    assert not list_clipped_texts(page.verdict)


def test_buttons_with_unchanged_labels_are_reused(page: TunePage) -> None:
    pressed: list[int] = []
    for number in (1, 2):
        result = VerdictText("Likely.", buttons=[("Use draft 3 now", partial(pressed.append, number)), ("Pause", list)])
        before = page.verdict.buttons
        page.verdict.show_verdict(result)
    assert page.verdict.buttons is before
    page.verdict.buttons[0].click()
    assert pressed == [2]


def test_a_budget_can_be_chosen(page: TunePage, qtbot: QtBot) -> None:
    assert page.budget.value == 10
    qtbot.keyClick(page.budget.slider, Qt.Key.Key_Right)
    assert page.budget.value == 15
    assert "15 minutes" in page.budget.slider.accessibleDescription()


def test_an_unreadable_history_is_not_shown_as_empty(page: TunePage, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: "yet" in page.verdict.sentence.text())
    history_file().mkdir(parents=True)
    page.history.refresh()
    qtbot.waitUntil(page.history.isVisible)
    assert page.history.note.text().startswith("Cannot read or save measurements")
    assert not page.history.table.isVisible()
    assert page.verdict.sentence.text() == "No measurement is running."
    history_file().rmdir()
    page.history.refresh()
    qtbot.waitUntil(lambda: not page.history.isVisible())


def test_a_verdict_is_shown_and_removed(qtbot: QtBot) -> None:
    card, pressed = VerdictCard(), []
    qtbot.addWidget(card)
    card.show()
    empty = card.sentence.text()
    assert empty == "No measurement is running."  # the page does not know yet whether there was a measurement
    result = VerdictText(
        "MTP is better left off.", "3 min · 9 runs", "Why so.", "attention", [("Keep", lambda: pressed.append(1))]
    )
    card.show_verdict(result)
    assert card.accessibleName() == "MTP is better left off."
    assert card.property("meaning") == "attention"
    assert card.kicker.isVisible()
    card.buttons[0].click()
    assert pressed == [1]
    card.show_verdict(None)
    assert card.sentence.text() == empty
    assert not card.kicker.isVisible()
    assert card.buttons == []
    card.set_has_history(False)
    assert card.sentence.text() == "No measurements on this computer yet."
    card.set_has_history(True)
    assert card.sentence.text() == empty
    card.show_verdict(result)
    card.set_has_history(False)
    assert card.sentence.text() == result.sentence


def test_digits_of_a_row_follow_its_precision() -> None:
    off, one, two = map(row_texts, ROWS)
    assert off == ("off", "171.2", "± 1.1", UNKNOWN, UNKNOWN, "18,900", "1.00 ×", "6 starts")  # noqa: RUF001
    assert one[1:3] == ("203", "± 4")
    assert two[3:5] == ("79 %", "2.58")
    assert row_texts(TrialRow("draft 9", None))[1:7] == (UNKNOWN,) * 6
    assert row_texts(TrialRow("draft 9", 0.0, accepted=0.0))[1:4] == ("0", UNKNOWN, "0 %")


@pytest.mark.parametrize(
    ("with_mtp", "without", "shown"),
    [(2_143.26, 1_193.44, ("2,143.3", "1,193.4")), (123.45, 98.76, ("123.5", "98.8")), (12.3, 9.876, ("12.3", "9.88"))],
)
def test_the_figures_of_a_verdict_are_written_as_in_the_table_beside_it(
    with_mtp: float, without: float, shown: tuple[str, str]
) -> None:
    comparison = Comparison({"draft": 2}, {"draft": 0}, Interval(1.2, 1.1, 1.3, 3), 0.95)
    sentence = verdict_sentence("on", Goal(), "code", comparison, (with_mtp, without))
    assert sentence.endswith(": {} against {} tokens/s.".format(*shown))
    assert tuple(row_texts(TrialRow("draft", rate))[1] for rate in (with_mtp, without)) == shown


def test_the_table_has_its_rows_and_marks_the_best(page: TunePage, qtbot: QtBot) -> None:
    page.show_rows(ROWS)
    table: TrialTable = page.table
    assert page.plot.isVisible()
    assert not page.faults.isVisible()
    assert table.height() >= table.rowHeight(0) * 3 + table.horizontalHeader().height()
    model = table.model()
    best = model.index(2, 0)
    assert model.data(best, Qt.ItemDataRole.AccessibleTextRole) == "Setting: draft 2, best"
    assert model.data(best, Qt.ItemDataRole.FontRole).weight() > table.font().weight()
    assert model.data(model.index(0, 0), Qt.ItemDataRole.FontRole) is None
    assert "Unknown" in model.data(model.index(0, 3), Qt.ItemDataRole.ToolTipRole)
    image = table.viewport().grab().toImage()
    spots = [table.visualRect(model.index(row, 0)) for row in range(3)]
    colours = [image.pixelColor(spot.left() + 3, spot.center().y()) for spot in spots]
    assert [each.name().upper() for each in colours] == [theme.current().card] * 2 + [theme.current().raised]
    body = QFontMetrics(theme.font(theme.BODY_PX, bold=True, tabular=True))
    assert all(table.columnWidth(1) > body.horizontalAdvance(row_texts(row)[1]) + 2 * table.text_inset for row in ROWS)
    assert not table.isColumnHidden(5)
    page.show_rows([replace(row, vram_mib=None) for row in ROWS])
    assert table.isColumnHidden(5)  # the column of GPU memory is hidden, as without a GPU
    table.selectRow(1)
    page.show_rows(ROWS[:2])
    assert table.currentIndex().row() == 1
    page.show_rows(())
    assert not table.isVisible()


def test_settings_that_failed_are_named_with_the_reason(page: TunePage) -> None:
    failed = [TrialRow(f"draft {draft}", None, origin="failed", fault="Out of memory.") for draft in (5, 6)]
    page.show_rows((*ROWS, *failed))
    assert page.faults.isVisible()
    assert page.faults.text() == "draft 5, draft 6: Out of memory."
    assert page.table.model().index(4, 7).data(Qt.ItemDataRole.ToolTipRole) == escape_tooltip("Out of memory.")


def test_points_are_at_the_place_of_their_figures(plot: DraftPlot) -> None:
    off, one, two = map(plot.position_of, CODE.points)
    assert off.x() < one.x() < two.x()
    assert off.y() > one.y() > two.y()
    per_rate = (off.y() - two.y()) / (241.3 - 171.2)
    assert (off.y() - one.y()) == pytest.approx(per_rate * (203.0 - 171.2), abs=0.01)
    # Points of the same setting are above each other, though this curve has fewer points.
    assert plot.position_of(PROSE.points[1]).x() == two.x()
    assert all(
        plot.rect().contains(plot.position_of(point).toPoint()) for curve in plot.curves for point in curve.points
    )


def test_heights_start_at_0_and_few_starts_have_a_note_instead_of_a_bar(plot: DraftPlot) -> None:
    one, twice = Point("off", 50.0, 1.0), Point("draft 6", 100.0, starts="1 start")
    plot.show_curves((WorkloadCurve("code · threads 2", "rate", (one, twice)),))
    bottom = plot.position_of(replace(one, rate=0.0)).y()
    assert bottom - plot.position_of(twice).y() == pytest.approx(2 * (bottom - plot.position_of(one).y()))
    assert point_text(plot.curves[0], twice) == "code · threads 2, draft 6: 100.0 t/s, measured, 1 start"
    result = plot.grab().toImage()
    plot.show_curves((WorkloadCurve("code · threads 2", "rate", (one, replace(twice, starts=""))),))
    assert plot.grab().toImage() != result


def test_the_note_on_few_starts_stands_above_a_point_near_the_axis(plot: DraftPlot) -> None:
    plot.resize(500, 300)
    high, low = Point("off", 1_000.0, 1.0), Point("draft 7", 20.0, starts="1 start")

    def below_the_axis(*points: Point) -> QImage:
        plot.show_curves((WorkloadCurve("code", "rate", points),))
        axis = round(plot.position_of(replace(low, rate=0.0)).y())
        return plot.grab().toImage().copy(0, axis + 2, plot.width(), plot.height() - axis - 2)

    assert below_the_axis(high, low) == below_the_axis(high, replace(low, starts=""))


@pytest.mark.thorough
def test_predicted_points_are_hollow_and_bars_are_as_long_as_the_interval(plot: DraftPlot) -> None:
    plot.resize(600, 800)
    off, one, two = (plot.position_of(point).toPoint() for point in CODE.points)
    colour, ground = theme.current().rate, theme.current().card
    plot.setStyleSheet(f"background: {ground}")
    assert colour_at(plot, off) == colour
    assert colour_at(plot, one) == ground
    reach = (plot.position_of(CODE.points[0]).y() - plot.position_of(CODE.points[2]).y()) / (241.3 - 171.2) * 9.0
    assert reach > theme.px(8)
    column = [
        plot.grab().toImage().pixelColor(round(plot.position_of(CODE.points[2]).x()), y) for y in range(plot.height())
    ]
    bare = theme.LIGHT.card if theme.current() is theme.LIGHT else theme.DARK.card
    top = next(y for y in range(two.y(), 0, -1) if column[y].name().upper() == bare)
    assert two.y() - top == pytest.approx(reach, abs=2)


def test_a_point_shows_its_figures_on_hover_and_to_screen_readers(plot: DraftPlot) -> None:
    place = plot.position_of(CODE.points[1]).toPoint()
    event = QHelpEvent(QHelpEvent.Type.ToolTip, place, plot.mapToGlobal(place))
    QApplication.sendEvent(plot, event)
    assert QToolTip.text() == "code, draft 1: 203.0 ± 4.0 t/s, predicted"
    assert point_text(PROSE, PROSE.points[0]) == "prose, off: 112.0 t/s, measured"
    assert plot.accessibleDescription().count("\n") == 4
    assert "prose, draft 2: 126.0 ± 3.0 t/s, measured" in plot.accessibleDescription()


@pytest.mark.parametrize(
    "rates", [(0.3,), (0.0, 0.0), (12.1, 12.1, 12.1), (1_200.0, 90_000.0)], ids=["one", "zero", "same", "far apart"]
)
def test_any_figures_can_be_painted(plot: DraftPlot, rates: tuple[float, ...]) -> None:
    curve = WorkloadCurve("code", "rate", tuple(Point(f"draft {at}", rate) for at, rate in enumerate(rates)))
    plot.show_curves((curve,))
    assert not plot.grab().isNull()
    assert all(plot.rect().contains(plot.position_of(point).toPoint()) for point in curve.points)
    plot.show_curves((WorkloadCurve("none", "rate"),))
    assert plot.curves == ()
    assert not plot.grab().isNull()
    assert plot.accessibleDescription()


def test_the_parts_of_a_step_are_shown(qtbot: QtBot) -> None:
    card = StepCard()
    qtbot.addWidget(card)
    card.show()
    before = card.about.text()
    card.show_parts((StepPart("verify 3 tokens", 6.0), StepPart("draft 2 tokens", 2.0)), "draft 2", "A note.")
    assert [bar.accessibleName() for bar in card.bars] == ["verify 3 tokens: 6.0 ms", "draft 2 tokens: 2.0 ms"]
    assert [bar.value() for bar in card.bars] == [750, 250]
    assert card.note.isVisible()
    card.show_parts((StepPart("nothing", 0.0),))
    assert card.bars[0].value() == 0
    card.show_parts(())
    assert card.about.text() == before
    assert not card.note.isVisible()


@pytest.mark.parametrize("percent", [80, 100, 200])
def test_no_text_is_clipped_with_figures(
    percent: int, usual_theme: None, qtbot: QtBot, qapp: QApplication, home: object
) -> None:
    theme.set_scale(percent)
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page="tune")
    try:
        window.resize(1_000, 640)
        with qtbot.waitSignal(window.page_shown):
            window.show()
        page: TunePage = window.page("tune")
        area = page.findChild(QScrollArea)
        assert area is not None
        with qtbot.waitSignal(page.tuning.last_read):
            page.tuning.read_last()  # the page shows the result of this reading at once
        steps = (card_text.starting_card(buttons()), card_text.failed_card(BadOption("It cannot be.", "Do else.")))

        def check_nothing_is_clipped() -> None:
            assert [*list_clipped_texts(page), *hidden_by_parents(page)] == []

        for show in (*(partial(page.verdict.show_verdict, each) for each in steps), lambda: fill(page)):
            show()
            qtbot.waitUntil(check_nothing_is_clipped)  # waits until texts that arrived meanwhile are laid out, too
            assert area.widget().width() == area.viewport().width()
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        assert window.controller.bridge.close()
    finally:
        window.deleteLater()
