"""Questions without a reply: stored, asked again and changed."""

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from launcher.conversations.records import MessageEnding
from launcher.gui.chat.pane import ChatPane
from launcher.gui.labels import Label
from tests.gui.chatting import add_exchange, in_file, no_figures

figures = pytest.fixture(autouse=True)(no_figures)


@pytest.mark.parametrize("before", [[], ["What is MTP?"]])
def test_an_unanswered_question_is_kept_with_its_ending(pane: ChatPane, qtbot: QtBot, before: list[str]) -> None:
    for each in before:
        add_exchange(pane, each, "A head.")
    pane.send_question("Lost?")
    pane.finish_reply("Stopped by you.")
    opened = in_file(pane, qtbot, lambda kept: kept.read_conversation(kept.list_all()[0].id))
    assert opened.messages[-2].text == "Lost?"
    assert (opened.messages[-1].ending, opened.messages[-1].footer) == (MessageEnding.STOPPED, "Stopped by you.")
    pane.start_conversation()
    pane.open_conversation(opened.id)
    qtbot.waitUntil(lambda: len(pane.column.turns) == len(before) + 1)
    texts = [each.text() for each in pane.column.replies[-1].findChildren(Label)]
    assert "Stopped by you." in texts
    assert len(pane.messages) == 2 * len(before)
    add_exchange(pane, "Another?", "Yes.")
    assert [each["role"] for each in pane.conversation.build_request()] == ["user", "assistant"] * (len(before) + 1)
    lost, another = pane.column.replies[-2:]
    assert another.regenerate_button.isVisibleTo(another)
    assert not lost.regenerate_button.isVisibleTo(lost)
    assert in_file(pane, qtbot, lambda kept: len(kept.list_all())) == 1


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("before", [[], ["What is MTP?"]])
def test_an_unanswered_question_can_be_asked_again_and_edited(
    pane: ChatPane, qtbot: QtBot, before: list[str], reopened: bool
) -> None:
    for each in before:
        add_exchange(pane, each, "A head.")
    pane.send_question("Lost?")
    pane.finish_reply("The server ended.")
    if reopened:
        conversation = pane.conversation.id or ""
        pane.start_conversation()
        pane.open_conversation(conversation)
        qtbot.waitUntil(lambda: len(pane.column.turns) == len(before) + 1)
    lost = pane.column.replies[-1]
    assert lost.regenerate_button.isVisibleTo(lost)
    assert lost.edit_button.isVisibleTo(lost)
    lost.regenerate_button.click()
    assert [each["content"] for each in pane.conversation.build_request()][-1] == "Lost?"
    pane.append_text("Found.", "")
    pane.finish_reply("", object())  # type: ignore[arg-type]
    assert [each["content"] for each in pane.messages][-2:] == ["Lost?", "Found."]
    assert len(pane.conversation.find_versions(len(pane.messages) - 1)[1]) == 1
    opened = in_file(pane, qtbot, lambda kept: kept.read_conversation(pane.conversation.id or ""))
    assert [each.text for each in opened.messages][-2:] == ["Lost?", "Found."]
    assert len(opened.messages[-1].versions) == 1
    pane.send_question("Lost too?")
    pane.finish_reply("Stopped by you.")
    assert len(pane.column.turns) == len(before) + 2
    pane.column.replies[-1].edit_button.click()
    assert pane.prompt.toPlainText() == "Lost too?"
    pane.prompt.setPlainText("Changed?")
    qtbot.keyClick(pane.prompt, Qt.Key.Key_Return)
    pane.append_text("Yes.", "")
    pane.finish_reply("", object())  # type: ignore[arg-type]
    assert [turn.question.text for turn in pane.column.turns][-2:] == ["Lost?", "Changed?"]
    opened = in_file(pane, qtbot, lambda kept: kept.read_conversation(pane.conversation.id or ""))
    assert [each.text for each in opened.messages][-2:] == ["Changed?", "Yes."]
    assert len(opened.messages[-2].versions) == 2


def test_a_question_without_a_reply_is_seen_and_not_asked_again_with_the_next(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "What is MTP?", "A head.")
    opened = in_file(pane, qtbot, lambda kept: kept.read_conversation(pane.conversation.id or ""))
    in_file(pane, qtbot, lambda kept: kept.add_question(opened.id, opened.messages[-1].id, "Lost?"))
    pane.start_conversation()
    pane.open_conversation(opened.id)
    qtbot.waitUntil(lambda: len(pane.column.turns) == 2)
    assert [each["content"] for each in pane.conversation.build_request()] == ["What is MTP?", "A head."]
    add_exchange(pane, "Another?", "Yes.")
    assert [each["role"] for each in pane.conversation.build_request()] == ["user", "assistant"] * 2
