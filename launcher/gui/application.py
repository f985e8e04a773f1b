"""Runs the window: application set-up, single instance, first paint, signals, exit code."""

import argparse
import gc
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from PySide6.QtCore import QEvent, QObject, QSocketNotifier, Qt, QTimer
from PySide6.QtWidgets import QApplication

from launcher.app import settings
from launcher.app.settings_declared import MOTION, VALUE_SYSTEM
from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder
from launcher.base.messages import message
from launcher.base.paths import check_writable, state_dir
from launcher.base.units import process_age_s
from launcher.gui import appearance, theme
from launcher.gui.icon import make_icon
from launcher.gui.late import server_process
from launcher.gui.motion import follow_system_motion
from launcher.gui.single import SingleInstance
from launcher.gui.window import Window

_COMPLETE_AFTER_MS = 1_000
"""Delay until parts are added that the first click does not need: answers to other starts, the tray, unopened pages."""
_UPDATE_CHECK_AFTER_MS = 10_000
"""Delay after the first paint until the check for a newer release."""
_COLLECT_PERIOD_MS = 1_000
"""Time between two checks for garbage. A reply at 100 tokens/s leaves 1 to 2 ms of work in it."""


class FirstPaint(QObject):
    """Calls a function once, after a window's first paint."""

    def __init__(self, window: Window, callback: Callable[[], None]) -> None:
        super().__init__(window)
        self._callback = callback
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Call the function after the first paint event."""
        if event.type() == QEvent.Type.Paint:
            watched.removeEventFilter(self)  # an event filter costs time for every event
            QTimer.singleShot(0, self, self._callback)
        return super().eventFilter(watched, event)


def run_window(options: argparse.Namespace) -> int:
    """Open the window. Returns the exit code when it has closed."""
    QApplication.setHighDpiScaleFactorRoundingPolicy(Qt.HighDpiScaleFactorRoundingPolicy.PassThrough)
    application = QApplication(sys.argv[:1])
    collect_garbage_in_this_thread(application)
    application.setApplicationName("mtp-launcher")
    application.setApplicationDisplayName("MTP Launcher")
    application.setOrganizationName("mtp-launcher")
    application.setDesktopFileName("mtp-launcher")
    application.setStyle("Fusion")
    appearance.choose_language(application, options.language)
    theme.set_scale(options.scale or 100)
    theme.set_motion(None if settings.stored_value(MOTION) == VALUE_SYSTEM else False)
    theme.set_contrast(None)
    theme.choose_theme(options.theme)
    theme.apply_theme(application, theme.current())
    application.setWindowIcon(make_icon())
    application.setQuitOnLastWindowClosed(False)  # the program may stay in the tray
    picture = Path(options.screenshot) if options.screenshot else None
    file = Path(options.file).absolute() if options.file else None
    single = None if picture else acquire_instance_lock()
    if single is not None and not single.is_first:
        if single.raise_first_window(file, demo=options.demo):
            return 0
        print("Error: another window of MTP Launcher is open but does not answer.", file=sys.stderr)
        print("       End that process and start again.", file=sys.stderr)
        return 1
    window = Window(remember=picture is None, page=options.page)
    shorten_collections(window)
    _report_slot_exceptions(window)
    _follow_colour_scheme(application, window)
    window.shut_down.connect(application.quit)
    application.commitDataRequest.connect(lambda _: window.quit())  # the user logs out
    if options.size:
        width, _, height = options.size.partition("x")
        window.resize(int(width), int(height))
    FirstPaint(window, lambda: _on_first_paint(window, options, file, picture))
    window.show()
    if single is not None:
        QTimer.singleShot(_COMPLETE_AFTER_MS, window, lambda: _answer_other_starts(single, window))
    sockets = _handle_signals(window)
    code = application.exec()
    signal.set_wakeup_fd(-1)
    for each in sockets:
        each.close()
    if not window.controller.bridge.close():
        server_process.kill_process()
        print("Error: the engine did not end in time; its keeper ends it now.", file=sys.stderr)
        return 1
    return window.exit_code or code


def collect_garbage_in_this_thread(parent: QObject) -> None:
    """Collect garbage by a timer of `parent`, and no longer in whichever thread happens to allocate objects.

    The core's thread would destroy the widgets of closed dialogs, and wait for ever for Qt, which wants that to be done
    in the thread of the window.
    """
    gc.disable()
    timer = QTimer(parent)
    timer.setTimerType(Qt.TimerType.VeryCoarseTimer)
    timer.setInterval(_COLLECT_PERIOD_MS)
    timer.timeout.connect(_collect_due_garbage)
    timer.start()


def shorten_collections(window: Window) -> None:
    """Keep modules and pages, which live on, out of garbage collections once all pages are built.

    A collection that goes through them takes up to 67 ms. When the pages are replaced, the former ones can be
    collected.
    """
    window.prebuilt.connect(gc.freeze)
    window.pages_replaced.connect(gc.unfreeze)


def _collect_due_garbage() -> None:
    """Collect the oldest generation of objects that is due, by the interpreter's own thresholds."""
    counts, thresholds = gc.get_count(), gc.get_threshold()
    for generation in (2, 1, 0):
        if counts[generation] > thresholds[generation] > 0:
            gc.collect(generation)
            return


