"""Markdown in replies, as it streams: lists with code in them, links, formulas."""

from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QDesktopServices, QTextCursor
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from launcher.gui.chat.block_stream import BlockStream
from launcher.gui.chat.body import Body
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.formula import format_formula
from launcher.gui.chat.markdown import Code, read_tool_call
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import ProseBlock, ReadOnlyText
from launcher.gui.labels import Label

SOURCE = r"""Two **words
in bold** and *one*, `code`, ~~gone~~, \*plain\*, &lt;tag&gt;.

Setext
---

1. First:
   ```python
   if x:
       y = 1

   ```
   and more

   - [ ] open
   - [x] done

     | a | b |
     |--:|---|
     | 1 | x |
2. Second
   ~~~
   left open
10) Tenth
- ```sh
  ls
  ```
> quoted
> - item
>
> > twice

| Draft | t/s |
|---|--:|
| `2` | **241** |

***
$$
\frac{a}{b}
- c
$$
Then \(x^2\), $\alpha$, $5 and $6.
```
the end
"""
SHOWN = [
    "Two words\nin bold and one, code, gone, *plain*, <tag>.\n\nSetext\n\n1.\tFirst:",
    ("python", "if x:\n    y = 1\n", 1),
    "and more\n\n☐\topen\n☑\tdone",
    ("a b 1 x", 2),
    "2.\tSecond",
    ("", "left open", 1),
    "10)\tTenth",
    ("sh", "ls", 1),
    "quoted\n•\titem\n\ntwice",
    ("Draft t/s 2 241", 0),
    "\na/b \N{MINUS SIGN} c\nThen x², \N{GREEK SMALL LETTER ALPHA}, $5 and $6.",
    ("", "the end\n", 0),
]


def shown_blocks(body: Body) -> list[Any]:
    """Return what the blocks show: prose as text; code with language and level; the words of a table with its level."""
    found: list[Any] = []
    for block in body.blocks:
        if isinstance(block, CodeBlock):
            source = block.make_source()
            assert source
            found.append((source.language, block.code, block.indent // 24))
        elif isinstance(block, TableBlock):
            found.append((" ".join(block.edit.toPlainText().split()), block.indent // 24))
        elif isinstance(block, ProseBlock):
            found.append(block.edit.toPlainText())
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 1_000])
def test_the_blocks_do_not_depend_on_the_size_of_the_pieces(qtbot: QtBot, size: int) -> None:
    body = Body()
    qtbot.addWidget(body)
    stream = BlockStream(body, None)
    for begin in range(0, len(SOURCE), size):
        stream.append_text(SOURCE[begin : begin + size])
    stream.end_text()
    assert shown_blocks(body) == SHOWN


@pytest.mark.parametrize("size", [1, 9, 1_000])
def test_the_call_of_a_tool_is_a_block_with_its_name(pane: ChatPane, size: int) -> None:
    call = '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
    source = f"I look.\n<tool_call>\n{call}\n</tool_call>\nThen:\n<tool_call>{call}</tool_call>\nDone."
    pane.send_question("Rain?")
    for begin in range(0, len(source), size):
        pane.append_text(source[begin : begin + size], "")
    pane.finish_reply("", None)
    body = pane.column.replies[-1].body
    arguments = '{\n  "city": "Zürich"\n}'
    shown = ["I look.", ("tool_call", arguments, 0), "Then:", ("tool_call", arguments, 0), "Done."]
    assert shown_blocks(body) == shown
    names = [label.text() for block in body.findChildren(CodeBlock) for label in block.findChildren(Label)]
    assert names == ["tool call: get_weather"] * 2


def test_a_tool_call_that_is_no_json_is_shown_as_it_came() -> None:
    text = "<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>"
    assert read_tool_call(text) == Code(text, "tool_call", "", is_open=False, tool="read")
    assert read_tool_call('{"name": "read", "argum').tool == "read"
    assert read_tool_call("").tool == ""


@pytest.mark.parametrize("size", [1, 50])
def test_each_span_of_a_reply_has_its_offset_in_the_source(pane: ChatPane, size: int) -> None:
    pane.colour_button.click()
    pane.send_question("Why?")
    for begin in range(0, len(SOURCE), size):
        pane.append_text(SOURCE[begin : begin + size], "")
    pane.finish_reply("", None)
    found = 0
    for block in pane.column.replies[-1].body.blocks:
        if isinstance(block, ProseBlock):
            source = block.make_source()
            assert source
            for span in (span for line in source.lines for span in line.spans if span.start >= 0):
                assert SOURCE[span.start : span.start + len(span.text)] == span.text
                found += 1
    assert found > 15


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x = (\N{MINUS SIGN}b ± √(b² \N{MINUS SIGN} 4ac))/(2a)"),
        (r"\sum_{i=1}^{n} x_i \le \infty", "∑ᵢ₌₁ⁿ xᵢ ≤ ∞"),
        (r"\left(\frac12\right)^{n+1}", "(1/2)ⁿ⁺¹"),
        (r"v_{\mathrm{draft}} = 3\,\text{t/s}", "v_draft = 3 t/s"),
        (r"e^{i\pi} + 1 = 0", "e^(iπ) + 1 = 0"),
        (r"\{a, b\} \subseteq \mathbb{R}^n", "{a, b} ⊆ ℝⁿ"),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "a = b ; c = d"),
        ("no LaTeX", "no LaTeX"),
    ],
)
def test_formulas_are_unicode(latex: str, text: str) -> None:
    assert format_formula(latex) == text


