"""Error dialogs for a window that was started from a menu, where nobody would see the output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.base.errors import LauncherError

_TITLE = "MTP Launcher"
_DIALOGS = (
    ("zenity", "--error", f"--title={_TITLE}", "--no-markup", "--width=480", "--text"),
    ("kdialog", "--title", _TITLE, "--error"),
    ("xmessage", "-center"),
    ("notify-send", "--urgency=critical", _TITLE),
)
"""Programs that show a dialog on a desktop, best first; the text follows as the last argument."""
_MB_ICONERROR = 0x10


def is_started_from_menu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if a desktop started this process, so that its output goes to no terminal.

    GLib's launchers pass the pid of the process that they start, other launchers a startup token for its window. The
    pid has priority: a terminal that was started from a menu passes its token on to the programs inside it.
    """
    if sys.platform == "win32":
        return getattr(sys.stderr, "name", "") == os.devnull  # pythonw has no stderr
    if sys.stderr.isatty():
        return False
    launched_pid = environment.get("GIO_LAUNCHED_DESKTOP_FILE_PID")
    token = environment.get("XDG_ACTIVATION_TOKEN") or environment.get("DESKTOP_STARTUP_ID")
    return launched_pid == str(os.getpid()) if launched_pid else bool(token)


def show_dialog(error: LauncherError) -> None:
    """Show an error in the first available dialog. On Windows this waits until the dialog is closed."""
    text = f"{error.title}\n\n{error.hint}".rstrip()
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.user32.MessageBoxW(None, text, _TITLE, _MB_ICONERROR)
        return
    command = next((each for each in _DIALOGS if shutil.which(each[0])), None)
    if command is not None:
        null = subprocess.DEVNULL
        subprocess.Popen([*command, text], stdin=null, stdout=null, stderr=null, start_new_session=True)
