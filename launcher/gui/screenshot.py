"""Screenshot mode: open the window, wait for content, save a picture, quit."""

import json
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Slot

from launcher.gui.window import Window

_LEAST_SAMPLES = 80
"""Samples after which the plots of a live picture have enough to show."""
_SETTLE_MS = 150
"""Delay in which the window paints its last changes."""
_LONGEST_WAIT_MS = 150_000
_QUESTIONS = ("What is MTP, and what does this demo show?", "When should MTP be switched off?")


class ScreenshotTaker(QObject):
    """Takes one picture of a window.

    With `live` it first sends questions to the demo, until enough samples for the plots have come since the first
    question, or one gets no reply; the layout Watch shows them. With `waits_for_file` it waits until the file is served
    or has failed.
    `painted_s` is the age of the process at the window's first paint, which is printed with the picture's path.
    """

    def __init__(self, window: Window, picture: Path, painted_s: float, *, live: bool, waits_for_file: bool) -> None:
        super().__init__(window)
        self._window = window
        self._picture = picture
        self._painted_s = painted_s
        self._question_count = 0
        self._sample_count = 0
        self._problem = ""
        self._is_due = False
        """Whether the picture is about to be taken, so that nothing is asked any more."""
        self._live = live
        if live:
            window.page("cockpit").panes.choose_layout("watch", remember=False)
        if live or waits_for_file:
            window.controller.view_changed.connect(self._on_view_changed)
            window.controller.sampled.connect(self._count_samples)
            window.controller.replied.connect(self._on_reply)
            QTimer.singleShot(_LONGEST_WAIT_MS, self, self._give_up)
        else:
            self._take_picture_soon()

    @Slot()
    def _on_view_changed(self) -> None:
        view = self._window.controller.view
        if self._is_due:
            return
        if view.problem or (view.can_ask and not self._live):
            self._take_picture_soon(view.problem)
        elif view.can_ask and self._sample_count < _LEAST_SAMPLES:
            self._window.page("cockpit").chat.send_question(_QUESTIONS[self._question_count % len(_QUESTIONS)])
            self._question_count += 1

    @Slot(object, str)
    def _on_reply(self, reply: object, footer: str) -> None:
        if reply is None:
            self._take_picture_soon(footer)  # this question failed, and another one would fail, too

    @Slot(list)
    def _count_samples(self, samples: list[object]) -> None:
        if not self._question_count:
            return  # nothing to show yet, however long the model loads
        before = self._sample_count
        self._sample_count += len(samples)
        if before < _LEAST_SAMPLES <= self._sample_count:
            self._take_picture_soon()

    @Slot()
    def _give_up(self) -> None:
        self._take_picture_soon("no live data came")

    def _take_picture_soon(self, problem: str = "") -> None:
        """Take the picture once the window has painted its last changes; `problem` is why it lacks something."""
        if not self._is_due:
            self._is_due, self._problem = True, problem
            QTimer.singleShot(_SETTLE_MS, self, self._take_picture)

    @Slot()
    def _take_picture(self) -> None:
        if not self._window.isEnabled():
            return  # the window is already closing
        saved = self._window.grab().save(str(self._picture))
        report: dict[str, object] = {"painted_s": round(self._painted_s, 3), "picture": str(self._picture)}
        if self._live:
            report["plots"] = self._drawn_points()
        problem = self._problem or ("" if saved else f"{self._picture} could not be written")
        if problem:
            report["problem"] = problem
            self._window.exit_code = 1
        print(json.dumps(report), flush=True)
        self._window.quit()

    def _drawn_points(self) -> dict[str, dict[str, int]]:
        """Return the number of points drawn per curve and visible plot.

        A picture's file size does not prove that anything was drawn.
        """
        charts = (row.chart for row in self._window.page("cockpit").plots.rows.values())
        return {each.plot_name: each.points for each in charts if each is not None and each.isVisible()}
