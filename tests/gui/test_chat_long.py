"""Long replies in the chat: only blocks near the visible part are widgets."""

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, QRect
from PySide6.QtGui import QResizeEvent, QTextCursor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.conversations.records import ChatMessage, Role
from launcher.gui import theme
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.column import Turn, TurnColumn
from launcher.gui.chat.prompt import QuestionBubble
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.style import chat_style_sheet
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import ReadOnlyText

CODE = "```python\nx = 1\ny = 2\n```\n"
TABLE = "| a | bb |\n|---|---|\n| ccc | d |\n\n"
PARAGRAPHS = "".join(f"Paragraph {number} of a long reply. {'word ' * 40}\n\n" for number in range(300))
LONG = f"Begin.\n{CODE}{TABLE}{PARAGRAPHS}the end"


class ResizeWatch(QObject):
    """Event filter that collects the widths, in pixels, that a widget gets."""

    def __init__(self, widths: set[int]) -> None:
        super().__init__()
        self.widths = widths

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        if isinstance(event, QResizeEvent):
            self.widths.add(event.size().width())
        return super().eventFilter(watched, event)


@pytest.fixture
def empty_column(qtbot: QtBot, qapp: QApplication) -> TurnColumn:
    """A conversation without turns."""
    theme.apply_theme(qapp, theme.current())
    column = TurnColumn()
    qtbot.addWidget(column)
    column.setStyleSheet(chat_style_sheet())
    column.resize(400, 500)
    column.show()
    qtbot.waitExposed(column)
    return column


