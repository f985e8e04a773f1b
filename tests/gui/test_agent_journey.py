"""The way of a new user from the Start page to a coding agent that answers, using only what is visible."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from launcher.engine.builds.installed import add_engine, use_engine
from launcher.gui.window import Window
from tests.agents.scripted import PROGRAM
from tests.cli.test_code import AGENT
from tests.conftest import Hub
from tests.gui.agents_page import Script, press_button, project, read_terminal, script, terminal_log
from tests.gui.test_start import wait_until_settled

__all__ = ["project", "script", "terminal_log"]

FIRST_PAGE = "about"


@pytest.fixture
def hub_model(hub: Hub, demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model that is on the hub alone, by the name that a person would type."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    folder = hub.folder / "someone" / "Coder-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / "coder-Q8_0.gguf")
    yield f"{hub.url}/someone/Coder-GGUF/blob/main/coder-Q8_0.gguf"
    shutil.rmtree(folder)


def wait_for_text(part: QWidget, qtbot: QtBot, text: str) -> None:
    qtbot.waitUntil(lambda: part.isVisible() and text in str(part.property("text")))


@pytest.mark.thorough
def test_from_nothing_to_an_agent_that_answers(
    script: Script,
    terminal_log: Path,
    project: Path,
    home: Path,
    hub_model: str,
    window: Window,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_engine(add_engine(script("llama-server", f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAM}" "$@"\n')).name)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(project))
    window.show_page("start")
    page = window.page("start")
    press_button(window, qtbot, "Choose an agent …")
    verdict = window.page("agents").verdict
    wait_for_text(verdict.title, qtbot, "opencode is not installed")
    wait_for_text(verdict.text, qtbot, "Run this in a terminal, then come back:")
    press_button(verdict, qtbot, "Copy")
    assert QGuiApplication.clipboard().text() == "npm install -g opencode-ai"

    script("opencode", AGENT.format(python=sys.executable))
    press_button(window, qtbot, "Look again")
    wait_for_text(verdict.title, qtbot, "There is no model on this machine yet.")
    press_button(window, qtbot, "Show plans for agents")
    assert page.name_field.isVisible()
    wait_until_settled(page, qtbot)
    page.name_field.setFocus()
    qtbot.keyClicks(page.name_field, hub_model)
    qtbot.keyClick(page.name_field, Qt.Key.Key_Return)
    wait_until_settled(page, qtbot)
    qtbot.waitUntil(lambda: "coder-Q8_0" in str(page.plan and page.plan.file))
    press_button(window, qtbot, "Download and start")
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    press_button(window, qtbot, "Agents")
    press_button(window, qtbot, "Start opencode")
    wait_for_text(verdict.title, qtbot, "Ready for opencode:")
    assert verdict.text.text().startswith("tool calls parsed, ")
    qtbot.waitUntil(
        lambda: "tool_calls" in read_terminal(terminal_log)
    )  # the agent's own request was answered by a tool call