@pytest.mark.parametrize("latex", ["{" * 900, r"\frac" * 180, r"\sqrt{" * 160, "^{" * 400, "_" * 900, "\\"])
def test_broken_formulas_do_no_harm(latex: str) -> None:
    assert len(format_formula(latex)) < 3_000


@pytest.fixture
def opened_addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that went to the browser."""
    addresses: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: addresses.append(url.toString()))
    return addresses


def link_point(text: ReadOnlyText, word: str) -> QPoint:
    """Return the middle of a word."""
    cursor = QTextCursor(text.document().find(word))
    cursor.setPosition(cursor.selectionStart() + len(word) // 2)
    return text.cursorRect(cursor).center()


def question_box(qtbot: QtBot) -> QMessageBox:
    def check_box_is_open() -> None:
        assert isinstance(QApplication.activeModalWidget(), QMessageBox)

    qtbot.waitUntil(check_box_is_open)
    box = QApplication.activeModalWidget()
    assert isinstance(box, QMessageBox)
    return box


def press_button(box: QMessageBox, qtbot: QtBot, name: str) -> None:
    (button,) = [each for each in box.buttons() if each.text().replace("&", "") == name]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def reply_text(pane: ChatPane, source: str) -> ReadOnlyText:
    pane.send_question("Where?")
    pane.append_text(source, "")
    pane.finish_reply("", None)
    return pane.column.replies[-1].body.findChildren(ReadOnlyText)[-1]


def test_a_link_is_opened_once_its_address_is_confirmed(
    pane: ChatPane, qtbot: QtBot, qapp: QApplication, opened_addresses: list[str]
) -> None:
    text = reply_text(pane, "See [the manual](https://docs.example/a_b?c=d), or https://bücher.example/x.")
    assert "the manual (https://docs.example/a_b?c=d), or https://bücher.example/x." in text.toPlainText()
    qtbot.mouseClick(text.viewport(), Qt.MouseButton.LeftButton, pos=link_point(text, "See"))
    assert QApplication.activeModalWidget() is None
    qtbot.mouseClick(text.viewport(), Qt.MouseButton.LeftButton, pos=link_point(text, "manual"))
    box = question_box(qtbot)
    assert box.informativeText() == "https://docs.example/a_b?c=d"
    assert "docs.example" in box.text()
    assert opened_addresses == []
    press_button(box, qtbot, "Cancel")
    assert opened_addresses == []
    qtbot.mouseClick(text.viewport(), Qt.MouseButton.LeftButton, pos=link_point(text, "cher"))
    press_button(question_box(qtbot), qtbot, "Copy link address")
    assert qapp.clipboard().text() == "https://xn--bcher-kva.example/x", "not in the form that browsers send"
    qtbot.mouseClick(text.viewport(), Qt.MouseButton.LeftButton, pos=link_point(text, "manual"))
    press_button(question_box(qtbot), qtbot, "Open")
    assert opened_addresses == ["https://docs.example/a_b?c=d"]


def test_links_are_reached_by_tab_and_opened_by_enter(
    pane: ChatPane, qtbot: QtBot, opened_addresses: list[str]
) -> None:
    plain = reply_text(pane, "No link.")
    text = reply_text(pane, "See [one](https://one.example) and [two](https://two.example).")
    qtbot.waitUntil(text.isVisible)
    assert not plain.focusPolicy() & Qt.FocusPolicy.TabFocus
    pane.column.replies[-1].copy_button.setFocus()
    for _ in range(40):
        qtbot.keyClick(pane.focusWidget(), Qt.Key.Key_Tab)
        if text.hasFocus():
            break
    for _ in range(2):
        qtbot.keyClick(text, Qt.Key.Key_Tab)
    assert text.hasFocus()
    assert text.textCursor().selectedText().startswith("two")
    qtbot.keyClick(text, Qt.Key.Key_Return)
    press_button(question_box(qtbot), qtbot, "Open")
    assert opened_addresses == ["https://two.example"]
    qtbot.keyClick(text, Qt.Key.Key_Tab)
    assert not text.hasFocus()


def test_selecting_a_link_with_the_mouse_opens_nothing(
    pane: ChatPane, qtbot: QtBot, opened_addresses: list[str]
) -> None:
    text = reply_text(pane, "See [the long manual](https://docs.example).")
    begin, end = link_point(text, "the long"), link_point(text, "manual")
    qtbot.mousePress(text.viewport(), Qt.MouseButton.LeftButton, pos=begin)
    qtbot.mouseMove(text.viewport(), end)
    qtbot.mouseRelease(text.viewport(), Qt.MouseButton.LeftButton, pos=end)
    assert text.textCursor().hasSelection()
    assert QApplication.activeModalWidget() is None
    assert opened_addresses == []
