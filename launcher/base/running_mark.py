"""Named objects of Windows: by them the setup program finds running copies of this program, and asks them to end.

installer/windows/setup.nsi uses the same names. "Local" limits them to this user's session, so copies of other users
are not found.
"""

import os
import signal
import sys
from pathlib import Path

RUNNING_MUTEX = r"Local\MTP Launcher"
"""Name of a mutex that every process of the program keeps open. While it exists, a copy runs."""

END_EVENT = r"Local\MTP Launcher: end"
"""Name of an event. When setup sets it, all copies end as by Ctrl-C."""

APP_ID = "MTPLauncher.MTPLauncher"
"""ID of the installed shortcut. A window with this ID is pinned to the taskbar as that shortcut, not as Python."""

UNINSTALLER = "Uninstall MTP Launcher.exe"
"""Name of the uninstaller, which setup puts into the folder above the one with the program and pythonw.exe."""

END_TIMEOUT_MS = 15_000
"""Milliseconds for an orderly end. After that the process exits at once, and its engine ends with it."""

_INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells count it: 128 + SIGINT."""
_WAIT_OBJECT_0 = 0
_FOREVER = 0xFFFF_FFFF


def mark_running() -> None:
    """Make this process visible to the setup program, and end it when setup asks. Does nothing except on Windows.

    The window of an installed copy also gets APP_ID.
    """
    if sys.platform == "win32":
        import ctypes
        import threading
        import time
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
                time.sleep(END_TIMEOUT_MS / 1000)
                os._exit(_INTERRUPTED)

        threading.Thread(target=end_when_asked, name="end when setup asks", daemon=True).start()
        program = Path(sys.executable)
        if program.stem.lower() == "pythonw" and (program.parents[1] / UNINSTALLER).is_file():
            ctypes.WinDLL("shell32").SetCurrentProcessExplicitAppUserModelID(APP_ID)
