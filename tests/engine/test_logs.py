"""The log book, on real files and full disks."""

import os
import threading
import time
from pathlib import Path

from launcher.engine.server import logs
from launcher.engine.server.logs import LogBook, read_last_lines


def read_lines(path: Path) -> list[str]:
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines()]


def test_lines_are_in_memory_at_once_and_in_the_file_at_the_end(tmp_path: Path) -> None:
    book = LogBook(tmp_path / "logs" / "engine.log")
    for number in range(10):
        book.add(f"line {number}")
    assert book.last_lines(3) == ["line 7", "line 8", "line 9"]
    assert [line.text for line in book.lines_since(8)] == ["line 8", "line 9"]
    assert book.lines_since(10) == book.lines_since(99) == []
    book.close()
    assert read_lines(book.path) == [f"line {number}" for number in range(10)]
    assert book.path.stat().st_mode & 0o077 == 0
    assert book.last_lines(1) == ["line 9"]


def test_a_second_run_appends_to_the_same_file(tmp_path: Path) -> None:
    for number in range(2):
        book = LogBook(tmp_path / "engine.log")
        book.add(f"run {number}")
        book.close()
    assert read_lines(tmp_path / "engine.log") == ["run 0", "run 1"]


def test_memory_and_disk_are_bounded(tmp_path: Path) -> None:
    book = LogBook(tmp_path / "engine.log", batch_s=0.0)
    for number in range(12_000):
        book.add(f"{number} " + "x" * 1_000)
    assert sum(len(text) for text in book.last_lines()) <= logs._RING_CHARACTERS
    book.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert set(files) <= {"engine.log", "engine.log.1", "engine.log.2", "engine.log.3"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 * (logs._FILE_BYTES + logs._WAITING_CHARACTERS)


def test_the_last_lines_are_read_from_the_earlier_file_too(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("c\nd\n")
    (tmp_path / "engine.log.1").write_text("a\nb\n")
    assert read_last_lines(tmp_path / "engine.log", 3) == ["b", "c", "d"]
    assert read_last_lines(tmp_path / "engine.log", 1) == ["d"]
    assert read_last_lines(tmp_path / "engine.log", 0) == []


def test_a_full_disk_is_reported_and_lost_lines_are_counted(tmp_path: Path) -> None:
    """/dev/full refuses every write as a full disk does (full(4))."""
    path = tmp_path / "engine.log"
    path.symlink_to("/dev/full")
    book = LogBook(path, batch_s=0.0)
    book.add("lost")
    deadline = time.monotonic() + 120
    while book.problem is None and time.monotonic() < deadline:
        os.sched_yield()
    assert book.problem == "No space left on device"
    assert book.last_lines() == ["lost"]
    file = book._writer._file
    assert file is not None
    path.unlink()
    good = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(good, file)
    os.close(good)
    book.add("kept")
    book.close()
    assert book.problem is None
    text = path.read_text()
    assert "kept" in text
    assert "... 1 lines are missing here: No space left on device" in text


def test_without_a_folder_the_log_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    book = LogBook(tmp_path / "file" / "engine.log")
    book.add("a line")
    book.close()
    assert book.problem in ("File exists", "Not a directory")
    assert book.last_lines() == ["a line"]


def test_a_hanging_disk_does_not_block(tmp_path: Path) -> None:
    """A named pipe without a reader stands for it: opening it for writing blocks."""
    path = tmp_path / "engine.log"
    os.mkfifo(path)
    book = LogBook(path, batch_s=0.0)
    began = time.monotonic()
    for _ in range(20_000):
        book.add("x" * 1_000)
    assert time.monotonic() - began < 300
    assert book._writer._characters <= logs._WAITING_CHARACTERS + 1_000
    book.close(wait_s=0.1)
    assert time.monotonic() - began < 300
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # ends the blocked thread
    while any(thread.name == "launcher-log" for thread in threading.enumerate()):
        try:
            os.read(reader, 2**20)
        except BlockingIOError:
            os.sched_yield()
    os.close(reader)
