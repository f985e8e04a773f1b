"""Opens a command in the user's terminal, for programs that were not started from one."""

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base.errors import BadOption, LauncherError
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.messages import message
from launcher.base.paths import explain_os_error, runtime_dir

_TERMINALS = (
    ("xdg-terminal-exec",),
    ("x-terminal-emulator", "-e"),
    ("gnome-terminal", "--"),
    ("ptyxis", "--"),
    ("konsole", "-e"),
    ("xfce4-terminal", "-x"),
    ("mate-terminal", "-x"),
    ("kitty",),
    ("alacritty", "-e"),
    ("foot",),
    ("ghostty", "-e"),
    ("wezterm", "start", "--cwd", ".", "--"),
    ("xterm", "-e"),
)
"""Terminals of Linux desktops, with their arguments before a command. The choice of the user or system comes first."""
_FAILURE_S = 0.5
"""Seconds in which a terminal that cannot open, such as one without a display, has ended with an error."""
_POLL_S = 0.05
_WAITING = '"$@"; code=$?; [ $code -eq 0 ] || { printf "\\n%s" "$0"; read -r _; }; exit $code'
"""A script of sh that keeps the terminal open after a failure, so that its reason can be read."""


class TerminalMissing(LauncherError):
    """No terminal was found, or none opens."""

    code = "terminal_missing"


def list_terminals() -> tuple[str, ...]:
    """Return the names of the terminals that are installed; none on Windows, where the system opens its own."""
    return () if sys.platform == "win32" else tuple(dict.fromkeys(Path(words[0]).name for words in _list_terminals()))


def open_terminal(command: Sequence[str], folder: Path, prompt: str, terminal: str = "") -> None:
    """Open a terminal of its own that runs a command in a folder. It stays open after a failure, with `prompt`.

    `terminal` is the name of one to try first. Takes half a second. Raises TerminalMissing, and BadOption if there is
    no such folder.
    """
    if not folder.is_dir():
        raise BadOption(message("There is no folder {folder}.", folder=folder), message("Choose another one."))
    try:
        if sys.platform == "win32":
            _open_console(command, folder, prompt)
            return
        words = ("sh", "-c", _WAITING, prompt, *command)
        for before in sorted(_list_terminals(), key=lambda found: Path(found[0]).name != terminal):
            if not _has_failed(_start_terminal([*before, *words], folder)):
                return
        if _open_windows_terminal(words, folder):
            return
    except OSError as error:
        raise explain_os_error(error) from error
    raise TerminalMissing(
        message("No terminal could be opened."),
        message("Run this in a terminal: {command}", command=shlex.join(command)),
    )


def _list_terminals() -> Iterator[tuple[str, ...]]:
    """Yield the terminals that are installed, the user's own first, with their arguments before a command."""
    named = os.environ.get("TERMINAL", "")
    arguments = {name: rest for name, *rest in _TERMINALS}
    for words in ((named, *arguments.get(Path(named).name, ["-e"])), *_TERMINALS):
        found = shutil.which(words[0]) if words[0] else None
        if found is not None:
            yield (found, *words[1:])


def _start_terminal(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=os.environ | {"PWD": str(folder)},  # some programs read the current folder from it
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it ends
    return process


def _open_windows_terminal(words: Sequence[str], folder: Path) -> bool:
    """Open Windows Terminal from a WSL that has no terminal of its own; return whether that can be done.

    wt.exe would take a ; for the end of the command, and wsl.exe would expand a $, so they get the path of a script.
    """
    distribution, program = os.environ.get("WSL_DISTRO_NAME"), shutil.which("wt.exe")
    if not distribution or not program:
        return False
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("MTP_LAUNCHER_")}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    script = runtime_dir() / "agent-terminal.sh"
    make_private_folder(script.parent)
    text = "\n".join((*lines, f"cd {shlex.quote(str(folder))} && exec {shlex.join(words)}", ""))
    write_atomically(script, text.encode(), mode=0o600)
    return not _has_failed(
        _start_terminal([program, "wsl.exe", "-d", distribution, "--exec", "sh", str(script)], folder)
    )


def _has_failed(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a terminal ends with an error at once.

    Some terminals end at once without an error, because they hand the command on to a running process of theirs.
    """
    until = time.monotonic() + _FAILURE_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return bool(process.returncode)


if sys.platform == "win32":

    def _open_console(command: Sequence[str], folder: Path, prompt: str) -> None:
        """Open a console, which is a tab of Windows Terminal where that is the default."""
        line = f'cmd.exe /d /s /c "{subprocess.list2cmdline(command)} || (echo. & echo {prompt} & pause > nul)"'
        subprocess.Popen(line, cwd=folder, creationflags=subprocess.CREATE_NEW_CONSOLE)
