"""Opens a window whose engine has faults: `crash demo|full-log TIMES` or `flood SECONDS`; prints one JSON object.

`crash` kills the engine again and again, and measures the seconds until the reason is painted. `flood` shows the log of
an engine that prints 50,000 lines a second, and measures the processor time and how late a timer of 5 ms is called.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING

import psutil
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication

from benchmarks.chat_stream_child import TurnTimes
from benchmarks.window_child import Stalls
from benchmarks.workplace import ROOT
from launcher.base.paths import state_dir
from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui.application import collect_garbage_in_this_thread, shorten_collections
from launcher.gui.window import Window

if TYPE_CHECKING:
    from launcher.engine.serve_options import ServeOptions

_RATE = 50_000
_FULL_LOG = 10_000
_PAUSE_MS = 300
_GIVE_UP_MS = 240_000


class Crashes(QObject):
    """Kills the engine whenever it serves, and records when the reason is painted."""

    def __init__(self, window: Window, times: int) -> None:
        super().__init__(window)
        self.seconds: list[float] = []
        self._window = window
        self._times = times
        self._killed_s: float | None = None
        window.page("cockpit").notices.problem_banner.text.installEventFilter(self)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_PAUSE_MS)
        self._timer.timeout.connect(self._kill)
        window.controller.launched.connect(lambda launch: self._timer.start() if launch else None)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        if event.type() == QEvent.Type.Paint and self._killed_s is not None and "killed" in watched.property("text"):
            self.seconds.append(time.perf_counter() - self._killed_s)
            self._killed_s = None
            if len(self.seconds) == self._times:
                print(json.dumps({"seconds": self.seconds}), flush=True)
                QTimer.singleShot(0, self._window.quit)
            else:
                QTimer.singleShot(_PAUSE_MS, self._again)
        return False

    def _again(self) -> None:
        """Wait for the restart, then start the same model again, which resets the count of crashes."""
        if self._window.controller.inputs.status.state in (ServerState.READY, ServerState.FAILED):
            self._window.controller.start()
        else:
            QTimer.singleShot(_PAUSE_MS, self._again)

    def _kill(self) -> None:
        pid = _engine_pid()
        if pid is None or self._window.controller.inputs.status.state is not ServerState.READY:
            self._timer.start()
        elif self._killed_s is None and len(self.seconds) < self._times:
            self._killed_s = time.perf_counter()
            os.kill(pid, signal.SIGKILL)


def _engine_pid() -> int | None:
    for path in state_dir().rglob("server-*.json"):
        pid: int | None = json.loads(path.read_bytes())["engine_pid"]
        return pid
    return None  # the server is being stopped


def _fake_options(lines: int) -> ServeOptions:
    """Serve with the fake llama-server, which prints that many lines after its first reply."""
    from launcher.engine.demo import unpack_demo_model
    from launcher.engine.serve_options import ServeOptions

    program = state_dir() / "fake-llama-server"
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fake = ROOT / "tests" / "fakes" / "llama_server.py"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(fake)])} "$@"\n')
    program.chmod(0o755)
    os.environ |= {"FAKE_FAULTS": "flood-later", "FAKE_LINES": str(lines)}
    return ServeOptions(model=unpack_demo_model(), engine=program)


def _serve(window: Window, options: ServeOptions) -> None:
    from launcher.app.planning.start_settings import ResolvedStart

    window.controller.start(str(options.model), start=ResolvedStart(str(options.model), options))


def _flood(window: Window, seconds: float) -> None:
    """Build all pages, then show the log page during the flood, as a user does who looks for an error."""
    for _step in window._prebuild_steps:  # noqa: SLF001 -- without the pauses for the user
        pass
    window.prebuilt.emit()
    window.show_page("logs")
    stalls, busy = Stalls(), TurnTimes()
    lines: list[int] = []
    began: dict[str, float] = {}
    window.controller.bridge.drained.connect(lambda batch: lines.append(len(batch)))

    def begin() -> None:
        if began:
            return
        lines.clear()
        began.update(wall=time.perf_counter(), cpu=time.process_time())
        stalls.begin()
        busy.begin()
        QTimer.singleShot(int(1_000 * seconds), end)

    def end() -> None:
        wall_s = time.perf_counter() - began["wall"]
        values = {
            "cpu_percent": 100 * (time.process_time() - began["cpu"]) / wall_s,
            "lines_per_second": sum(lines) / wall_s,
            "p99_ms": statistics.quantiles(stalls.late_ms, n=100)[98],
            "max_ms": max(stalls.late_ms),
            "busy_max_ms": max(busy.took_ms),
            "peak_mib": psutil.Process().memory_info().rss / 2**20,
        }
        print(json.dumps(values), flush=True)
        window.quit()

    window.controller.launched.connect(lambda launch: QTimer.singleShot(1_000, begin) if launch else None)
    _serve(window, _fake_options(int(_RATE * (seconds + 4))))


def main() -> None:
    """Run one mode and print what it measured."""
    mode, *arguments = sys.argv[1:]
    application = QApplication([])
    theme.apply_theme(application, theme.current())
    collect_garbage_in_this_thread(application)
    window = Window(remember=False, page="cockpit")
    shorten_collections(window)
    window.show()
    window.controller.closed.connect(application.quit)
    if mode == "flood":
        _flood(window, float(arguments[0]))
    else:
        crashes = Crashes(window, int(arguments[1]))
        if arguments[0] == "demo":
            window.controller.start("demo")
        else:
            _serve(window, _fake_options(_FULL_LOG))
        assert not crashes.seconds
    QTimer.singleShot(_GIVE_UP_MS, window.quit)
    application.exec()


if __name__ == "__main__":
    main()
