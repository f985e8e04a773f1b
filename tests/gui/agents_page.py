"""Helpers of the Agents page's tests: programs in PATH, a terminal that records its output, clicks."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from launcher.engine.builds.installed import add_engine, use_engine
from launcher.engine.server.last_start import save_last_model
from launcher.gui.agents.page import AgentsPage
from launcher.gui.window import Window
from tests.agents.scripted import PROGRAM
from tests.cli.test_code import AGENT

TERMINAL = """#!{python}
import os, pty, sys
with open({log!r}, "ab", buffering=0) as log:
    log.write(repr((sys.argv[1:2], os.getcwd(), os.environ["PWD"])).encode() + b"\\n")
    def read(fd):
        data = os.read(fd, 4096)
        log.write(data)
        if b"Press Enter" in data:
            os.write(fd, b"\\n")
        return data
    sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[2:], read)))
"""
OPENCODE = AGENT.format(python=sys.executable)
Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Writes a program into the only folder of PATH beside the system's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # agents in folders of the home are found, too
    for name in ("TERMINAL", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)

    def write(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write


@pytest.fixture
def terminal_log(script: Script, tmp_path: Path) -> Path:
    """Make a program that stands for the system's terminal; return the file with all that it shows."""
    log = tmp_path / "terminal.txt"
    script("x-terminal-emulator", TERMINAL.format(python=sys.executable, log=str(log)))
    return log


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    return folder


def write_engine(script: Script, *faults: str) -> Path:
    """Write a fake llama-server that calls tools, with faults: see tests/fakes/agent_server.py."""
    return script(
        "llama-server", f'#!/bin/sh\nAGENT_FAULTS={",".join(faults)} exec "{sys.executable}" "{PROGRAM}" "$@"\n'
    )


@pytest.fixture
def scripted_model(script: Script, home: Path, demo_model: Path) -> None:
    """The model that was used last, with an engine that calls tools."""
    use_engine(add_engine(write_engine(script)).name)
    save_last_model(str(demo_model))


def open_page(window: Window, qtbot: QtBot) -> AgentsPage:
    """Show the page and wait until it knows what the chosen agent would get, or why not."""
    window.show_page("agents")
    page: AgentsPage = window.page("agents")
    qtbot.waitUntil(lambda: page.control.session is not None or page.control.reading_error is not None)
    return page


def click(button: QPushButton, qtbot: QtBot) -> None:
    """Click a button that can be seen and clicked."""
    assert button.isVisible()
    assert button.isEnabled()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def press_button(window: QWidget, qtbot: QtBot, text: str) -> None:
    """Click the one button with this text as soon as it can be seen and clicked."""

    def find() -> QPushButton | None:
        buttons: list[QPushButton] = window.findChildren(QPushButton)
        return next((each for each in buttons if each.text() == text and each.isVisible() and each.isEnabled()), None)

    qtbot.waitUntil(lambda: find() is not None)
    button = find()
    assert button is not None
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def read_terminal(terminal: Path) -> str:
    """Return what a terminal has shown."""
    return terminal.read_text() if terminal.exists() else ""
