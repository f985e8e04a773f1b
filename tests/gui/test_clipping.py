"""Nothing is cut: every text of every page against the room it has, in each language, text size and window size."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication, QTableWidget, QTableWidgetItem, QWidget
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState
from launcher.gui import appearance, theme
from launcher.gui.tune.trial_views import TuneView
from launcher.gui.window import Window
from launcher.tuning.tune_state import Fault, Stage, Trial
from tests.gui.trials import trial, tune_view, with_draft
from tests.gui.walk import clipped_cells, hidden_by_parents, list_clipped_texts

SIZES = ((1_000, 640), (1_280, 800), (1_440, 900), (2_560, 1_440))
_SETTLE_MS, _TURNS = 50, 20
"""Milliseconds in which a page may settle, and how often."""


def views(window: Window) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each view of each page by name, and how to show it."""
    for name in window.page_names:
        page = window.page(name)
        if name == "settings":
            for section in page.cards:
                yield f"{name} {section}", lambda page=page, section=section: page.show_section(section)
        elif name == "cockpit":
            for layout in ("watch", "adjust", "chat"):
                yield f"{name} {layout}", lambda page=page, layout=layout: page.panes.choose_layout(layout)
        else:
            yield name, lambda: None
        if name == "tune":
            yield f"{name} with results", lambda page=page: page.show_tune(_wide_results())


def _wide_results() -> TuneView:
    """Return the results of a fast server with a card: high figures, a long name of settings, and one that failed."""
    view = tune_view({"settings": with_draft(3)})
    runs = [replace(each, decode_rate=20 * each.decode_rate) for each in view.runs if each.decode_rate]
    fast = [replace(each, runs=(run,)) for each, run in zip(view.trials, runs, strict=True)]
    several = trial(9, {**with_draft(2), "threads": 2, "draft_sampling": "probabilistic"}, 0.6, 2.2)
    failed = Trial(10, Stage.PROBE, with_draft(6), 0.0, 3.0, 3.0, (), "Out of memory.", Fault.MEMORY)
    return replace(view, trials=(*fast, several, failed), estimate_mib=lambda _settings: 20_472)


def cut_texts(window: Window, qtbot: QtBot, sizes: tuple[tuple[int, int], ...]) -> list[str]:
    """Return the texts that are cut in any view at any of the window's sizes."""
    found: list[str] = []
    for view, show in views(window):
        name = view.partition(" ")[0]
        if window.page_name != name:
            # The last tune, once read, replaces what the page shows.
            read = [window.page(name).tuning.last_read] if name == "tune" else []
            with qtbot.waitSignals([window.page_shown, *read]):
                window.show_page(name)
        for width, height in sizes:
            window.resize(width, height)
            show()
            cut: list[str] = []
            for _ in range(_TURNS):  # pages, and what they read, settle in their time
                qtbot.wait(_SETTLE_MS)
                cut = [*list_clipped_texts(window), *clipped_cells(window), *hidden_by_parents(window)]
                if not cut:
                    break
            found += [f"{view} at {width} x {height}: {text}" for text in cut]
    return found


def _cases() -> Iterator[object]:
    """Yield language, text size in percent, and whether a model is served; ordinary runs test the first few only."""
    yield pytest.param("en", 200, SIZES[:1], True)
    yield pytest.param("en", 100, SIZES[1:2], False)
    yield pytest.param("zh_CN", 100, SIZES, False)
    for language in ("en", "zh_CN"):
        for percent in (80, 100, 125, 150, 200):
            yield pytest.param(language, percent, SIZES, True, marks=pytest.mark.thorough)


@pytest.mark.parametrize(("language", "percent", "sizes", "serves"), list(_cases()))
def test_no_text_is_cut(
    language: str,
    percent: int,
    sizes: tuple[tuple[int, int], ...],
    serves: bool,
    usual_theme: None,
    qtbot: QtBot,
    qapp: QApplication,
    home: object,
    forked_sessions: None,
) -> None:
    appearance.choose_language(qapp, language)
    theme.set_scale(percent)
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page="about")
    try:
        window.resize(*sizes[0])
        with qtbot.waitSignal(window.page_shown):
            window.show()
        if serves:
            window.start_demo()
            qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
            with qtbot.waitSignal(window.controller.replied):
                window.controller.request_reply([{"role": "user", "content": "What is a draft?"}], {"max_tokens": 40})
        cut = cut_texts(window, qtbot, sizes)
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        assert window.controller.bridge.close()
    finally:
        window.deleteLater()
        appearance.choose_language(qapp, "en")
    assert not cut, "\n".join(cut)


def test_clipped_text_is_found(qtbot: QtBot) -> None:
    from PySide6.QtWidgets import QLabel, QPushButton

    holder = QWidget()
    qtbot.addWidget(holder)
    label, button = QLabel("A text that is too long", holder), QPushButton("A text that is too long", holder)
    for each in (label, button):
        each.setGeometry(0, 0, 40, 12)
    holder.resize(30, 30)
    holder.show()
    assert len(list_clipped_texts(holder)) == 2
    assert len(hidden_by_parents(holder)) == 2


def test_clipped_cells_are_found(qtbot: QtBot) -> None:
    table = QTableWidget(1, 1)
    qtbot.addWidget(table)
    table.setAccessibleName("Things")
    table.setHorizontalHeaderLabels(["A title that is too long"])
    table.setItem(0, 0, QTableWidgetItem("A cell with a text that is too long"))
    table.setColumnWidth(0, 40)
    table.show()
    assert [each.partition(" lacks")[0] for each in clipped_cells(table.parentWidget() or _holder(table))] == [
        "Things: the title 'A title that is too long'",
        "Things: 'A cell with a text that is too long' under 'A title that is too long'",
    ]


def _holder(table: QTableWidget) -> QWidget:
    holder = QWidget()
    table.setParent(holder)
    holder.show()
    table.show()
    return holder
