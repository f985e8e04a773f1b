"""Qt and screen readers may ask for a row that is gone: an exception in a method that Qt calls ends the program."""

from PySide6.QtCore import QAbstractItemModel, QObject, Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from launcher.app.models.model_library import LibraryModel
from launcher.gui.agents.agent_list import AgentRows
from launcher.gui.logs.lines import ParsedLine
from launcher.gui.logs.model import LogModel
from launcher.gui.models.row_text import Row
from launcher.gui.models.tree import LibraryTree
from launcher.gui.tune.cards import TrialTable
from launcher.gui.tune.view_data import TrialRow
from launcher.gui.widgets.rows import Cell, Column, TableRows
from launcher.gui.window import Window

FIRST_PAGE = "agents"
ROLES = (
    Qt.ItemDataRole.DisplayRole,
    Qt.ItemDataRole.AccessibleTextRole,
    Qt.ItemDataRole.ToolTipRole,
    Qt.ItemDataRole.FontRole,
)


def read_data(model: QAbstractItemModel, *, of_old: QAbstractItemModel) -> list[object]:
    """Return the data that `model` has for an index of another model, whose row may not exist in `model`."""
    index = of_old.index(0, 0)
    assert index.isValid()
    return [model.data(index, role) for role in ROLES]


def test_a_row_of_a_table_that_is_gone_has_no_data(qtbot: QtBot) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    columns: list[Column[str]] = [Column("Name", "", lambda row: Cell(row))]
    full, empty = TableRows(columns, parent), TableRows(columns, parent)
    full.show_rows(["a"])
    assert full.data(full.index(0, 0)) == "a"
    assert read_data(empty, of_old=full) == [None] * len(ROLES)
    assert full.headerData(5, Qt.Orientation.Horizontal) is None


def test_a_trial_that_is_gone_has_no_data(qtbot: QtBot) -> None:
    full, empty = TrialTable(), TrialTable()
    for table in (full, empty):
        qtbot.addWidget(table)
    full.show_rows((TrialRow("off", 100.0),))
    assert read_data(empty.model(), of_old=full.model()) == [None] * len(ROLES)


def test_a_log_line_that_is_gone_has_no_data(qtbot: QtBot) -> None:
    full, empty = LogModel(), LogModel()
    full.append([ParsedLine("", "I", "a line")])
    assert full.data(full.index(0)) == "a line"
    assert read_data(empty, of_old=full) == [None] * len(ROLES)


def test_a_model_that_is_gone_has_no_data_and_no_files(qtbot: QtBot) -> None:
    parent = QObject()
    full, empty = (LibraryTree(lambda model, _file: Row(model.name, ""), parent) for _ in range(2))
    full.show_models([LibraryModel("one", "One")])
    index = full.index(0, 0)
    assert full.data(index) == "One"
    assert read_data(empty, of_old=full) == [None] * len(ROLES)
    assert empty.rowCount(index) == 0


def test_an_agent_that_is_gone_has_no_data(window: Window, qtbot: QtBot) -> None:
    full = window.page("agents").findChild(AgentRows)
    assert full is not None
    qtbot.waitUntil(lambda: full.rowCount() > 0)
    empty = AgentRows(full.control, window)
    empty.agents = ()
    assert read_data(empty, of_old=full) == [None] * len(ROLES)
