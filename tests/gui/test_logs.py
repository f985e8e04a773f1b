"""The Logs page: an ordinary log, a flood of lines, and errors."""

import shlex
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from launcher.app.planning import start_settings
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import LogAdded, ServerState
from launcher.gui.logs.lines import MOST_LINES, LogFilter, ParsedLine, parse_log_line, thin_out
from launcher.gui.logs.model import LogModel
from launcher.gui.logs.page import LogsPage
from launcher.gui.logs.sources import OWN_SERVER
from launcher.gui.window import Window
from tests.gui.dragging import drag_files, drop_files

FIRST_PAGE = "about"
FAKES = Path(__file__).parents[1] / "fakes"
KV_MEMORY = Path(__file__).parents[1] / "data" / "logs" / "held-out" / "17-KV-memory-built-in.log"


@pytest.fixture
def page(window: Window, qtbot: QtBot) -> LogsPage:
    with qtbot.waitSignal(window.page_shown):
        window.show_page("logs")
    found: LogsPage = window.page("logs")
    return found


def texts(page: LogsPage) -> list[str]:
    return [line.text for line in page.lines.shown]


def post(window: Window, *lines: str) -> None:
    for line in lines:
        window.controller.bridge.post(LogAdded(line))


@pytest.mark.parametrize(
    ("raw", "time", "level", "words"),
    [
        ("0.00.123.456 E srv load: no", "came", "E", "srv load: no"),
        ("2026-11-21 09:30:01,123 0.00.123.456 W slot x", "09:30:01.123", "W", "slot x"),
        ("2026-11-21 09:30:01,123 plain", "09:30:01.123", "I", "plain"),
        ('{"type":"log","level":"warn","msg":"m"}', "came", "W", '{"type":"log","level":"warn","msg":"m"}'),
        ("error: invalid argument", "came", "E", "error: invalid argument"),
        ("warning: slow", "came", "W", "warning: slow"),
        ("load_tensors: ok", "came", "I", "load_tensors: ok"),
    ],
)
def test_a_line_is_split_into_fields(raw: str, time: str, level: str, words: str) -> None:
    line = parse_log_line(raw, "came")
    assert (line.time, line.level, line.message, line.text) == (time, level, words, raw)
    assert parse_log_line("0.00.123.456 E srv load: no").time == "0.00.123.456"


def test_lines_are_filtered_by_level_text_expression_and_noise() -> None:
    lines = [
        parse_log_line(text)
        for text in (
            "0.00.000.001 I srv  update_slots: all slots are idle",
            "0.00.000.002 I done request: GET /health 127.0.0.1 200",
            "0.00.000.003 I done request: POST /v1/chat/completions 127.0.0.1 200",
            "0.00.000.004 W n_ctx is small",
            "0.00.000.005 E it failed",
        )
    ]

    def numbers(wanted: LogFilter) -> str:
        return "".join(line.text[11] for line in filter(wanted.make_predicate(), lines))

    assert numbers(LogFilter()) == "345"
    assert numbers(LogFilter(hides_polling=False)) == "12345"
    assert numbers(LogFilter(level="W")) == "45"
    assert numbers(LogFilter(level="E")) == "5"
    assert numbers(LogFilter(text="N_CTX")) == "4"
    assert numbers(LogFilter(text="n_.tx|FAILED", regex=True)) == "45"
    assert numbers(LogFilter(text="n_.tx")) == ""


def test_the_last_and_the_serious_lines_of_a_flood_are_kept() -> None:
    batch = ["0.00.000.001 E first", *(f"0.00.000.001 I line {n}" for n in range(1_000))]
    kept, left_out = thin_out(batch)
    assert kept[0] == batch[0]
    assert kept[1:] == batch[-len(kept[1:]) :]
    assert left_out + len(kept) == len(batch)
    assert thin_out(["a"]) == (["a"], 0)


def test_the_ring_drops_the_oldest_lines(qtbot: QtBot) -> None:
    model = LogModel()
    removed: list[int] = []
    model.rowsRemoved.connect(lambda _parent, first, last: removed.append(last - first + 1))
    for begin in range(0, 3 * MOST_LINES, 500):
        model.append([ParsedLine("", "I", f"{number}") for number in range(begin, begin + 500)])
    assert model.rowCount() <= MOST_LINES * 1.1
    assert model.shown[-1].text == f"{3 * MOST_LINES - 1}"
    assert sum(removed) + model.rowCount() == 3 * MOST_LINES
    assert len(model.all_lines) <= MOST_LINES * 1.1


