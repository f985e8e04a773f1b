"""Code and tables in replies: colours, long lines that are wrapped, cells."""

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextBlock, QTextCharFormat, QTextFormat, QTextTable
from PySide6.QtWidgets import QApplication, QPlainTextEdit
from pytestqt.qtbot import QtBot

from launcher.gui import theme
from launcher.gui.chat.block_stream import BlockStream
from launcher.gui.chat.body import Body
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import ReadOnlyText

SOURCE = '''def add(a: int) -> int:
    """Add
    two."""
    return a + 2  # Zürich, 🚲 and 3
'''


def shown_colours(block: QTextBlock) -> dict[str, str]:
    """Return the coloured parts of a line with the names of their colours."""
    text = block.text().encode("utf-16-le")
    return {
        text[2 * each.start : 2 * (each.start + each.length)].decode("utf-16-le"): each.format.foreground()
        .color()
        .name()
        for each in block.layout().formats()
    }


def blocks_of(code: CodeBlock) -> list[QTextBlock]:
    document = code.edit.document()
    return [document.findBlockByNumber(number) for number in range(document.blockCount())]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_code_has_colours_while_it_arrives(qtbot: QtBot, size: int) -> None:
    code = CodeBlock("python")
    qtbot.addWidget(code)
    for begin in range(0, len(SOURCE), size):
        code.append_text(SOURCE[begin : begin + size])
    lines = blocks_of(code)
    qtbot.waitUntil(lambda: bool(shown_colours(lines[3])))
    keyword, name, string, number, comment = (
        theme.colour(role).name() for role in ("code_keyword", "code_name", "code_string", "code_number", "secondary")
    )
    first, second, third, fourth, _ = map(shown_colours, lines)
    assert first == {"def": keyword, "add": name, "int": name}
    assert second == {'"""': string, "Add": string}
    assert third == {"    two.": string, '"""': string}
    assert fourth == {"return": keyword, "2": number, "# Zürich, \N{BICYCLE} and 3": comment}
    assert code.code == SOURCE


@pytest.mark.parametrize("language", ["", "no-such-language", "text"])
def test_other_code_is_plain(qtbot: QtBot, language: str) -> None:
    code = CodeBlock(language)
    qtbot.addWidget(code)
    code.append_text(SOURCE)
    assert all(shown_colours(block) == {} for block in blocks_of(code))


def test_long_lines_are_wrapped_and_the_height_is_that_of_all_rows(pane: ChatPane, qtbot: QtBot) -> None:
    text = Path(__file__).read_text("utf-8").replace("\n", " ", 8) + "\tx" * 90
    pane.send_question("Why?")
    pane.append_text(f"```python\n{text}\n```", "")
    pane.finish_reply("", None)
    code = pane.column.replies[-1].findChildren(CodeBlock)[0]
    bar = code.edit.verticalScrollBar()
    for width in (800, 420):
        pane.resize(width, 700)
        qtbot.waitUntil(lambda: bar.maximum() == 0 and bar.isVisible() is False)
        rows = sum(block.lineCount() for block in blocks_of(code))
        assert rows > code.edit.document().blockCount()
        first = code.edit.document().firstBlock()
        row_height = code.edit.blockBoundingRect(first).height() / first.lineCount()
        assert code.height() < (rows + 6) * row_height, "no room is left below"
    wrapped = code.height()
    code.wrap_button.click()
    qtbot.waitUntil(lambda: code.height() < wrapped and code.edit.horizontalScrollBar().maximum() > 0)


def test_the_choice_of_wrapping_is_kept_while_a_block_is_out_of_sight(qtbot: QtBot) -> None:
    code = CodeBlock("python")
    qtbot.addWidget(code)
    code.append_text(SOURCE)
    code.wrap_button.click()
    code.end_block()
    source = code.make_source()
    assert source is not None
    again = source.build_block(coloured=False)
    qtbot.addWidget(again)
    assert not again.wrap_button.isChecked()
    assert again.code == SOURCE


TABLE = "| Draft | t/s |\n|---|--:|\n| off | 171 |\n| `2` | **241** |\n| a \\| b | 1 | 2 |\n| one |"


def cells_of(block: TableBlock) -> list[list[str]]:
    """Return the texts of a table's cells by rows, as they are shown."""
    (table,) = block.edit.document().rootFrame().childFrames()
    assert isinstance(table, QTextTable)

    def shown_text(row: int, column: int) -> str:
        cell = table.cellAt(row, column)
        cursor = cell.firstCursorPosition()
        cursor.setPosition(cell.lastPosition(), cursor.MoveMode.KeepAnchor)
        return cursor.selectedText()

    return [[shown_text(row, column) for column in range(table.columns())] for row in range(table.rows())]


