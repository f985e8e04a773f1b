"""The main window: the rail, and the page that it shows."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QSettings, Qt, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QMainWindow, QPushButton, QStackedWidget, QWidget

from launcher.base.paths import state_dir
from launcher.gui.controller import DEMO, Controller
from launcher.gui.pages import PAGES
from launcher.gui.rail import Rail
from launcher.gui.viewmodel import View
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.engine.launch import Launch

_SMALLEST = (940, 520)
"""Fits a screen of 1920 x 1080 at a scale of 200 %."""
_FIRST_PAGE = "start"


class Window(QMainWindow):
    """The window, its controller, and the way between them. Pages are built when they are first shown."""

    def __init__(self, *, remember: bool = True, page: str | None = None) -> None:
        super().__init__()
        self.setWindowTitle("MTP Launcher")
        self.setMinimumSize(*_SMALLEST)
        self.resize(1280, 800)
        self.setAcceptDrops(True)
        self._remember = remember
        self._may_close = False
        self.exit_code = 0
        self.controller = Controller(self)
        self._pages: dict[str, QWidget] = {}
        self._specs = {spec.name: spec for spec in PAGES if _is_there(spec.factory)}
        self._page = ""
        self.rail = Rail(list(self._specs.values()))
        self.chip = self.rail.chip
        self._stack = QStackedWidget()
        body = QWidget()
        layout = QHBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.rail)
        layout.addWidget(self._stack, 1)
        self.setCentralWidget(body)
        self._connect()
        self.chip.show_view(self.controller.view)
        geometry = _settings().value("window/geometry") if remember else None
        if geometry is not None:
            self.restoreGeometry(geometry)
        last = str(_settings().value("window/page", _FIRST_PAGE)) if remember else _FIRST_PAGE
        self.show_page(page or last)

    @property
    def page_name(self) -> str:
        """The name of the page that is shown."""
        return self._page

    def page(self, name: str) -> Any:  # noqa: ANN401 -- each has a class of its own
        """Return a page, which is built when it is first asked for."""
        page = self._pages.get(name)
        if page is None:
            page = self._pages[name] = self._specs[name].build(self.controller)
            for button in page.findChildren(QPushButton):
                button.setAutoDefault(True)  # Enter presses the button that has the focus
            self._stack.addWidget(page)
        return page

    @Slot(str)
    def show_page(self, name: str) -> None:
        """Show a page; the first one there is in place of one that is not."""
        name = name if name in self._specs else next(iter(self._specs))
        if name == self._page:
            return
        before = self._pages.get(self._page)
        if before is not None:
            getattr(before, "hidden", _nothing)()
        self._page = name
        page = self.page(name)
        self._stack.setCurrentWidget(page)
        self.rail.show_page(name)
        if self.isVisible():
            QTimer.singleShot(0, page, getattr(page, "shown", _nothing))

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Tell the page that it is shown, once it is painted."""
        super().showEvent(event)
        page = self.page(self._page)
        QTimer.singleShot(0, page, getattr(page, "shown", _nothing))

    def open_file(self, path: Path) -> None:
        """Serve a GGUF file."""
        self.controller.start(str(path))
        self.show_page("cockpit")

    @Slot()
    def start_demo(self) -> None:
        """Start the demo."""
        self.controller.start(DEMO)
        self.show_page("cockpit")

    @Slot()
    def raise_up(self) -> None:
        """Come to the front, as a second start of the program asks."""
        self.setWindowState((self.windowState() & ~Qt.WindowState.WindowMinimized) | Qt.WindowState.WindowActive)
        self.show()
        self.raise_()
        self.activateWindow()

    def retheme(self) -> None:
        """Take over a change of the colour scheme; pages hear of it by their palette."""
        self.chip.show_view(self.controller.view)

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the server first, then close. A second close does not wait."""
        if self._may_close or not self.isEnabled():
            event.accept()
            return
        event.ignore()
        if self._remember:
            _settings().setValue("window/geometry", self.saveGeometry())
            _settings().setValue("window/page", self._page)
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

    def _connect(self) -> None:
        controller = self.controller
        controller.view_changed.connect(self._show_view)
        controller.launched.connect(self._show_launch)
        controller.closed.connect(self._close_now)
        controller.page_asked.connect(self.show_page)
        controller.file_asked.connect(self._choose_file)
        self.rail.chosen.connect(self.show_page)
        for spec in self._specs.values():
            QShortcut(spec.key, self, lambda name=spec.name: self.show_page(name))
        QShortcut("Ctrl+O", self, self._choose_file)

    @Slot(object)
    def _show_view(self, view: View) -> None:
        self.chip.show_view(view)

    @Slot(object)
    def _show_launch(self, launch: "Launch | None") -> None:
        if launch is not None:
            name = tr("{engine} engine", engine=launch.build.name)
            self.rail.show_engine(f"{name}\n{launch.build.version}")

    @Slot()
    def _choose_file(self) -> None:
        kinds = f"{tr('Models')} (*.gguf);;{tr('All files')} (*)"
        name, _ = QFileDialog.getOpenFileName(self, tr("Open a model"), "", kinds)
        if name:
            self.open_file(Path(name))

    @Slot()
    def _close_now(self) -> None:
        self._may_close = True
        self.close()


def _nothing() -> None:
    """Do nothing, as a page that has no wish to know whether it is seen."""


def _is_there(factory: str) -> bool:
    try:
        return find_spec(factory.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def _settings() -> QSettings:
    """Return where the window keeps its size."""
    return QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)


def _gguf_of(event: QDropEvent) -> Path | None:
    """Return the one .gguf file that is dragged, if it is that."""
    urls = event.mimeData().urls()
    if len(urls) == 1 and urls[0].isLocalFile() and urls[0].toLocalFile().lower().endswith(".gguf"):
        return Path(urls[0].toLocalFile())
    return None