def test_lines_are_shown_counted_filtered_and_found(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    assert page.empty.isVisible()
    assert not page.report_button.isEnabled()
    post(window, "0.00.000.001 I one", "0.00.000.002 W two", "0.00.000.003 E three", "update_slots: all slots are idle")
    qtbot.waitUntil(lambda: len(page.lines.shown) == 3)
    assert page.count.text() == "3 of 4 lines"
    qtbot.mouseClick(page.bar.level.button("E"), Qt.MouseButton.LeftButton)
    assert texts(page) == ["0.00.000.003 E three"]
    qtbot.mouseClick(page.bar.level.button(""), Qt.MouseButton.LeftButton)
    page.bar.search.setText("two")
    qtbot.waitUntil(lambda: len(page.lines.shown) == 1)
    page.bar.regex.setChecked(True)
    page.bar.search.setText("t(wo")
    qtbot.waitUntil(lambda: page.bar._regex_error.isVisible())
    assert texts(page) == ["0.00.000.002 W two"]
    page.bar.search.setText("t(wo|hree)")
    qtbot.waitUntil(lambda: len(page.lines.shown) == 2)


def test_a_pause_freezes_the_lines(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    post(window, "one")
    qtbot.waitUntil(lambda: texts(page) == ["one"])
    qtbot.mouseClick(page.bar.pause, Qt.MouseButton.LeftButton)
    post(window, "two", "three")
    qtbot.waitUntil(lambda: "2 new lines" in page.count.text())
    assert texts(page) == ["one"]
    qtbot.mouseClick(page.bar.pause, Qt.MouseButton.LeftButton)
    assert texts(page) == ["one", "two", "three"]


def test_a_line_is_never_rendered_as_html(page: LogsPage) -> None:
    page.lines.show_lines([parse_log_line("said <img src='x.png'>")])
    assert page.lines.index(0).data() == "said <img src='x.png'>"
    assert "<img" not in page.lines.index(0).data(Qt.ItemDataRole.ToolTipRole)


def test_the_view_follows_until_the_user_scrolls_back(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    post(window, *(f"line {number}" for number in range(90)))
    bar = page.view.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    qtbot.keyClick(page.view, Qt.Key.Key_Home)
    assert not page.bar.follow.isChecked()
    post(window, "more")
    qtbot.waitUntil(lambda: len(page.lines.shown) == 91)
    assert bar.value() < bar.maximum()
    qtbot.mouseClick(page.bar.follow, Qt.MouseButton.LeftButton)
    assert bar.value() == bar.maximum()


def test_selected_lines_are_copied_unchanged(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    post(window, "0.00.000.001 I one", "0.00.000.002 W two")
    qtbot.waitUntil(lambda: len(page.lines.shown) == 2)
    page.view.selectAll()
    qtbot.keyClick(page.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "0.00.000.001 I one\n0.00.000.002 W two"


def test_a_report_is_copied_without_secrets(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    post(window, "started with --api-key abcdef99 today")
    qtbot.waitUntil(lambda: len(page.lines.all_lines) == 1)
    QGuiApplication.clipboard().clear()
    qtbot.mouseClick(page.report_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "### Versions" in QGuiApplication.clipboard().text())
    assert "abcdef99" not in QGuiApplication.clipboard().text()
    assert "started with" in QGuiApplication.clipboard().text()
    assert "Check them" in page.banner.text.text()


def test_a_dropped_log_is_diagnosed_and_its_line_marked(window: Window, page: LogsPage, qtbot: QtBot) -> None:
    assert drag_files(page, KV_MEMORY)
    assert page.drop.isVisible()
    assert drop_files(page, KV_MEMORY)
    assert not page.drop.isVisible()
    qtbot.waitUntil(page.card.isVisible)
    assert "Not enough memory" in page.card.title.text()
    assert not page.card.fix_button.isVisible()  # the log is not that of our server, so there is nothing to start again
    assert "Try:" in page.card.hint.text()
    row = page.lines.last_highlighted_row()
    assert row is not None
    qtbot.waitUntil(lambda: page.view.currentIndex().row() == row)
    assert page.view.viewport().rect().contains(page.view.visualRect(page.lines.index(row)).center())
    post(window, "meanwhile")
    page.choose_source(OWN_SERVER)
    qtbot.waitUntil(lambda: "meanwhile" in texts(page))
    assert not page.card.isVisible()


def test_a_dropped_model_is_left_to_the_window(window: Window, page: LogsPage, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert drag_files(page, model)
    assert not page.drop.isVisible()
    assert window.drop.isVisible()


def test_an_unreadable_file_is_reported(page: LogsPage, qtbot: QtBot, tmp_path: Path) -> None:
    page.open_file(tmp_path / "nowhere.log")
    qtbot.waitUntil(page.banner.isVisible)
    assert "cannot be read" in page.banner.text.text()


def test_the_fix_of_a_failed_start_is_a_button(
    window: Window, page: LogsPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo_model: Path
) -> None:
    """The fake engine has the faults that a file names; the button starts it again with other settings."""
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.engine.serve_options import ServeOptions

    program, faults = tmp_path / "fake", tmp_path / "faults"
    command = shlex.join([sys.executable, str(FAKES / "llama_server.py")])
    program.write_text(f'#!/bin/sh\nFAKE_FAULTS=$(cat {shlex.quote(str(faults))}) exec {command} "$@"\n')
    program.chmod(0o755)
    faults.write_text("dies-loading")
    options = ServeOptions(model=demo_model, engine=program, context=131_072, draft=0)

    async def start(*_arguments: object, **_named: object) -> ResolvedStart:
        return ResolvedStart(str(demo_model), options)

    monkeypatch.setattr(start_settings, "resolve_start", start)
    window.controller.start(str(demo_model))
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.FAILED)
    qtbot.waitUntil(page.card.isVisible)
    assert page.lines.last_highlighted_row() is not None
    qtbot.waitUntil(lambda: page.view.currentIndex().row() == page.lines.last_highlighted_row())
    faults.write_text("")
    qtbot.mouseClick(page.card.fix_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    assert not page.card.isVisible()
    launch = window.controller.launch
    assert launch is not None
    assert launch.options != options


def test_the_last_log_is_offered_after_a_restart_of_the_window(window: Window, qtbot: QtBot) -> None:
    from launcher.engine.server.logs import LogBook

    book = LogBook.for_port(9_300)
    book.add("from the day before")
    book.close()
    window.show_page("logs")
    page = window.page("logs")
    qtbot.waitUntil(lambda: any("the day before" in text for text in texts(page)))
    assert page.bar.source.where.endswith("engine-9300.log")


def test_lines_before_the_page_was_built_are_shown_once(demo: Window, qtbot: QtBot) -> None:
    session = demo.controller.session
    assert session is not None
    demo.show_page("logs")
    page = demo.page("logs")
    qtbot.waitUntil(lambda: len(page.lines.all_lines) > 5)
    qtbot.wait(100)
    received = [line.text for line in session.supervisor.log.lines_since(0)]
    assert [line.text for line in page.lines.all_lines][: len(received)] == received


def test_lines_of_another_server_continue_after_another_page_was_shown(
    window: Window, page: LogsPage, qtbot: QtBot, demo_model: Path
) -> None:
    from launcher.app.serving.session import ServerSession
    from launcher.engine.serve_options import ServeOptions
    from launcher.engine.server.client import ChatRequest

    run = window.controller.bridge.run
    others: list[ServerSession] = []

    async def serve() -> ServerSession:
        session = ServerSession()
        await session.start(StartRequest(ServeOptions(demo_model, built_in=True, context=1_024, threads=1)))
        return session

    run(serve, done=others.append)
    qtbot.waitUntil(lambda: bool(others))
    other = others[0]
    try:
        window.show_page("keys")
        window.show_page("logs")
        qtbot.waitUntil(lambda: page.bar.sources.count() > 1)
        (source,) = [each for each in page.bar.other_sources if each.where == other.supervisor.endpoint.url]
        page.choose_source(source)
        qtbot.waitUntil(lambda: bool(page.lines.all_lines))
        window.show_page("keys")
        window.show_page("logs")
        qtbot.waitUntil(lambda: page.bar.source is not source)
        before = len(page.lines.all_lines)
        run(lambda: other.send_request(ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=4)))
        qtbot.waitUntil(lambda: len(page.lines.all_lines) > before)
    finally:
        with qtbot.waitSignal(window.controller.closed):
            run(other.stop, done=lambda _none: window.quit())
