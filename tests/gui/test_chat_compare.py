"""One question to two settings: A with those of the server, B with those of the bar."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState
from launcher.gui.chat.compare import ReplyPair, compare_rates
from launcher.gui.chat.pane import ChatPane
from launcher.gui.labels import Label
from launcher.gui.window import Window
from tests.gui.chatting import can_send, in_file

pytestmark = pytest.mark.usefixtures("no_charts")


def compare_replies(chat: ChatPane, qtbot: QtBot, **values: str) -> ReplyPair:
    chat.compare_button.setChecked(True)
    for name, value in values.items():
        chat.compare_bar.fields[name].setText(value)
    chat.prompt.setPlainText("What is a draft?")
    qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: can_send(chat))
    return chat.findChildren(ReplyPair)[-1]


def test_two_samplings_are_compared_without_a_restart(window: Window, chat: ChatPane, qtbot: QtBot) -> None:
    launch = window.controller.launch
    pair = compare_replies(chat, qtbot, max_tokens="5")
    a, b = (answer.text for answer in pair.replies)
    assert len(b) < len(a)
    rates = [answer._rate.text() for answer in pair.replies]
    assert all(rate.endswith(" t/s") for rate in rates)
    assert pair.result.isVisible()
    assert all(rate in pair.result.text() for rate in rates), "both figures, and which was faster"
    assert any(each.text().startswith("From one reply each.") for each in pair.findChildren(Label) if each.isVisible())
    assert window.controller.launch is launch
    assert [each["content"] for each in chat.messages] == ["What is a draft?", a]
    pair.buttons[1].click()
    assert chat.messages[-1]["content"] == b
    kept = in_file(chat, qtbot, lambda kept: kept.read_conversation(chat.conversation.id or ""))
    assert kept.messages[1].text == b
    assert kept.messages[1].settings["compared"] == {"max_tokens": 5}


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (80.0, 100.0, "B was 25 % faster: 100.0 t/s, A 80.0 t/s."),
        (150.0, 100.0, "A was 50 % faster: 150.0 t/s, B 100.0 t/s."),
        (2_282.8, 174.4, "A was 13.1 times as fast: 2,282.8 t/s, B 174.4 t/s."),
        (50.0, 100.0, "B was 2.0 times as fast: 100.0 t/s, A 50.0 t/s."),
        (100.0, 101.0, "Both were about as fast: A 100.0 t/s, B 101.0 t/s."),
        (None, 100.0, ""),
        (0.0, 100.0, ""),
    ],
)
def test_the_faster_reply_is_named_with_both_rates(a: float | None, b: float, sentence: str) -> None:
    assert compare_rates(a, b) == sentence


@pytest.mark.thorough
def test_a_setting_that_needs_a_restart_is_compared_and_taken_back(
    window: Window, chat: ChatPane, qtbot: QtBot, wait_for: Callable[..., None]
) -> None:
    pair = compare_replies(chat, qtbot, draft="0")
    assert all(answer.text for answer in pair.replies)
    assert "drafts" in pair.replies[0]._footer.text()
    assert "drafts" not in pair.replies[1]._footer.text()
    wait_for(ServerState.READY)
    launch = window.controller.launch
    assert launch is not None
    assert launch.options.draft == 2


def test_an_unanswered_comparison_can_be_asked_again(pane: ChatPane, qtbot: QtBot) -> None:
    pane.compare_button.setChecked(True)
    pane.compare_bar.fields["temperature"].setText("0.2")
    pane.send_question("Lost?")
    pane.finish_reply("The server ended.")
    (answer,) = pane.column.replies
    assert "The server ended." in [each.text() for each in answer.findChildren(Label)]
    pane.enable_actions(can_ask=True, replying=False, hint="")
    assert answer.regenerate_button.isVisibleTo(answer)
    pane.compare_button.setChecked(False)
    answer.regenerate_button.click()
    pane.append_text("Found.", "")
    pane.finish_reply("")
    assert [each["content"] for each in pane.messages] == ["Lost?", "Found."]


@pytest.mark.thorough
def test_after_a_comparison_with_impossible_settings_of_b_the_server_has_those_of_a_again(
    window: Window, chat: ChatPane, qtbot: QtBot, wait_for: Callable[..., None]
) -> None:
    pair = compare_replies(chat, qtbot, kv="q9_9")
    assert pair.replies[0].text
    assert pair.note.text()
    wait_for(ServerState.READY)
    ask_again = window.controller.launch
    assert ask_again is not None
    assert ask_again.options.draft == 2


@pytest.mark.parametrize(
    ("values", "why"), [({}, "B has the same settings as A"), ({"top_k": "many"}, "Top-k"), ({"draft": "x"}, "x")]
)
def test_invalid_settings_of_b_are_reported_before_anything_is_sent(
    pane: ChatPane, values: dict[str, str], why: str
) -> None:
    pane.compare_button.setChecked(True)
    for name, value in values.items():
        pane.compare_bar.fields[name].setText(value)
    pane.send_question("Why?")
    assert why in pane.banner.text.text()
    assert pane.messages == []
    assert pane.prompt.toPlainText() == "Why?"
    assert pane.prompt.textCursor().atEnd()


def test_the_form_begins_with_the_draft_length_and_asks_for_a_difference(pane: ChatPane, qtbot: QtBot) -> None:
    pane.compare_button.click()
    bar, draft = pane.compare_bar, pane.compare_bar.fields["draft"]
    assert pane.window().focusWidget() is draft
    explanation = "Each question is sent twice: A uses the current settings, B the settings above. "
    assert bar._note.text() == explanation + "Change at least one setting for B."
    qtbot.keyClicks(draft, "4")
    assert bar._note.text().startswith(explanation + "Runs A, restarts the server")
    qtbot.keyClick(draft, Qt.Key.Key_Return)
    assert pane.window().focusWidget() is pane.prompt


def test_b_drafts_by_the_name_of_a_drafter(pane: ChatPane) -> None:
    bar = pane.compare_bar
    for text, wanted in (
        ("4", {"draft": 4}),
        ("off", {"draft": 0}),
        ("dflash 4", {"draft": 4, "drafter": "draft-dflash"}),
        ("MTP 3", {"draft": 3, "drafter": "draft-mtp"}),
        ("repeats", {"draft": 2, "drafter": "ngram-simple"}),
    ):
        bar.fields["draft"].setText(text)
        assert bar.read_values() == ({}, wanted)
    pane.compare_button.click()
    bar.fields["draft"].setText("DFlash 4")
    bar.collapse()
    assert bar._note.text().startswith("B: draft 4 by DFlash. Runs A, restarts")


def test_b_takes_every_sampling_value_and_says_so_in_a_line(pane: ChatPane) -> None:
    pane.compare_button.click()
    bar = pane.compare_bar
    bar.fields["min_p"].setText("0,1")
    bar.thinking.button(False).click()
    assert bar.read_values() == ({"min_p": 0.1, "thinking": False}, {})
    pane.send_question("Why?")
    assert not bar.fields["min_p"].isVisible()
    (line,) = [each.text() for each in bar.findChildren(Label) if each.isVisible()]
    assert line == "B: min-p 0.1, thinking off. Runs A, then B, without a restart."
    bar.change_button.click()
    assert bar.fields["min_p"].isVisible()
