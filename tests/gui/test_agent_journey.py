"""A person who has never used a coding agent, from the Start page to an agent that answers, by what can be seen."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from launcher.engine.builds.installed import add_engine, use_engine
from launcher.gui.window import Window
from tests.agents.scripted import PROGRAM
from tests.cli.test_code import AGENT
from tests.conftest import Hub
from tests.gui.test_agent_card import Script, project, script, shown, terminal
from tests.gui.test_start import settle

__all__ = ["project", "script", "terminal"]

FIRST_PAGE = "about"


@pytest.fixture
def offered(hub: Hub, demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model that is on the hub alone, by the name that a person would type."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    folder = hub.folder / "someone" / "Coder-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / "coder-Q8_0.gguf")
    yield f"{hub.url}/someone/Coder-GGUF/blob/main/coder-Q8_0.gguf"
    shutil.rmtree(folder)


def press(window: Window, qtbot: QtBot, text: str) -> None:
    """Click the one button with this text as soon as it can be seen and clicked."""

    def find() -> QPushButton | None:
        buttons: list[QPushButton] = window.findChildren(QPushButton)
        return next((each for each in buttons if each.text() == text and each.isVisible() and each.isEnabled()), None)

    qtbot.waitUntil(lambda: find() is not None)
    button = find()
    assert button is not None
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def wait_for_text(part: QWidget, qtbot: QtBot, text: str) -> None:
    qtbot.waitUntil(lambda: part.isVisible() and text in str(part.property("text")))


@pytest.mark.thorough
def test_from_nothing_to_an_agent_that_answers(
    script: Script,
    terminal: Path,
    project: Path,
    home: Path,
    offered: str,
    window: Window,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_engine(add_engine(script("llama-server", f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAM}" "$@"\n')).name)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(project))
    window.show_page("start")
    page = window.page("start")
    card = page.agent
    wait_for_text(card.outcome, qtbot, "opencode is not installed. Run this in a terminal")
    press(window, qtbot, "Copy the command")
    assert QGuiApplication.clipboard().text() == "npm install -g opencode-ai"

    script("opencode", AGENT.format(python=sys.executable))
    window.show_page("logs")
    window.show_page("start")
    press(window, qtbot, "Start opencode")
    wait_for_text(card.outcome, qtbot, "There is no model on this machine yet.")
    press(window, qtbot, "Show plans for agents")
    assert page.name_field.isVisible()
    settle(page, qtbot)
    page.name_field.setFocus()
    qtbot.keyClicks(page.name_field, offered)
    qtbot.keyClick(page.name_field, Qt.Key.Key_Return)
    settle(page, qtbot)
    qtbot.waitUntil(lambda: "coder-Q8_0" in str(page.plan and page.plan.file))
    press(window, qtbot, "Download and start")
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    window.show_page("start")
    press(window, qtbot, "Start opencode")
    qtbot.waitUntil(card.check_button.isVisible)
    assert card.outcome.text().startswith("Ready for opencode: tool calls parsed, ")
    qtbot.waitUntil(lambda: "tool_calls" in shown(terminal))  # what the agent asked was answered
