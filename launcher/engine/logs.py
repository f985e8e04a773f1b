"""An engine's log: the last lines in memory, all lines in a rotated file."""

import logging
import logging.handlers
from collections import deque
from pathlib import Path

from launcher.base.paths import state_dir

_RING_LINES = 5_000
_FILE_BYTES = 2 * 2**20
_OLD_FILES = 3


class LogBook:
    """The log of one engine, across its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ring: deque[str] = deque(maxlen=_RING_LINES)
        self._file = _open(path)

    @classmethod
    def for_port(cls, port: int) -> "LogBook":
        """Open the log book of the server on `port`."""
        return cls(state_dir() / "logs" / f"engine-{port}.log")

    def add(self, text: str) -> None:
        """Append one line."""
        self._ring.append(text)
        if self._file is not None:
            self._file.emit(logging.LogRecord("engine", logging.INFO, "", 0, text, None, None))

    def last(self, count: int = _RING_LINES) -> list[str]:
        """Return the texts of the last `count` lines, oldest first."""
        lines = list(self._ring)
        return lines[max(0, len(lines) - count) :]

    def close(self) -> None:
        """Close the file; the lines in memory stay."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _File(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """A full disk must not end what is being logged."""


def _open(path: Path) -> _File | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _File(path, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    except OSError:
        return None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    return handler
