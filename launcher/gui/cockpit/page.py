"""The Cockpit: sliders left, plots in the middle, the chat right, and what must be said above them."""

from collections.abc import Iterator

from PySide6.QtCore import QTimer, Slot
from PySide6.QtGui import QResizeEvent, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.chat.pane import ChatPane
from launcher.gui.cockpit.controls import ControlsPane
from launcher.gui.cockpit.copy_as import CopyPanel
from launcher.gui.cockpit.memory import MemoryCard
from launcher.gui.cockpit.notices import Notices
from launcher.gui.cockpit.panes import Panes, PaneSwitches
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.sentences import say
from launcher.gui.service import DEMO
from launcher.gui.viewmodel import View
from launcher.gui.widgets import EmptyState, PageHead
from launcher.gui.words import tr

_CRAMPED, _LOW, _WORDS_WIDTH = 360, 560, 260
"""In pixels: a page with narrow edges is narrower, one that leaves out what is said elsewhere, too, is lower; what the
title and the line beside it need beside the buttons."""


class CockpitPage(QWidget):
    """The page. It shows what the controller tells, and asks it for what is clicked."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._wordless = False
        """Whether there is no room for a line beside the title."""
        self._steps = self._build()
        self.build_on()

    def build_on(self) -> bool:
        """Build the next part, if one is left."""
        return next(self._steps, False)

    def _build(self) -> Iterator[bool]:
        controller = self._controller
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(theme.px(theme.GAP_M))
        self.state = SettingsState(controller, self)
        self.chat = ChatPane(controller)
        yield True
        self.plots = PlotPanel(controller)
        yield True
        self.controls, self.memory = ControlsPane(self.state, controller), MemoryCard(self.state)
        yield True
        self.notices, self.copy_panel = Notices(controller), CopyPanel(controller)
        self.copy_panel.copied.connect(self.notices.say)
        self.welcome = self._make_welcome()
        self._middle = QStackedWidget()
        self._middle.addWidget(self.welcome)
        self._middle.addWidget(self._make_figures())
        self.panes = Panes(
            {
                "sliders": (self.controls, 272, 272),
                "plots": (self._middle, 288, 540),
                "chat": (self.chat, 288, 400),
            },
            wanted=("chat", "plots", "sliders"),
        )
        for place, stretch in enumerate((0, 3, 2)):
            self.panes.setStretchFactor(place, stretch)
        self._layout.addWidget(self._make_head())
        self._below = QHBoxLayout()
        self._below.addStretch()
        self._layout.addLayout(self._below)
        self._layout.addWidget(self.notices)
        self._layout.addWidget(self.copy_panel)
        self._layout.addWidget(self.panes, 1)
        QShortcut("Ctrl+Return", self, self.controls.changes.apply_now)
        controller.view_changed.connect(self.show_view)
        controller.launched.connect(self._show_launch)
        controller.chat_asked.connect(self.chat.prompt.setFocus)
        self.show_view(controller.view)
        yield True

    def shown(self) -> None:
        """Look at the machine's memory, and draw what came, now that somebody looks."""
        self.state.refresh()
        self.plots.redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the switches under the head where it has no room for them; where text is large the edges give way."""
        super().resizeEvent(event)
        cramped = self.width() < theme.px(_CRAMPED)
        side, end = theme.px(theme.GAP if cramped else theme.GAP_XL), theme.px(theme.GAP_L)
        self._layout.setContentsMargins(side, end, side, end)
        low, room = self.height() < theme.px(_LOW), self.width() - 2 * side
        self.memory.show_legend(shows=not low)
        buttons = (self._switches, self._restart, self._stop, self._copy)
        needed = sum(each.sizeHint().width() + theme.px(theme.GAP_M) for each in buttons)
        self._wordless = low and needed + self.head.title.sizeHint().width() <= room < needed + theme.px(_WORDS_WIDTH)
        self._show_words(self._controller.view)
        below = not self._wordless and needed + theme.px(_WORDS_WIDTH) > room
        if below and self._below.count() == 1:
            self._below.addWidget(self._switches)
        elif not below and self._below.count() > 1:
            self._beside.addWidget(self._switches)
        self._place.setHidden(below)

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show the state of the controls."""
        self._show_words(view)
        runs = not (view.can_start or view.offers_demo)
        self._start.setVisible(view.can_start)
        self._stop.setVisible(runs)
        self._stop.setEnabled(view.can_stop)
        self._restart.setVisible(runs)
        self._restart.setEnabled(self._controller.launch is not None and view.can_stop)
        self._copy.setEnabled(bool(view.address))
        self._middle.setCurrentIndex(0 if view.offers_demo else 1)
        self.panes.send_away({"sliders"} if view.offers_demo else set())
        self._switches.buttons["sliders"].setEnabled(not view.offers_demo)

    @Slot(object)
    def _show_launch(self, launch: object) -> None:
        """Be ready for a question."""
        self.show_view(self._controller.view)
        if launch is not None and self.isVisible() and not self.controls.isAncestorOf(self.focusWidget()):
            QTimer.singleShot(0, self.chat.prompt, self.chat.prompt.setFocus)

    def _show_words(self, view: View) -> None:
        """Show the line beside the title and the one above the memory, where there is room for them."""
        self.head.show_subtitle("" if self._wordless else view.settings)
        note = self._controller.note if self._controller.launch is not None else ""
        self._note.setText(say(note))
        self._note.setVisible(bool(note) and self.memory.bar.has_legend)

    def _make_head(self) -> PageHead:
        self.head = PageHead(tr("Cockpit"), beside=True)
        self._switches = PaneSwitches(self.panes, {"sliders": tr("Sliders"), "plots": tr("Plots"), "chat": tr("Chat")})
        self._place = QWidget()
        self._beside = QHBoxLayout(self._place)
        self._beside.setContentsMargins(0, 0, 0, 0)
        self._beside.addWidget(self._switches)
        self.head.add_widget(self._place)
        self._restart = self.head.add_button(tr("Restart"), self._restart_now)
        self._restart.setToolTip(
            tr("Stop the engine and start it with the same settings. Replies that run end first, if so chosen")
        )
        self._stop = self.head.add_button(tr("Stop"), self._controller.stop)
        self._stop.setToolTip(tr("Stop the server and free its memory"))
        self._start = self.head.add_button(tr("Start"), lambda: self._controller.start(), primary=True)
        self._start.setToolTip(tr("Serve the model again, as it was"))
        self._copy = QPushButton(tr("Copy as"))
        self._copy.setToolTip(tr("What runs as a command, a script, or an entry for other tools; its address and key"))
        self._copy.setMenu(self.copy_panel.menu(self._copy))
        self.head.add_widget(self._copy)
        return self.head

    def _restart_now(self) -> None:
        self.state.restart({}, self.controls.changes.drain_s)

    def _make_figures(self) -> QWidget:
        column = QVBoxLayout()
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        self._note = Label()
        self._note.setWordWrap(True)
        self._note.setObjectName("secondary")
        self._note.setFont(theme.font(theme.CAPTION_PX))
        self._note.hide()
        column.addWidget(self.plots, 1)
        column.addWidget(self._note)
        column.addWidget(self.memory)
        figures = QWidget()
        figures.setLayout(column)
        return figures

    def _make_welcome(self) -> EmptyState:
        text = tr(
            "The demo runs a real llama.cpp server with MTP on a model of 9 MB that came with the program. It needs no"
            " GPU and no network.\n\nIt shows the path, not a speed-up: this tiny model is faster without MTP, and it"
            " can talk about nothing but this program."
        )
        controller = self._controller
        buttons = (
            (tr("Start the demo"), lambda: controller.start(DEMO)),
            (tr("Open a model ..."), controller.choose_file),
        )
        return EmptyState(tr("No model yet"), text, buttons)
