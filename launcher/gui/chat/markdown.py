"""Markdown a line at a time, as replies stream: what a line is, and its emphasis.

Nothing becomes a link, a picture or HTML: an address is seen as it was written. Every line costs time that grows with
its length alone, whatever it holds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, Flag, auto


class Kind(Enum):
    """What a line is."""

    PLAIN = auto()
    BLANK = auto()
    HEADING = auto()
    BULLET = auto()
    NUMBERED = auto()
    QUOTE = auto()
    RULE = auto()


class Style(Flag):
    """How a stretch of text is set."""

    NONE = 0
    BOLD = auto()
    ITALIC = auto()
    CODE = auto()
    STRUCK = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one style. `start` is where it stands in the line as it was written; -1 for what we put there."""

    text: str
    start: int
    style: Style = Style.NONE


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is to be shown. `level` is a heading's, or how far a list is indented."""

    kind: Kind
    level: int
    spans: tuple[Span, ...]


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$")
_TABLE = re.compile(r"\s*\|.*\|\s*$")
_TABLE_RULE = re.compile(r"[\s|:\-]+$")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+")
_ITEM = re.compile(r"([ \t]*)(?:([-*+])|(\d{1,9}[.)]))[ \t]+")
_QUOTE = re.compile(r" {0,3}((?:>[ \t]?)+)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_MARKS = {
    "**": Style.BOLD,
    "__": Style.BOLD,
    "~~": Style.STRUCK,
    "*": Style.ITALIC,
    "_": Style.ITALIC,
}
_MARKED = re.compile(r"[\\`*_~]")
_ESCAPED = frozenset("\\`*_~#>|-+.!()[]{}")
_DEEPEST = 4


def fence(line: str) -> tuple[str, str] | None:
    """Return the marks that open a block of code and the name of its language, if the line does."""
    found = _FENCE.match(line)
    return (found[1], found[2].strip().split(" ")[0]) if found else None


def closes(line: str, opened: str) -> bool:
    """Whether a line closes the block of code that `opened` has opened."""
    marks = line.strip()
    return len(marks) >= len(opened) and marks == opened[0] * len(marks)


def is_table_row(line: str) -> bool:
    """Whether a line is a row of a table."""
    return _TABLE.match(line) is not None


def aligned(rows: list[str]) -> str:
    """Return a table's rows as text in columns of equal width; a row of dashes becomes a line."""
    cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
    widths = [0] * max(map(len, cells), default=0)
    for row, texts in zip(rows, cells, strict=True):
        if not _TABLE_RULE.match(row):
            for column, text in enumerate(texts):
                widths[column] = max(widths[column], len(text))
    return "\n".join(
        "  ".join("─" * width for width in widths)
        if _TABLE_RULE.match(row)
        else "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=False)).rstrip()
        for row, texts in zip(rows, cells, strict=True)
    )


def parse(line: str) -> Line:
    """Return a line that is neither code nor a table."""
    if not line.strip():
        return Line(Kind.BLANK, 0, (Span(line, 0),) if line else ())
    if _RULE.match(line):
        return Line(Kind.RULE, 0, ())
    if found := _HEADING.match(line):
        return Line(Kind.HEADING, len(found[1]), tuple(_inline(line, found.end(), len(line), Style.NONE, 0)))
    if found := _ITEM.match(line):
        level = len(found[1].expandtabs(4)) // 2
        mark = Span("•\t" if found[2] else f"{found[3]}\t", -1)
        kind = Kind.BULLET if found[2] else Kind.NUMBERED
        return Line(kind, level, (mark, *_inline(line, found.end(), len(line), Style.NONE, 0)))
    if found := _QUOTE.match(line):
        level = found[1].count(">")
        return Line(Kind.QUOTE, level, tuple(_inline(line, found.end(), len(line), Style.NONE, 0)))
    return Line(Kind.PLAIN, 0, tuple(_inline(line, 0, len(line), Style.NONE, 0)))


def _inline(line: str, at: int, end: int, style: Style, depth: int) -> Iterator[Span]:
    """Yield the stretches of a line between two places. A mark that nothing closes is searched for once."""
    begin = at
    missing: set[str] = set()
    while at < end:
        found = _MARKED.search(line, at, end)
        if found is None:
            break
        at = found.start()
        letter = line[at]
        if letter == "\\" and at + 1 < end and line[at + 1] in _ESCAPED:
            yield from _span(line, begin, at, style)
            begin, at = at + 1, at + 2
            continue
        mark = _mark(line, at, end)
        close = -1
        if mark and mark not in missing and depth < _DEEPEST:
            close = _closing(line, at, end, mark)
            if close < 0:
                missing.add(mark)
        if close < 0:
            at += max(len(mark), 1)
            continue
        yield from _span(line, begin, at, style)
        inside = at + len(mark)
        if letter == "`":
            yield from _span(line, inside, close, style | Style.CODE)
        else:
            yield from _inline(line, inside, close, style | _MARKS[mark], depth + 1)
        begin = at = close + len(mark)
    yield from _span(line, begin, end, style)


def _span(line: str, begin: int, end: int, style: Style) -> Iterator[Span]:
    if begin < end:
        yield Span(line[begin:end], begin, style)


def _mark(line: str, at: int, end: int) -> str:
    """Return the mark that may open at a place, or nothing."""
    letter = line[at]
    run = at
    while run < end and line[run] == letter:
        run += 1
    if letter == "`":
        return line[at:run]
    mark = letter * min(run - at, 2)
    if mark not in _MARKS or run >= end or line[run].isspace():
        return "" if mark in _MARKS else letter * (run - at) if run - at > 2 else ""
    inside_a_word = letter == "_" and at > 0 and line[at - 1].isalnum()
    return "" if inside_a_word else mark


def _closing(line: str, at: int, end: int, mark: str) -> int:
    """Return where a mark that opens at a place is closed; -1 where it is not."""
    begin = at + len(mark)
    close = line.find(mark, begin + 1, end)
    while close >= 0:
        after = close + len(mark)
        if mark[0] == "`":
            alone = line[close - 1] != "`" and (after >= end or line[after] != "`")
        elif len(mark) == 1:
            alone = line[close - 1] != mark and (after >= end or line[after] != mark) and not line[close - 1].isspace()
        else:
            alone = not line[close - 1].isspace()
        if mark[0] == "_" and after < end and line[after].isalnum():
            alone = False
        if alone:
            return close
        close = line.find(mark, close + 1, end)
    return -1
