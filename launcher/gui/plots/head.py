"""The line above the plots: what is read, and how much time is shown; pause and export."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QWidget

from launcher.gui import theme
from launcher.gui.labels import set_tip
from launcher.gui.plots.readout import Elided
from launcher.gui.plots.span import Span
from launcher.gui.widgets import ComboBox
from launcher.gui.words import tr

_LENGTHS_S = (60.0, 120.0, 300.0, 900.0, 3_600.0)


class Head(QWidget):
    """Shows what it is told and tells what is chosen."""

    length_chosen = Signal(float)
    pause_asked = Signal()
    table_asked = Signal()
    picture_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._told = ""
        self._live = True
        self._words = Elided()
        self._words.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._length = ComboBox()
        self._length.setAccessibleName(tr("Stretch of time"))
        self._length.setToolTip(tr("How much time the plots show. The wheel zooms, dragging goes back in time."))
        for length_s in _LENGTHS_S:
            self._length.addItem(_words(length_s), length_s)
        self._length.activated.connect(lambda index: self.length_chosen.emit(self._length.itemData(index)))
        self._pause = QPushButton(tr("Pause"))
        self._pause.setToolTip(tr("Hold the plots, or follow the newest samples (Space). Home also zooms back."))
        self._pause.clicked.connect(self.pause_asked)
        widest = max(self._pause.fontMetrics().horizontalAdvance(words) for words in (tr("Pause"), tr("Go live")))
        self._pause.setMinimumWidth(widest + theme.px(34))
        export = QPushButton(tr("Export"))
        export.setToolTip(tr("Save what the plots show as a picture or as a table"))
        menu = QMenu(export)
        for words, signal in ((tr("Picture (PNG)"), self.picture_asked), (tr("Table (CSV)"), self.table_asked)):
            action = QAction(words, menu)
            action.triggered.connect(lambda _checked=False, signal=signal: signal.emit())
            menu.addAction(action)
        export.setMenu(menu)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self._words, 1)
        for widget in (self._length, self._pause, export):
            layout.addWidget(widget)
        self.show_span(Span())

    def show_span(self, span: Span) -> None:
        """Show how much time is shown, and whether it stands still."""
        if span.live != self._live:
            self._live = span.live
            self._pause.setText(tr("Pause") if span.live else tr("Go live"))
        index = next((i for i, length_s in enumerate(_LENGTHS_S) if abs(length_s - span.length_s) < 1), -1)
        if index != self._length.currentIndex():
            self._length.setCurrentIndex(index)
        if index < 0:
            self._length.setPlaceholderText(_words(span.length_s))

    def say(self, line: str, whole: str) -> None:
        """Show what the read-out says; nothing shows what was told before, or what the plots do."""
        if line:
            self._told = ""
        text = line or self._told or (tr("Live") if self._live else tr("Held; samples are still kept"))
        if self._words.text() != text:
            self._words.setText(text)
            set_tip(self._words, whole or self._told)

    def tell(self, text: str) -> None:
        """Show a sentence until the next read-out."""
        self._told = text
        self.say("", text)


def _words(length_s: float) -> str:
    if length_s >= 3_600:
        return tr("1 hour")
    return tr("{n:.0f} min", n=length_s / 60) if length_s >= 60 else tr("{n:.0f} s", n=length_s)
