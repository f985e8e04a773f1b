"""The list of conversations: its groups, its menu, and its two places."""

import threading
from pathlib import Path

import pytest
from PySide6.QtCore import QDate, Qt
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot

from launcher.conversations.records import ConversationSummary
from launcher.gui.chat.conversation_list import describe_conversation, find_glyph, name_group
from launcher.gui.chat.pane import ChatPane
from tests.gui.chatting import add_exchange, in_file, no_figures

figures = pytest.fixture(autouse=True)(no_figures)
TODAY = QDate(2026, 3, 10)


@pytest.mark.parametrize(
    ("days", "name"), [(-1, "Today"), (0, "Today"), (1, "Yesterday"), (2, "Last week"), (7, "Last week"), (8, "Older")]
)
def test_conversations_are_grouped_by_the_day_of_their_last_change(days: int, name: str) -> None:
    assert name_group(TODAY.addDays(-days), TODAY) == name


def test_the_second_line_has_the_replies_and_when() -> None:
    changed_s = TODAY.startOfDay().addSecs(9 * 3_600 + 12 * 60).toSecsSinceEpoch()
    summary = ConversationSummary("a", "Cats", "demo", 0.0, float(changed_s), 8, 4)
    assert describe_conversation(summary, TODAY) == "4 replies · 09:12"
    assert describe_conversation(summary, TODAY.addDays(1)) == "4 replies · 09:12"
    assert ":" not in describe_conversation(summary, TODAY.addDays(2)).partition(" · ")[2]


def test_the_open_conversation_is_selected_and_another_is_opened_by_a_click(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "About cats", "They purr.")
    pane.start_conversation()
    add_exchange(pane, "About dogs", "They bark.")
    names = pane.conversation_list.list
    pane.chats_button.click()
    qtbot.waitUntil(lambda: names.count() == 2)
    assert names.currentItem().text() == "About dogs"
    other = names.item(1)
    qtbot.mouseClick(names.viewport(), Qt.MouseButton.LeftButton, pos=names.visualItemRect(other).center())
    qtbot.waitUntil(lambda: [each["content"] for each in pane.messages] == ["About cats", "They purr."])
    assert not pane.chats_button.isChecked()
    pane.start_conversation()
    assert names.currentItem() is None


def test_the_menu_renames_and_deletes(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "About cats", "They purr.")
    pane.chats_button.click()
    names, chats = pane.conversation_list.list, pane.conversation_list
    qtbot.waitUntil(lambda: names.count() == 1)
    item = names.item(0)
    glyph = find_glyph(names.visualItemRect(item), names.indexFromItem(item)).center()
    with qtbot.waitSignal(names.menu_requested):
        qtbot.mouseClick(names.viewport(), Qt.MouseButton.LeftButton, pos=glyph)
    assert pane.chats_button.isChecked(), "the glyph opens the menu, not the chat"
    entries = {each.text().partition("\t")[0]: each for each in chats.make_menu().actions()}
    assert list(entries) == ["Rename", "Export …", "Delete"]
    entries["Rename"].trigger()
    (editor,) = names.findChildren(QLineEdit)
    editor.setText("Cats")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: names.count() == 1 and names.item(0).text() == "Cats")
    assert in_file(pane, qtbot, lambda kept: kept.list_all())[0].title == "Cats"
    entries["Delete"].trigger()
    qtbot.waitUntil(lambda: names.count() == 0)
    assert chats.banner.isVisible()


def test_the_list_is_read_again_while_a_title_is_edited_only_afterwards(pane: ChatPane, qtbot: QtBot) -> None:
    add_exchange(pane, "About cats", "They purr.")
    pane.chats_button.click()
    names = pane.conversation_list.list
    qtbot.waitUntil(lambda: names.count() == 1)
    names.setCurrentRow(0)
    names.editItem(names.item(0))
    in_file(pane, qtbot, lambda kept: kept.add_question(kept.create_conversation("About dogs"), None, "Why?"))
    pane.store.changed.emit()
    in_file(pane, qtbot, lambda kept: kept.list_all())
    assert names.count() == 1
    assert names.is_editing
    (editor,) = names.findChildren(QLineEdit)
    qtbot.keyClick(editor, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: names.count() == 2)


def test_the_list_moves_between_its_column_and_the_chat(pane: ChatPane, qtbot: QtBot, tmp_path: Path) -> None:
    column = pane.chats_column
    column.setParent(None)
    qtbot.addWidget(column)
    column.resize(208, 500)
    column.show()
    pane.show_column(True)
    assert pane.has_column
    assert pane.conversation_list.isVisible()
    assert not pane.chats_button.isVisible()
    assert not pane.new_button.isVisible()
    add_exchange(pane, "About cats", "They purr.")
    names = pane.conversation_list.list
    qtbot.waitUntil(lambda: names.count() == 1 and names.currentItem() is not None)
    pane.focus_search()
    assert not pane.chats_button.isChecked()
    column.new_button.click()
    assert pane.messages == []
    pane.show_column(False)
    assert not pane.has_column
    assert pane.chats_button.isVisible()
    pane.focus_search()
    qtbot.waitUntil(pane.conversation_list.isVisible)


def test_a_result_for_a_chat_that_has_gone_is_not_delivered(pane: ChatPane, qtbot: QtBot) -> None:
    released, late, later = threading.Event(), list[bool](), list[None]()
    pane.store.enqueue(lambda _conversations: released.wait(60), late.append)
    kept = pane.hand_over()
    kept.store.enqueue(lambda _conversations: None, later.append)
    released.set()
    qtbot.waitUntil(lambda: later == [None])
    assert late == []
    kept.store.close()
