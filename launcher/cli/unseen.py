"""An error that nobody would see, as the window was asked for from a menu: told in a dialog of the system's own."""

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
"""What desktops have for it, the best first; the text follows."""
_ERROR_ICON = 0x10


def started_from_a_menu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a desktop started this process, so that what it prints goes to no terminal.

    GLib's launchers name the process that they start, and others hand over a token for its window; a terminal that was
    started so hands that on to what runs in it.
    """
    if sys.platform == "win32":
        return getattr(sys.stderr, "name", "") == os.devnull  # pythonw has none
    if sys.stderr.isatty():
        return False
    named = environment.get("GIO_LAUNCHED_DESKTOP_FILE_PID")
    token = environment.get("XDG_ACTIVATION_TOKEN") or environment.get("DESKTOP_STARTUP_ID")
    return named == str(os.getpid()) if named else bool(token)


def show(error: LauncherError) -> None:
    """Show an error in the first dialog that there is. On Windows it returns when that is closed, elsewhere at once."""
    text = f"{error.title}\n\n{error.hint}".rstrip()
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.user32.MessageBoxW(None, text, _TITLE, _ERROR_ICON)
        return
    command = next((each for each in _DIALOGS if shutil.which(each[0])), None)
    if command is not None:
        nothing = subprocess.DEVNULL
        subprocess.Popen([*command, text], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
