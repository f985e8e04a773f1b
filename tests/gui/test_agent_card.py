"""The card that starts a coding agent: from the window's button to an agent in a terminal, and the verdict."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QPushButton
from pytestqt.qtbot import QtBot

from launcher.agents.agent import Agent
from launcher.agents.configuration import context_error
from launcher.engine.builds.installed import add_engine, use_engine
from launcher.engine.server.last_start import save_last_model
from launcher.gui.start.agent_card import AgentCard
from launcher.gui.window import Window
from tests.agents.scripted import PROGRAM
from tests.cli.test_code import AGENT

FIRST_PAGE = "about"
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
def terminal(script: Script, tmp_path: Path) -> Path:
    """A terminal that is the system's own; what it shows."""
    log = tmp_path / "terminal.txt"
    script("x-terminal-emulator", TERMINAL.format(python=sys.executable, log=str(log)))
    return log


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    return folder


@pytest.fixture
def scripted(script: Script, home: Path, demo_model: Path) -> None:
    """The model that was used last, with an engine that calls tools."""
    engine = script("llama-server", f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAM}" "$@"\n')
    use_engine(add_engine(engine).name)
    save_last_model(str(demo_model))


def open_card(window: Window, qtbot: QtBot) -> AgentCard:
    window.show_page("start")
    card: AgentCard = window.page("start").agent
    qtbot.waitUntil(lambda: card.agent is not None)
    return card


def click(button: QPushButton, qtbot: QtBot) -> None:
    assert button.isVisible()
    assert button.isEnabled()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def shown(terminal: Path) -> str:
    return terminal.read_text() if terminal.exists() else ""


def test_one_button_leads_to_an_agent_in_a_terminal_and_a_verdict(
    scripted: None,
    script: Script,
    terminal: Path,
    project: Path,
    window: Window,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script("opencode", AGENT.format(python=sys.executable))
    card = open_card(window, qtbot)
    assert card.start_button.text() == "Start opencode"
    assert not card.check_button.isVisible()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(project))
    click(card.start_button, qtbot)
    assert card.folder.full_text == str(project)
    assert "Preparing a server for opencode" in card.outcome.text()
    qtbot.waitUntil(lambda: card.check_button.isVisible())
    assert card.outcome.text().startswith("Ready for opencode: tool calls parsed, "), card.outcome.text()
    qtbot.waitUntil(lambda: "Press Enter to close" in shown(terminal))
    text = shown(terminal)
    assert text.startswith(repr((["-e"], str(project), str(project))))
    assert "reply" in text
    assert "tool_calls" in text  # the agent's request was answered
    launch = window.controller.launch
    assert launch is not None
    assert launch.context >= 24_576
    assert launch.options.slots == 2

    click(card.check_button, qtbot)
    assert not card.check_button.isVisible()
    qtbot.waitUntil(lambda: card.check_button.isVisible())
    assert "Ready for opencode" in card.outcome.text()
    click(card.start_button, qtbot)  # the server suits it, so it goes on
    qtbot.waitUntil(lambda: card.check_button.isVisible())
    assert window.controller.launch is launch
    qtbot.waitUntil(lambda: shown(terminal).count("reply") == 2)
    window.controller.stop()
    qtbot.waitUntil(lambda: not card.check_button.isVisible())
    assert "It opens in a terminal" in card.outcome.text()


@pytest.mark.thorough
def test_a_server_with_too_little_context_is_started_again(
    scripted: None, script: Script, terminal: Path, project: Path, window: Window, demo_model: Path, qtbot: QtBot
) -> None:
    script("opencode", AGENT.format(python=sys.executable))
    window.controller.start(str(demo_model))
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    before, address = window.controller.launch, window.controller.inputs.address
    card = open_card(window, qtbot)
    card.chosen_folder = project
    click(card.start_button, qtbot)
    qtbot.waitUntil(lambda: card.check_button.isVisible())
    launch = window.controller.launch
    assert before is not None
    assert launch is not None
    assert before.options.slots == 1
    assert launch.context >= 24_576
    assert window.controller.inputs.address == address
    assert "Ready for opencode" in card.outcome.text()


@pytest.mark.thorough
def test_without_a_terminal_the_command_is_shown(
    scripted: None, script: Script, project: Path, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("opencode", AGENT.format(python=sys.executable))
    script("x-terminal-emulator", "#!/bin/sh\nexit 1\n")  # it has no display
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    script("sleep", "#!/bin/sh\n")
    card = open_card(window, qtbot)
    card.chosen_folder = project
    click(card.start_button, qtbot)
    qtbot.waitUntil(lambda: card.copy_button.isVisible())
    assert "No terminal could be opened." in card.outcome.text()
    click(card.copy_button, qtbot)
    assert QGuiApplication.clipboard().text() == "mtp-launcher code opencode"
    assert card.start_button.isEnabled()


def test_what_is_missing_is_named_with_the_way_to_get_it(
    script: Script, terminal: Path, project: Path, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    card = open_card(window, qtbot)
    assert card.agents.currentText() == "opencode (not installed)"
    assert "npm install -g opencode-ai" in card.outcome.text()
    assert "npm is missing" in card.outcome.text()
    assert not card.start_button.isEnabled()
    click(card.copy_button, qtbot)
    assert QGuiApplication.clipboard().text() == "npm install -g opencode-ai"

    script("opencode", AGENT.format(python=sys.executable))
    window.show_page("about")
    window.show_page("start")
    qtbot.waitUntil(lambda: card.agents.currentText() == "opencode")
    assert card.agents.findText("Cline (not installed)") > 0
    card.chosen_folder = project
    click(card.start_button, qtbot)
    qtbot.waitUntil(lambda: card.plans_button.isVisible())
    assert "There is no model on this machine yet" in card.outcome.text()
    assert "mtp-launcher" not in card.outcome.text()
    click(card.plans_button, qtbot)
    assert window.page("start").goal.currentData() == "agents"
    assert shown(terminal) == ""


def test_a_model_that_would_do_is_one_click_away(
    script: Script, project: Path, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(agent: Agent, *_: object, **_names: object) -> None:
        raise context_error(agent, 8_192, "Start it instead.", suggested="demo")

    monkeypatch.setattr("launcher.app.coding.prepare_server", refuse)  # whatever fits on this computer
    script("opencode", AGENT.format(python=sys.executable))
    card = open_card(window, qtbot)
    card.chosen_folder = project
    click(card.start_button, qtbot)
    qtbot.waitUntil(lambda: card.plans_button.isVisible())
    assert "needs a context of at least 24,576 tokens, and there would be 8,192. Start it" in card.outcome.text()
    assert card.plans_button.text() == "Show its plan"
    page = window.page("start")
    with qtbot.waitSignal(page.flow.planned):
        click(card.plans_button, qtbot)
    assert page.name_field.text() == "demo"
