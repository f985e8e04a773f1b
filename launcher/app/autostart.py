"""Starts the server at login: by systemd, by the desktop's autostart folder, or by the Run key of Windows.

Off by default; every file that is written is reported.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import list2cmdline

from launcher.base.errors import BadOption
from launcher.base.files import write_atomically
from launcher.base.messages import message
from launcher.base.own_command import NAME, own_command
from launcher.base.paths import HOME_VARIABLE, MODELS_VARIABLE
from launcher.export.quoting import quote_systemd

RUN_KEY = r"Software\Microsoft\Windows\CurrentVersion\Run"
RUN_VALUE = "MTP Launcher"
_MAX_RUN_CHARACTERS = 260
"""The longest command of the Run key (Microsoft's "Run and RunOnce Registry Keys")."""
_KEPT_VARIABLES = (HOME_VARIABLE, MODELS_VARIABLE)
"""Environment variables that are written into the entry, because at login they may not be set."""


@dataclass(frozen=True, slots=True)
class Autostart:
    """State of autostart: the files or the registry value that enable it, and the command in them."""

    places: tuple[str, ...] = ()
    command: str | None = None

    @property
    def on(self) -> bool:
        """True if the server starts at login."""
        return bool(self.places)


def serve_command(model: str | None, *, windowless: bool = False) -> list[str]:
    """Return the command that serves `model`, or the last served model for None, until a window takes the server over.

    With `windowless` (Windows) it opens no console.
    """
    named = ["--last"] if model is None else ["--model", model]
    return own_command("serve", "--for-window", *named, windowless=windowless)


def make_unit(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return a unit for the user's systemd."""
    words = " ".join((quote_systemd(command[0], program=True), *map(quote_systemd, command[1:])))
    environment = "".join(
        f"Environment={quote_systemd(f'{name}={value}', program=True)}\n" for name, value in variables.items()
    )
    return f"""\
# Written by `mtp-launcher autostart on`; `mtp-launcher autostart off` removes it.
[Unit]
Description=MTP Launcher
StartLimitIntervalSec=300
StartLimitBurst=4

[Service]
Type=exec
{environment}ExecStart={words}
Restart=on-failure
SuccessExitStatus=143
RestartSec=10
TimeoutStopSec=20
KillMode=mixed

[Install]
WantedBy=default.target
"""


def make_desktop_entry(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return an entry for the desktop's autostart folder (Autostart and Desktop Entry Specification, freedesktop.org).

    Raises BadOption for a line break, which such an entry cannot hold.
    """
    words = list(command)
    if variables:
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    if any("\n" in word or "\r" in word for word in words):
        raise BadOption(
            message("A name with a line break cannot be written into an autostart entry."), message("Rename the file.")
        )
    return f"""\
[Desktop Entry]
Type=Application
Name=MTP Launcher
Comment=Written by mtp-launcher autostart on
Exec={" ".join(map(_quote_exec_word, words))}
Terminal=false
"""


def _quote_exec_word(word: str) -> str:
    """Quote a word for Exec: by Exec's own rules, then as a string of the file, where a backslash begins an escape."""
    quoted = '"' + "".join(f"\\{each}" if each in '"`$\\' else each for each in word) + '"'
    return quoted.replace("%", "%%").replace("\\", "\\\\")


def make_run_line(command: Sequence[str]) -> str:
    """Return a command for Windows' Run key. Raises BadOption when it is too long."""
    line = list2cmdline(command)
    if len(line) > _MAX_RUN_CHARACTERS:
        raise BadOption(
            message(
                "The command is too long for Windows' list of programs that start at login ({line} characters).",
                line=len(line),
            ),
            message(
                "The limit is {longest_run} characters. Move the model to a shorter path, or use its catalogue ID.",
                longest_run=_MAX_RUN_CHARACTERS,
            ),
        )
    return line


def switch_on(model: str | None) -> Autostart:
    """Start `model`, or the last served model for None, at login.

    Raises BadOption, leaving the previous state, and OSError.
    """
    if sys.platform == "win32":
        import winreg

        line = make_run_line(serve_command(model, windowless=True))
        switch_off()
        with winreg.CreateKey(winreg.HKEY_CURRENT_USER, RUN_KEY) as key:
            winreg.SetValueEx(key, RUN_VALUE, 0, winreg.REG_SZ, line)
        return read_autostart()
    command = serve_command(model)
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if os.environ.get(name)}
    by_systemd = has_user_systemd()
    text = make_unit(command, variables) if by_systemd else make_desktop_entry(command, variables)
    switch_off()
    if by_systemd:
        write_atomically(_unit_file(), text.encode(), mode=0o644)
        _wants_link().parent.mkdir(parents=True, exist_ok=True)
        _wants_link().symlink_to(_unit_file())
    else:
        write_atomically(_desktop_file(), text.encode(), mode=0o644)
    return read_autostart()


def switch_off() -> tuple[str, ...]:
    """Switch autostart off and return the removed files or registry value. Raises OSError."""
    before = read_autostart()
    if sys.platform == "win32":
        import winreg

        with (
            suppress(FileNotFoundError),
            winreg.OpenKey(winreg.HKEY_CURRENT_USER, RUN_KEY, 0, winreg.KEY_SET_VALUE) as key,
        ):
            winreg.DeleteValue(key, RUN_VALUE)
    else:
        for path in _entry_files():
            path.unlink(missing_ok=True)
    return before.places


def read_autostart() -> Autostart:
    """Return the state of autostart. Raises OSError."""
    if sys.platform == "win32":
        import winreg

        with suppress(FileNotFoundError), winreg.OpenKey(winreg.HKEY_CURRENT_USER, RUN_KEY) as key:
            line = str(winreg.QueryValueEx(key, RUN_VALUE)[0])
            return Autostart((rf"HKEY_CURRENT_USER\{RUN_KEY}\{RUN_VALUE}",), line)
        return Autostart()
    places = [path for path in _entry_files() if path.exists() or path.is_symlink()]
    lines = [line for path in places if path.exists() for line in path.read_text("utf-8", "replace").splitlines()]
    command = next((line.partition("=")[2] for line in lines if line.startswith(("ExecStart=", "Exec="))), None)
    return Autostart(tuple(map(str, places)), command)


def has_user_systemd() -> bool:
    """Return whether a systemd user instance is running, which starts units at login (sd_booted(3), for the user)."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return folder is not None and (Path(folder) / "systemd" / "private").exists()


def _config_home() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(folder) if Path(folder).is_absolute() else Path.home() / ".config"


def _unit_file() -> Path:
    return _config_home() / "systemd" / "user" / f"{NAME}.service"


def _wants_link() -> Path:
    return _unit_file().parent / "default.target.wants" / _unit_file().name


def _desktop_file() -> Path:
    return _config_home() / "autostart" / f"{NAME}.desktop"


def _entry_files() -> tuple[Path, ...]:
    return _unit_file(), _wants_link(), _desktop_file()
