"""A process with a Qt loop whose stalls are measured: `stream MODEL SECONDS` or `empty SECONDS`.

`stream` opens the window, leaves it idle for some seconds, then serves the model and sends one request after another.
`empty` runs a Qt loop with nothing in it, beside the other one and on the same noisy machine. Prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import QApplication

from benchmarks.reference import Waker, count_wakes

if TYPE_CHECKING:
    from launcher.gui.window import Window

_PROBE_MS = 5
_WARM_UP_MS = 3_000
_SETTLE_S = 2.0
_REPLY_TOKENS = 500


class Stalls(QObject):
    """A timer of 5 ms that records how late it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.late_ms: list[float] = []
        self._last_s = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(_PROBE_MS)
        self._timer.timeout.connect(self._tick)

    def begin(self) -> None:
        self._last_s = time.perf_counter()
        self._timer.start()

    def _tick(self) -> None:
        now_s = time.perf_counter()
        self.late_ms.append(max(0.0, 1_000 * (now_s - self._last_s) - _PROBE_MS))
        self._last_s = now_s


class IdleMeasurement(QObject):
    """Counts the processor time of this process while it is idle, beside a process that wakes as often and does
    nothing.

    `on_counted` gets both shares of a core in percent. The number of wakes is counted in the second half of the time to
    settle.
    """

    def __init__(self, settle_s: float, seconds: float, on_counted: Callable[[float, float], object]) -> None:
        super().__init__()
        self._settle_s, self._seconds, self._on_counted = settle_s, seconds, on_counted
        QTimer.singleShot(int(500 * settle_s), self, self._count)

    def _count(self) -> None:
        self._woken = count_wakes()
        QTimer.singleShot(int(500 * self._settle_s), self, self._begin)

    def _begin(self) -> None:
        self._waker = Waker(2 * (count_wakes() - self._woken) / self._settle_s, self._seconds)
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()
        QTimer.singleShot(int(1_000 * self._seconds), self, self._end)

    def _end(self) -> None:
        percent = 100 * (time.process_time() - self._cpu_s) / (time.perf_counter() - self._began_s)
        self._on_counted(percent, self._waker.end())


Close = Callable[[], object]


def main() -> None:
    """Run one mode and print what it measured."""
    mode, *arguments = sys.argv[1:]
    seconds = float(arguments[-1])
    application = QApplication([])
    if mode == "empty":
        _begin(application, seconds, replies=[], read_figures=dict, closing=application.quit)
        application.exec()
        return
    assert mode == "stream"
    from launcher.gui import theme
    from launcher.gui.window import Window

    theme.apply_theme(application, theme.current())
    window = Window(remember=False, page="cockpit")
    window.show()
    panes = window.page("cockpit").panes
    panes.choose_layout("watch")
    panes.show_pane("chat", shown=True)  # the plots and the chat: the page with the most to draw
    window.controller.closed.connect(application.quit)

    def stream(percent: float, waker: float) -> None:
        idle = {"idle_percent": percent, "waker_percent": waker}
        replies = _stream(window, Path(arguments[0]))

        def read_figures() -> dict[str, object]:
            return idle | {"curves": _count_curves(window), "replies": replies}

        _begin(application, seconds, replies=replies, read_figures=read_figures, closing=window.quit)

    rest = IdleMeasurement(_SETTLE_S, seconds, stream)
    application.exec()
    del rest


def _stream(window: Window, model: Path) -> list[tuple[int, str]]:
    """Serve `model` on one thread and send requests without a pause. The returned list gets each reply: the number of
    its tokens and its text.
    """
    from benchmarks.workplace import slow_options
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.engine.server.client import ChatRequest

    body = ChatRequest.body
    long = {"ignore_eos": True, "max_tokens": _REPLY_TOKENS}
    ChatRequest.body = lambda self: body(self) | long  # type: ignore[method-assign]
    chat, controller, replies = window.page("cockpit").chat, window.controller, list[tuple[int, str]]()

    def ask_again(footer: str) -> None:
        if " tokens" in footer:
            tokens = int(footer.split(" tokens")[0].split("· ")[-1].replace(",", ""))
            replies.append((tokens, chat.messages[-1]["content"]))
        if len(chat.messages) >= 8:
            chat.start_conversation()
        QTimer.singleShot(0, chat, lambda: chat.send_question("What is MTP?"))

    controller.launched.connect(lambda launch: ask_again("") if launch else None)
    controller.replied.connect(lambda _, footer: ask_again(footer))
    controller.start(str(model), start=ResolvedStart(str(model), slow_options(model, 2)))
    return replies


def _count_curves(window: Window) -> list[int]:
    """Return the number of drawn curves of each plot that is shown."""
    charts = [row.chart for row in window.page("cockpit").plots.rows.values()]
    return [len(chart.points) for chart in charts if chart is not None and chart.isVisible()]


def _begin(
    application: QApplication,
    seconds: float,
    *,
    replies: list[tuple[int, str]],
    read_figures: Callable[[], dict[str, object]],
    closing: Close,
) -> None:
    stalls = Stalls()
    began: dict[str, float] = {}

    def begin() -> None:
        replies.clear()  # drops the replies of the warm-up
        began.update(wall=time.perf_counter(), cpu=time.process_time())
        stalls.begin()
        QTimer.singleShot(int(1_000 * seconds), application, end)

    def end() -> None:
        wall_s = time.perf_counter() - began["wall"]
        measured = {
            "cpu_percent": 100 * (time.process_time() - began["cpu"]) / wall_s,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
            "seconds": wall_s,
            "p99_ms": statistics.quantiles(stalls.late_ms, n=100)[98],
            "max_ms": max(stalls.late_ms),
        }
        print(json.dumps(read_figures() | measured), flush=True)
        closing()

    QTimer.singleShot(_WARM_UP_MS, application, begin)


if __name__ == "__main__":
    main()
