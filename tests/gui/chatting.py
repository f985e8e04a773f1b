"""Helpers of the chat's tests: questions and replies without an engine, and their stored messages."""

from collections.abc import Callable
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from launcher.conversations.store import Conversations
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.reply import ReplyView
from launcher.gui.controller import Controller
from launcher.gui.window import Window


def add_exchange(pane: ChatPane, question: str, reply: str, thinking: str = "") -> ReplyView:
    pane.send_question(question)
    pane.append_text(reply, thinking)
    pane.finish_reply("9 t/s", object())  # type: ignore[arg-type] -- a reply that came to its end
    return pane.column.replies[-1]


def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures of replies made by `add_exchange`, which have none."""
    from launcher.gui.chat import chat_store as kept
    from launcher.gui.chat import conversation as talk

    original = kept.reply_figures
    monkeypatch.setattr(talk, "reply_figures", lambda reply: original(reply) if hasattr(reply, "timings") else {})


def controller_of(chat: ChatPane) -> Controller:
    """Return the controller of the chat's window."""
    window = chat.window()
    assert isinstance(window, Window)
    return window.controller


def can_send(chat: ChatPane) -> bool:
    """Return whether the chat takes a question: no reply comes, nothing is compared, a model is there."""
    return chat.send_button.isEnabled() and chat.send_button.text() == "Send"


def in_file(pane: ChatPane, qtbot: QtBot, work: Callable[[Conversations], Any]) -> Any:  # noqa: ANN401
    received: list[Any] = []
    pane.store.enqueue(work, received.append)
    qtbot.waitUntil(lambda: bool(received))
    return received[0]
