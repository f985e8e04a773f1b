"""The page of coding agents: from a click to an agent in a terminal, the verdict, and obstacles."""

import os
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from launcher.agents.agent import Agent
from launcher.agents.configuration import context_error
from launcher.gui.agents.page import AgentsPage
from launcher.gui.window import Window
from tests.gui.agents_page import (
    OPENCODE,
    Script,
    click,
    open_page,
    press_button,
    project,
    read_terminal,
    script,
    scripted_model,
    terminal_log,
    write_engine,
)

__all__ = ["project", "script", "scripted_model", "terminal_log"]

FIRST_PAGE = "about"


def wait_for_title(page: AgentsPage, qtbot: QtBot, title: str) -> None:
    qtbot.waitUntil(lambda: page.verdict.title.text() == title)


def results(page: AgentsPage) -> list[str]:
    return [row.result.full_text for row in page.check.rows.values() if row.name.isVisible()]


def choose_agent(page: AgentsPage, qtbot: QtBot, title: str) -> None:
    """Choose an agent in the list with the mouse."""
    index = next(each for row in range(7) if (each := page.list.model().index(row, 0)).data() == title)
    qtbot.mouseClick(page.list.viewport(), Qt.MouseButton.LeftButton, pos=page.list.visualRect(index).center())
    assert page.control.agent is not None
    assert page.control.agent.title == title
    qtbot.waitUntil(lambda: page.control.session is not None or page.control.reading_error is not None)


def test_one_click_starts_an_agent_in_a_terminal_and_shows_a_verdict(
    scripted_model: None,
    script: Script,
    terminal_log: Path,
    project: Path,
    window: Window,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    page = open_page(window, qtbot)
    verdict = page.verdict
    assert verdict.title.text() == "No model is loaded"
    assert not page.check_button.isVisible()
    assert page.needs.count.text() == "5 of 6 met"  # whether the model calls tools is not known yet
    assert results(page) == ["–", "–", "–"]  # noqa: RUF001
    assert '"***"' in page.session.text.toPlainText()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(project))
    press_button(page, qtbot, "Start opencode")
    assert verdict.folder.currentText() == f"In folder {project}"
    assert verdict.title.text() == "Preparing a server for opencode ..."
    wait_for_title(page, qtbot, "Ready for opencode:")
    assert verdict.text.text().startswith("tool calls parsed, ")
    assert verdict.caption.text().startswith("Verdict · 3 requests in ")
    assert verdict.caption.text().endswith(" s · just now")
    assert results(page)[0] == "tool call parsed"
    reuse = [row.reused.text() for row in page.check.rows.values()][:3]
    assert reuse[0] == "–"  # noqa: RUF001
    assert all(float(text.removesuffix(" %")) > 90 for text in reuse[1:])
    qtbot.waitUntil(lambda: "Press Enter to close" in read_terminal(terminal_log))
    text = read_terminal(terminal_log)
    assert text.startswith(repr((["-e"], str(project), str(project))))
    assert "tool_calls" in text  # the agent's request was answered
    launch = window.controller.launch
    assert launch is not None
    assert launch.context >= 24_576
    assert launch.options.slots == 2
    qtbot.waitUntil(lambda: page.needs.count.text() == "6 of 6 met")
    qtbot.waitUntil(lambda: f'"http://{window.controller.inputs.address}/v1"' in page.session.text.toPlainText())

    qtbot.waitUntil(verdict.start_button.isEnabled)
    record = page.control.record
    click(verdict.start_button, qtbot)  # the server suits the agent and was checked, so it is used again
    qtbot.waitUntil(lambda: read_terminal(terminal_log).count("reply") == 2)
    assert window.controller.launch is launch
    assert page.control.record is record
    qtbot.waitUntil(page.check_button.isVisible)
    click(page.check_button, qtbot)
    qtbot.waitUntil(lambda: page.control.record is not record)

    window.controller.apply_settings({"draft": 1}, drain_s=0.0)
    qtbot.waitUntil(lambda: "the server settings have changed since" in verdict.caption.text())
    assert not page.check_button.isVisible()
    press_button(verdict, qtbot, "Check again")
    qtbot.waitUntil(lambda: verdict.caption.text().endswith("just now"))
    window.controller.stop()
    qtbot.waitUntil(lambda: "the server has stopped since" in verdict.caption.text())


