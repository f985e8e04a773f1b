"""Opens the window, waits until there is something to see, saves the picture, and ends."""

import json
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Slot

from launcher.gui.window import Window

_LIVE_SAMPLES = 80
_SETTLE_MS = 150
_LONGEST_MS = 30_000
_QUESTIONS = ("What is MTP, and what does this demo show?", "When should MTP be switched off?")


class Photographer(QObject):
    """Takes one picture of a window.

    With `live` it asks the demo first and waits for its figures; with `waits` until the file is served, or is not.
    """

    def __init__(self, window: Window, picture: Path, painted_s: float, *, live: bool, waits: bool) -> None:
        super().__init__(window)
        self._window = window
        self._picture = picture
        self._painted_s = painted_s
        self._asked = 0
        self._samples = 0
        self._problem = ""
        self._live = live
        if live or waits:
            window.controller.view_changed.connect(self._go_on)
            window.controller.sampled.connect(self._count)
            QTimer.singleShot(_LONGEST_MS, self, self._give_up)
        else:
            QTimer.singleShot(_SETTLE_MS, self, self._take)

    @Slot()
    def _go_on(self) -> None:
        view = self._window.controller.view
        if view.problem or (view.can_ask and not self._live):
            self._problem = view.problem
            QTimer.singleShot(_SETTLE_MS, self, self._take)
        elif view.can_ask and self._samples < _LIVE_SAMPLES:
            self._window.page("cockpit").chat.ask(_QUESTIONS[self._asked % len(_QUESTIONS)])
            self._asked += 1

    @Slot(list)
    def _count(self, samples: list[object]) -> None:
        before, self._samples = self._samples, self._samples + len(samples)
        if before < _LIVE_SAMPLES <= self._samples:
            QTimer.singleShot(_SETTLE_MS, self, self._take)

    @Slot()
    def _give_up(self) -> None:
        self._problem = "no live data came"
        self._take()

    @Slot()
    def _take(self) -> None:
        if not self._window.isEnabled():
            return  # it is closing already
        saved = self._window.grab().save(str(self._picture))
        told: dict[str, object] = {"painted_s": round(self._painted_s, 3), "picture": str(self._picture)}
        problem = self._problem or ("" if saved else f"{self._picture} could not be written")
        if problem:
            told["problem"] = problem
            self._window.exit_code = 1
        print(json.dumps(told), flush=True)
        self._window.quit()
