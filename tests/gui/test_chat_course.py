"""Events during a reply in the chat: its conversation is deleted, its server stopped."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.reply import ReplyView
from launcher.gui.window import Window
from tests.gui.chatting import can_send, in_file
from tests.gui.test_journeys import make_replies_endless

pytestmark = pytest.mark.usefixtures("no_charts")

Wait = Callable[..., None]


def send(chat: ChatPane, qtbot: QtBot, text: str) -> None:
    chat.prompt.setPlainText(text)
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)


def delete_first(chat: ChatPane, qtbot: QtBot) -> None:
    chat.focus_search()
    qtbot.waitUntil(lambda: chat.conversation_list.list.count() > 0)
    chat.conversation_list.list.setCurrentRow(0)
    chat.conversation_list.delete_selected()


def compare_endlessly(window: Window, chat: ChatPane, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with draft 0; B replies until it is stopped."""
    applied = window.controller.applied
    applied.connect(lambda _error: make_replies_endless(window, monkeypatch))  # B is asked at once after this
    with qtbot.waitSignal(applied):
        chat.compare_button.setChecked(True)
        chat.compare_bar.fields["draft"].setText("0")
        send(chat, qtbot, "What is a draft?")
    with qtbot.waitSignal(window.controller.deltas):
        pass


def test_a_conversation_that_is_deleted_while_a_reply_comes_ends_the_reply(
    window: Window, chat: ChatPane, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(window, monkeypatch)
    with qtbot.waitSignal(window.controller.deltas):
        send(chat, qtbot, "What is a draft?")
    qtbot.waitUntil(lambda: len(chat.findChildren(ReplyView)[-1].text) > 50)
    delete_first(chat, qtbot)
    qtbot.waitUntil(lambda: can_send(chat))
    assert chat.messages == []
    assert chat.column.turns == []
    chat.conversation_list._undo_deletion()
    (kept,) = in_file(chat, qtbot, lambda kept: kept.list_all())
    messages = in_file(chat, qtbot, lambda conversations: conversations.read_conversation(kept.id)).messages
    assert messages[1].text
    assert messages[1].ending.value == "stopped"
    send(chat, qtbot, "What is MTP?")
    qtbot.waitUntil(lambda: chat.send_button.text() == "Stop reply" and bool(chat.column.replies[0].text))
    chat.send_button.click()
    qtbot.waitUntil(lambda: len(chat.messages) == 2)


@pytest.mark.cases(1)
@pytest.mark.parametrize("reply_ends", [False, True])
def test_a_server_that_is_stopped_while_b_replies_stays_stopped(
    window: Window, chat: ChatPane, qtbot: QtBot, wait_for: Wait, monkeypatch: pytest.MonkeyPatch, *, reply_ends: bool
) -> None:
    controller = window.controller
    states: list[ServerState] = []
    compare_endlessly(window, chat, qtbot, monkeypatch)
    controller.view_changed.connect(lambda _view: states.append(controller.inputs.status.state))
    controller.stop()
    if reply_ends:  # the reply ends before the server begins to stop
        chat.finish_reply("", None)
    assert not any("Restoring" in label.text() for label in chat.findChildren(QLabel))
    qtbot.waitUntil(chat.compare_button.isEnabled)
    wait_for(ServerState.STOPPED)
    assert {ServerState.RESTARTING, ServerState.PREPARING, ServerState.LOADING}.isdisjoint(states)


@pytest.mark.thorough
def test_a_comparison_whose_conversation_is_deleted_leaves_the_server_as_it_was(
    window: Window, chat: ChatPane, qtbot: QtBot, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = window.controller
    compare_endlessly(window, chat, qtbot, monkeypatch)
    with qtbot.waitSignal(controller.applied):
        delete_first(chat, qtbot)
    qtbot.waitUntil(lambda: can_send(chat))
    assert controller.launch is not None
    assert controller.launch.options.draft == 2
    assert chat.messages == []


def test_opening_another_conversation_during_a_reply_is_refused_with_a_message(
    window: Window, chat: ChatPane, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(window, monkeypatch)
    with qtbot.waitSignal(window.controller.deltas):
        send(chat, qtbot, "What is a draft?")
    chat.focus_search()
    qtbot.waitUntil(lambda: chat.conversation_list.list.count() == 1)
    chat.conversation_list.list.setCurrentRow(0)
    qtbot.keyClick(chat.conversation_list.list, Qt.Key.Key_Return)
    assert "reply" in chat.banner.text.text()
    chat.send_button.click()
    qtbot.waitUntil(lambda: can_send(chat))
    qtbot.keyClick(chat.conversation_list.list, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not chat.chats_button.isChecked())
    assert not chat.banner.isVisible()


def test_a_model_that_is_dropped_on_the_prompt_is_left_to_the_window(chat: ChatPane, tmp_path: Path) -> None:
    def takes_file(name: str) -> bool:
        data = QMimeData()
        data.setUrls([QUrl.fromLocalFile(str(tmp_path / name))])
        return chat.prompt.canInsertFromMimeData(data)

    assert not takes_file("model.gguf")
    assert takes_file("notes.txt")