def acquire_instance_lock() -> SingleInstance | None:
    """Acquire the single-instance lock. Returns None if it cannot be created; several windows may then open."""
    try:
        return SingleInstance()
    except OSError:
        return None


def warn_about_folders(window: Window) -> None:
    """Show a notice on every page if a folder for the user's data cannot be written."""

    def show_warning(error: LauncherError) -> None:
        if not window.notice.isVisible():
            window.notice.show_message(str(error), "attention")

    window.controller.bridge.run(check_writable, failed=show_warning)


def _on_first_paint(window: Window, options: argparse.Namespace, file: Path | None, picture: Path | None) -> None:
    painted_s = process_age_s()
    if damage := settings.damage_notices():
        window.notice.show_message("\n".join(damage), "attention")
    if picture is None:
        window.controller.attach_running()
        window.controller.watch_updates()
    if options.demo:
        window.start_demo()
    elif file is not None:
        window.open_file(file)
    if picture is None:
        warn_about_folders(window)
        QTimer.singleShot(_COMPLETE_AFTER_MS, window, lambda: _complete_window(window))
        QTimer.singleShot(_UPDATE_CHECK_AFTER_MS, window, lambda: _look_for_update(window))
    else:
        from launcher.gui.screenshot import ScreenshotTaker

        ScreenshotTaker(window, picture, painted_s, live=options.demo, waits_for_file=file is not None)


def apply_system_motion() -> None:
    """Use what the system asks for now, unless the user has turned motion off."""
    application = QApplication.instance()
    if isinstance(application, QApplication) and settings.stored_value(MOTION) == VALUE_SYSTEM:
        theme.set_motion(None)
        theme.apply_theme(application, theme.current())


def _complete_window(window: Window) -> None:
    """Add the parts that the first click does not need: the tray icon, changes of motion, and the unopened pages."""
    window.add_tray()
    follow_system_motion(window, apply_system_motion)
    window.prebuild_next()


def _look_for_update(window: Window) -> None:
    from launcher.gui.updates import announce_newer  # imported late: the first paint does not need it

    announce_newer(window)


def _answer_other_starts(single: SingleInstance, window: Window) -> None:
    single.listen(lambda file, demo: _handle_second_start(window, file, demo=demo))


def _handle_second_start(window: Window, file: Path | None, *, demo: bool) -> None:
    """Show the window and open what the program was started with a second time."""
    window.bring_to_front()
    if demo and window.controller.view.resting:
        window.start_demo()
    if file is not None:
        window.open_file(file)


def _follow_colour_scheme(application: QApplication, window: Window) -> None:
    def apply_scheme(*_: object) -> None:
        theme.set_contrast(None)
        theme.apply_theme(application, theme.current())
        window.apply_theme()

    application.styleHints().colorSchemeChanged.connect(apply_scheme)
    if hasattr(application.styleHints(), "accessibility"):  # from Qt 6.10 on
        application.styleHints().accessibility().contrastPreferenceChanged.connect(apply_scheme)


def _handle_signals(window: Window) -> tuple[socket.socket, socket.socket]:
    """Let Ctrl-C and SIGTERM close the window. The caller must keep the returned sockets alive.

    Python runs its signal handlers only when Python code runs; a byte on a socket wakes the event loop.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: window.quit())
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    notifier = QSocketNotifier(read.fileno(), QSocketNotifier.Type.Read, window)
    notifier.activated.connect(lambda *_: read.recv(64))
    return read, write


def _report_slot_exceptions(window: Window) -> None:
    """Log and show exceptions that slots raise. PySide passes them to sys.excepthook and continues."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        if sys.stderr is not None:  # pythonw has none
            sys.stderr.write(text)
        path, is_logged = state_dir() / "logs" / "window.log", True
        try:
            with make_private_folder(path.parent).joinpath(path.name).open("a", encoding="utf-8") as log:
                log.write(text)
        except OSError:
            is_logged = False
        hint = message("The details are in {path}.", path=path) if is_logged else ""
        reason = str(error).rstrip(".") or kind.__name__
        title = message("Something went wrong in the window: {reason}.", reason=reason)
        window.controller.show_problem(LauncherError(title, hint))

    sys.excepthook = hook
