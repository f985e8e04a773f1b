"""A file that is written in the background, so that no slow disk holds up whoever says what shall be in it."""

import threading
from pathlib import Path

from launcher.base.files import write_atomically

_AGAIN_S = 1.0
"""Between two tries to write what cannot be written."""
_REMOVED_S = 5.0


class BackgroundFile:
    """One small file. The newest content is written, whole, and is tried again until that succeeds.

    A thread does it while there is something to do; the program's end does not wait for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted: bytes | None = None
        self._pending = self._removed = False
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Have `data` written, in place of what is not written yet. After `remove` it does nothing."""
        with self._changed:
            if not self._removed:
                self._want(data)

    def remove(self) -> None:
        """Have the file removed, for good; return once it is gone, or cannot be removed within 5 s, which goes on."""
        with self._changed:
            if not self._removed:  # a second time it could be somebody else's
                self._removed = True
                self._want(None)
        self.settle(_REMOVED_S)

    def settle(self, limit_s: float) -> bool:
        """Wait for up to `limit_s` seconds until the file is as was asked; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._writer is None, limit_s)

    def _want(self, data: bytes | None) -> None:
        self._wanted, self._pending = data, True
        self._changed.notify_all()
        if self._writer is None:
            self._writer = threading.Thread(target=self._work, name=f"write {self._path.name}", daemon=True)
            self._writer.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._writer = None
                    self._changed.notify_all()
                    return
                self._pending = False
                data = self._wanted
            try:
                if data is None:
                    self._path.unlink(missing_ok=True)
                else:
                    write_atomically(self._path, data)
            except OSError:
                with self._changed:
                    if not self._pending:
                        self._pending = True
                        self._changed.wait(_AGAIN_S)
