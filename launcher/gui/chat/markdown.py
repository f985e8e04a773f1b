"""Line-by-line Markdown parser for streamed replies: the kind of a line and its emphasis.

Nothing becomes a link, a picture or HTML: an address is shown as it was written. The time for a line is linear in its
length, whatever its content.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, Flag, auto


class LineKind(Enum):
    """Kind of a line."""

    PLAIN = auto()
    BLANK = auto()
    HEADING = auto()
    BULLET = auto()
    NUMBERED = auto()
    QUOTE = auto()
    RULE = auto()


class SpanStyle(Flag):
    """Style of a span."""

    NONE = 0
    BOLD = auto()
    ITALIC = auto()
    CODE = auto()
    STRUCK = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one style. `start` is its offset in the source line, or -1 for inserted text such as bullets."""

    text: str
    start: int
    style: SpanStyle = SpanStyle.NONE


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line. `level` is a heading's level or a list's indentation."""

    kind: LineKind
    level: int
    spans: tuple[Span, ...]


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$")
_TABLE = re.compile(r"\s*\|.*\|\s*$")
_TABLE_RULE = re.compile(r"[\s|:\-]+$")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+")
_ITEM = re.compile(r"([ \t]*)(?:([-*+])|(\d{1,9}[.)]))[ \t]+")
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_QUOTE = re.compile(r" {0,3}((?:>[ \t]?)+)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_MARKS = {
    "**": SpanStyle.BOLD,
    "__": SpanStyle.BOLD,
    "~~": SpanStyle.STRUCK,
    "*": SpanStyle.ITALIC,
    "_": SpanStyle.ITALIC,
}
_MARKED = re.compile(r"[\\`*_~]")
_ESCAPED = frozenset("\\`*_~#>|-+.!()[]{}")
_MOST_NESTED = 4
"""Levels of emphasis within each other; deeper marks stay as they are written."""


def parse_fence(line: str) -> tuple[str, str] | None:
    """Return the fence and the language if the line opens a code block."""
    found = _FENCE.match(line)
    return (found[1], found[2].strip().split(" ")[0]) if found else None


def closes_fence(line: str, opened: str) -> bool:
    """Return whether a line closes the code block that `opened` has opened."""
    marks = line.strip()
    return len(marks) >= len(opened) and marks == opened[0] * len(marks)


def is_table_row(line: str) -> bool:
    """Return whether a line is a table row."""
    return _TABLE.match(line) is not None


def is_table_rule(row: str) -> bool:
    """Return whether a table's row is the rule below its head, such as |---|--:|."""
    return _TABLE_RULE.match(row) is not None and "-" in row


def split_cells(row: str) -> list[str]:
    """Return the texts of a table row's cells."""
    return [cell.strip() for cell in _CELL_BORDER.split(row.strip().removeprefix("|").removesuffix("|"))]


def parse_inline(text: str) -> tuple[Span, ...]:
    """Parse the emphasis of a text without a line's own marks, such as a table's cell."""
    return tuple(_parse_spans(text, 0, len(text), SpanStyle.NONE, 0))


def parse_line(line: str) -> Line:
    """Parse a line that is neither code nor a table."""
    if not line.strip():
        return Line(LineKind.BLANK, 0, (Span(line, 0),) if line else ())
    if _RULE.match(line):
        return Line(LineKind.RULE, 0, ())
    if found := _HEADING.match(line):
        return Line(
            LineKind.HEADING, len(found[1]), tuple(_parse_spans(line, found.end(), len(line), SpanStyle.NONE, 0))
        )
    if found := _ITEM.match(line):
        level = len(found[1].expandtabs(4)) // 2
        task = _TASK.match(line, found.end()) if found[2] else None
        bullet = "•" if task is None else "☐" if task[1] == " " else "☑"
        mark = Span(f"{bullet if found[2] else found[3]}\t", -1)
        kind = LineKind.BULLET if found[2] else LineKind.NUMBERED
        begin = (task or found).end()
        return Line(kind, level, (mark, *_parse_spans(line, begin, len(line), SpanStyle.NONE, 0)))
    if found := _QUOTE.match(line):
        level = found[1].count(">")
        return Line(LineKind.QUOTE, level, tuple(_parse_spans(line, found.end(), len(line), SpanStyle.NONE, 0)))
    return Line(LineKind.PLAIN, 0, tuple(_parse_spans(line, 0, len(line), SpanStyle.NONE, 0)))


def _parse_spans(line: str, at: int, end: int, style: SpanStyle, depth: int) -> Iterator[Span]:
    """Yield the spans between two offsets. An unclosed mark is searched for once only, so time stays linear."""
    begin = at
    missing: set[str] = set()
    while at < end:
        found = _MARKED.search(line, at, end)
        if found is None:
            break
        at = found.start()
        letter = line[at]
        if letter == "\\" and at + 1 < end and line[at + 1] in _ESCAPED:
            yield from _make_span(line, begin, at, style)
            begin, at = at + 1, at + 2
            continue
        mark = _find_opening_mark(line, at, end)
        close = -1
        if mark and mark not in missing and depth < _MOST_NESTED:
            close = _find_closing_mark(line, at, end, mark)
            if close < 0:
                missing.add(mark)
        if close < 0:
            at += max(len(mark), 1)
            continue
        yield from _make_span(line, begin, at, style)
        inside = at + len(mark)
        if letter == "`":
            yield from _make_span(line, inside, close, style | SpanStyle.CODE)
        else:
            yield from _parse_spans(line, inside, close, style | _MARKS[mark], depth + 1)
        begin = at = close + len(mark)
    yield from _make_span(line, begin, end, style)


def _make_span(line: str, begin: int, end: int, style: SpanStyle) -> Iterator[Span]:
    if begin < end:
        yield Span(line[begin:end], begin, style)


def _find_opening_mark(line: str, at: int, end: int) -> str:
    """Return the mark that may open at an offset, or ""."""
    letter = line[at]
    run = at
    while run < end and line[run] == letter:
        run += 1
    if letter == "`":
        return line[at:run]
    mark = letter * min(run - at, 2)
    if mark not in _MARKS or run >= end or line[run].isspace():
        return ""
    inside_a_word = letter == "_" and at > 0 and line[at - 1].isalnum()
    return "" if inside_a_word else mark


def _find_closing_mark(line: str, at: int, end: int, mark: str) -> int:
    """Return the offset that closes a mark opened at `at`, or -1."""
    begin = at + len(mark)
    close = line.find(mark, begin + 1, end)
    while close >= 0:
        after = close + len(mark)
        if mark[0] == "`":
            closes = line[close - 1] != "`" and (after >= end or line[after] != "`")
        elif len(mark) == 1:
            closes = line[close - 1] != mark and (after >= end or line[after] != mark) and not line[close - 1].isspace()
        else:
            closes = not line[close - 1].isspace()
        if mark[0] == "_" and after < end and line[after].isalnum():
            closes = False
        if closes:
            return close
        close = line.find(mark, close + 1, end)
    return -1
