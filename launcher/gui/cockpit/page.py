"""The Cockpit page: title and actions, three plots on one time axis, the chat, the log drawer."""

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, Qt, QTimer, Slot
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
from launcher.gui.chat.pane import ChatPane
from launcher.gui.controller import DEMO, Controller
from launcher.gui.labels import Label
from launcher.gui.plots.cards import PlotCard, Quantity
from launcher.gui.plots.history import History
from launcher.gui.viewmodel import View

if TYPE_CHECKING:
    from launcher.monitor.monitor import Sampled

_REDRAW_MS = 100
_LOG_LINES = 5_000
_POLLING = "update_slots: all slots are idle"
"""What the engine prints whenever it is asked for its figures; the log file has it."""
_MOST_LINES = 200
"""Of the log in one batch: 6,000 a second, more than anybody can read. In a flood the widget takes no more."""
_RATE = Quantity("tokens_per_second", "Tokens per second", "t/s", "0,000.0", 1, "rate", lasts=True)
_ACCEPTANCE = Quantity("acceptance_percent", "Draft acceptance", "%", "100.0", 1, "acceptance", lasts=True)
_WELCOME = (
    "The demo runs a real llama.cpp server with MTP on a model of 9 MB that came with the program. It needs no GPU and"
    " no network.\n\nIt shows the path, not a speed-up: this tiny model is faster without MTP, and it can talk about"
    " nothing but this program."
)


class CockpitPage(QWidget):
    """The page. It shows what the controller tells, and asks it for what is clicked."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._attached = False
        self.history = History()
        self._newest: Sampled | None = None
        self.chat = ChatPane(controller)
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
        controller.view_changed.connect(self.show_view)
        controller.sampled.connect(self.take_samples)
        controller.logged.connect(self.take_log)
        controller.launched.connect(self._show_launch)
        self.show_view(controller.view)

    def shown(self) -> None:
        """Put the plots into their cards, once the page has been painted: pyqtgraph takes 0.3 s to load."""
        if not self._attached:
            import pyqtgraph

            self._attached = True
            self.attach_plots(pyqtgraph)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 -- Qt's name
        """Take over a change of the colour scheme."""
        if event.type() == QEvent.Type.PaletteChange and self._attached:
            import pyqtgraph

            for card in self.plots:
                card.recolour(pyqtgraph, theme.current())
        super().changeEvent(event)

    @Slot(object)
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

    @Slot(object)
    def _show_launch(self, launch: object) -> None:
        """Show what must be said beside the figures, and be ready for a question."""
        if launch is not None:
            self.plots[0].show_aside(self._controller.note)
            QTimer.singleShot(0, self.chat.prompt, self.chat.prompt.setFocus)

    @Slot(object)
    def take_samples(self, samples: "list[Sampled]") -> None:
        """Take in new samples; drawing follows at 10 Hz at most."""
        for sample in samples:
            self.history.add(sample)
        self._newest = samples[-1]
        if not self._redraw.isActive():
            self._redraw.start()

    @Slot(object)
    def take_log(self, lines: list[str]) -> None:
        """Append lines to the log, all at once."""
        lines = [line for line in lines if _POLLING not in line]
        if len(lines) > _MOST_LINES:
            left_out = len(lines) - _MOST_LINES
            lines = [f"... {left_out:,} lines are not shown here, but in the log file ...", *lines[-_MOST_LINES:]]
        if not lines:
            return
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
        self._open.setToolTip("Serve a GGUF file (Ctrl+O)")
        self._open.clicked.connect(self._controller.choose_file)
        self._start = QPushButton("Start")
        self._start.setObjectName("primary")
        self._start.clicked.connect(lambda: self._controller.start())
        self._stop = QPushButton("Stop")
        self._stop.clicked.connect(self._controller.stop)
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
        self._without_mtp.clicked.connect(lambda: self._controller.start(draft=0))
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
        demo.clicked.connect(lambda: self._controller.start(DEMO))
        self.first_button = demo
        file = QPushButton("Open a model …")
        file.clicked.connect(self._controller.choose_file)
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
