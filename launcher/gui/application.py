"""From the command to the first paint, and to the end."""

import argparse
import asyncio
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from PySide6.QtCore import QEvent, QLibraryInfo, QLocale, QObject, QSocketNotifier, Qt, QTimer, QTranslator
from PySide6.QtWidgets import QApplication

from launcher import settings
from launcher.base.age import process_age_s
from launcher.base.errors import LauncherError
from launcher.base.files import private_folder
from launcher.base.paths import check_writable, state_dir
from launcher.gui import theme, words
from launcher.gui.single import SingleInstance
from launcher.gui.tray import make_icon
from launcher.gui.updates import tell_of_newer
from launcher.gui.window import Window
from launcher.settings_declared import MOTION, SYSTEM

_AHEAD_MS = 1_000
"""After the first paint, before pages that nobody has asked for are built."""
_UPDATES_MS = 10_000
"""After the first paint, before it is looked whether there is a newer version."""


class FirstPaint(QObject):
    """Waits for a window's first paint, and then calls."""

    def __init__(self, window: Window, then: Callable[[], None]) -> None:
        super().__init__(window)
        self._then = then
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Look for the paint."""
        if event.type() == QEvent.Type.Paint:
            watched.removeEventFilter(self)  # it costs something for each event
            QTimer.singleShot(0, self, self._then)
        return super().eventFilter(watched, event)


def run_window(options: argparse.Namespace) -> int:
    """Open the window and return the exit code when it has closed."""
    QApplication.setHighDpiScaleFactorRoundingPolicy(Qt.HighDpiScaleFactorRoundingPolicy.PassThrough)
    application = QApplication(sys.argv[:1])
    application.setApplicationName("mtp-launcher")
    application.setApplicationDisplayName("MTP Launcher")
    application.setOrganizationName("mtp-launcher")
    application.setDesktopFileName("mtp-launcher")
    application.setStyle("Fusion")
    words.choose(options.language)
    _translate_qt(application)
    theme.set_scale(options.scale or 100)
    theme.set_motion(None if settings.value(MOTION) == SYSTEM else False)
    theme.choose(options.theme)
    theme.apply(application, theme.current())
    application.setWindowIcon(make_icon())
    application.setQuitOnLastWindowClosed(False)  # a window in the tray is no end
    picture = Path(options.screenshot) if options.screenshot else None
    file = Path(options.file).absolute() if options.file else None
    single = None if picture else one_window()
    if single is not None and not single.first:
        if single.raise_first(file, demo=options.demo):
            return 0
        print("Error: another window of MTP Launcher is open but does not answer.", file=sys.stderr)
        print("       End that process and start again.", file=sys.stderr)
        return 1
    if single is not None:
        single.listen()
    window = Window(remember=picture is None, page=options.page)
    _show_what_slots_raise(window)
    _follow_scheme(application, window)
    window.gone.connect(application.quit)
    application.commitDataRequest.connect(lambda _: window.quit())  # the user logs out
    if options.size:
        width, _, height = options.size.partition("x")
        window.resize(int(width), int(height))
    FirstPaint(window, lambda: _painted(window, options, file, picture))
    if single is not None:
        single.tell(lambda asked, demo: _asked_for(window, asked, demo=demo))
    window.show()
    sockets = _let_signals_in(window)
    code = application.exec()
    signal.set_wakeup_fd(-1)
    for end in sockets:
        end.close()
    if not window.controller.bridge.close():
        print("Error: the engine did not end in time; its keeper ends it now.", file=sys.stderr)
        return 1
    return window.exit_code or code


def one_window() -> SingleInstance | None:
    """Return the right to be the one window; None where it cannot be kept: then there may be several."""
    try:
        return SingleInstance()
    except OSError:
        return None


def tell_of_folders(window: Window) -> None:
    """Say on whatever page that what the user does is not kept, where a folder for it cannot be written."""

    async def look(_tell: object) -> None:
        await asyncio.to_thread(check_writable)

    def tell(error: LauncherError) -> None:
        if not window.notice.isVisible():
            window.notice.tell(str(error), "attention")

    window.controller.bridge.run(look, failed=tell)


def _translate_qt(application: QApplication) -> None:
    """Let Qt's own texts, such as those of its file dialog and menus, be in the chosen language where Qt has it."""
    if words.chosen() != "en":
        translator = QTranslator(application)
        folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
        if translator.load(QLocale(words.chosen()), "qtbase", "_", folder):
            application.installTranslator(translator)


def _painted(window: Window, options: argparse.Namespace, file: Path | None, picture: Path | None) -> None:
    painted_s = process_age_s()
    if damage := settings.damage():
        window.notice.tell("\n".join(damage), "attention")
    if options.demo:
        window.start_demo()
    elif file is not None:
        window.open_file(file)
    if picture is None:
        window.add_tray()
        tell_of_folders(window)
        QTimer.singleShot(_AHEAD_MS, window, window.build_ahead)
        QTimer.singleShot(_UPDATES_MS, window, lambda: tell_of_newer(window))
    else:
        from launcher.gui.screenshot import Photographer

        Photographer(window, picture, painted_s, live=options.demo, waits=file is not None)


def _asked_for(window: Window, file: Path | None, *, demo: bool) -> None:
    window.raise_up()
    if demo and window.controller.view.resting:
        window.start_demo()
    if file is not None:
        window.open_file(file)


def _follow_scheme(application: QApplication, window: Window) -> None:
    def changed(*_: object) -> None:
        theme.apply(application, theme.current())
        window.retheme()

    application.styleHints().colorSchemeChanged.connect(changed)


def _let_signals_in(window: Window) -> tuple[socket.socket, socket.socket]:
    """Make Ctrl-C and SIGTERM close the window; what is returned must be kept.

    Python's handlers run only when Python code does: a byte on a socket wakes it.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: window.quit())
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    notifier = QSocketNotifier(read.fileno(), QSocketNotifier.Type.Read, window)
    notifier.activated.connect(lambda *_: read.recv(64))
    return read, write


def _show_what_slots_raise(window: Window) -> None:
    """PySide hands what a slot raises to sys.excepthook and goes on: show it and keep it."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        if sys.stderr is not None:  # pythonw has none
            sys.stderr.write(text)
        path = state_dir() / "logs" / "window.log"
        try:
            with private_folder(path.parent).joinpath(path.name).open("a", encoding="utf-8") as log:
                log.write(text)
            hint = f"The details are in {path}."
        except OSError:
            hint = ""
        window.controller.show_problem(LauncherError(f"Something went wrong in the window: {error}.", hint))

    sys.excepthook = hook
