"""A reply's text, as it comes in pieces, sorted into blocks."""

from launcher.gui.chat.body import Body
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.markdown import closes, fence, is_table_row
from launcher.gui.chat.steps import Steps
from launcher.gui.chat.text import Paragraphs

_LONGEST_LINE = 2_000
"""Qt lays a line out in a time that grows with its square, so longer ones are broken."""
_SEGMENT, _LONGEST_SEGMENT = 3_000, 6_000
"""Characters after which a block of prose is left as it is, and another one begun: at a blank line, or at any."""


class Stream:
    """Sorts text that comes in pieces into the blocks of a body."""

    def __init__(self, body: Body, steps: Steps | None, *, quiet: bool = False) -> None:
        self._body, self._steps, self._quiet = body, steps, quiet
        self._prose: Paragraphs | None = None
        self._code: CodeBlock | None = None
        self._fence = ""
        self._line = ""
        self._offset = 0
        self._broken = False

    def add(self, text: str) -> None:
        """Append text."""
        first, *others = text.split("\n")
        self._put(first)
        for line in others:
            self._end_line()
            self._put(line)

    def end(self) -> None:
        """Take note that nothing more comes: the last line is whole, though no end of it came."""
        line = self._line
        if self._code is None:
            return
        if self._fence and closes(line, self._fence):
            self._code.drop_line()
        elif not self._fence and not is_table_row(line):
            self._code.drop_line()
            if line:
                self._begin_prose(self._offset).add(line)
        self._close_code()

    def _put(self, text: str) -> None:
        while len(self._line) + len(text) > _LONGEST_LINE:
            room = _LONGEST_LINE - len(self._line)
            self._append(text[:room])
            text = text[room:]
            self._break_line()
        if text:
            self._append(text)

    def _append(self, text: str) -> None:
        self._line += text
        if self._code is not None:
            self._code.add(text)
        else:
            (self._prose or self._begin_prose()).add(text)

    def _break_line(self) -> None:
        """Go on in a new line that is none in the source."""
        self._offset += len(self._line)
        self._line, self._broken = "", True
        if self._code is not None:
            self._code.add("\n")
        else:
            self._next_line()

    def _end_line(self) -> None:
        line, whole = self._line, not self._broken
        begun = self._offset
        self._offset += len(line) + 1
        self._line, self._broken = "", False
        if self._fence and self._code is not None:
            if whole and closes(line, self._fence):
                self._code.drop_line()
                self._close_code()
            else:
                self._code.add("\n")
        elif self._code is not None:
            if is_table_row(line):
                self._code.add("\n")
            else:
                self._code.drop_line()
                self._close_code()
                if line.strip():
                    self._begin_prose(begun).add(line)
                    self._next_line()
        elif whole and not self._quiet and (opened := fence(line)):
            self._fence = opened[0]
            self._begin_code(CodeBlock(opened[1]))
        elif whole and not self._quiet and is_table_row(line):
            self._begin_code(CodeBlock("", table=True)).add(f"{line}\n")
        else:
            self._next_line()

    def _next_line(self) -> None:
        """Begin one in the prose that is under way. Where none is, one begins with the first line that says something:
        blank lines at its edges would add to the gap between blocks."""
        if self._prose is None:
            return
        most = _SEGMENT if self._prose.ends_blank else _LONGEST_SEGMENT
        if self._prose.characters > most:
            if self._prose.ends_blank and self._prose.lines > 1:
                self._prose.drop_line()
            self._prose = None
        else:
            self._prose.begin_line(self._offset)

    def _begin_prose(self, offset: int | None = None) -> Paragraphs:
        self._prose = Paragraphs(self._steps, quiet=self._quiet, coloured=self._body.coloured)
        self._prose.begin_line(self._offset if offset is None else offset)
        self._body.append(self._prose)
        return self._prose

    def _begin_code(self, block: CodeBlock) -> CodeBlock:
        """The line that opened it stands in the prose before, and leaves it with the blank ones above."""
        if self._prose is not None:
            while self._prose.lines > 1:
                self._prose.drop_line()
                if not self._prose.ends_blank:
                    break
            else:
                self._body.pop()
        self._prose, self._code = None, block
        self._body.append(block)
        return block

    def _close_code(self) -> None:
        if self._code is not None:
            self._code.end()
        self._code, self._fence = None, ""
