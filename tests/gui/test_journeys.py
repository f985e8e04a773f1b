"""Tasks of a user in the window, from start to end, on the real engine."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QDragLeaveEvent
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from launcher.app.settings_declared import VALUE_FINISH
from launcher.base.errors import Superseded
from launcher.base.identity import ProcessId
from launcher.conversations.records import MessageEnding
from launcher.conversations.store import Conversations
from launcher.engine.demo import unpack_demo_model
from launcher.engine.server.endpoint import claim_endpoint
from launcher.engine.server.state import ServerState
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.gui.application import _handle_second_start
from launcher.gui.chat.reply import ReplyView
from launcher.gui.core_events import DrainAnswer
from launcher.gui.plots.marks import MarkKind
from launcher.gui.window import Window
from tests.gui.dragging import drag_files, drop_files
from tests.gui.plotted import is_drawing

pytestmark = pytest.mark.usefixtures("no_charts")
Wait = Callable[..., None]


def button(window: Window, text: str) -> QPushButton:
    """Return the one visible button of the page with a text."""
    buttons = window.page(window.page_name).findChildren(QPushButton)
    (found,) = [each for each in buttons if each.text() == text and each.isVisible()]
    return found


def texts(window: Window) -> str:
    shown = (label.text() for label in window.findChildren(QLabel) if label.isVisible())
    return "\n".join(shown).replace("\N{NO-BREAK SPACE}", " ")


def answers(window: Window) -> list[ReplyView]:
    return window.page("cockpit").chat.findChildren(ReplyView)


def engine_of(window: Window) -> ProcessId:
    session = window.controller.session
    assert session is not None
    assert session.supervisor.engine_pid is not None
    engine = ProcessId.from_pid(session.supervisor.engine_pid)
    assert engine is not None
    return engine


def ask(window: Window, qtbot: QtBot, text: str) -> None:
    qtbot.waitUntil(lambda: window.controller.view.can_ask)
    window.page("cockpit").chat.prompt.setPlainText(text)
    qtbot.keyClick(window.page("cockpit").chat.prompt, Qt.Key.Key_Return)


def make_replies_endless(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make replies go on until they are stopped."""
    from launcher.engine.server import client

    body = client.ChatRequest.body
    monkeypatch.setattr(client.ChatRequest, "body", lambda self: body(self) | {"ignore_eos": True})


def test_the_first_window_offers_the_demo_and_says_what_only_a_gpu_shows(window: Window) -> None:
    assert window.chip.accessibleName() == "Server: Stopped, No model yet"
    assert "not a speed-up" in texts(window)
    assert button(window, "Start the demo").isEnabled()
    assert not window.page("cockpit").chat.isVisible(), "there is nothing to chat with"