@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_a_table_has_cells(pane: ChatPane, size: int) -> None:
    pane.send_question("Why?")
    for begin in range(0, len(TABLE), size):
        pane.append_text(TABLE[begin : begin + size], "")
    pane.finish_reply("", None)
    (block,) = pane.column.replies[-1].findChildren(TableBlock)
    assert cells_of(block) == [["Draft", "t/s"], ["off", "171"], ["2", "241"], ["a | b", "1"], ["one", ""]]
    assert block.code == TABLE
    (table,) = block.edit.document().rootFrame().childFrames()
    assert isinstance(table, QTextTable)
    assert table.cellAt(1, 1).firstCursorPosition().blockFormat().alignment() == Qt.AlignmentFlag.AlignRight
    assert block.height() < 8 * block.edit.fontMetrics().lineSpacing() + 120, "no room is left above and below"
    block.recolour(coloured=False)
    assert cells_of(block)[2] == ["2", "241"]
    source = block.make_source()
    assert source is not None
    assert cells_of(source.build_block(coloured=False)) == cells_of(block)


def test_long_and_wide_tables_are_divided_or_shown_as_text(pane: ChatPane, qtbot: QtBot) -> None:
    pane.send_question("Why?")
    wide_source = "| a " * 200 + "|\n" + "|--" * 200 + "|"
    pane.append_text("| n | x |\n|--|--|\n" + "| 1 | 2 |\n" * 250 + f"\nText\n\n{wide_source}\n", "")
    pane.finish_reply("", None)
    reply = pane.column.replies[-1]
    qtbot.waitUntil(lambda: not reply.waiting)
    assert len(reply.body) == 5, "three tables, prose and text"
    assert reply.text.count("| 1 | 2 |") == 250
    (wide,) = reply.findChildren(CodeBlock)
    assert wide.code == wide_source
    heads = [cells_of(table)[0] for table in reply.findChildren(TableBlock)]
    assert heads
    assert all(head == ["n", "x"] for head in heads)


def test_tasks_have_boxes(pane: ChatPane) -> None:
    pane.send_question("Why?")
    pane.append_text("- [ ] to do\n- [x] done\n- [y] other", "")
    pane.finish_reply("", None)
    shown = [text.toPlainText() for text in pane.column.replies[-1].findChildren(ReadOnlyText)]
    assert shown == ["☐\tto do\n☑\tdone\n•\t[y] other"]


@pytest.mark.parametrize("source", ["```python\n{}\n```", "```\n{}\n```", "- a list\n\n  ```python\n  {}\n  ```"])
@pytest.mark.parametrize("size", [1, 400])
def test_tokens_from_drafts_are_underlined_in_code_without_a_background(
    source: str, size: int, qtbot: QtBot, qapp: QApplication
) -> None:
    """The offsets of code are those of its source, also where that is indented, and however it comes."""
    code = "x = 1"
    text = source.format(code)
    begin = text.index(code)
    steps = VerificationSteps()
    steps.restore_steps(len(text), {"draft_steps": f"{begin} 4+1 {len(text) - begin - 5}"})
    body = Body()
    qtbot.addWidget(body)
    body.coloured = True
    stream = BlockStream(body, steps)
    for at in range(0, len(text), size):
        stream.append_text(text[at : at + size])
    stream.end_text()
    (block,) = [each for each in body.blocks if isinstance(each, CodeBlock)]

    def underlined_spans(edit: QPlainTextEdit) -> list[tuple[int, int]]:
        none = QTextCharFormat.UnderlineStyle.NoUnderline
        formats = edit.document().firstBlock().layout().formats()
        marked = [each for each in formats if each.format.underlineStyle() is not none]
        assert not any(each.format.hasProperty(QTextFormat.Property.BackgroundBrush) for each in marked)
        return [(each.start, each.length) for each in marked]

    assert block.code == code
    assert underlined_spans(block.edit) == [(0, 4)]
    made = block.make_source()
    assert made is not None
    again = made.build_block(coloured=True)
    qtbot.addWidget(again)
    assert underlined_spans(again.edit) == [(0, 4)]
    again.recolour(coloured=False)
    assert underlined_spans(again.edit) == []