def test_the_key_is_hidden_and_variables_can_be_copied(
    scripted_model: None, script: Script, window: Window, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    page = open_page(window, qtbot)
    press_button(page, qtbot, "Server only")
    qtbot.waitUntil(lambda: page.control.session is not None and page.control.session.start is None)
    assert not page.verdict.server_button.isEnabled()  # the server runs already
    keys: list[str] = []
    window.controller.read_api_key(keys.append)
    qtbot.waitUntil(lambda: len(keys) == 1)
    texts = {}
    for part in ("Summary", "Environment", "opencode.json"):
        press_button(page.session, qtbot, part)
        press_button(page.session, qtbot, "Copy")
        texts[part] = QGuiApplication.clipboard().text()
        assert page.session.copy_button.text() == "Copied"
    assert keys[0] not in str(texts)
    assert "export LLAMA_API_KEY='***'" in texts["Environment"]
    address = f"http://{window.controller.inputs.address}/v1"
    assert f'"baseURL": "{address}"' in texts["opencode.json"]
    assert f'= "{address}"' in texts["Summary"]
    click(page.copy_button, qtbot)
    page.copy_menu.setActiveAction(page.copy_menu.actions()[0])
    qtbot.keyClick(page.copy_menu, Qt.Key.Key_Return)
    assert QGuiApplication.clipboard().text() == "mtp-launcher code opencode"


def test_a_context_that_is_too_small_is_raised_by_one_button(
    scripted_model: None, script: Script, window: Window, demo_model: Path, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    window.controller.start(str(demo_model))
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    address = window.controller.inputs.address
    page = open_page(window, qtbot)
    window.controller.apply_settings({"ctx": 8_192}, drain_s=0.0)
    wait_for_title(page, qtbot, "Not ready for opencode.")
    verdict = page.verdict
    assert verdict.text.text() == "A request has 8,192 tokens of context; opencode needs at least 24,576."
    assert page.needs.context.text() == "8,192 tokens, too few"
    assert "runs 8K, needs 24K" in page.needs.meter.accessibleName()
    assert not verdict.start_button.isEnabled()
    assert verdict.fix_button.text().startswith("Raise the context to 24K")
    click(verdict.fix_button, qtbot)
    wait_for_title(page, qtbot, "Ready for opencode:")
    launch = window.controller.launch
    assert launch is not None
    assert launch.context >= 24_576
    assert launch.options.slots == 2
    assert window.controller.inputs.address == address
    assert verdict.start_button.isEnabled()
    assert verdict.start_button.hasFocus() or not window.isActiveWindow()


def test_faults_of_a_check_are_explained_beside_the_turns(
    script: Script, home: Path, demo_model: Path, window: Window, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    window.controller.start(str(demo_model))  # by the built-in engine: the demo calls no tools
    qtbot.waitUntil(lambda: window.controller.launch is not None)
    page = open_page(window, qtbot)
    if page.control.session is not None and page.control.session.problem is None:
        wait_for_title(page, qtbot, "Not checked yet")
        press_button(page.verdict, qtbot, "Check")
    else:
        click(page.verdict.fix_button, qtbot)
    wait_for_title(page, qtbot, "Not ready for opencode.")
    qtbot.waitUntil(lambda: not page.control.is_busy)
    assert "answered with text" in page.verdict.text.text()
    assert results(page) == ["no tool call", "answered", "answered"]
    assert page.verdict.start_button.isEnabled()  # the user may start the agent all the same
    assert "answers with text when it is to call a tool" in page.needs._rows["model"][1].text()
    press_button(page.verdict, qtbot, "Show plans for agents")
    assert window.page("start").goal.currentData() == "agents"


def test_a_prompt_that_is_read_again_is_fixed_by_another_slot(
    scripted_model: None, script: Script, window: Window, demo_model: Path, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    write_engine(script, "forgets")
    page = open_page(window, qtbot)
    press_button(page, qtbot, "Server only")
    qtbot.waitUntil(lambda: page.control.session is not None and page.control.session.start is None)
    window.controller.apply_settings({"slots": 1, "kv_unified": False}, drain_s=0.0)
    wait_for_title(page, qtbot, "Not checked yet")
    qtbot.waitUntil(lambda: page.needs._rows["prompt cache"][1].text() == "1 slot, but up to 2 requests at once")
    press_button(page.verdict, qtbot, "Check")
    wait_for_title(page, qtbot, "Not ready for opencode.")
    qtbot.waitUntil(lambda: not page.control.is_busy)
    assert results(page)[1:] == ["prompt read again", "prompt read again"]
    assert "--" not in page.verdict.text.text()  # flags are for the terminal
    record = page.control.record
    press_button(page.verdict, qtbot, "Use 2 slots")
    qtbot.waitUntil(lambda: page.control.record is not record)
    assert window.controller.launch is not None
    assert window.controller.launch.options.slots == 2
    qtbot.waitUntil(lambda: page.verdict.fix_button.text() == "Check again")  # more slots are no help here


def test_without_a_terminal_the_command_is_shown(
    scripted_model: None, script: Script, project: Path, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("opencode", OPENCODE)
    # A terminal that ends at once with an error, as without a display.
    script("x-terminal-emulator", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    script("sleep", "#!/bin/sh\n")
    page = open_page(window, qtbot)
    page.control.choose_folder(project)
    press_button(page, qtbot, "Start opencode")
    wait_for_title(page, qtbot, "No terminal could be opened.")
    click(page.verdict.copy_button, qtbot)
    assert QGuiApplication.clipboard().text() == "mtp-launcher code opencode"
    assert page.verdict.start_button.isEnabled()


def test_a_missing_agent_or_model_is_named_with_the_way_to_get_it(
    script: Script, terminal_log: Path, project: Path, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[0])
    window.resize(1_440, 900)
    page = open_page(window, qtbot)
    verdict = page.verdict
    assert verdict.title.text() == "opencode is not installed"
    assert "npm is missing" in verdict.text.text()
    assert not verdict.start_button.isEnabled()
    click(verdict.copy_button, qtbot)
    assert QGuiApplication.clipboard().text() == "npm install -g opencode-ai"
    choose_agent(page, qtbot, "Claude Code")
    assert "proprietary, so this program never downloads it" in verdict.text.text()
    click(verdict.copy_button, qtbot)
    assert QGuiApplication.clipboard().text() == "https://code.claude.com/docs/en/setup"
    qtbot.keyClick(page.list, Qt.Key.Key_Down)  # the keyboard chooses an agent, too
    qtbot.waitUntil(lambda: verdict.title.text() == "Cline is not installed")

    script("cline", "#!/bin/sh\necho 3.0.65\n")
    press_button(page, qtbot, "Look again")
    wait_for_title(page, qtbot, "There is no model on this machine yet.")
    index = page.list.model().index(0, 0)
    assert index.data() == "Cline"  # installed ones come first
    qtbot.waitUntil(lambda: index.data(Qt.ItemDataRole.AccessibleTextRole) == "Cline, 3.0.65 · needs 24K")
    assert not verdict.start_button.isEnabled()
    assert "mtp-launcher" not in verdict.text.text()
    press_button(page, qtbot, "Show plans for agents")
    assert window.page("start").goal.currentData() == "agents"
    assert read_terminal(terminal_log) == ""


def test_a_suitable_model_is_one_click_away(
    script: Script, window: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(agent: Agent, *_: object, **_names: object) -> None:
        raise context_error(agent, 8_192, "Start it instead.", suggested="demo")

    monkeypatch.setattr("launcher.app.agent_session.read_session", refuse)  # whatever fits on this computer
    script("opencode", OPENCODE)
    page = open_page(window, qtbot)
    assert "needs a context of at least 24,576 tokens, and there would be 8,192." in page.verdict.title.text()
    start = window.page("start")
    with qtbot.waitSignal(start.flow.planned):
        press_button(page, qtbot, "Show its plan")
    assert start.name_field.text() == "demo"


def test_a_small_window_has_a_combo_box_of_agents_and_stacked_cards(
    scripted_model: None, script: Script, window: Window, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    window.resize(1_440, 900)
    page = open_page(window, qtbot)
    assert page.list.isVisible()
    assert not page.verdict.agents.isVisible()
    assert page.session.x() > page.needs.x()
    window.resize(1_000, 640)
    qtbot.waitUntil(page.verdict.agents.isVisible)
    assert not page.list.isVisible()
    qtbot.waitUntil(lambda: page.session.y() >= page.needs.y() + page.needs.height())
    combo = page.verdict.agents
    combo.setFocus()
    before = page.control.agent
    qtbot.keyClick(combo, Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: page.control.agent is not before)


def test_a_start_can_be_cancelled_and_shows_what_it_waits_for(
    scripted_model: None, script: Script, window: Window, qtbot: QtBot
) -> None:
    script("opencode", OPENCODE)
    page = open_page(window, qtbot)
    press_button(page, qtbot, "Server only")
    qtbot.waitUntil(lambda: "tokens of context ..." in page.verdict.title.text())
    assert page.verdict.title.text().startswith("Loading ")
    press_button(page.verdict, qtbot, "Cancel")
    qtbot.waitUntil(lambda: window.controller.view.resting)
    wait_for_title(page, qtbot, "No model is loaded")