@pytest.fixture
def column(empty_column: TurnColumn, qtbot: QtBot) -> TurnColumn:
    """A conversation whose only reply is a long one, at its end."""
    column = empty_column
    answer = ReplyView()
    column.add_turn(Turn(0, QuestionBubble("Go on."), answer))
    steps = " ".join(["8+2"] * (len(LONG) // 10) + [str(len(LONG) % 10)])
    answer.show_stored(ChatMessage("a", None, Role.ASSISTANT, LONG, PARAGRAPHS, figures={"draft_steps": steps}))
    answer.end_reply("9 t/s")
    bar = column.verticalScrollBar()
    qtbot.waitUntil(lambda: not answer.waiting and bar.value() == bar.maximum() > 20_000)
    return column


def read_shown_text(answer: ReplyView) -> str:
    return "\n".join(each.toPlainText() for each in answer.findChildren(ReadOnlyText))


def test_only_blocks_near_the_visible_part_are_built(column: TurnColumn, qapp: QApplication) -> None:
    (answer,), bar = column.replies, column.verticalScrollBar()
    body = answer.body
    assert len(body) > 20
    assert len(body.blocks) < 8
    assert "the end" in read_shown_text(answer)
    assert "Paragraph 0 " not in read_shown_text(answer)
    assert answer.findChildren(CodeBlock) == []
    height = body.height()
    for value in range(bar.maximum(), -1, -250):
        bar.setValue(value)
        seen = QRect(body.mapFrom(column.viewport(), QPoint()), column.viewport().size()) & body.rect()
        covered = sum((block.geometry() & seen).height() for block in body.blocks)
        assert covered >= seen.height() - 3 * theme.px(theme.GAP), "but for the gaps"
        assert len(body.blocks) < 10
    bar.setValue(0)
    assert "Paragraph 0 " in read_shown_text(answer)
    assert "the end" in read_shown_text(answer), "the last one stays"
    (code,), (table,) = answer.findChildren(CodeBlock), answer.findChildren(TableBlock)
    assert code.code == "x = 1\ny = 2"
    assert table.edit.toPlainText().split() == ["a", "bb", "ccc", "d"]
    assert body.height() == height, "what is built again takes the room that it took"
    answer.copy_button.click()
    assert qapp.clipboard().text() == LONG


def test_the_scroll_bar_takes_no_width_from_the_text(empty_column: TurnColumn, qtbot: QtBot) -> None:
    bar = empty_column.verticalScrollBar()
    answer = ReplyView()
    empty_column.add_turn(Turn(0, QuestionBubble("Go on."), answer))
    answer.append_text("One line.", "")
    qtbot.waitUntil(lambda: answer.body.width() < 400 and 10 < answer.body.height() < 100)
    assert not bar.isVisible()
    widths = {answer.body.width()}
    watch = ResizeWatch(widths)
    answer.body.installEventFilter(watch)
    answer.append_text(PARAGRAPHS, "")
    qtbot.waitUntil(lambda: not answer.waiting and bar.value() == bar.maximum() > 20_000)
    answer.body.removeEventFilter(watch)
    assert bar.isVisible()
    assert len(widths) == 1, widths


def test_blocks_of_long_reasoning_too_are_built_only_near_the_visible_part(column: TurnColumn, qtbot: QtBot) -> None:
    (answer,) = column.replies
    answer.reasoning.button.click()
    thoughts = answer.reasoning.body
    qtbot.waitUntil(lambda: thoughts.height() > 20_000)
    qtbot.waitUntil(lambda: len(thoughts.blocks) < 10)
    answer.reasoning.button.click()
    assert not thoughts.isVisible()


def test_a_block_with_selected_text_is_not_removed(column: TurnColumn) -> None:
    (answer,), bar = column.replies, column.verticalScrollBar()
    bar.setValue(0)
    (first,) = [each for each in answer.body.findChildren(ReadOnlyText) if "Paragraph 0 " in each.toPlainText()]
    first.selectAll()
    bar.setValue(bar.maximum())
    assert "Paragraph 0 " in first.textCursor().selectedText()
    cursor = first.textCursor()
    cursor.clearSelection()
    first.setTextCursor(cursor)
    bar.setValue(bar.maximum() - 500)
    assert "Paragraph 0 " not in read_shown_text(answer)


def test_scrolling_up_in_another_width_does_not_jump(column: TurnColumn, qtbot: QtBot) -> None:
    (answer,), bar = column.replies, column.verticalScrollBar()
    before = bar.maximum()
    column.resize(620, 500)
    qtbot.waitUntil(lambda: bar.value() == bar.maximum() < before - 5_000)
    moved, heights = set(), {answer.body.height()}
    while bar.value() >= 60:
        seen = min(answer.body.blocks, key=lambda block: abs(block.mapTo(column, block.rect().center()).y() - 250))
        above = seen.mapTo(column, QPoint()).y()
        bar.setValue(bar.value() - 60)
        moved.add(seen.mapTo(column, QPoint()).y() - above)
        heights.add(answer.body.height())
    assert all(56 <= each <= 64 for each in moved), "but for what is rounded; heights were off by 10 and more"
    assert len(heights) > 5, "guessed heights were put right"
    assert "Paragraph 0 " in read_shown_text(answer)


def test_text_that_is_built_later_is_coloured_too(column: TurnColumn) -> None:
    (answer,), bar = column.replies, column.verticalScrollBar()
    column.set_coloured(coloured=True)
    bar.setValue(bar.maximum() // 2)
    (block, *_) = [each for each in answer.body.blocks if not each.visibleRegion().isEmpty()]
    cursor = QTextCursor(block.findChildren(ReadOnlyText)[0].document())
    cursor.movePosition(QTextCursor.MoveOperation.NextCharacter, n=12)  # eight of ten are from drafts
    tints = set()
    for _ in range(10):
        cursor.movePosition(QTextCursor.MoveOperation.NextCharacter)
        tints.add(cursor.charFormat().background().color().name().upper())
    assert theme.current().drafted[0] in tints


def test_the_view_stays_where_the_user_has_scrolled(column: TurnColumn, qtbot: QtBot) -> None:
    (answer,), bar = column.replies, column.verticalScrollBar()
    answer.append_text("\n\nmore\n\nand more", "")
    bar.setValue(3_000)
    qtbot.wait(50)
    assert bar.value() == 3_000
