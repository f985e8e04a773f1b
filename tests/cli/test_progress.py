"""The progress bar on a terminal, lines in other outputs, and JSON events."""

import io
import json
import sys

import pytest

from launcher.base.progress import Progress
from launcher.cli.output import Note
from launcher.cli.progress import ProgressBar, Reporter, StateLine, format_done_bytes
from launcher.engine.server.state import ServerState, ServerStatus

WHY = "models.example did not answer within 30 seconds. Next try in 4 s."


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> _Screen:
    """Let standard error be a terminal with that many columns."""
    screen = _Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


def test_the_reason_of_a_wait_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.show_progress("Downloading", 1, 10)
    bar.show_progress("Waiting", 1, 10, note="The server did not answer. Again in 2 s.")
    bar.show_progress("Waiting", 1, 10, note="The server did not answer. Again in 1 s.")
    bar.show_progress("Downloading", 2, 10)
    assert capsys.readouterr().err == "Waiting: 10 %  1 bytes of 10 bytes  The server did not answer. Again in 2 s.\n"


def test_a_terminal_shows_the_whole_reason_of_a_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, bar = open_terminal(monkeypatch, 100), ProgressBar()
    bar.show_progress("Downloading", 5, 10, speed=1.0, left_s=5.0)
    bar.show_progress("Waiting", 5, 10, note=WHY)
    assert screen.getvalue().split("\r")[-1].rstrip() == f"Waiting 50 %  {WHY}"


def test_a_long_note_stands_above_the_bar_in_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, bar = open_terminal(monkeypatch, 80), ProgressBar()
    bar.show_progress("Downloading", 5, 10)
    for _ in range(2):
        bar.show_progress("Waiting for a-long-name.gguf", 5, 10, note=WHY)
    result = screen.getvalue().replace("\r", "\n")
    assert " ".join(result.split()).count(f"Waiting for a-long-name.gguf: {WHY}") == 1
    assert all(len(line) < 80 for line in result.split("\n"))
    bar.show_progress("Waiting for a-long-name.gguf", 5, 10, note=WHY.replace("4 s", "8 s"))
    assert "8 s." in screen.getvalue()


def test_a_narrow_terminal_drops_whole_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_terminal(monkeypatch, 40)
    ProgressBar().show_progress("Downloading", 5 * 10**9, 10**10, speed=1e8, left_s=50.0)
    assert screen.getvalue().strip() == "Downloading 50 %  5.00 GB of 10.00 GB"
    ProgressBar().show_progress("a-name-that-is-longer-than-the-terminal-is-wide.gguf", 5, 10)
    assert screen.getvalue().rstrip().endswith("… 50 %")


def test_a_rounded_100_percent_is_not_shown_before_the_end() -> None:
    assert format_done_bytes(8_612_000, 8_640_000) == "all but 28 kB of 8.6 MB"
    assert format_done_bytes(8_640_000, 8_640_000) == "8.6 MB of 8.6 MB"
    assert format_done_bytes(5, None) == "5 bytes"


def test_json_output_reports_the_reason_of_a_wait_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(as_json=True)
    for note in ("", WHY, WHY, ""):
        reporter.show_progress("a.gguf", Progress(5, 10, note=note), {"event": "progress"})
    assert [json.loads(line)["note"] for line in capsys.readouterr().out.splitlines()] == [None, WHY, None]


def test_a_line_is_printed_only_after_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(as_json=False)
    for percent in (1, 1, 2):
        reporter.show_event({"percent": percent}, [f"{percent} %"], topic="loading", state=percent)
    assert capsys.readouterr().out == "1 %\n2 %\n"


def test_a_status_is_overwritten_in_place_and_erased_before_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, reporter = open_terminal(monkeypatch, 80), Reporter(as_json=False)
    reporter.show_status("round 1, a long prompt: 10.0 tokens/s")
    reporter.show_status("round 2: too short")
    reporter.show_event(None, [Note("A point.")])
    assert [text.strip() for text in screen.getvalue().split("\r")][2:] == ["round 2: too short", "", "A point."]


def test_a_status_is_shown_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        Reporter(as_json=as_json).show_status("round 1")
    assert capsys.readouterr() == ("", "")


def test_states_in_a_file_are_words_only(capsys: pytest.CaptureFixture[str]) -> None:
    line = StateLine()
    for status in (ServerStatus(ServerState.LOADING), ServerStatus(ServerState.LOADING, percent=50.0)):
        line.show_event(status)
    line.show_event(ServerStatus(ServerState.READY))
    assert capsys.readouterr().err == "Loading the model\nReady\n"


def test_a_state_on_a_terminal_overwrites_the_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, line = open_terminal(monkeypatch, 80), StateLine()
    line.show_event(ServerStatus(ServerState.LOADING))
    line.show_event(ServerStatus(ServerState.LOADING, percent=50.0))
    line.show_event(ServerStatus(ServerState.READY))
    *_, percentage, ready = screen.getvalue().split("\r")
    assert len(ready.rstrip("\n")) >= len(percentage)