def test_one_click_starts_the_demo_and_a_question_is_answered(window: Window, wait_for: Wait, qtbot: QtBot) -> None:
    states: list[str] = []
    window.controller.view_changed.connect(lambda view: states.append(view.state_text))
    qtbot.mouseClick(button(window, "Start the demo"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert states[0] == "Preparing"
    assert {"Warming up", "Ready"} <= set(states)
    with qtbot.waitSignal(window.controller.replied):
        ask(window, qtbot, "What is acceptance?")
    (answer,) = answers(window)
    assert len(answer.text) > 50
    assert "of drafts accepted" in texts(window)
    assert "not a speed-up" in texts(window)
    assert window.page("cockpit").chat.messages[-1] == {"role": "assistant", "content": answer.text}


def test_plots_and_figures_follow_a_reply(demo: Window, qtbot: QtBot, charts: None) -> None:
    demo.page("cockpit").panes.choose_layout("watch")
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")
    plots = demo.page("cockpit").plots
    qtbot.waitUntil(lambda: plots.samples is not None)
    qtbot.waitUntil(lambda: plots.samples.last_known("tokens_per_second") is not None)
    assert plots.samples.last_known("host_memory_used_mib") is not None
    qtbot.waitUntil(lambda: plots.drawings > 1 and "t/s" in texts(demo))


@pytest.fixture
def long_context(home: Path) -> None:
    """A context so long that no reply of the demo fills it during a test, even on a busy machine."""
    save_model_settings(unpack_demo_model(), {"ctx": 131_072})


def test_the_effect_on_a_running_reply_is_shown_before_a_restart_and_the_reply_is_continued(
    long_context: None, demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, charts: None
) -> None:
    make_replies_endless(demo, monkeypatch)
    page = demo.page("cockpit")
    page.panes.show_pane("sliders", shown=True)
    qtbot.waitUntil(lambda: page.state.previewer is not None)
    page.controls.restart.fields["draft"].slider.setValue(3)
    qtbot.waitUntil(lambda: "No reply is running, so clients will not notice." in texts(demo))
    ask(demo, qtbot, "Go on for ever.")
    qtbot.waitUntil(lambda: bool(answers(demo)) and len(answers(demo)[0].text) > 200)
    qtbot.waitUntil(lambda: "1 running reply goes on, with a pause" in texts(demo))
    before = answers(demo)[0].text
    with qtbot.waitSignal(demo.controller.applied) as response:
        qtbot.mouseClick(button(demo, "Apply"), Qt.MouseButton.LeftButton)
    assert response.args == [None]
    at_restart = len(answers(demo)[0].text)
    qtbot.waitUntil(lambda: len(answers(demo)[0].text) > at_restart + 200)
    assert answers(demo)[0].text.startswith(before)
    assert demo.controller.view.replying
    qtbot.waitUntil(lambda: "draft 3" in demo.controller.view.settings)
    marks = page.plots.marks
    qtbot.waitUntil(lambda: any(mark.kind is MarkKind.HANDOVER for mark in marks.between(0, time.monotonic())))
    assert not [mark for mark in marks.between(0, time.monotonic()) if mark.kind is MarkKind.RESTART]
    with qtbot.waitSignal(demo.controller.replied):
        demo.controller.stop_reply()
    assert "Stopped by you." in texts(demo)


@pytest.fixture
def window_with_seeded_reply(long_context: None, demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> Window:
    """A window with a running reply that cannot go on after a restart, and a changed draft length to apply."""
    make_replies_endless(demo, monkeypatch)
    page = demo.page("cockpit")
    page.panes.show_pane("sliders", shown=True)
    qtbot.waitUntil(lambda: page.state.previewer is not None)
    page.controls.restart.fields["draft"].slider.setValue(3)
    # A new engine would continue with other random numbers than the seed determines.
    demo.controller.set_sampling_value("seed", 1)
    ask(demo, qtbot, "Go on for ever.")
    qtbot.waitUntil(lambda: "1 running reply cannot go on: the restart waits for it" in texts(demo))
    assert "A reply with a seed and a temperature would go on with other random numbers." in texts(demo)
    choice = page.controls.changes.drain_choice
    assert choice.isVisible()
    choice.setCurrentIndex(choice.findData(VALUE_FINISH))
    return demo


def test_a_restart_waits_for_a_reply_that_cannot_be_continued(
    window_with_seeded_reply: Window, qtbot: QtBot, charts: None
) -> None:
    with qtbot.waitSignal(window_with_seeded_reply.controller.applied):
        qtbot.mouseClick(button(window_with_seeded_reply, "Apply"), Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: "Waiting for running replies" in texts(window_with_seeded_reply))
        window_with_seeded_reply.controller.stop_reply()  # ends the reply, and with it the wait
    qtbot.waitUntil(lambda: "draft 3" in window_with_seeded_reply.controller.view.settings)
    marks = window_with_seeded_reply.page("cockpit").plots.marks.between(0, time.monotonic())
    assert [mark.text for mark in marks if mark.kind is MarkKind.READY][-1].startswith("Ready: 128K context · draft 3")


def test_a_long_wait_before_a_restart_asks_the_user(
    window_with_seeded_reply: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.gui.service._ASK_AFTER_S", 0.1)
    page, controller = window_with_seeded_reply.page("cockpit"), window_with_seeded_reply.controller
    apply, banner, launch = page.controls.changes.apply_button, window_with_seeded_reply.drain_banner, controller.launch
    qtbot.mouseClick(apply, Qt.MouseButton.LeftButton)
    window_with_seeded_reply.show_page("models")  # the banner is on every page
    with qtbot.waitSignal(controller.notification_requested) as notified:
        qtbot.waitUntil(banner.isVisible)
    text = "The restart waits for 1 reply that cannot go on after it."
    assert notified.args == [controller.view.model_name, text]
    assert text in texts(window_with_seeded_reply)
    by_text = {each.text(): each for each in banner.buttons}
    with qtbot.waitSignal(controller.applied) as response:
        qtbot.mouseClick(by_text["Cancel the change"], Qt.MouseButton.LeftButton)
    assert response.args == [None]
    qtbot.waitUntil(apply.isEnabled)
    qtbot.waitUntil(lambda: not banner.isVisible())
    window_with_seeded_reply.show_page("cockpit")
    assert controller.launch is launch
    assert controller.view.replying  # the reply goes on
    assert page.state.requested["draft"] == 3  # the chosen value stays
    qtbot.mouseClick(apply, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(banner.isVisible)
    qtbot.mouseClick(banner.close_button, Qt.MouseButton.LeftButton)
    assert not banner.isVisible()
    assert not apply.isEnabled()  # the restart still waits
    controller.answer_drain(DrainAnswer.CANCEL)
    qtbot.waitUntil(apply.isEnabled)
    qtbot.mouseClick(apply, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(banner.isVisible)
    by_text = {each.text(): each for each in banner.buttons}
    with qtbot.waitSignal(controller.applied):
        qtbot.mouseClick(by_text["Cut off"], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "draft 3" in controller.view.settings)
    assert not controller.view.replying
    assert not banner.isVisible()


def test_a_stop_ends_the_wait_for_a_reply(window_with_seeded_reply: Window, wait_for: Wait, qtbot: QtBot) -> None:
    with qtbot.waitSignal(window_with_seeded_reply.controller.applied) as reply:
        qtbot.mouseClick(button(window_with_seeded_reply, "Apply"), Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: "Waiting for running replies" in texts(window_with_seeded_reply))
        window_with_seeded_reply.controller.stop()
    assert isinstance(reply.args[0], Superseded)
    wait_for(ServerState.STOPPED)


def test_a_reply_can_be_stopped_with_escape_and_another_one_requested(
    demo: Window, wait_for: Wait, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(demo, monkeypatch)
    ask(demo, qtbot, "Go on for ever.")
    qtbot.waitUntil(lambda: bool(answers(demo)) and len(answers(demo)[0].text) > 200)
    assert button(demo, "Stop reply").isEnabled()
    with qtbot.waitSignal(demo.controller.replied):
        qtbot.keyClick(demo.page("cockpit").chat.prompt, Qt.Key.Key_Escape)
    assert "Stopped by you." in texts(demo)
    monkeypatch.undo()
    wait_for(ServerState.READY)
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")
    assert len(answers(demo)) == 2


def test_a_changed_address_is_reported(window: Window, wait_for: Wait) -> None:
    usual = claim_endpoint(None).port
    with socket.create_server(("127.0.0.1", usual)):
        window.start_demo()
        wait_for(ServerState.READY)
    assert window.notice.isVisible()
    assert f"Port {usual} is in use by another program" in window.notice.text.text()
    assert window.controller.inputs.address in window.notice.text.text()


def test_stopping_and_starting_again_keeps_the_address(demo: Window, wait_for: Wait, qtbot: QtBot) -> None:
    address, engine = demo.controller.view.address, engine_of(demo)
    qtbot.mouseClick(button(demo, "Stop"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.STOPPED)
    assert not engine.is_running()
    assert demo.controller.view.address == ""
    qtbot.mouseClick(button(demo, "Start"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert demo.controller.view.address == address


def test_settings_changed_on_the_command_line_are_shown(demo: Window, wait_for: Wait, qtbot: QtBot) -> None:
    command = [sys.executable, "-m", "launcher", "restart", "--set", "draft=0", "--json"]
    with (
        qtbot.waitSignal(demo.controller.launched),
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as restarting,
    ):
        qtbot.waitUntil(lambda: restarting.poll() is not None)
    assert restarting.returncode == 0
    qtbot.waitUntil(lambda: "MTP off" in texts(demo))
    assert demo.controller.view.can_ask


def test_a_killed_engine_is_reported_and_restarted(demo: Window, qtbot: QtBot) -> None:
    killed = engine_of(demo)
    shown: dict[str, str] = {}  # by state: a state may have passed before the next look at the window
    demo.controller.view_changed.connect(lambda view: shown.update({view.state_text: texts(demo)}))
    os.kill(killed.pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: "Restarting" in shown and demo.controller.view.state_text == "Ready")
    assert "killed by the system or another program" in shown["Restarting"]
    assert engine_of(demo) != killed
    assert "killed" not in texts(demo.page("cockpit")), "the problem is over"
    assert "killed by the system or another program" in demo.notice.text.text()
    assert "loaded again at" in demo.notice.text.text()
    demo.notice.buttons[0].click()
    assert demo.page_name == "logs"


def test_a_reply_is_continued_when_its_engine_was_killed(
    long_context: None, demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(demo, monkeypatch)
    shown: set[str] = set()
    demo.controller.view_changed.connect(lambda view: shown.add(view.state_text))
    ask(demo, qtbot, "Go on for ever.")
    qtbot.waitUntil(lambda: bool(answers(demo)) and len(answers(demo)[0].text) > 50)
    os.kill(engine_of(demo).pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: "Restarting" in shown)
    before = answers(demo)[0].text
    qtbot.waitUntil(lambda: len(answers(demo)[0].text) > len(before) + 200)
    assert answers(demo)[0].text.startswith(before)
    assert demo.controller.view.replying


def test_closing_during_a_reply_leaves_no_process(demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    make_replies_endless(demo, monkeypatch)
    ask(demo, qtbot, "Go on for ever.")
    qtbot.waitUntil(lambda: bool(answers(demo)) and len(answers(demo)[0].text) > 50)
    engine, process = engine_of(demo), demo.controller.session.process
    ours = [psutil.Process(engine.pid)]
    while ours[-1].pid != process.pid:  # the server process
        ours.append(ours[-1].parent())
    with qtbot.waitSignal(demo.controller.closed):
        demo.close()  # the first time it asks whether to close
        demo.close()
    assert not any(process.is_running() for process in ours)


def test_a_file_that_cannot_be_served_is_explained_and_the_last_server_stays(
    window: Window, wait_for: Wait, qtbot: QtBot, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("<html>")
    window.open_file(broken)
    wait_for(ServerState.FAILED)
    assert "broken.gguf is not a GGUF file" in texts(window)
    qtbot.mouseClick(button(window, "Start the demo"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert "broken.gguf" not in texts(window)


@pytest.mark.parametrize("what", ["missing", "junk", "empty", "cut"])
def test_an_invalid_file_of_a_second_start_is_reported_until_dismissed(
    window: Window, wait_for: Wait, qtbot: QtBot, tmp_path: Path, demo_model: Path, what: str
) -> None:
    file = tmp_path / f"{what}.gguf"
    whole = demo_model.read_bytes()
    if what != "missing":
        file.write_bytes({"junk": b"junk" * 1_000, "empty": b"", "cut": whole[: len(whole) // 2]}[what])
    _handle_second_start(window, file, demo=False)
    wait_for(ServerState.FAILED)
    problem = window.page("cockpit").notices.problem_banner
    assert problem.isVisible()
    assert file.name in problem.text.text()
    assert [each.text() for each in problem.buttons] == ["Show the models of the catalogue"]
    qtbot.mouseClick(button(window, "Dismiss"), Qt.MouseButton.LeftButton)
    assert not problem.isVisible()
    window.controller.show_page("start")
    window.controller.show_page("cockpit")
    window.rail.chip.show_view(window.controller.view)
    assert not problem.isVisible()
    window.open_file(file)
    qtbot.waitUntil(problem.isVisible)


def test_a_file_without_a_head_is_served_with_mtp_off_and_a_note(
    window: Window, wait_for: Wait, qtbot: QtBot, headless_model: Path
) -> None:
    window.open_file(headless_model)
    wait_for(ServerState.READY)
    assert "MTP off" in texts(window)
    assert window.notice.isVisible()
    assert window.notice.text.text() == "headless.gguf has no MTP head, so MTP is off."
    assert load_model_settings(headless_model) == {}
    with qtbot.waitSignal(window.controller.replied):
        ask(window, qtbot, "What is a draft?")
    assert "of drafts accepted" not in texts(window)


def test_an_embedding_model_is_served_and_the_chat_explains_that_it_writes_no_text(
    window: Window, wait_for: Wait, qtbot: QtBot, embedding_model: Path, demo_model: Path
) -> None:
    window.open_file(embedding_model)
    wait_for(ServerState.READY)
    chat = window.page("cockpit").chat
    qtbot.waitUntil(lambda: "generates no text" in chat.prompt.placeholderText())
    assert "turns texts into vectors" in texts(window)
    qtbot.keyClicks(chat.prompt, "What is a draft?")
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)
    assert chat.messages == []
    assert not chat.send_button.isEnabled()
    window.open_file(demo_model)
    qtbot.waitUntil(lambda: window.controller.view.can_ask)
    chat.prompt.clear()
    with qtbot.waitSignal(window.controller.replied):
        ask(window, qtbot, "What is a draft?")


def test_drafts_of_a_file_without_a_head_are_refused_and_one_click_turns_mtp_off(
    window: Window, wait_for: Wait, qtbot: QtBot, headless_model: Path
) -> None:
    window.controller.start(str(headless_model), draft=3)
    wait_for(ServerState.FAILED)
    assert "has no MTP head" in texts(window)
    qtbot.mouseClick(button(window, "Start without MTP"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert "MTP off" in texts(window)
    assert not window.notice.isVisible()


def test_a_dropped_file_is_planned_and_started_by_its_button(
    window: Window, wait_for: Wait, qtbot: QtBot, demo_model: Path
) -> None:
    assert not drag_files(window, demo_model.parent / "notes.txt")
    assert not window.drop.isVisible()
    assert drag_files(window, demo_model)
    assert window.drop.isVisible()
    assert demo_model.name in window.drop.accessibleName()
    assert window.drop.rect() == window.rect()
    QApplication.sendEvent(window, QDragLeaveEvent())
    assert not window.drop.isVisible()
    assert drop_files(window, demo_model)
    assert not window.drop.isVisible()
    assert window.page_name == "start"
    page = window.page("start")
    qtbot.waitUntil(lambda: page.plan is not None and page.plan.entry.id == str(demo_model))
    qtbot.waitUntil(lambda: page.card.primary.text() == "Start" and page.card.primary.isEnabled())
    qtbot.mouseClick(page.card.primary, Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert window.controller.view.model_name == "MTP demo"
    assert window.controller.launch.context == 32_768  # the longest that is offered on a processor
    assert load_model_settings(demo_model) == {}


def test_a_new_chat_does_not_contain_the_old_one(demo: Window, qtbot: QtBot) -> None:
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")
    qtbot.mouseClick(button(demo, "New"), Qt.MouseButton.LeftButton)
    assert demo.page("cockpit").chat.messages == []
    qtbot.waitUntil(lambda: not answers(demo))


def test_opening_the_running_model_changes_nothing(demo: Window, wait_for: Wait, qtbot: QtBot) -> None:
    engine = engine_of(demo)
    with qtbot.waitSignal(demo.controller.launched):
        demo.start_demo()
    wait_for(ServerState.READY)
    assert engine_of(demo) == engine
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")


def test_a_file_that_cannot_be_served_does_not_stop_the_running_model(
    demo: Window, qtbot: QtBot, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("<html>")
    demo.open_file(broken)
    qtbot.waitUntil(lambda: "broken.gguf is not a GGUF file" in texts(demo))
    assert demo.controller.view.state_text == "Ready"
    assert button(demo, "Stop").isEnabled()
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")
    assert "of drafts accepted" in texts(demo)


def test_quick_starts_end_with_one_server(window: Window, wait_for: Wait, qtbot: QtBot, demo_model: Path) -> None:
    window.start_demo()
    window.open_file(demo_model)
    window.start_demo()
    wait_for(ServerState.READY)
    with qtbot.waitSignal(window.controller.replied):
        ask(window, qtbot, "What is a draft?")
    assert button(window, "Stop").isEnabled()


def test_start_without_mtp_is_remembered(window: Window, wait_for: Wait, qtbot: QtBot, headless_model: Path) -> None:
    window.controller.start(str(headless_model), draft=0)
    wait_for(ServerState.READY)
    qtbot.mouseClick(button(window, "Stop"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.STOPPED)
    qtbot.mouseClick(button(window, "Start"), Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert "MTP off" in texts(window)


def test_an_unanswered_question_is_not_sent_again(demo: Window, qtbot: QtBot) -> None:
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "word " * 20_000)
    assert "Shorten the prompt" in texts(demo)
    assert demo.page("cockpit").chat.messages == []
    with qtbot.waitSignal(demo.controller.replied):
        ask(demo, qtbot, "What is a draft?")
    assert "of drafts accepted" in texts(demo)


def test_a_question_is_kept_when_the_window_closes_before_its_reply(
    demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(demo, monkeypatch)
    ask(demo, qtbot, "What is a draft?")
    with qtbot.waitSignal(demo.shut_down):
        demo.quit()
    with Conversations() as kept:
        (only,) = kept.list_all()
        question, reply = kept.read_conversation(only.id).messages
    assert question.text == "What is a draft?"
    assert reply.ending is MessageEnding.STOPPED
    assert reply.footer


def test_focus_is_visible_on_every_button(demo: Window, qtbot: QtBot) -> None:
    demo.activateWindow()
    qtbot.waitUntil(demo.isActiveWindow)
    for each in demo.findChildren(QPushButton):
        if each.isVisible() and each.isEnabled():
            demo.setFocus()
            before = each.grab().toImage()
            each.setFocus()
            assert each.grab().toImage() != before, each.text()


def test_enter_presses_the_focused_button(window: Window, wait_for: Wait, qtbot: QtBot) -> None:
    start = button(window, "Start the demo")
    start.setFocus()
    qtbot.keyClick(start, Qt.Key.Key_Return)
    wait_for(ServerState.READY)


def test_a_minimised_window_draws_nothing_and_catches_up_when_restored(
    demo: Window, qtbot: QtBot, charts: None
) -> None:
    demo.page("cockpit").panes.choose_layout("watch")
    plots = demo.page("cockpit").plots
    qtbot.waitUntil(lambda: plots.drawings > 1)
    session = demo.controller._service.session
    assert session is not None
    assert session.monitor._visible
    demo.showMinimized()
    qtbot.waitUntil(demo.isMinimized)
    qtbot.waitUntil(lambda: not session.monitor._visible)
    drawn = plots.drawings
    with qtbot.waitSignal(demo.controller.replied):
        demo.controller.request_reply([{"role": "user", "content": "What is a draft?"}])
    with qtbot.waitSignal(demo.controller.sampled):
        pass
    assert not is_drawing(plots)
    assert plots.drawings == drawn
    with qtbot.waitSignal(demo.page_shown):
        demo.showNormal()
    qtbot.waitUntil(lambda: session.monitor._visible)
    qtbot.waitUntil(lambda: plots.drawings > drawn)
