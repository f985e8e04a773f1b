"""Measures the chat while a reply streams at 500 tokens a second. The argument is the number of tokens, TOKENS.

Prints one JSON object.

The tokens come over HTTP from a small server in a process of its own, through the program's own client, session and
bridge, into the chat in a window of its own; meanwhile they are written into the file of conversations. Three things
are measured: how late a timer of 5 ms is called; the longest work of the window's thread without a pause, in processor
time, so that other programs do not lengthen it; and the growth of the process's memory from the third second to the
end.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import time
from typing import TYPE_CHECKING

import psutil
from PySide6.QtCore import QAbstractEventDispatcher, QTimer
from PySide6.QtWidgets import QApplication

from benchmarks.window_child import Stalls
from benchmarks.workplace import ROOT
from launcher.base.paths import state_dir
from launcher.gui import theme
from launcher.gui.chat.pane import ChatPane
from launcher.gui.controller import Controller

if TYPE_CHECKING:
    from launcher.engine.serve_options import ServeOptions

_RATE = 500
_SETTLED_MS = 3_000


class TurnTimes:
    """Records the processor time of the window's thread from each time its loop wakes to the next."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self._last_s: float | None = None

    def begin(self) -> None:
        self._last_s = time.thread_time()
        QAbstractEventDispatcher.instance().awake.connect(self._record_turn)

    def _record_turn(self) -> None:
        now_s = time.thread_time()
        if self._last_s is not None:
            self.took_ms.append(1_000 * (now_s - self._last_s))
        self._last_s = now_s


def _fake_options(tokens: int) -> ServeOptions:
    """Return options for the fake llama-server, whose replies have `tokens` tokens."""
    from launcher.engine.demo import unpack_demo_model
    from launcher.engine.serve_options import ServeOptions

    program = state_dir() / "fake-llama-server"
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fake = ROOT / "benchmarks" / "chat_stream_server.py"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(fake)])} "$@"\n')
    program.chmod(0o755)
    os.environ |= {"STREAM_LENGTH": str(tokens), "STREAM_RATE": str(_RATE)}
    return ServeOptions(model=unpack_demo_model(), engine=program)


def main() -> None:
    """Stream one reply and print the measurements."""
    tokens = int(sys.argv[1])
    application = QApplication([])
    theme.apply_theme(application, theme.current())
    controller = Controller()
    pane = ChatPane(controller)
    pane.resize(420, 800)
    pane.show()
    stalls, busy = Stalls(), TurnTimes()
    process = psutil.Process()
    began: dict[str, float] = {}

    def ask() -> None:
        if not controller.view.can_ask:
            QTimer.singleShot(50, pane, ask)
            return
        pane.send_question("Go on.")
        QTimer.singleShot(_SETTLED_MS, pane, begin)

    def begin() -> None:
        began.update(wall=time.perf_counter(), cpu=time.process_time(), rss=process.memory_info().rss)
        stalls.begin()
        busy.begin()

    def end(reply: object, footer: str) -> None:
        if reply is None:
            print(footer, file=sys.stderr)
            controller.close()
            return
        wall_s = time.perf_counter() - began["wall"]
        values = {
            "max_ms": max(stalls.late_ms),
            "p99_ms": statistics.quantiles(stalls.late_ms, n=100)[98],
            "over_50": sum(late > 50 for late in stalls.late_ms),
            "busy_max_ms": max(busy.took_ms),
            "busy_p99_ms": statistics.quantiles(busy.took_ms, n=100)[98],
            "cpu_percent": 100 * (time.process_time() - began["cpu"]) / wall_s,
            "grown_mb": (process.memory_info().rss - began["rss"]) / 1e6,
            "seconds": wall_s,
            "tokens": reply.timings.predicted_n,  # type: ignore[attr-defined]
            "characters": len(pane.messages[-1]["content"]),
        }
        print(json.dumps(values), flush=True)
        controller.close()

    controller.launched.connect(lambda launch: ask() if launch is not None else None)
    controller.replied.connect(end)
    controller.closed.connect(application.quit)
    from launcher.app.planning.start_settings import ResolvedStart

    options = _fake_options(tokens)
    controller.start(str(options.model), start=ResolvedStart(str(options.model), options))
    application.exec()


if __name__ == "__main__":
    main()
