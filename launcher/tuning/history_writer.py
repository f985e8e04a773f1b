"""Measurements go into the history beside the measuring, on one thread, so that no disk is ever waited for."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.base.errors import LauncherError
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import new_id
from launcher.tuning.records import Run, Settings

Work = Callable[[History], object]
_log = logging.getLogger(__name__)


def _warn(error: LauncherError) -> None:
    _log.warning("%s", error.title)


class HistoryWriter:
    """The one who writes measurements while they are made. Its methods return at once.

    `failed` is told on its thread of what could not be kept, once; the measuring goes on. Usually that is a warning.
    """

    def __init__(self, failed: Callable[[LauncherError], None] = _warn, path: Path | None = None) -> None:
        self._failed = failed
        self._path = path
        self._given: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken = False

    def begin(self, kind: str, environment: Environment, settings: Settings, *, workload: str = "") -> str:
        """Begin a measurement and return its id. See History.add_session."""
        session = new_id()
        self._give(lambda history: history.add_session(kind, environment, settings, workload=workload, id=session))
        return session

    def go_on(self, session: str) -> None:
        """Let a measurement that ended go on."""
        self._give(lambda history: history.go_on(session))

    def add(self, session: str, run: Run) -> None:
        """Add a run."""
        self._give(lambda history: history.add_run(session, run))

    def finish(self, session: str, result: Mapping[str, Any]) -> None:
        """End a measurement with its result."""
        self._give(lambda history: history.finish(session, result))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is left, close the file and end the thread; return whether it ended in time. It waits for that."""
        if self._thread is None:
            return True
        self._given.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _give(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="history", daemon=True)
            self._thread.start()
        self._given.put(work)

    def _run(self) -> None:
        history: History | None = None
        while (work := self._given.get()) is not None:
            if self._broken:
                continue
            try:
                history = history or History(self._path)
                work(history)
            except LauncherError as error:
                self._broken = True
                self._failed(error)
        if history is not None:
            history.close()
