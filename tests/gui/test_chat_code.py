"""Code in replies: its colours, and long lines that are wrapped."""

from pathlib import Path

import pytest
from PySide6.QtGui import QTextBlock
from pytestqt.qtbot import QtBot

from launcher.gui import theme
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.pane import ChatPane

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
def test_code_has_colours_while_it_comes(qtbot: QtBot, size: int) -> None:
    code = CodeBlock("python")
    qtbot.addWidget(code)
    for begin in range(0, len(SOURCE), size):
        code.append_text(SOURCE[begin : begin + size])
    keyword, name, string, number, comment = (
        theme.colour(role).name() for role in ("code_keyword", "code_name", "code_string", "code_number", "secondary")
    )
    first, second, third, fourth, _ = map(shown_colours, blocks_of(code))
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
        assert code.height() < (rows + 6) * code.edit.fontMetrics().lineSpacing(), "no room is left below"
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
