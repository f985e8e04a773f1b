"""With large text or in a small window, only a table's text and a log's lines scroll sideways."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QHeaderView, QScrollArea
from pytestqt.qtbot import QtBot

from launcher.gui import theme
from launcher.gui.rail import PageButton
from launcher.gui.start.cards import PlansTable
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import Cell, Column, TableRows
from launcher.gui.window import Window
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.situation import describe_machine

FIRST_PAGE = "about"


@pytest.fixture
def large_text() -> Iterator[None]:
    """Text at 200 %, taken before the window is built."""
    theme.set_scale(200)
    yield
    theme.set_scale(100)


def test_no_page_scrolls_sideways_at_200_percent(large_text: None, window: Window, qtbot: QtBot) -> None:
    window.resize(1_000, 640)
    for name in window.page_names:
        shown = qtbot.waitSignal(window.page_shown) if name != window.page_name else nullcontext()
        with shown:
            window.show_page(name)
        qtbot.waitUntil(lambda: not _scrolled_sideways(window))
    assert not any(each.shortcut_label.isVisible() for each in window.rail.findChildren(PageButton))
    window.resize(1_500, 640)
    assert all(each.shortcut_label.isVisible() for each in window.rail.findChildren(PageButton))


@pytest.mark.thorough
def test_the_plots_have_room_in_the_smallest_window(demo: Window, qtbot: QtBot) -> None:
    demo.resize(940, 520)
    page = demo.page("cockpit")
    page.panes.choose_layout("watch")
    qtbot.waitUntil(lambda: page.plots.height() > 300)
    assert not page.note.isVisible()
    assert page.head.subtitle.text() == ""
    assert page.switches.isVisible()
    top, bottom = page.head.mapTo(page, QPoint()).y(), page.head.mapTo(page, QPoint()).y() + page.head.height()
    assert top <= page.switches.mapTo(page, QPoint()).y() < bottom, "beside the title"
    demo.resize(1_440, 900)
    qtbot.waitUntil(page.note.isVisible)
    assert "8K context" in page.head.subtitle.text()
    assert page.memory.bar.has_legend


def test_columns_are_hidden_and_shown_by_width(qtbot: QtBot, window: Window) -> None:
    columns: list[Column[str]] = [
        Column(title, "", lambda row: Cell(row), spare=spare) for title, spare in (("A", 0), ("B", 2), ("C", 1))
    ]
    table = RowTable("Things")
    qtbot.addWidget(table)
    rows = TableRows(columns, table)
    table.setModel(rows)
    table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
    table.resize(900, 300)
    table.show()
    rows.show_rows(["a text of some length, which needs its room"])
    table.show_columns()

    def shown_titles() -> str:
        return "".join(each.title for at, each in enumerate(columns) if not table.isColumnHidden(at))

    assert shown_titles() == "ABC"
    table.resize(600, 300)
    assert shown_titles() == "AC"
    table.resize(300, 300)
    assert shown_titles() == "A"
    table.resize(900, 300)
    assert shown_titles() == "ABC"


def test_a_table_measures_the_rows_in_view_and_keeps_the_widest(qtbot: QtBot) -> None:
    measured: list[str] = []

    def make_cell(row: str) -> Cell:
        measured.append(row)
        return Cell(row)

    table = RowTable("Things")
    qtbot.addWidget(table)
    rows = TableRows[str]([Column("A", "", make_cell), Column("B", "", lambda _row: Cell("b"))], table)
    table.setModel(rows)
    table.measure_visible_rows()
    table.horizontalHeader().setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
    table.resize(600, 6 * table.row_height)
    table.show()
    rows.show_rows([f"row {number}" for number in range(199)] + ["a last row that is wider than all others"])
    table.show_columns()
    assert len(set(measured)) <= 8, "only the visible rows are measured, not all 200"
    narrow = table.columnWidth(0)
    table.scrollToBottom()
    wide = table.columnWidth(0)
    assert wide > 2 * narrow
    table.scrollToTop()
    rows.show_rows([f"row {number}" for number in range(200)])
    table.show_columns()
    assert table.columnWidth(0) == wide, "the column keeps the width of the widest row"


def _scrolled_sideways(window: Window) -> list[str]:
    return [
        f"{type(area.parent()).__name__}: {area.horizontalScrollBar().maximum()} px"
        for area in window.findChildren(QScrollArea)
        if area.isVisible() and area.horizontalScrollBar().maximum() > 0
    ]


@pytest.mark.parametrize("width", [500, 700, 1_200])
def test_the_table_of_plans_fills_its_card(qtbot: QtBot, width: int) -> None:
    table = PlansTable()
    qtbot.addWidget(table)
    table.resize(width, 300)
    table.show()
    table.show_plans((), several=True)
    assert table.horizontalHeader().length() == table.viewport().width()


def test_the_table_of_plans_fills_its_card_at_every_width_while_it_is_resized(qtbot: QtBot) -> None:
    plans = make_plans(load_catalogue(hub_figures=False), describe_machine((24,)), PlanCriteria())[:4]
    table = PlansTable()
    qtbot.addWidget(table)
    table.resize(220, 300)
    table.show()
    table.show_plans(plans, several=True)
    wrong = []
    for width in [*range(220, 1_300, 5), *range(1_300, 220, -5)]:
        table.resize(width, 300)
        if table.horizontalHeader().length() != table.viewport().width():
            wrong.append(width)
    assert not wrong, (min(wrong), max(wrong))
