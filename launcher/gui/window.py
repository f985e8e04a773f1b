"""The main window: the rail with the status chip, and the page."""

from pathlib import Path

from PySide6.QtCore import QSettings, Qt, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QFontMetrics
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QMainWindow,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from launcher import __version__
from launcher.base.paths import state_dir
from launcher.gui import theme
from launcher.gui.cockpit import Cockpit
from launcher.gui.controller import DEMO, Controller, Serving
from launcher.gui.labels import Label, set_tip
from launcher.gui.viewmodel import View

RAIL_WIDTH = 184
_SMALLEST = (940, 520)
"""Fits a screen of 1920 x 1080 at a scale of 200 %."""


class StatusChip(QFrame):
    """The server's state by word, glyph and colour, and what it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("chip")
        self._glyph, self._word, self._subject, self._address = Label(), Label(), Label(), Label()
        self._word.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        for label in (self._subject, self._address):
            label.setObjectName("secondary")
            label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._address.setTextInteractionFlags(theme.SELECTABLE)
        self._address.setToolTip("Address of the server on this computer")
        first = QHBoxLayout()
        first.setSpacing(6)
        first.addWidget(self._glyph)
        first.addWidget(self._word)
        first.addStretch()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.GAP_M, 10, theme.GAP_M, 10)
        layout.setSpacing(2)
        layout.addLayout(first)
        layout.addWidget(self._subject)
        layout.addWidget(self._address)

    def show_view(self, view: View) -> None:
        """Show the state of a view."""
        colour = getattr(theme.current(), view.meaning)
        self._glyph.setText(view.glyph)
        self._glyph.setStyleSheet(f"color: {colour}; background: transparent;")
        self._word.setText(view.word)
        width = RAIL_WIDTH - 2 * (theme.GAP_M + theme.GAP_M + 1)
        metrics = QFontMetrics(self._subject.font())
        self._subject.setText(metrics.elidedText(view.subject, Qt.TextElideMode.ElideRight, width))
        set_tip(self._subject, view.subject)
        self._address.setText(view.address)
        self._address.setVisible(bool(view.address))
        self.setAccessibleName(f"Server: {view.word}, {view.subject} {view.address}".strip())


class Window(QMainWindow):
    """The window, its controller, and the way between them."""

    def __init__(self, *, remember: bool = True) -> None:
        super().__init__()
        self.setWindowTitle("MTP Launcher")
        self.setMinimumSize(*_SMALLEST)
        self.resize(1280, 800)
        self.setAcceptDrops(True)
        self._remember = remember
        self._may_close = False
        self.exit_code = 0
        self.controller = Controller(self)
        self.cockpit = Cockpit()
        self.chip = StatusChip()
        self._about = Label(f"Version {__version__}")
        self._about.setObjectName("secondary")
        self._about.setFont(theme.font(theme.CAPTION_PX))
        self._about.setWordWrap(True)
        body = QWidget()
        layout = QHBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._make_rail())
        layout.addWidget(self.cockpit, 1)
        self.setCentralWidget(body)
        self._connect()
        self._show_view(self.controller.view)
        for button in self.findChildren(QPushButton):
            button.setAutoDefault(True)  # Enter presses the button that has the focus
        self.cockpit.first_button.setFocus()
        if remember:
            geometry = _settings().value("window/geometry")
            if geometry is not None:
                self.restoreGeometry(geometry)

    def open_file(self, path: Path) -> None:
        """Serve a GGUF file."""
        self.controller.start(str(path))

    @Slot()
    def raise_up(self) -> None:
        """Come to the front, as a second start of the program asks."""
        self.setWindowState((self.windowState() & ~Qt.WindowState.WindowMinimized) | Qt.WindowState.WindowActive)
        self.show()
        self.raise_()
        self.activateWindow()

    def retheme(self) -> None:
        """Take over a change of the colour scheme."""
        import pyqtgraph

        for card in self.cockpit.plots:
            card.recolour(pyqtgraph, theme.current())
        self.chip.show_view(self.controller.view)

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the server first, then close. A second close does not wait."""
        if self._may_close or not self.isEnabled():
            event.accept()
            return
        event.ignore()
        if self._remember:
            _settings().setValue("window/geometry", self.saveGeometry())
        self.setEnabled(False)
        self.controller.close()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802
        """Take one .gguf file."""
        if _gguf_of(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802
        """Serve the file that was dropped."""
        path = _gguf_of(event)
        if path is not None:
            self.open_file(path)

    def _make_rail(self) -> QWidget:
        rail = QFrame()
        rail.setObjectName("rail")
        rail.setFixedWidth(RAIL_WIDTH)
        page = QPushButton("Cockpit")
        page.setObjectName("page")
        page.setCheckable(True)
        page.setChecked(True)
        page.setAutoExclusive(True)
        layout = QVBoxLayout(rail)
        layout.setContentsMargins(theme.GAP_M, theme.GAP_L, theme.GAP_M, theme.GAP_L)
        layout.setSpacing(theme.GAP_S)
        layout.addWidget(self.chip)
        layout.addSpacing(theme.GAP_M)
        layout.addWidget(page)
        layout.addStretch()
        layout.addWidget(self._about)
        return rail

    def _connect(self) -> None:
        cockpit, chat, controller = self.cockpit, self.cockpit.chat, self.controller
        controller.view_changed.connect(self._show_view)
        controller.sampled.connect(cockpit.take_samples)
        controller.logged.connect(cockpit.take_log)
        controller.came.connect(chat.add)
        controller.replied.connect(chat.end)
        controller.serving.connect(self._show_serving)
        controller.closed.connect(self._close_now)
        cockpit.demo_asked.connect(self.start_demo)
        cockpit.start_asked.connect(controller.start)
        cockpit.without_mtp_asked.connect(self._start_without_mtp)
        cockpit.stop_asked.connect(controller.stop)
        cockpit.file_asked.connect(self._choose_file)
        chat.asked.connect(controller.ask)
        chat.stop_asked.connect(controller.stop_reply)

    @Slot(object)
    def _show_view(self, view: View) -> None:
        self.chip.show_view(view)
        self.cockpit.show_view(view)

    @Slot(object)
    def _show_serving(self, serving: Serving) -> None:
        self._about.setText(f"{serving.engine}\nVersion {__version__}")
        self.cockpit.show_note(serving.note)
        QTimer.singleShot(0, self.cockpit.chat.prompt, self.cockpit.chat.prompt.setFocus)

    @Slot()
    def start_demo(self) -> None:
        """Start the demo."""
        self.controller.start(DEMO)

    @Slot()
    def _start_without_mtp(self) -> None:
        self.controller.start(draft=0)

    @Slot()
    def _choose_file(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a model", "", "Models (*.gguf);;All files (*)")
        if name:
            self.open_file(Path(name))

    @Slot()
    def _close_now(self) -> None:
        self._may_close = True
        self.close()


def _settings() -> QSettings:
    """Return where the window keeps its size."""
    return QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)


def _gguf_of(event: QDropEvent) -> Path | None:
    """Return the one .gguf file that is dragged, if it is that."""
    urls = event.mimeData().urls()
    if len(urls) == 1 and urls[0].isLocalFile() and urls[0].toLocalFile().lower().endswith(".gguf"):
        return Path(urls[0].toLocalFile())
    return None
