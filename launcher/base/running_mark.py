"""On Windows, a mark that the program runs: by it the setup program finds every copy, and asks it to end.

The names are in installer/windows/setup.nsi, too. "Local" is this user's session: another user's copies are not seen.
"""

import os
import signal
import sys
from pathlib import Path

RUNNING = r"Local\MTP Launcher"
"""A mutex that every process of the program holds open; when it is gone, none is left."""

END = r"Local\MTP Launcher: end"
"""An event; once it is set, they end, as by Ctrl-C."""

APP_ID = "MTPLauncher.MTPLauncher"
"""What ties the window to the installed shortcut, so that the taskbar pins that and not the bare Python."""

UNINSTALLER = "Uninstall MTP Launcher.exe"
"""What setup puts into the folder above the program's."""

PATIENCE_MS = 15_000
"""For an orderly end, after which the process ends all the same: its engine goes with it."""

_INTERRUPTED = 130
_WAIT_OBJECT_0 = 0
_FOREVER = 0xFFFF_FFFF


def mark_running() -> None:
    """Let the setup program know of this process for as long as it lives. Does nothing but on Windows."""
    if sys.platform == "win32":
        import ctypes
        import threading
        from ctypes import wintypes

        kernel32 = ctypes.WinDLL("kernel32")
        for function in (kernel32.CreateMutexW, kernel32.CreateEventW):
            function.restype = wintypes.HANDLE
        kernel32.WaitForSingleObject.argtypes = (wintypes.HANDLE, wintypes.DWORD)
        event = kernel32.CreateEventW(None, True, False, END)
        if not event or not kernel32.CreateMutexW(None, False, RUNNING):  # closed by the system when we end
            return

        def end_when_asked() -> None:
            if kernel32.WaitForSingleObject(event, _FOREVER) == _WAIT_OBJECT_0:
                signal.raise_signal(signal.SIGINT)
                threading.Event().wait(PATIENCE_MS / 1000)
                os._exit(_INTERRUPTED)

        threading.Thread(target=end_when_asked, name="end when setup asks", daemon=True).start()
        program = Path(sys.executable)
        if program.stem.lower() == "pythonw" and (program.parents[1] / UNINSTALLER).is_file():
            ctypes.WinDLL("shell32").SetCurrentProcessExplicitAppUserModelID(APP_ID)
