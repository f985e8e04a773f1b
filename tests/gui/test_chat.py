"""The chat on the real engine: questions, replies, stored conversations, and comparisons."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QImage, QTextCharFormat
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from shiboken6 import delete, isValid

from launcher.app.settings import change_setting, open_vault
from launcher.app.settings_declared import KEEP
from launcher.base.errors import LauncherError
from launcher.conversations.records import MessageEnding
from launcher.conversations.store import Conversations
from launcher.engine.server.client import Delta, Timings
from launcher.gui import theme
from launcher.gui import translation as words
from launcher.gui.chat.chat_store import ChatStore
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.drafts import DraftLegend, mark_draft
from launcher.gui.chat.footer import format_footer
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.chat.suggestions import suggest_questions
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import ReadOnlyText
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.monitor.meter import Acceptance
from launcher.monitor.reply import Reply
from tests.gateway.test_vault import keep, make_state
from tests.gui.chatting import add_exchange, can_send, controller_of, in_file, no_figures

figures = pytest.fixture(autouse=True)(no_figures)


def ask(chat: ChatPane, qtbot: QtBot, text: str) -> ReplyView:
    qtbot.waitUntil(lambda: can_send(chat))
    with qtbot.waitSignal(controller_of(chat).replied):
        chat.prompt.setPlainText(text)
        qtbot.keyClick(chat.prompt, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: can_send(chat))
    return chat.column.replies[-1]


def read_shown_text(answer: ReplyView) -> str:
    return "\n".join(each.toPlainText() for each in answer.findChildren(ReadOnlyText))


def test_an_empty_chat_suggests_questions_that_its_model_can_answer(chat: ChatPane, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: can_send(chat))
    suggestions = chat.column.suggestions
    button = next(each for each in suggestions.buttons if each.accessibleName() == "What is MTP?")
    assert suggestions.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert chat.prompt.toPlainText() == "What is MTP?"
    assert chat.prompt.hasFocus() or not chat.isActiveWindow()
    answer = ask(chat, qtbot, "What is MTP?")
    assert "token" in answer.text
    assert not suggestions.isVisible()
    chat.start_conversation()
    assert suggestions.isVisible()


def test_questions_suggested_for_a_real_model_are_not_those_for_the_demo() -> None:
    drafting, plain = (suggest_questions("Qwen3.6-35B-A3B", drafts=drafts) for drafts in (True, False))
    questions = [each.question for each in drafting]
    assert len(questions) == 3
    assert not {*questions} & {each.question for each in suggest_questions("demo", drafts=True)}
    assert "most drafts are accepted" in drafting[0].shows
    assert [each.question for each in plain] == questions
    assert not any("draft" in each.shows for each in plain), "with MTP off there are none"


def test_markdown_is_set_and_its_source_is_kept(pane: ChatPane) -> None:
    source = (
        "# Title\n**bold** and `code`\n- item\n\n```python\nprint(1)\n```\n| a | bb |\n|---|---|\n| ccc | d |\n\nend"
    )
    answer = add_exchange(pane, "Why?", source)
    assert answer.text == source
    assert read_shown_text(answer) == "Title\nbold and code\n•\titem\nend"
    (code,), (table,) = answer.findChildren(CodeBlock), answer.findChildren(TableBlock)
    assert code.code == "print(1)"
    assert table.edit.toPlainText().split() == ["a", "bb", "ccc", "d"]


def test_code_is_copied_as_it_is_seen(pane: ChatPane, qapp: QApplication) -> None:
    answer = add_exchange(pane, "Why?", "```sh\nls \u202e-l\x1b[31m\n```")
    answer.findChildren(CodeBlock)[0].copy_button.click()
    assert qapp.clipboard().text() == "ls \N{REPLACEMENT CHARACTER}-l␛[31m"
    assert answer.findChildren(CodeBlock)[0].copy_button.text() == "Copied"


def test_the_line_of_figures_is_broken_only_between_two_figures(pane: ChatPane) -> None:
    answer = add_exchange(pane, "What?", "That.")
    answer.end_reply("96.2 t/s · 82 % of drafts accepted (mean 2.6) · stopped: end")
    (rate,) = [each for each in answer.findChildren(Label) if each.text() == "96.2 t/s"]
    assert rate.font().bold()
    (footer,) = [each.text() for each in answer.findChildren(Label) if "82" in each.text()]
    assert [part.replace("\N{NO-BREAK SPACE}", " ") for part in footer.split(" ")] == [
        "82 % of drafts accepted (mean 2.6) ·",
        "stopped: end",
    ]
    answer.end_reply("The server ended, and nothing more comes.")
    shown = [each.text() for each in answer.findChildren(Label) if not each.isHidden()]
    assert "The server ended, and nothing more comes." in shown
    assert "96.2 t/s" not in shown


def test_thoughts_are_folded_with_their_length(pane: ChatPane) -> None:
    answer = add_exchange(pane, "Why?", "Because.", "One two three.")
    button = answer.reasoning.button
    assert button.text() == "Thought, 3 words"
    assert "One" not in read_shown_text(answer)
    button.click()
    assert "One two three." in read_shown_text(answer)


def test_thoughts_without_an_answer_are_shown_at_the_end(pane: ChatPane) -> None:
    pane.send_question("Why?")
    pane.append_text("", "One two three.")
    (answer,) = pane.column.replies
    assert answer.reasoning.button.text() == "Thinking, 3 words"
    assert "One" not in read_shown_text(answer)
    pane.finish_reply("", object())  # type: ignore[arg-type]
    assert answer.reasoning.button.text() == "Thought, 3 words"
    assert "One two three." in read_shown_text(answer)


def colours(answer: ReplyView) -> dict[str, str]:
    block = answer.findChildren(ReadOnlyText)[0].document().firstBlock()
    found, fragments = {}, block.begin()
    while not fragments.atEnd():
        form = fragments.fragment().charFormat()
        coloured = form.background().style() != Qt.BrushStyle.NoBrush
        found[fragments.fragment().text()] = form.background().color().name().upper() if coloured else ""
        fragments += 1
    return found


def test_a_token_has_the_colour_of_its_position_in_the_draft(
    idle_controller: Controller, pane: ChatPane, qtbot: QtBot
) -> None:
    pane.colour_button.click()
    pane.send_question("Why?")
    for text, ms, drafted in (
        ("one ", 1.0, 2),
        ("two ", 1.0, 2),
        ("three ", 1.0, 2),
        ("four ", 2.0, 4),
        ("five ", 3.0, 6),
        ("six", 3.0, 6),
    ):
        idle_controller.deltas.emit([Delta(text, "", Timings(1, 0, 1.0, 1, ms, 1.0, drafted, 1))])
    pane.finish_reply("", None)
    answer = pane.column.replies[-1]

    first, second, _ = theme.current().drafted
    coloured = {"one ": first, "two ": second, "three four ": "", "five ": first, "six": ""}
    assert colours(answer) == coloured, "the last token of a step is the model's own"
    assert legend(pane) == [
        ["Colours:", "model itself", "1st draft", "2nd draft", "3 of the text's 6 tokens came from drafts"]
    ]
    pane.open_conversation(pane.conversation.id or "")
    qtbot.waitUntil(lambda: pane.column.replies[-1] is not answer)
    answer = pane.column.replies[-1]
    assert colours(answer) == coloured, "they are kept with the conversation"
    assert len(legend(pane)) == 1
    pane.colour_button.click()
    assert colours(answer) == {"one two three four five six": ""}
    assert legend(pane) == []


def legend(pane: ChatPane) -> list[list[str]]:
    found = [each for reply in pane.column.replies for each in reply.findChildren(DraftLegend)]
    return [each.texts for each in found if not each.isHidden()]


def test_each_position_has_another_underline_but_for_links(qapp: QApplication) -> None:
    def mark_position(position: int, *, link: bool = False) -> QTextCharFormat:
        form = QTextCharFormat()
        form.setAnchor(link)
        mark_draft(form, position)
        return form

    lines = [mark_position(position).underlineStyle() for position in (1, 2, 3)]
    assert len(set(lines)) == 3
    assert mark_position(7) == mark_position(3)
    assert mark_position(1, link=True).underlineStyle() is QTextCharFormat.UnderlineStyle.NoUnderline


def test_the_legend_is_under_the_first_reply_with_drafts_alone(idle_controller: Controller, pane: ChatPane) -> None:
    pane.colour_button.click()
    for question, drafted in (("One?", 0), ("Two?", 2), ("Three?", 2)):
        pane.send_question(question)
        for text in ("a ", "b"):
            ms = 1.0 if drafted else float(ord(text[0]))
            idle_controller.deltas.emit([Delta(text, "", Timings(1, 0, 1.0, 1, ms, 1.0, drafted, 1))])
        pane.finish_reply("", None)
    legends = [reply.findChildren(DraftLegend) for reply in pane.column.replies]
    assert [len([each for each in found if not each.isHidden()]) for found in legends] == [0, 1, 0]
    assert all(len(texts) == 4 for texts in legend(pane)), "no draft had a second token"


@pytest.mark.parametrize("kept", [None, 7, "", "3 x", "5x2 3", "5+2 4", "4++4", "1e3", "999999999+999 1"])
def test_invalid_saved_steps_colour_nothing(kept: object) -> None:
    steps = VerificationSteps()
    steps.restore_steps(8, {"draft_steps": kept})
    assert list(steps.split_by_position(0, 8)) == [(0, 8, 0)]
    assert steps.as_figures() == {}


def test_a_conversation_is_kept_and_comes_back(chat: ChatPane, qtbot: QtBot) -> None:
    first = ask(chat, qtbot, "What is a draft?").text
    ask(chat, qtbot, "What is acceptance?")
    id_ = chat.conversation.id
    assert id_
    kept = in_file(chat, qtbot, lambda kept: kept.read_conversation(id_))
    assert [each.text for each in kept.messages] == [each["content"] for each in chat.messages]
    assert kept.messages[1].ending is MessageEnding.WHOLE
    assert kept.messages[1].figures["draft_n"] > 0
    assert kept.messages[1].settings["draft"] == 2
    assert "of drafts accepted" in kept.messages[1].footer
    chat.new_button.click()
    assert chat.messages == []
    chat.open_conversation(id_)
    qtbot.waitUntil(lambda: len(chat.messages) == 4)
    assert chat.column.replies[0].text == first
    ask(chat, qtbot, "And more?")
    assert len(in_file(chat, qtbot, lambda kept: kept.list_all())) == 1


def test_the_question_before_an_edit_is_kept_as_an_earlier_version(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "One?", "1")
    add_exchange(pane, "Two?", "2")
    pane.prompt.clear()
    qtbot.keyClick(pane.prompt, Qt.Key.Key_Up)
    assert pane.prompt.toPlainText() == "Two?"
    pane.prompt.setPlainText("Three?")
    qtbot.keyClick(pane.prompt, Qt.Key.Key_Return)
    pane.append_text("3", "")
    pane.finish_reply("", object())  # type: ignore[arg-type]
    assert [each["content"] for each in pane.messages] == ["One?", "1", "Three?", "3"]
    assert pane.conversation.find_versions(3) == (1, pane.conversation.find_versions(2)[1])
    (earlier,) = [
        button
        for button in pane.column.replies[-1].findChildren(QPushButton)
        if button.accessibleName() == "Earlier version"
    ]
    earlier.click()
    qtbot.waitUntil(lambda: pane.messages[-1]["content"] == "2")
    assert [each["content"] for each in pane.messages] == ["One?", "1", "Two?", "2"]


def test_escape_leaves_editing(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "One?", "1").edit_button.click()
    assert pane.prompt.toPlainText() == "One?"
    qtbot.keyClick(pane.prompt, Qt.Key.Key_Escape)
    assert pane.prompt.toPlainText() == ""
    assert [each["content"] for each in pane.messages] == ["One?", "1"]


def test_a_reply_is_awaited_until_its_first_text(pane: ChatPane) -> None:
    pane.send_question("Hello")
    reply = pane.column.replies[-1]

    def lines() -> set[str]:
        return {label.text() for label in reply.findChildren(QLabel) if not label.isHidden()}

    assert "Waiting for the first token ..." in lines()
    pane.append_text("Hi", "")
    assert "Waiting for the first token ..." not in lines()
    pane.finish_reply("3 tokens", object())  # type: ignore[arg-type]
    assert "3 tokens" in lines()


def test_another_reply_is_a_version(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "One?", "first").regenerate_button.click()
    pane.append_text("second", "")
    pane.finish_reply("", object())  # type: ignore[arg-type]
    assert [each["content"] for each in pane.messages] == ["One?", "second"]
    assert pane.conversation.find_versions(1)[0] == 1
    pane.column.replies[-1].regenerate_button.click()
    pane.finish_reply("It broke.", None)
    qtbot.waitUntil(lambda: pane.messages[-1]["content"] == "second")
    assert pane.banner.text.text() == "It broke."
    assert (
        len(in_file(pane, qtbot, lambda kept: kept.read_conversation(pane.conversation.id or "")).messages[1].versions)
        == 2
    )


def test_the_drawer_searches_renames_deletes_and_restores_conversations(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "About cats", "They purr.")
    pane.start_conversation()
    add_exchange(pane, "About dogs", "They bark.")
    qtbot.keyClick(pane, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    names = pane.conversation_list.list
    qtbot.waitUntil(lambda: names.count() == 2)
    pane.conversation_list.search.setText("purr")
    qtbot.waitUntil(lambda: names.count() == 1)
    names.item(0).setText("Cats")
    assert in_file(pane, qtbot, lambda kept: kept.list_all())[1].title == "Cats"
    pane.conversation_list.search.clear()
    qtbot.waitUntil(lambda: names.count() == 2)
    names.setCurrentRow(0)
    qtbot.keyClick(names, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: names.count() == 1)
    assert pane.messages == [], "it was the one that was open"
    (undo,) = [each for each in pane.conversation_list.banner.findChildren(QPushButton) if each.text() == "Undo"]
    undo.click()
    qtbot.waitUntil(lambda: names.count() == 2)
    names.setCurrentRow(0)
    qtbot.keyClick(names, Qt.Key.Key_Delete)
    pane.chats_button.click()
    assert [each.title for each in in_file(pane, qtbot, lambda kept: kept.list_all())] == ["Cats"]


def test_a_conversation_is_exported(pane: ChatPane, qtbot: QtBot, tmp_path: Path) -> None:
    add_exchange(pane, "About cats", "They purr.")
    pane.chats_button.click()
    pane.conversation_list.export_conversation(pane.conversation.id or "", tmp_path / "cats.md")
    qtbot.waitUntil(lambda: pane.conversation_list.banner.isVisible())
    assert "They purr." in (tmp_path / "cats.md").read_text("utf-8")
    pane.conversation_list.export_conversation(pane.conversation.id or "", tmp_path / "cats.md" / "more.md")
    qtbot.waitUntil(lambda: "Wrote" not in pane.conversation_list.banner.text.text())


def test_a_long_conversation_is_built_from_its_end(pane: ChatPane, qtbot: QtBot) -> None:
    for number in range(14):
        add_exchange(pane, f"Question {number}", f"Reply {number}")
    pane.open_conversation(pane.conversation.id or "")
    qtbot.waitUntil(lambda: len(pane.column.turns) == 10)
    (more,) = [each for each in pane.findChildren(QPushButton) if "earlier question" in each.text()]
    assert more.text() == "Show 4 earlier questions"
    more.click()
    assert [turn.index for turn in pane.column.turns] == list(range(0, 28, 2))


def test_another_hint_is_seen_in_the_empty_prompt_without_a_click(pane: ChatPane, qtbot: QtBot) -> None:
    """The hint must be painted, too: the prompt once had the right hint, but still showed the one painted before."""
    pane.send_button.setFocus()

    def grab_screen() -> QImage:
        window, prompt = pane.windowHandle(), pane.prompt.viewport()
        place = QRect(prompt.mapTo(pane, QPoint()), prompt.size())
        return (
            window.screen().grabWindow(pane.winId()).copy(place).toImage().convertToFormat(QImage.Format.Format_RGB32)
        )

    def grab_viewport() -> QImage:
        return pane.prompt.viewport().grab().toImage().convertToFormat(QImage.Format.Format_RGB32)

    pane.enable_actions(can_ask=False, replying=False, hint="The model is not ready yet")
    qtbot.waitUntil(lambda: grab_screen() == grab_viewport())
    before = grab_screen()
    pane.enable_actions(can_ask=True, replying=False, hint="Type a message")
    qtbot.waitUntil(lambda: grab_screen() == grab_viewport())
    assert grab_screen() != before


def test_the_system_prompt_is_sent_and_kept(idle_controller: Controller, pane: ChatPane, qtbot: QtBot) -> None:
    requests: list[Any] = []
    idle_controller.request_reply = lambda messages, *_: requests.append(messages)  # type: ignore[method-assign]
    pane.system.edit.setPlainText("Be brief.")
    add_exchange(pane, "Why?", "So.")
    assert requests[0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert in_file(pane, qtbot, lambda kept: kept.read_conversation(pane.conversation.id or "")).system == "Be brief."


@pytest.mark.parametrize("keeps", [True, False])
def test_a_request_names_its_conversation_only_while_chats_are_kept(
    idle_controller: Controller, pane: ChatPane, qtbot: QtBot, tmp_path: Path, keeps: bool
) -> None:
    names: list[str | None] = []
    idle_controller.request_reply = lambda _messages, _sampling, kept_as: names.append(kept_as)  # type: ignore[method-assign]
    change_setting(KEEP, keeps)
    add_exchange(pane, "Why?", "So.")
    assert names == [pane.conversation.id if keeps else None]


def test_a_chat_is_kept_on_disk_by_its_name(chat: ChatPane, qtbot: QtBot) -> None:
    ask(chat, qtbot, " ".join(f"Line {number} of a long prompt about draft heads." for number in range(200)))
    with closing(open_vault()) as vault:
        controller_of(chat).stop()
        qtbot.waitUntil(lambda: [each.conversation for each in vault.list_states()] == [chat.conversation.id])


def test_a_deleted_chat_takes_what_models_have_read_of_it_along(pane: ChatPane, qtbot: QtBot, tmp_path: Path) -> None:
    add_exchange(pane, "Why?", "So.")
    conversation_id = pane.conversation.id or ""
    with closing(open_vault()) as vault:
        keep(vault, tmp_path, make_state("mine", conversation=conversation_id))
        keep(vault, tmp_path, make_state("other", b"y" * 20_000, conversation="other"))
    pane.chats_button.click()
    chats = pane.conversation_list
    qtbot.waitUntil(lambda: chats.list.count() == 1)
    chats.list.setCurrentRow(0)
    chats.delete_selected()
    with closing(open_vault()) as vault:
        assert len(vault.list_states()) == 2, "it can be undone"
        chats.confirm_deletion()
        qtbot.waitUntil(lambda: [each.name for each in vault.list_states()] == ["other"])


@pytest.mark.thorough
def test_prompts_of_a_file_are_asked_in_turn(chat: ChatPane, qtbot: QtBot, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("What is a draft?\nWhat is MTP?\nWhat is acceptance?\n")
    chat.send_prompts_from(file)
    qtbot.waitUntil(lambda: len(chat.messages) == 6 and not chat.prompts.active)
    assert [each["content"] for each in chat.messages[::2]] == file.read_text().splitlines()
    file.write_bytes(b"\xff\xfe\0")
    chat.send_prompts_from(file)
    assert "UTF-8" in chat.banner.text.text()


def test_a_failed_write_is_reported_and_the_chat_goes_on(pane: ChatPane) -> None:
    pane.store.failed.emit(LauncherError("Conversations cannot be kept.", "Do this."))
    assert "cannot be kept" in pane.banner.text.text()
    assert add_exchange(pane, "Why?", "So.").text == "So."


def test_a_deleted_store_delivers_no_result(qapp: QApplication) -> None:
    kept, results = ChatStore(), list[object]()

    def while_it_is_there(_: Conversations) -> None:
        while isValid(kept):
            pass

    kept.enqueue(while_it_is_there, results.append)
    delete(kept)
    kept.close()
    qapp.processEvents()
    assert results == [], "and nothing was raised on the thread that writes"


def test_the_last_reply_is_copied_by_its_key(pane: ChatPane, qtbot: QtBot, qapp: QApplication) -> None:
    add_exchange(pane, "One?", "first")
    add_exchange(pane, "Two?", "second")
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(pane, Qt.Key.Key_C, both)
    assert qapp.clipboard().text() == "second"


@pytest.mark.parametrize("width", [420, 900])
def test_the_figures_of_a_reply_and_its_buttons_stand_on_one_line(
    pane: ChatPane, qapp: QApplication, width: int
) -> None:
    """Characters of another font, such as Chinese ones, make a line higher above its baseline."""

    def lowest_ink(widget: QWidget, text: str) -> int:
        """Return the row of the pane on which a text at the beginning of a widget stands."""
        left = (widget.width() - widget.fontMetrics().horizontalAdvance(text)) // 2 if widget is edit else 0
        part = QRect(left, 0, widget.fontMetrics().horizontalAdvance(text), widget.height())
        picture = widget.grab(part).toImage()
        rows = [y for y in range(picture.height()) if len({picture.pixel(x, y) for x in range(picture.width())}) > 1]
        return widget.mapTo(pane, QPoint(0, rows[-1])).y()

    pane.resize(width, 700)
    answer = add_exchange(pane, "One?", "first")
    edit = answer.edit_button
    for rest in ("7 tokens", "7 \N{CJK UNIFIED IDEOGRAPH-4E2A} token"):
        answer.end_reply(f"7 t/s · {rest}")
        rate, figures = [each for each in answer.findChildren(Label) if each.text().startswith("7")]
        qapp.processEvents()  # lets Qt lay out the line
        assert lowest_ink(rate, "7") == lowest_ink(figures, "7")
        if width == 900:
            assert abs(lowest_ink(edit, "Edit") - lowest_ink(rate, "7")) <= 1


def test_the_line_under_a_reply_is_in_the_chosen_language() -> None:
    timings = Timings.parse({"predicted_n": 231, "predicted_ms": 500.0, "predicted_per_second": 462.0})
    reply = Reply("", "", timings, Acceptance(10, 8, (5, 5), (5, 3)), 0.184, "stop")
    assert format_footer(reply) == reply.summary
    assert "80 % of drafts accepted (mean 2.6) · stopped: end" in reply.summary
    assert format_footer(replace(reply, finish_reason="other", timings=None)).endswith("stopped: other")
    words.choose_language("zh_CN")
    try:
        assert not re.findall(r"[a-z]{3,}", format_footer(reply).replace("token", ""))
    finally:
        words.choose_language("en")
