"""Opening a terminal. The terminals here are scripts that record how they were called."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agents.terminal import TerminalMissing, list_terminals, open_terminal
from launcher.base.errors import BadOption

COMMAND = ("printf", "%s in %s\n", "it's $HOME; here")


@pytest.fixture
def make_program(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a program that runs a line of sh, into the only folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    for name in ("TERMINAL", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)

    def make(name: str, line: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)

    return make


def open_and_read(log: Path, folder: Path) -> str:
    """Open a terminal that writes into `log`; return its first complete line."""
    open_terminal((*COMMAND, str(folder)), folder, "Press Enter.")
    until = time.monotonic() + 60
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    return log.read_text()


def test_the_terminal_of_the_user_comes_first_and_runs_the_command_in_the_folder(
    make_program: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, folder = tmp_path / "log", tmp_path / "a b"
    folder.mkdir()
    make_program("x-terminal-emulator", f"shift; echo system >> '{log}'; cd /; \"$@\" >> '{log}'")
    make_program("mine", f"echo \"mine $1 $PWD\" >> '{log}'; shift; \"$@\" >> '{log}'")
    expected = f"it's $HOME; here in {folder}\n"
    assert open_and_read(log, folder) == f"system\n{expected}"
    log.unlink()
    monkeypatch.setenv("TERMINAL", "mine")
    text = open_and_read(log, folder)
    assert text == f"mine -e {folder}\n{expected}"


def test_a_terminal_that_does_not_open_is_skipped(make_program: Callable[[str, str], None], tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_program("x-terminal-emulator", "exit 1")
    make_program("kitty", f"\"$@\" >> '{log}'")
    assert "here in" in open_and_read(log, tmp_path)


def test_the_terminal_stays_open_after_a_failure_until_enter(
    make_program: Callable[[str, str], None], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    make_program("xterm", f"shift; echo | \"$@\" >> '{log}' 2>&1; echo \" ended $?\" >> '{log}'")
    open_terminal(("sh", "-c", "exit 7"), tmp_path, "Press Enter.")
    until = time.monotonic() + 60
    while "ended" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert log.read_text() == "\nPress Enter. ended 7\n"


def test_windows_terminal_gets_the_path_of_a_script(
    make_program: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    make_program(
        "wt.exe", f"echo \"$1 $2 $3 $4\" >> '{log}'; shift 4; cd /; unset MTP_LAUNCHER_HOME; \"$@\" >> '{log}'"
    )
    with pytest.raises(TerminalMissing, match="printf"):
        open_terminal(COMMAND, tmp_path, "")
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    open_terminal(("sh", "-c", 'echo "$PWD $MTP_LAUNCHER_HOME"'), tmp_path, "")
    until = time.monotonic() + 60
    while log.read_text().count("\n") < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    home = os.environ["MTP_LAUNCHER_HOME"]
    assert log.read_text() == f"wsl.exe -d Debian --exec\n{tmp_path} {home}\n"


def test_a_missing_folder_is_named(make_program: Callable[[str, str], None], tmp_path: Path) -> None:
    make_program("xterm", "exit 0")
    with pytest.raises(BadOption, match="gone"):
        open_terminal(COMMAND, tmp_path / "gone", "")


def test_the_chosen_terminal_is_tried_first(make_program: Callable[[str, str], None], tmp_path: Path) -> None:
    for name in ("xterm", "kitty"):
        make_program(name, f"echo {name} >> {tmp_path / 'opened'}; exit 1")
    assert list_terminals() == ("kitty", "xterm")
    with pytest.raises(TerminalMissing):
        open_terminal(COMMAND, tmp_path, "", "xterm")
    assert (tmp_path / "opened").read_text().split()[0] == "xterm"
