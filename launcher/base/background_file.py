"""A file written by a background thread, so that a slow disk never blocks the caller."""

import logging
import threading
from contextlib import suppress
from pathlib import Path

from launcher.base.files import write_atomically

_REMOVE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class BackgroundFile:
    """A small file whose newest content is written atomically, with retries until a write succeeds.

    A daemon thread runs while something is pending; the program does not wait for it at exit. Of a series of
    failed writes only the first is logged; `label` begins that warning, such as "The registry entry of this server".
    `retry_s` seconds pass between two attempts.
    """

    def __init__(self, path: Path, label: str, *, retry_s: float = 1.0) -> None:
        self._path, self._label, self._retry_s = path, label, retry_s
        self._warned = False
        self._content: bytes | None = None
        """The content to write, None to remove the file."""
        self._pending = self._removed = False
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Schedule `data` to be written in place of any pending content. Does nothing after `remove`."""
        with self._changed:
            if not self._removed:
                self._schedule(data)

    def remove(self) -> None:
        """Remove the file for good. Returns once it is gone, or after 5 s; the attempts then continue in the
        background.
        """
        with self._changed:
            if not self._removed:  # a second removal could hit a file that another process has made meanwhile
                self._removed = True
                self._schedule(None)
        self.wait_written(_REMOVE_TIMEOUT_S)

    def was_deleted(self) -> bool:
        """Return True if the file was deleted from outside: it should exist and no write is pending."""
        with self._changed:
            if self._removed or self._writer is not None:
                return False
        try:
            return not self._path.exists()
        except OSError:
            return False

    def wait_written(self, limit_s: float) -> bool:
        """Wait up to `limit_s` seconds for pending work. Returns True if the last request was carried out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._writer is None, limit_s)

    def _schedule(self, data: bytes | None) -> None:
        self._content, self._pending = data, True
        self._changed.notify_all()
        if self._writer is None:
            self._writer = threading.Thread(target=self._run_writer, name=f"write {self._path.name}", daemon=True)
            self._writer.start()

    def _run_writer(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._writer = None
                    self._changed.notify_all()
                    return
                self._pending = False
                data = self._content
            try:
                if data is None:
                    with suppress(FileNotFoundError, NotADirectoryError):  # a file took the place of its folder
                        self._path.unlink()
                else:
                    write_atomically(self._path, data)
                self._warned = False
            except OSError as error:
                if not self._warned and data is not None:
                    self._warned = True
                    _log.warning("%s cannot be written (%s): %s.", self._label, self._path, error.strerror or error)
                with self._changed:
                    if not self._pending:
                        self._pending = True
                        self._changed.wait(self._retry_s)
