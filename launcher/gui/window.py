"""The main window: the rail, and the page that it shows."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QMimeData, QSettings, Qt, QTimer, QUrl, Signal, Slot
from PySide6.QtGui import (
    QCloseEvent,
    QDesktopServices,
    QHideEvent,
    QKeyEvent,
    QPaintEvent,
    QResizeEvent,
    QShortcut,
    QShowEvent,
    QWindowStateChangeEvent,
)
from PySide6.QtWidgets import QFileDialog, QGridLayout, QMainWindow, QPushButton, QScrollArea, QStackedWidget, QWidget

from launcher import settings
from launcher.base.paths import state_dir
from launcher.base.text import one_line
from launcher.engine.state import ADDRESS_CHANGED, Notice
from launcher.gui.controller import Controller
from launcher.gui.page_room import PageRoom
from launcher.gui.pages import PAGES
from launcher.gui.rail import Rail, find_gpus
from launcher.gui.service import DEMO
from launcher.gui.tray import Tray
from launcher.gui.widgets.banner import Banner
from launcher.gui.widgets.drop_target import DropTarget
from launcher.gui.words import tr
from launcher.settings_declared import ASK, CLOSE, QUIT, TRAY

if TYPE_CHECKING:
    from launcher.engine.launch import Launch

_SMALLEST = (940, 520)
"""Fits a screen of 1920 x 1080 at a scale of 200 %."""
_FIRST_PAGE = "start"
_AHEAD_MS = 200


class Window(QMainWindow):
    """The window, its controller, and the way between them. Pages are built when they are first shown."""

    gone = Signal()
    """It has closed for good, and nothing runs any more."""
    page_shown = Signal(str)
    """A page is painted and knows that it is seen."""

    def __init__(self, *, remember: bool = True, page: str | None = None) -> None:
        super().__init__()
        self.setWindowTitle("MTP Launcher")
        self.setMinimumSize(*_SMALLEST)
        self.resize(1280, 800)
        self._remember = remember
        self._may_close = self._quitting = self._asks = self._unseen = False
        self._way = ""
        """What the user has just answered to how the window closes, while that is being kept."""
        self.exit_code = 0
        self.controller = Controller(self)
        self.tray: Tray | None = None
        self._pages: dict[str, QWidget] = {}
        self._specs = {spec.name: spec for spec in PAGES if _is_there(spec.factory)}
        self._page = self._page_before = ""
        self._ahead = self._steps_ahead()
        self.rail = Rail([spec for spec in self._specs.values() if spec.in_rail])
        self.chip = self.rail.chip
        self.notice = Banner()
        self._stack = QStackedWidget()
        area = QScrollArea()  # for large text in a small window: what does not fit is scrolled, not cut
        area.setWidgetResizable(True)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setWidget(PageRoom(self._stack))
        body = QWidget()
        layout = QGridLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.rail, 0, 0, 2, 1)
        layout.addWidget(self.notice, 0, 1)
        layout.addWidget(area, 1, 1)
        layout.setColumnStretch(1, 1)
        layout.setRowStretch(1, 1)
        self.setCentralWidget(body)
        self.drop = DropTarget(self, _serving, lambda data: self.open_file(_gguf_of(data) or Path()))
        self._connect()
        self.chip.show_view(self.controller.view)
        geometry = _settings().value("window/geometry") if remember else None
        if geometry is not None:
            self.restoreGeometry(geometry)
        last = str(_settings().value("window/page", _FIRST_PAGE)) if remember else _FIRST_PAGE
        self.show_page(page or last)
        body.setFocus()  # no button has the focus before one is gone to by Tab

    @property
    def page_name(self) -> str:
        """The name of the page that is shown."""
        return self._page

    @property
    def page_names(self) -> tuple[str, ...]:
        """The names of all pages, in the rail and beside it."""
        return tuple(self._specs)

    def page(self, name: str) -> Any:  # noqa: ANN401 -- each has a class of its own
        """Return a page, which is built when it is first asked for."""
        while self._build_on(name):
            pass
        return self._pages[name]

    def _build_on(self, name: str) -> bool:
        """Begin a page, or do the next step of one that is built in steps; return whether it did anything."""
        page = self._pages.get(name)
        if page is None:
            page = self._pages[name] = self._specs[name].build(self.controller)
            self._stack.addWidget(page)
        elif not getattr(page, "build_on", bool)():
            return False
        for button in page.findChildren(QPushButton):
            button.setAutoDefault(True)  # Enter presses the button that has the focus
        return True

    def build_ahead(self) -> None:
        """Do the next step of what pages need before they are shown, while nothing else is to be done, and so on."""
        if not self._may_close and self.isEnabled() and next(self._ahead, False):
            QTimer.singleShot(_AHEAD_MS, self, self.build_ahead)

    def _steps_ahead(self) -> Iterator[bool]:
        """Name the GPUs, then load and build each page of the rail in steps; each stops the window for 30 ms."""
        self.controller.bridge.run(find_gpus, done=self.rail.show_gpus)
        yield True
        for name, spec in self._specs.items():
            if spec.in_rail and name not in self._pages:
                for _ in spec.load():
                    yield True
            while spec.in_rail and self._build_on(name):
                yield True

    @Slot(str)
    def show_page(self, name: str) -> None:
        """Show a page; the first one there is in place of one that is not."""
        name = name if name in self._specs else next(iter(self._specs))
        if name == self._page:
            return
        if self._pages.get(self._page) is not None:
            self._tell_page("hidden")
        self._page_before, self._page = self._page, name
        page = self.page(name)
        if page.focusWidget() is None:
            page.setFocus()  # Tab then goes to its first control, which does not look chosen before
        self._stack.setCurrentWidget(page)
        self.rail.show_page(name)
        if self.isVisible() and not self._unseen:
            QTimer.singleShot(0, self, lambda: self._tell_page("shown"))

    @Slot()
    def show_keys(self) -> None:
        """Show the list of keys, or go back to where it was asked for."""
        self.show_page(self._page_before if self._page == "keys" else "keys")

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave the list of keys, or another page beside the rail, by Esc."""
        if event.key() == Qt.Key.Key_Escape and not self._specs[self._page].in_rail:
            self.show_page(self._page_before)
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Leave the pages room."""
        super().resizeEvent(event)
        self.rail.fit(event.size().width())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Tell the page that it is shown, once it is painted."""
        super().paintEvent(event)
        if self._unseen:
            self._unseen = False
            QTimer.singleShot(0, self, lambda: self._be_seen(True))

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Wait for the paint."""
        super().showEvent(event)
        self._unseen = True

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Tell the page that nobody sees it."""
        super().hideEvent(event)
        self._be_seen(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Tell the page that the window was minimised, or is back."""
        super().changeEvent(event)
        if isinstance(event, QWindowStateChangeEvent) and self.isVisible():
            was_minimised = bool(event.oldState() & Qt.WindowState.WindowMinimized)
            if was_minimised != self.isMinimized():
                self._be_seen(was_minimised)

    def _be_seen(self, seen: bool) -> None:
        self.controller.seen(seen)
        self._tell_page("shown" if seen else "hidden")

    def _tell_page(self, what: str) -> None:
        if page := self._pages.get(self._page):
            getattr(page, what, _nothing)()
            if what == "shown":
                self.page_shown.emit(self._page)

    def add_tray(self) -> None:
        """Put an icon into the system's tray, where there is one."""
        if self.tray is None and Tray.available():
            self.use_tray(Tray(self.controller, self.isActiveWindow, self))
            if self.tray is not None:
                self.tray.icon.show()

    def use_tray(self, tray: Tray) -> None:
        """Let the window go into the tray from now on."""
        self.tray = tray
        tray.window_asked.connect(self.raise_up)
        tray.quit_asked.connect(self.quit)

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

    @Slot()
    def quit(self) -> None:
        """Close for good: the server stops, and no process is left."""
        self._quitting = True
        self.close()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        """Go into the tray, if the user wants that; else stop the server first, then close.

        While a model is served, a line asks before; closing once more means to quit. A second close does not wait for
        the server.
        """
        if self._may_close or not self.isEnabled():
            event.accept()
            return
        event.ignore()
        self._keep_place()
        if not self._quitting:
            way = self._way or settings.value(CLOSE)
            asks = way == ASK or (way == TRAY and self.tray is None)
            if asks and not self._asks and not self.controller.view.resting:
                self._ask_how_to_close()
                return
            if way == TRAY and self.tray is not None:
                self.hide()
                return
        self.setEnabled(False)
        self.controller.close()

    def _ask_how_to_close(self) -> None:
        self._asks = True
        if self.tray is None:
            text = tr("A model is being served. It is stopped when this window closes: this system has no tray.")
            self.notice.tell(text, "information", [(tr("Stop and quit"), self.quit)])
        else:
            text = tr(
                "A model is being served. Keep serving it from the tray when this window closes?"
                " Your answer is not asked for again; Settings has it under Closing the window."
            )
            self.notice.tell(
                text,
                "information",
                [
                    (tr("Keep serving"), lambda: self._answer(keeps=True)),
                    (tr("Stop and quit"), lambda: self._answer(keeps=False)),
                ],
            )
        self.notice.buttons[0].setFocus()

    def _answer(self, *, keeps: bool) -> None:
        self._asks = False
        self.notice.clear()
        self._way = TRAY if keeps else QUIT
        self.controller.change_setting(CLOSE, self._way)
        self.close()

    def _keep_place(self) -> None:
        if self._remember:
            _settings().setValue("window/geometry", self.saveGeometry())
            _settings().setValue("window/page", self._page if self._specs[self._page].in_rail else self._page_before)

    def _connect(self) -> None:
        controller = self.controller
        controller.view_changed.connect(self.chip.show_view)
        controller.launched.connect(self._show_launch)
        controller.noticed.connect(self._show_notice)
        controller.closed.connect(self._close_now)
        controller.page_asked.connect(self.show_page)
        controller.file_asked.connect(self._choose_file)
        controller.link_asked.connect(_open_link)
        controller.setting_changed.connect(self._take_setting)
        self.rail.chosen.connect(self.show_page)
        self.notice.closed.connect(self._stop_asking)
        for spec in self._specs.values():
            if spec.in_rail:
                QShortcut(spec.key, self, lambda name=spec.name: self.show_page(name))
        QShortcut("F1", self, self.show_keys)
        QShortcut("Ctrl+O", self, self._choose_file)
        QShortcut("Ctrl+Q", self, self.quit)

    @Slot()
    def _stop_asking(self) -> None:
        self._asks = False

    @Slot(str, object)
    def _take_setting(self, name: str, _value: object) -> None:
        if name == CLOSE:
            self._way = ""

    @Slot(object)
    def _show_launch(self, launch: "Launch | None") -> None:
        if launch is not None:
            ours = launch.build.name == "built-in"
            name = tr("built-in engine") if ours else tr("{engine} engine", engine=launch.build.name)
            self.rail.show_engine(name, launch.build.version)

    @Slot(object)
    def _show_notice(self, notice: Notice) -> None:
        """Say on whatever page what concerns other programs, too."""
        if notice.code == ADDRESS_CHANGED:
            self.notice.tell(notice.text, "attention")

    @Slot()
    def _choose_file(self) -> None:
        kinds = f"{tr('Models')} (*.gguf);;{tr('All files')} (*)"
        name, _ = QFileDialog.getOpenFileName(self, tr("Open a model"), "", kinds)
        if name:
            self.open_file(Path(name))

    @Slot()
    def _close_now(self) -> None:
        self._may_close = True
        if self.tray is not None:
            self.tray.icon.hide()
        self.close()
        self.gone.emit()


def _nothing() -> None:
    """Do nothing, as a page that has no wish to know whether it is seen."""


def _open_link(url: str) -> None:
    """Open an address that a diagnosis gives; it was checked to be https."""
    QDesktopServices.openUrl(QUrl(url))


def _is_there(factory: str) -> bool:
    try:
        return find_spec(factory.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def _settings() -> QSettings:
    """Return where the window keeps its size."""
    return QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)


def _serving(data: QMimeData) -> str:
    """Say what becomes of what is dragged here; nothing unless it is one .gguf file."""
    path = _gguf_of(data)
    return tr("Drop {name} to serve it", name=one_line(path.name)) if path is not None else ""


def _gguf_of(data: QMimeData) -> Path | None:
    """Return the one .gguf file that is dragged, if it is that."""
    urls = data.urls()
    if len(urls) == 1 and urls[0].isLocalFile() and urls[0].toLocalFile().lower().endswith(".gguf"):
        return Path(urls[0].toLocalFile())
    return None
