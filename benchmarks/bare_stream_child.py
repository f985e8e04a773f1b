"""A bare window with as many curves as the Cockpit has, and a text field: `SECONDS CURVES TEXT`.

`CURVES` is a JSON list with the number of curves of each plot. Each curve gets 10 samples a second and is drawn by
pyqtgraph with its default settings. A QPlainTextEdit gets TEXT within SECONDS, in 60 parts a second. Prints the
processor time in percent of a core, as JSON.
"""

import itertools
import json
import random
import sys
import time

import pyqtgraph
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QApplication, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

_SAMPLES_PER_S, _TEXTS_PER_S = 10, 60
_WARM_UP_MS = 3_000
_KEPT_CHARACTERS = 20_000
"""Length at which the text is emptied; the measured chat begins a new conversation after four replies."""


class BareWindow(QWidget):
    """The plots on the left, the text field on the right."""

    def __init__(self, curves: list[int], text: str) -> None:
        super().__init__()
        self._noise, self._text = random.Random(1), itertools.cycle(text)
        self._field = QPlainTextEdit(readOnly=True)
        plots = QVBoxLayout()
        self._curves: list[tuple[pyqtgraph.PlotDataItem, list[float]]] = []
        for count in curves:
            plot = pyqtgraph.PlotWidget()
            plots.addWidget(plot)
            self._curves += [(plot.plot(), []) for _ in range(count)]
        layout = QHBoxLayout(self)
        layout.addLayout(plots, 1)
        layout.addWidget(self._field, 1)

    def add_samples(self) -> None:
        """Add a sample to each curve and draw it."""
        for curve, values in self._curves:
            values.append(self._noise.gauss(214, 12))
            curve.setData(values)

    def add_text(self, count: int) -> None:
        """Write `count` characters at the end, and show the end."""
        if self._field.document().characterCount() > _KEPT_CHARACTERS:
            self._field.clear()
        self._field.moveCursor(QTextCursor.MoveOperation.End)
        self._field.insertPlainText("".join(itertools.islice(self._text, count)))
        self._field.ensureCursorVisible()


def main() -> None:
    """Open the window, let it warm up, and count its processor time."""
    seconds, curves, text = float(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    application = QApplication([])
    window = BareWindow(curves, text)
    window.resize(1_280, 800)
    window.show()
    timers = [QTimer(window, timerType=Qt.TimerType.PreciseTimer) for _ in range(2)]
    timers[0].timeout.connect(window.add_samples)
    timers[0].start(1_000 // _SAMPLES_PER_S)
    timers[1].timeout.connect(lambda: window.add_text(round(len(text) / seconds / _TEXTS_PER_S)))
    timers[1].start(1_000 // _TEXTS_PER_S)

    def begin() -> None:
        began_s, cpu_s = time.perf_counter(), time.process_time()

        def end() -> None:
            percent = 100 * (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
            print(json.dumps({"cpu_percent": percent}), flush=True)
            application.quit()

        QTimer.singleShot(int(1_000 * seconds), window, end)

    QTimer.singleShot(_WARM_UP_MS, window, begin)
    application.exec()


if __name__ == "__main__":
    main()
