"""Opens the window as `mtp-launcher gui` does, offscreen, and measures its pages: `ROUNDS SETTLE SECONDS`.

Measured in this order: the time until Start can be used; each step of building pages ahead; each page's first showing;
`ROUNDS` further showings of each page; the processor time of the window in `SECONDS` while the demo is served without
requests, first shown, then hidden. The last is measured `SETTLE` seconds after the window was shown or hidden, beside a
process that wakes as often and does nothing. The last line of the output is one JSON object. With 0 `ROUNDS` only the
first of these is measured.
"""
# ruff: noqa: SLF001 -- it calls the private steps that the program does itself

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEventLoop, QTimer

from benchmarks.window_child import IdleMeasurement
from launcher.base.units import process_age_s
from launcher.gui import application

if TYPE_CHECKING:
    from launcher.gui.window import Window

_COMPLETE_AFTER_MS = application._COMPLETE_AFTER_MS
"""Delay after the first paint until the program begins to build pages; the measurements below wait as long."""
_LOOKED_AT_MS = 300
"""Time for which each page is looked at before the next; what it reads anew is there by then."""


class PageMeasurements:
    """The measurements in one window, one after the other."""

    def __init__(self, window: Window, rounds: int, settle_s: float, seconds: float) -> None:
        self._window, self._rounds, self._settle_s, self._seconds = window, rounds, settle_s, seconds
        self._painted_s = process_age_s()
        self._results: dict[str, object] = {"painted_s": self._painted_s}

    def begin(self) -> None:
        """Wait for the plans of the Start page; the page can be used at the next event."""
        flow = self._window.page("start").flow
        flow.planned.connect(lambda _: QTimer.singleShot(0, self._window, self._go_on))

    def _go_on(self) -> None:
        if "usable_s" in self._results:
            return  # the page plans again whenever it is shown
        usable_s = process_age_s()
        self._results["usable_s"] = usable_s
        if not self._rounds:
            self._end()
            return
        left_ms = _COMPLETE_AFTER_MS - 1_000 * (usable_s - self._painted_s)
        QTimer.singleShot(max(0, int(left_ms)), self._window, self._measure_pages)

    def _measure_pages(self) -> None:
        self._results["ahead_ms"] = list(self._time_steps())
        rail = [name for name in self._window.page_names if name != "start"]
        self._results["first_ms"] = {name: self._time_showing(name) for name in [*rail, "start"]}
        again: dict[str, list[float]] = {name: [] for name in self._window.page_names}
        for _ in range(self._rounds):
            for name in self._window.page_names:
                _run_loop(_LOOKED_AT_MS)
                again[name].append(self._time_showing(name))
        self._results["again_ms"] = again
        self._serve()

    def _time_steps(self) -> list[float]:
        times, more = [], True
        while more:
            began_s = time.perf_counter()
            more = next(self._window._prebuild_steps, False)
            times.append(1_000 * (time.perf_counter() - began_s))
        return times

    def _time_showing(self, name: str) -> float:
        """Show a page and return the milliseconds until it is painted and `on_shown` was called."""
        window, loop = self._window, QEventLoop()
        if window.page_name == name:
            return 0.0
        window.page_shown.connect(loop.quit)
        began_s = time.perf_counter()
        window.show_page(name)
        window.repaint()
        loop.exec()
        took_ms = 1_000 * (time.perf_counter() - began_s)
        window.page_shown.disconnect(loop.quit)
        return took_ms

    def _serve(self) -> None:
        controller = self._window.controller
        controller.launched.connect(lambda launch: self._measure_idle("shown", self._hide) if launch else None)
        self._window.start_demo()

    def _hide(self) -> None:
        self._window.hide()
        self._measure_idle("hidden", self._end)

    def _measure_idle(self, name: str, then: Callable[[], object]) -> None:
        def on_counted(percent: float, waker: float) -> None:
            self._results[name] = (percent, waker)
            # Not at once: the next step replaces self._idle, which is calling this.
            QTimer.singleShot(0, self._window, then)

        self._idle = IdleMeasurement(self._settle_s, self._seconds, on_counted)

    def _end(self) -> None:
        print(json.dumps(self._results), flush=True)
        self._window.quit()


def _run_loop(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def main() -> None:
    """Open the window and do all steps in it."""
    rounds, settle_s, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    painted = application._on_first_paint

    def first_paint(window: Window, options: argparse.Namespace, file: Path | None, picture: Path | None) -> None:
        measurements = PageMeasurements(window, rounds, settle_s, seconds)
        painted(window, options, file, picture)
        measurements.begin()

    application._on_first_paint = first_paint
    application._COMPLETE_AFTER_MS = 3_600_000  # the measurements do these steps themselves
    nothing = dict.fromkeys(("file", "screenshot", "language", "scale", "size"))
    options = argparse.Namespace(**nothing, demo=False, page="start", theme="light")
    sys.argv = sys.argv[:1]
    sys.exit(application.run_window(options))


if __name__ == "__main__":
    main()
