"""Splits the streamed text of a reply into the blocks of a body. Only the block that grows is parsed again."""

from launcher.gui import theme
from launcher.gui.chat.body import Body
from launcher.gui.chat.code import UNKNOWN_OFFSET, CodeBlock, FramedBlock
from launcher.gui.chat.markdown import (
    Code,
    Leaf,
    Line,
    LineKind,
    Table,
    closes_fence,
    indent_of,
    parse_blocks,
    parse_plain,
    write_opening,
)
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import LEVEL_WIDTH, ProseBlock

_LONGEST_LINE = 2_000
"""Longer lines are broken: Qt's layout time grows with the square of a line's length."""
_SEGMENT, _LONGEST_SEGMENT = 3_000, 6_000
"""Length in characters after which a new paragraph begins a new prose block, and the greatest length of a block."""
_NEXT_LINE = (UNKNOWN_OFFSET, UNKNOWN_OFFSET)
"""Offsets of the parts of a line end: that of the next line follows with its first character."""
_MOST_ROWS = 100
"""A table with more rows continues in a further one, because Qt lays out the whole table again for each new row."""


class BlockStream:
    """Adds streamed text to a body. `quiet` text, such as thinking, is prose without Markdown.

    The tail is the text from the beginning of the last leaf on; all leaves before it are final. Code within an open
    fence goes to its block without being parsed.
    """

    def __init__(self, body: Body, steps: VerificationSteps | None, *, quiet: bool = False) -> None:
        self._body, self._steps, self._quiet = body, steps, quiet
        self._lines, self._offsets = [""], [0]
        """The lines of the tail, and the offset of each in the text, in characters."""
        self._opening_count = 0
        """Number of lines at the beginning of the tail that stand for the lists, quotes or table head around it."""
        self._offset = 0
        """Length of the text, in characters."""
        self._leaf: Leaf | None = None
        """The tail's first leaf as it is shown."""
        self._begin_line = self._first_line = 0
        """The line of the prose block where `_leaf` begins, with and without the gap above the leaf."""
        self._prose: ProseBlock | None = None
        """The last block, if it is prose."""
        self._framed: FramedBlock | None = None
        """The last block, if it is a table or code that grows."""
        self._open_code: Code | None = None
        """The code whose closing fence has not come."""
        self._code_indents = 0, 0
        """Columns of the open fence, and of the list's text around it."""

    def append_text(self, text: str) -> None:
        """Append text."""
        first, *others = text.split("\n")
        self._extend_line(first)
        for line in others:
            self._end_line()
            self._extend_line(line)
        if self._open_code is None:
            self._show_tail()

    def end_text(self) -> None:
        """Mark the text as finished: the last line is complete although no line end came."""
        if (
            isinstance(self._framed, CodeBlock)
            and self._open_code
            and closes_fence(self._lines[-1], self._open_code.fence)
        ):
            self._framed.drop_line()
        if self._framed is not None:
            self._framed.end_block()
        self._framed = self._open_code = None

    def _extend_line(self, text: str) -> None:
        while len(self._lines[-1]) + len(text) > _LONGEST_LINE:
            room = _LONGEST_LINE - len(self._lines[-1])
            self._add_to_line(text[:room])
            text = text[room:]
            if isinstance(self._framed, CodeBlock) and self._open_code:
                self._framed.append_text("\n", _NEXT_LINE)
                self._lines[-1] = ""
            else:
                self._show_tail()
                self._begin_tail([])
        self._add_to_line(text)

    def _add_to_line(self, text: str) -> None:
        before = self._lines[-1]
        self._lines[-1] += text
        self._offset += len(text)
        if isinstance(self._framed, CodeBlock) and self._open_code:
            piece = self._strip_indent(self._lines[-1])[len(self._strip_indent(before)) :]
            self._framed.append_text(piece, (self._offset - len(piece),))

    def _end_line(self) -> None:
        line = self._lines[-1]
        self._offset += 1
        code = self._open_code
        if code is None or not isinstance(self._framed, CodeBlock):
            self._lines.append("")
            self._offsets.append(self._offset)
        elif closes_fence(line, code.fence):
            self._framed.drop_line()
            self._close_code()
        elif line.strip() and len(line) - len(line.lstrip()) < self._code_indents[1]:
            self._framed.drop_line()
            start = self._offset - len(line) - 1
            self._close_code()
            self._lines[-1:], self._offsets[-1:] = [line, ""], [start, self._offset]
        else:
            self._framed.append_text("\n", _NEXT_LINE)
            self._lines[-1] = ""

    def _strip_indent(self, line: str) -> str:
        """Return a line of code without the indentation of its fence."""
        most = self._code_indents[0]
        return line[min(len(line) - len(line.lstrip(" ")), most) :]

    def _close_code(self) -> None:
        if self._framed is not None:
            self._framed.end_block()
        self._framed = self._open_code = None
        self._begin_tail(self._lines[: self._opening_count])

    def _begin_tail(self, openings: list[str]) -> None:
        """Begin a new leaf within the lists and quotes of the lines `openings`."""
        self._lines, self._offsets = [*openings, ""], [*(-1 for _ in openings), self._offset]
        self._opening_count, self._leaf = len(openings), None

    def _show_tail(self) -> None:
        parse = parse_plain if self._quiet else parse_blocks
        leaves = parse(self._lines, self._offsets, self._opening_count)
        if leaves and _is_open(leaves[-1]) and leaves[-1].first == len(self._lines) - 1:
            leaves.pop()  # the language has not come yet
        for number, leaf in enumerate(leaves):
            if number == 0 and self._leaf is not None:
                self._update_leaf(leaf)
            else:
                self._begin_leaf(leaf)
            self._leaf = leaf
        if not leaves:
            return
        last = leaves[-1]
        if last.first > self._opening_count:
            self._keep_last(last)
        if isinstance(last.content, Code) and _is_open(last) and not last.quoted:
            self._follow_code(last.content)
            return
        is_long = sum(map(len, self._lines[self._opening_count :])) > _LONGEST_SEGMENT
        if isinstance(last.content, Table) and len(last.content.rows) > 2:
            if is_long or len(last.content.rows) > _MOST_ROWS:
                self._continue_table(last.content)
        elif is_long:
            self._end_framed()
            self._begin_tail([])

    def _keep_last(self, last: Leaf) -> None:
        """Reduce the tail to the last leaf, with lines that stand for the lists and quotes around it."""
        openings = [write_opening(self._lines[number]) for number in last.openings]
        self._lines = openings + self._lines[last.first :]
        self._offsets = [-1 for _ in openings] + self._offsets[last.first :]
        self._opening_count = len(openings)

    def _follow_code(self, code: Code) -> None:
        """From now on add the text to the code block without parsing it."""
        fence_line = self._lines[self._opening_count]
        around = self._lines[self._opening_count - 1] if self._opening_count else ""
        own = indent_of(fence_line) if fence_line.strip()[:1] not in ("`", "~") else 0
        column = own or len(fence_line) - len(fence_line.lstrip())
        self._code_indents = column, own or min(indent_of(around), column)
        if own and not self._opening_count:
            self._lines.insert(0, write_opening(fence_line))
            self._offsets.insert(0, -1)
            self._opening_count = 1
        self._open_code = code
        self._lines[self._opening_count :] = self._lines[-1:]
        self._offsets[self._opening_count :] = self._offsets[-1:]

    def _continue_table(self, table: Table) -> None:
        """Show the last row of a long table in another one with the same head."""
        *before, last = table.source.split("\n")
        if isinstance(self._framed, TableBlock):
            self._framed.show_table(Table("\n".join(before), table.rows[:-1], table.alignments))
        self._end_framed()
        at = max(number for number, line in enumerate(self._lines) if line.strip())
        self._lines = [*before[:2], last, *self._lines[at + 1 :]]
        self._offsets = [-1, -1, *self._offsets[at:]]
        self._opening_count, self._leaf = 0, None
        self._show_tail()

    def _begin_leaf(self, leaf: Leaf) -> None:
        content = leaf.content
        self._end_framed()
        if isinstance(content, tuple):
            prose = self._prose
            if prose is None or prose.characters > _SEGMENT:
                prose = self._prose = ProseBlock(self._steps, quiet=self._quiet, coloured=self._body.coloured)
                self._begin_line = self._first_line = 0
                prose.replace_lines(0, content)
                self._body.append(prose)
                return
            self._begin_line = self._first_line = prose.line_count
            if not self._quiet and leaf.first > self._opening_count and not self._lines[leaf.first - 1].strip(" \t>"):
                prose.replace_lines(self._first_line, (Line(LineKind.BLANK),))
                self._first_line += 1
            prose.replace_lines(self._first_line, content)
            return
        self._prose = None
        if isinstance(content, Code):
            self._framed = CodeBlock(content.language, self._steps, coloured=self._body.coloured)
            self._framed.show_code(content.text, self._find_offsets(leaf, content), tool=content.tool)
        else:
            self._framed = TableBlock()
            self._framed.show_table(content)
        self._framed.indent = theme.px(LEVEL_WIDTH) * leaf.level
        self._body.append(self._framed)

    def _update_leaf(self, leaf: Leaf) -> None:
        """Show the tail's first leaf as it is now."""
        content = leaf.content
        if isinstance(content, tuple) and self._prose is not None:
            self._prose.replace_lines(self._first_line, content)
        elif isinstance(content, Code) and isinstance(self._framed, CodeBlock):
            self._framed.show_code(content.text, self._find_offsets(leaf, content), tool=content.tool)
        elif isinstance(content, Table) and isinstance(self._framed, TableBlock):
            self._framed.show_table(content)
        else:
            self._remove_leaf()
            self._begin_leaf(leaf)

    def _find_offsets(self, leaf: Leaf, code: Code) -> list[int]:
        """Return the offset in the text of each line of code; lines in lists and quotes are indented in the source."""
        first = leaf.first + (1 if code.fence else 0)
        offsets = []
        for number, line in enumerate(code.text.split("\n"), first):
            source = self._lines[number] if number < len(self._lines) else ""
            known = number < len(self._lines) and self._offsets[number] >= 0 and source.endswith(line)
            offsets.append(self._offsets[number] + len(source) - len(line) if known else UNKNOWN_OFFSET)
        return offsets

    def _remove_leaf(self) -> None:
        """Remove the tail's first leaf, which has turned out to be of another kind."""
        if self._prose is not None and self._begin_line > 0:
            self._prose.cut_lines(self._begin_line)
        else:
            self._body.pop()
            self._prose = None
        self._framed = None

    def _end_framed(self) -> None:
        if self._framed is not None:
            self._framed.end_block()
            self._framed = None


def _is_open(leaf: Leaf) -> bool:
    return isinstance(leaf.content, Code) and leaf.content.is_open
