"""The Cockpit page: title and actions, three plots on one time axis, the chat, the log drawer."""

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, QTimer, Signal, Slot
from PySide6.QtGui import QShortcut
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.chat import ChatPane
from launcher.gui.history import History
from launcher.gui.labels import Label
from launcher.gui.plots import PlotCard, Quantity
from launcher.gui.viewmodel import View

if TYPE_CHECKING:
    from launcher.monitor.monitor import Sampled

_REDRAW_MS = 100
_LOG_LINES = 5_000
_RATE = Quantity("tokens_per_second", "Tokens per second", "t/s", "0,000.0", 1, "rate", lasts=True)
_ACCEPTANCE = Quantity("acceptance_percent", "Draft acceptance", "%", "100.0", 1, "acceptance", lasts=True)
_WELCOME = (
    "The demo runs a real llama.cpp server with MTP on a model of 9 MB that came with the program. It needs no GPU and"
    " no network.\n\nIt shows the path, not a speed-up: this tiny model is faster without MTP, and it can talk about"
    " nothing but this program."
)


class Cockpit(QWidget):
    """The page. It shows what it is told and tells what is clicked."""

    start_asked = Signal()
    stop_asked = Signal()
    demo_asked = Signal()
    file_asked = Signal()
    without_mtp_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self._newest: Sampled | None = None
        self.chat = ChatPane()
        self.plots = (
            PlotCard([_RATE], (0.0, None)),
            PlotCard([_ACCEPTANCE], (0.0, 100.0)),
            PlotCard(
                [
                    Quantity("gpu_temperature_c", "Temperature", "°C", "000", 0, "temperature"),
                    Quantity("gpu_power_w", "Power", "W", "000"),
                    Quantity("gpu_clock_mhz", "Clock", "MHz", "0,000"),
                    Quantity("host_cpu_percent", "Processor", "%", "000", 0, "clock"),
                ],
                (0.0, 100.0),
            ),
        )
        self._redraw = QTimer(self)
        self._redraw.setInterval(_REDRAW_MS)
        self._redraw.setSingleShot(True)
        self._redraw.timeout.connect(self._draw)
        self.log = self._make_log()
        plots = QWidget()
        column = QVBoxLayout(plots)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP_L)
        for card in self.plots:
            column.addWidget(card, 1)
        self._middle = QStackedWidget()
        self._middle.addWidget(self._make_welcome())
        area = QScrollArea()  # on a low window with the log open
        area.setWidgetResizable(True)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plots.setObjectName("conversation")
        area.setWidget(plots)
        self._middle.addWidget(area)
        panes = QSplitter(Qt.Orientation.Horizontal)
        panes.setHandleWidth(theme.GAP_L)
        panes.setChildrenCollapsible(False)
        panes.addWidget(self._middle)
        panes.addWidget(self.chat)
        panes.setSizes([640, 400])
        panes.setStretchFactor(0, 3)
        panes.setStretchFactor(1, 2)
        split = QSplitter(Qt.Orientation.Vertical)
        split.setHandleWidth(theme.GAP_L)
        split.addWidget(panes)
        split.addWidget(self.log)
        split.setStretchFactor(0, 1)
        split.setSizes([600, 140])
        split.setChildrenCollapsible(False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.GAP_XL, theme.GAP_L, theme.GAP_XL, theme.GAP_XL)
        layout.setSpacing(theme.GAP_L)
        layout.addLayout(self._make_head())
        layout.addWidget(self._make_problem())
        layout.addWidget(split, 1)

    def show_view(self, view: View) -> None:
        """Show the state of the controls."""
        self._settings.setText(view.settings)
        self._start.setVisible(view.can_start)
        self._stop.setVisible(not (view.can_start or view.offers_demo))
        self._stop.setEnabled(view.can_stop)
        self._problem_text.setText(view.problem)
        self._problem.setVisible(bool(view.problem))
        self._without_mtp.setVisible(view.offers_without_mtp)
        self._middle.setCurrentIndex(0 if view.offers_demo else 1)
        self.chat.show_abilities(can_ask=view.can_ask, replying=view.replying, hint=view.prompt_hint)

    def show_note(self, text: str) -> None:
        """Show what must be said beside the figures."""
        self.plots[0].show_aside(text)

    @Slot(list)
    def take_samples(self, samples: "list[Sampled]") -> None:
        """Take in new samples; drawing follows at 10 Hz at most."""
        for sample in samples:
            self.history.add(sample)
        self._newest = samples[-1]
        if not self._redraw.isActive():
            self._redraw.start()

    @Slot(list)
    def take_log(self, lines: list[str]) -> None:
        """Append lines to the log, all at once."""
        self.log.appendPlainText("\n".join(map(one_line, lines)))

    def attach_plots(self, pyqtgraph: Any) -> None:  # noqa: ANN401 -- untyped library
        """Put the plots into their cards."""
        pyqtgraph.setConfigOptions(antialias=True)
        for card in self.plots:
            card.attach(pyqtgraph, theme.current())
        self._draw()

    @Slot()
    def _draw(self) -> None:
        newest = self._newest
        if newest is None or not self.isVisible():
            return
        for card in self.plots:
            card.show_readings(newest.readings, self.history)
            card.draw(self.history, newest.time_s, self.history.span_s)
        if newest.acceptance is not None and newest.acceptance.mean_length is not None:
            shares = " · ".join(f"{share:.2f}" for share in newest.acceptance.rates_by_position)
            self.plots[1].show_aside(f"mean length {newest.acceptance.mean_length:.2f}\n{shares} by position")
        absent = newest.readings["gpu_temperature_c"].absent
        self.plots[2].show_aside(absent or "")

    def _make_head(self) -> QHBoxLayout:
        title = Label("Cockpit")
        title.setFont(theme.font(theme.TITLE_PX, bold=True))
        self._settings = Label()
        self._settings.setObjectName("secondary")
        self._settings.setContentsMargins(0, 4, 0, 0)
        self._log_button = QPushButton("Log")
        self._log_button.setCheckable(True)
        QShortcut("Ctrl+L", self, self._log_button.toggle)  # a button's own shortcut would take the focus
        self._log_button.setToolTip("Show the engine's log (Ctrl+L)")
        self._log_button.toggled.connect(self.log.setVisible)
        self._open = QPushButton("Open a model …")
        QShortcut("Ctrl+O", self, self.file_asked.emit)
        self._open.setToolTip("Serve a GGUF file (Ctrl+O)")
        self._open.clicked.connect(self.file_asked)
        self._start = QPushButton("Start")
        self._start.setObjectName("primary")
        self._start.clicked.connect(self.start_asked)
        self._stop = QPushButton("Stop")
        self._stop.clicked.connect(self.stop_asked)
        head = QHBoxLayout()
        head.setSpacing(theme.GAP_M)
        head.addWidget(title)
        head.addWidget(self._settings, alignment=Qt.AlignmentFlag.AlignVCenter)
        head.addStretch()
        for button in (self._log_button, self._open, self._stop, self._start):
            head.addWidget(button)
        return head

    def _make_problem(self) -> QWidget:
        self._problem = QFrame()
        self._problem_text = Label()
        self._problem_text.setObjectName("problem")
        self._problem_text.setWordWrap(True)
        self._problem_text.setTextInteractionFlags(theme.SELECTABLE)
        self._without_mtp = QPushButton("Start without MTP")
        self._without_mtp.clicked.connect(self.without_mtp_asked)
        row = QHBoxLayout(self._problem)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self._problem_text, 1)
        row.addWidget(self._without_mtp)
        self._problem.hide()
        return self._problem

    def _make_welcome(self) -> QWidget:
        card = QFrame()
        card.setObjectName("card")
        title = Label("No model yet")
        title.setFont(theme.font(theme.TITLE_PX, bold=True))
        text = Label(_WELCOME)
        text.setWordWrap(True)
        text.setMaximumWidth(520)
        demo = QPushButton("Start the demo")
        demo.setObjectName("primary")
        demo.clicked.connect(self.demo_asked)
        self.first_button = demo
        file = QPushButton("Open a model …")
        file.clicked.connect(self.file_asked)
        row = QHBoxLayout()
        row.setSpacing(theme.GAP_M)
        row.addWidget(demo)
        row.addWidget(file)
        row.addStretch()
        inner = QVBoxLayout()
        inner.setSpacing(theme.GAP_L)
        inner.addStretch(2)
        inner.addWidget(title)
        inner.addWidget(text)
        inner.addLayout(row)
        inner.addStretch(3)
        outer = QHBoxLayout(card)
        outer.setContentsMargins(theme.GAP_XL * 2, theme.GAP_XL, theme.GAP_XL * 2, theme.GAP_XL)
        outer.addStretch()
        outer.addLayout(inner)
        outer.addStretch()
        return card

    @staticmethod
    def _make_log() -> QPlainTextEdit:
        log = QPlainTextEdit()
        log.setObjectName("log")
        log.setAccessibleName("The engine's log")
        log.setReadOnly(True)
        log.setUndoRedoEnabled(False)
        log.setMaximumBlockCount(_LOG_LINES)
        log.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        log.setFont(theme.monospace())
        log.setMinimumHeight(96)
        log.hide()
        return log
