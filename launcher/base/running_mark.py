"""Windows: a mutex and an event by which the setup program finds every running copy and asks it to end.

The names also stand in installer/windows/setup.nsi. "Local" means this user's session: copies of other users are not
seen.
"""

import os
import signal
import sys
from pathlib import Path

RUNNING_MUTEX = r"Local\MTP Launcher"
"""A mutex that every process of the program holds open; when it is gone, no copy runs."""

END_EVENT = r"Local\MTP Launcher: end"
"""An event; when it is set, all copies end as by Ctrl-C."""

APP_ID = "MTPLauncher.MTPLauncher"
"""Links the window to the installed shortcut, so that the taskbar pins that and not the bare Python."""

UNINSTALLER = "Uninstall MTP Launcher.exe"
"""Name of the uninstaller, which setup puts into the folder above the program's."""

END_TIMEOUT_MS = 15_000
"""Milliseconds for an orderly end. After that the process exits anyway and its engine ends with it."""

_INTERRUPTED = 130
_WAIT_OBJECT_0 = 0
_FOREVER = 0xFFFF_FFFF


def mark_running() -> None:
    """Make this process visible to the setup program for as long as it lives. Does nothing except on Windows."""
    if sys.platform == "win32":
        import ctypes
        import threading
        from ctypes import wintypes

        kernel32 = ctypes.WinDLL("kernel32")
        for function in (kernel32.CreateMutexW, kernel32.CreateEventW):
            function.restype = wintypes.HANDLE
        kernel32.WaitForSingleObject.argtypes = (wintypes.HANDLE, wintypes.DWORD)
        event = kernel32.CreateEventW(None, True, False, END_EVENT)
        # The system closes both handles when the process ends.
        if not event or not kernel32.CreateMutexW(None, False, RUNNING_MUTEX):
            return

        def end_when_asked() -> None:
            if kernel32.WaitForSingleObject(event, _FOREVER) == _WAIT_OBJECT_0:
                signal.raise_signal(signal.SIGINT)
                threading.Event().wait(END_TIMEOUT_MS / 1000)
                os._exit(_INTERRUPTED)

        threading.Thread(target=end_when_asked, name="end when setup asks", daemon=True).start()
        program = Path(sys.executable)
        if program.stem.lower() == "pythonw" and (program.parents[1] / UNINSTALLER).is_file():
            ctypes.WinDLL("shell32").SetCurrentProcessExplicitAppUserModelID(APP_ID)
