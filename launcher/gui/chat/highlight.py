"""Colours of code in replies, by Pygments: line by line, a little per turn of the event loop."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtGui import QColor, QTextBlock, QTextCharFormat, QTextDocument, QTextLayout

from launcher.gui import theme
from launcher.gui.chat.drafts import mark_draft
from launcher.gui.chat.markdown import TOOL_CALL

if TYPE_CHECKING:
    from pygments.lexer import Lexer

_BUSY_S, _PAUSE_MS = 0.006, 8
"""Time budget per turn of the event loop, and pause between turns."""
_LONGEST_LINE = 2_000
"""Longer lines have no colours: some lexers take a time that grows with the square of a line's length."""
_ROLES = {
    "Token.Keyword": "code_keyword",
    "Token.Operator.Word": "code_keyword",
    "Token.Name.Function": "code_name",
    "Token.Name.Class": "code_name",
    "Token.Name.Builtin": "code_name",
    "Token.Name.Decorator": "code_name",
    "Token.Name.Tag": "code_name",
    "Token.Name.Attribute": "code_number",
    "Token.Literal.String": "code_string",
    "Token.Literal.Number": "code_number",
    "Token.Comment": "secondary",
    "Token.Generic.Inserted": "code_string",
    "Token.Generic.Deleted": "code_number",
    "Token.Generic.Heading": "code_keyword",
}
"""The colour's role for a kind of token and all kinds below it."""


SplitLine = Callable[[int], Iterable[tuple[int, int, int]]]
"""Yields begin, end and draft position of the parts of a line, in characters, by the line's number."""


class CodeColours(QObject):
    """Colours the lines of a document, which grows at its end only.

    The parts of a line that came from drafts are underlined while `marks_drafts` is set.
    """

    def __init__(self, document: QTextDocument, language: str, split_line: SplitLine = lambda _number: ()) -> None:
        super().__init__(document)
        self._split_line = split_line
        self.marks_drafts = False
        self._document, self._language = document, "json" if language == TOOL_CALL else language
        self._lexer: Lexer | None = None
        self._stack = ["root"]
        """The lexer's states at the beginning of the first line without colours."""
        self._coloured_lines = 0
        """Number of complete lines that have their colours."""
        self._has_marks = False
        """Whether tokens from drafts are underlined in lines that have been coloured."""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.colour_new_lines)

    def restart(self) -> None:
        """Colour all lines again, for another theme."""
        self._stack, self._coloured_lines = ["root"], 0
        self.colour_new_lines()

    @Slot()
    def colour_new_lines(self) -> None:
        """Colour the lines without colours as far as the time allows, and the rest a little later."""
        if self._lexer is None:
            self._lexer = find_lexer(self._language)
        if self._lexer is None and not self.marks_drafts and not self._has_marks:
            return
        self._has_marks = self.marks_drafts
        until_s, block = perf_counter() + _BUSY_S, self._document.findBlockByNumber(self._coloured_lines)
        while block.isValid():
            following, stack = block.next(), list(self._stack)
            self._set_formats(block, stack)
            if following.isValid():  # the last line may grow
                self._stack, self._coloured_lines = stack, self._coloured_lines + 1
            block = following
            if perf_counter() > until_s and block.isValid():
                self._timer.start(_PAUSE_MS)
                return

    def _set_formats(self, block: QTextBlock, stack: list[str]) -> None:
        formats = []
        for begin, length, role in _find_colours(self._lexer, block.text(), stack):
            format_range = QTextLayout.FormatRange()
            format_range.start, format_range.length = begin, length
            format_range.format = QTextCharFormat()
            format_range.format.setForeground(QColor(theme.colour(role)))
            formats.append(format_range)
        if self.marks_drafts:
            formats += self._mark_drafts(block)
        if formats or block.layout().formats():
            block.layout().setFormats(formats)
            self._document.markContentsDirty(block.position(), block.length())

    def _mark_drafts(self, block: QTextBlock) -> Iterator[QTextLayout.FormatRange]:
        """Yield the underlines of the parts of a line that came from drafts."""
        text = block.text()
        wide = not text.isascii()
        for begin, end, position in self._split_line(block.blockNumber()):
            if position:
                format_range = QTextLayout.FormatRange()
                format_range.start = _count_utf16(text[:begin]) if wide else begin
                format_range.length = _count_utf16(text[begin:end]) if wide else end - begin
                format_range.format = QTextCharFormat()
                mark_draft(format_range.format, position, background=False)
                yield format_range


def find_lexer(language: str) -> "Lexer | None":
    """Return the lexer of a language by its name in Markdown, or None if there is none."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language.lower(), stripnl=False) if language else None
    except ClassNotFound:
        return None


def _find_colours(lexer: "Lexer | None", line: str, stack: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield begin, length and colour role of a line's parts that have a colour, in UTF-16 units as Qt counts.

    `stack` has the lexer's states at the line's beginning, and then at its end.
    """
    from pygments.lexer import ExtendedRegexLexer, LexerContext, RegexLexer

    if lexer is None or len(line) > _LONGEST_LINE:
        return
    if isinstance(lexer, RegexLexer):
        context = LexerContext(f"{line}\n", 0, stack=list(stack))
        # Extended's method is called for any lexer by states: it alone returns the states at the end.
        tokens = ExtendedRegexLexer.get_tokens_unprocessed(lexer, context=context)
    else:
        context, tokens = None, lexer.get_tokens_unprocessed(f"{line}\n")
    wide = not line.isascii()
    for begin, kind, text in tokens:
        shown = text.rstrip("\n")
        role = _find_role(str(kind)) if shown else None
        if role and not shown.isspace():
            start, length = begin, len(shown)
            if wide:
                start, length = _count_utf16(line[:begin]), _count_utf16(shown)
            yield start, length, role
    if context is not None:
        stack[:] = context.stack or ["root"]


def _count_utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@cache
def _find_role(kind: str) -> str | None:
    """Return the colour's role for a kind of token, or None for the colour of other text."""
    while kind and kind not in _ROLES:
        kind = kind.rpartition(".")[0]
    return _ROLES.get(kind)
