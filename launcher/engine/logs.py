"""An engine's log: the last lines in memory, all lines in a rotated file that a thread of its own writes."""

import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.base.files import open_private
from launcher.base.paths import state_dir

_RING_LINES = 5_000
_RING_CHARACTERS = 2**22
_WAITING_CHARACTERS = 2**22
"""What may wait for the disk; what comes on top of it is left out of the file, which is then said there."""
_FILE_BYTES = 2 * 2**20
_OLD_FILES = 3
_BATCH_S = 0.1
_CLOSE_S = 2.0
POLLING = re.compile(
    r"update_slots: all slots are idle"
    r"|(?:done )?request: (?:GET|HEAD) /(?:health|metrics|slots|props|v1/models|models)\b"
    r"|\b(?:GET|HEAD) /(?:health|metrics|slots|props)\b"
)
"""What an engine prints whenever it is asked how it is."""


class LogLine(NamedTuple):
    """One line and when it came (seconds since the epoch)."""

    time_s: float
    text: str

    def __str__(self) -> str:
        return f"{_stamp(self.time_s)} {self.text}"


class LogBook:
    """The log of one engine, across its restarts. `add` never waits, whatever the disk does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.added = 0
        self._ring: deque[LogLine] = deque()
        self._characters = 0
        self._writer = _Writer(path)

    @classmethod
    def for_port(cls, port: int) -> "LogBook":
        """Open the log book of the server on `port`."""
        return cls(log_path(port))

    @property
    def problem(self) -> str | None:
        """Why lines cannot be written to the file now, None while they can."""
        return self._writer.problem

    def add(self, text: str) -> None:
        """Append one line."""
        line = LogLine(time.time(), text)
        self.added += 1
        self._ring.append(line)
        self._characters += len(text)
        while len(self._ring) > _RING_LINES or self._characters > _RING_CHARACTERS:
            self._characters -= len(self._ring.popleft().text)
        self._writer.add(line)

    def last(self, count: int = _RING_LINES) -> list[str]:
        """Return the texts of the last `count` lines that are in memory, oldest first."""
        return [line.text for line in self.since(self.added - count)]

    def since(self, number: int) -> list[LogLine]:
        """Return the lines that are in memory of those that came after the first `number`."""
        lines = list(self._ring)
        return lines[max(0, len(lines) - max(0, self.added - number)) :]

    def close(self) -> None:
        """Write what waits, but not for a disk that hangs, and close the file; the lines in memory stay."""
        self._writer.close()


def logs_dir() -> Path:
    """Return the folder of all logs."""
    return state_dir() / "logs"


def log_path(port: int) -> Path:
    """Return the log of the server on `port`."""
    return logs_dir() / f"engine-{port}.log"


def read_last(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a log file and, where that is shorter, of the one before it. Raises OSError."""
    lines: list[str] = []
    for each in (path, _numbered(path, 1)):
        if len(lines) < count and (each is path or each.exists()):
            lines = each.read_text("utf-8", "replace").splitlines() + lines
    return lines[max(0, len(lines) - count) :]


class _Writer:
    """The thread that writes; it begins with the first line."""

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._path = path
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._characters = 0
        self._left_out = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._bytes = 0

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

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_BATCH_S)
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
        texts = _stamped(lines)
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
            self._file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._bytes = os.fstat(self._file).st_size
        if self._bytes and self._bytes + len(data) > _FILE_BYTES:
            self._rotate()
        rest = memoryview(data)
        while rest:
            written = os.write(self._file, rest)
            self._bytes += written
            rest = rest[written:]

    def _rotate(self) -> None:
        """Begin a new file; where the old one cannot be moved (Windows, while it is read), it is emptied."""
        assert self._file is not None  # noqa: S101 -- for the type checker
        os.close(self._file)
        self._file = None
        with suppress(OSError):
            for number in range(_OLD_FILES, 0, -1):
                older = _numbered(self._path, number - 1)
                if older.exists():
                    older.replace(_numbered(self._path, number))
        self._file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        self._bytes = 0


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _stamped(lines: list[LogLine]) -> list[str]:
    """Return the lines with their times, which are costly to format one by one."""
    texts, before_ms, stamp = [], -1, ""
    for line in lines:
        now_ms = int(1_000 * line.time_s)
        if now_ms != before_ms:
            before_ms, stamp = now_ms, _stamp(line.time_s)
        texts.append(f"{stamp} {line.text}")
    return texts


def _stamp(time_s: float) -> str:
    whole = int(time_s)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(whole))
    return f"{stamp},{int(1_000 * (time_s - whole)):03}"
