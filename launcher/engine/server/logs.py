"""Engine logs: the last lines in memory, and all lines in rotated files written by a thread."""

import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.base.files import open_private_file
from launcher.base.paths import state_dir

_RING_LINES = 5_000
_RING_CHARACTERS = 2**22
"""Limits for the lines kept in memory."""
_WAITING_CHARACTERS = 2**22
"""The most characters that wait to be written. Further lines are left out of the file, which gets a line with their
number."""
_FILE_BYTES = 2 * 2**20
_OLD_FILES = 3
_BATCH_S = 0.1
_CLOSE_S = 2.0
POLLING_LINE = re.compile(
    r"update_slots: all slots are idle"
    r"|(?:done )?request: (?:GET|HEAD) /(?:health|metrics|slots|props|v1/models|models)\b"
    r"|\b(?:GET|HEAD) /(?:health|metrics|slots|props)\b"
)
"""Matches lines that an engine prints for each poll of its state; views of the log hide them."""


class LogLine(NamedTuple):
    """A log line and its time of arrival (seconds since the epoch)."""

    time_s: float
    text: str

    def __str__(self) -> str:
        return f"{_format_time(self.time_s)} {self.text}"


class LogBook:
    """The log of one server across restarts of its engine. `add` never blocks, even if the disk hangs.

    `line_count` counts all lines since it was opened. They are written every `batch_s` seconds. A copy is not written,
    because another process writes the file.
    """

    def __init__(self, path: Path, *, batch_s: float = _BATCH_S, is_copy: bool = False) -> None:
        self.path = path
        self.line_count = 0
        self._ring: deque[LogLine] = deque()
        self._characters = 0
        self._writer = None if is_copy else _LogWriter(path, batch_s)

    @classmethod
    def for_port(cls, port: int) -> "LogBook":
        """Open the log book of the server on `port`."""
        return cls(log_path(port))

    @property
    def problem(self) -> str | None:
        """The reason why the file cannot be written now; None if it can."""
        return self._writer.problem if self._writer else None

    def add(self, text: str, time_s: float | None = None) -> None:
        """Append one line, which came at `time_s` or, if None, now."""
        line = LogLine(time.time() if time_s is None else time_s, text)
        self.line_count += 1
        self._ring.append(line)
        self._characters += len(text)
        while len(self._ring) > _RING_LINES or self._characters > _RING_CHARACTERS:
            self._characters -= len(self._ring.popleft().text)
        if self._writer is not None:
            self._writer.add(line)

    def last_lines(self, count: int = _RING_LINES) -> list[str]:
        """Return the texts of the last `count` lines in memory, oldest first."""
        return [line.text for line in self.lines_since(self.line_count - count)]

    def lines_since(self, number: int) -> list[LogLine]:
        """Return the lines in memory that were added after the first `number` lines."""
        lines = list(self._ring)
        return lines[max(0, len(lines) - max(0, self.line_count - number)) :]

    def close(self, *, wait_s: float = _CLOSE_S) -> None:
        """Write waiting lines and close the file, waiting at most `wait_s` seconds; lines in memory stay."""
        if self._writer is not None:
            self._writer.close(wait_s)


def logs_dir() -> Path:
    """Return the folder of all engine logs."""
    return state_dir() / "logs"


def log_path(port: int) -> Path:
    """Return the path of the log of the server on `port`."""
    return logs_dir() / f"engine-{port}.log"


def read_last_lines(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a log file, and of the older one before it if needed. Raises OSError."""
    lines: list[str] = []
    for each in (path, _rotated_path(path, 1)):
        if len(lines) < count and (each is path or each.exists()):
            lines = each.read_text("utf-8", "replace").splitlines() + lines
    return lines[max(0, len(lines) - count) :]


class _LogWriter:
    """Writes a log file in a thread, which is started by the first line."""

    def __init__(self, path: Path, batch_s: float) -> None:
        self.problem: str | None = None
        self._path, self._batch_s = path, batch_s
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._characters = 0
        self._left_out = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._file_bytes = 0

    def add(self, line: LogLine) -> None:
        with self._lock:
            if self._characters > _WAITING_CHARACTERS:
                self._left_out += 1
                return
            self._lines.append(line)
            self._characters += len(line.text)
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="launcher-log", daemon=True)
                self._thread.start()

    def close(self, wait_s: float) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(self._batch_s)
            self._wake.clear()
            self._write_batch()
        self._write_batch()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_batch(self) -> None:
        with self._lock:
            lines, left_out = self._lines, self._left_out
            self._lines, self._characters, self._left_out = [], 0, 0
        if not lines:
            return
        texts = _format_lines(lines)
        if left_out:
            texts.append(f"... {left_out} lines are missing here: {self.problem or 'they came too fast for the disk'}")
        data = ("\n".join(texts) + "\n").encode("utf-8", "replace")
        try:
            self._write(data)
        except OSError as error:
            self.problem = error.strerror or str(error)
            with self._lock:
                self._left_out += left_out + len(lines)
        else:
            self.problem = None

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open_private_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._file_bytes = os.fstat(self._file).st_size
        if self._file_bytes and self._file_bytes + len(data) > _FILE_BYTES:
            self._rotate()
        unwritten = memoryview(data)
        while unwritten:
            written = os.write(self._file, unwritten)
            self._file_bytes += written
            unwritten = unwritten[written:]

    def _rotate(self) -> None:
        """Start a new file; an old one that cannot be moved (on Windows, while it is read) is emptied."""
        assert self._file is not None  # noqa: S101 -- for the type checker
        os.close(self._file)
        self._file = None
        with suppress(OSError):
            for number in range(_OLD_FILES, 0, -1):
                older = _rotated_path(self._path, number - 1)
                if older.exists():
                    older.replace(_rotated_path(self._path, number))
        self._file = open_private_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        self._file_bytes = 0


def _rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _format_lines(lines: list[LogLine]) -> list[str]:
    """Return the lines with time stamps; a stamp is reused within a millisecond, because formatting it is slow."""
    texts, stamp_ms, stamp = [], -1, ""
    for line in lines:
        line_ms = int(1_000 * line.time_s)
        if line_ms != stamp_ms:
            stamp_ms, stamp = line_ms, _format_time(line.time_s)
        texts.append(f"{stamp} {line.text}")
    return texts


def _format_time(time_s: float) -> str:
    whole = int(time_s)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(whole))
    return f"{stamp},{int(1_000 * (time_s - whole)):03}"


# The log files of running and earlier servers.

_NAME = re.compile(r"engine-(\d+)\.log(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of the server on `port`.

    `age` is its number in the rotation (0 is the newest), `modified_s` its modification time (seconds since the epoch).
    """

    path: Path
    port: int
    age: int
    bytes: int
    modified_s: float


def list_log_files() -> tuple[LogFile, ...]:
    """Return all engine log files, newest first; empty if the folder cannot be read."""
    found = []
    try:
        for path in logs_dir().iterdir():
            if match := _NAME.fullmatch(path.name):
                status = path.stat()
                found.append(LogFile(path, int(match[1]), int(match[2] or 0), status.st_size, status.st_mtime))
    except OSError:
        return tuple(found)
    return tuple(sorted(found, key=lambda each: (-each.modified_s, each.port, each.age)))
