"""Markdown of streamed replies, by markdown-it: the blocks of a text, and the lines and styles of their spans.

Nothing is loaded and no HTML is understood: pictures and tags are shown as they were written. Links lead to the web
only, and show their address. The time for a text is about linear in its length, whatever its content.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from launcher.base.text import visible_reply
from launcher.gui.chat.formula import format_formula

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token


class LineKind(Enum):
    """Kind of a line of prose."""

    PLAIN = auto()
    BLANK = auto()
    HEADING = auto()
    BULLET = auto()
    NUMBERED = auto()
    RULE = auto()
    FORMULA = auto()


class SpanStyle(Flag):
    """Style of a span."""

    NONE = 0
    BOLD = auto()
    ITALIC = auto()
    CODE = auto()
    STRUCK = auto()
    FORMULA = auto()
    NOTE = auto()
    """Not part of the text: the address of a link."""


@dataclass(frozen=True, slots=True)
class StyledSpan:
    """Text in one style. `start` is its offset in the source, or -1 for text that is not in it, such as bullets.

    `link` is the address that the text leads to, or "".
    """

    text: str
    start: int
    style: SpanStyle = SpanStyle.NONE
    link: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of prose. `level` counts the lists and quotes around it; `heading` is the level of a heading, 1 to 6."""

    kind: LineKind
    spans: tuple[StyledSpan, ...] = ()
    level: int = 0
    heading: int = 0
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code. `fence` are the marks that opened it; `is_open` means that the closing marks have not arrived.

    The code of a tool call is its arguments, once they are complete, and `tool` is the tool's name.
    """

    text: str
    language: str
    fence: str
    is_open: bool
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its source, the texts of its cells by rows, and the alignment of each column: left, center, right."""

    source: str
    rows: tuple[tuple[str, ...], ...]
    alignments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A block without blocks in it: lines of prose, code or a table.

    `first` and `end` are the indices of its first source line and of the line after it, `level` counts the lists and
    quotes around it, and `openings` are the indices of the source lines on which these begin.
    """

    content: tuple[Line, ...] | Code | Table
    first: int
    end: int
    level: int = 0
    openings: tuple[int, ...] = ()
    quoted: bool = False


TOOL_CALL = "tool_call"
"""The language of a block with a call of a tool."""
_TOOL_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"|<function=([^>\s]+)>')
TOOL_CALL_MARKS = "<tool_call>", "</tool_call>"
"""Marks that most models write around the call of a tool. An engine that was given no tools leaves them in the text."""
_MOST_COLUMNS = 30
"""A table with more columns is shown as text, because Qt would take too long for it."""
_MOST_NESTED = 20
"""Lists, quotes and emphasis within each other; deeper marks stay as they are written."""
_SHOWN_ADDRESS = 60
"""Characters of an address that are shown after its link. Before it is opened, all of it is shown."""
_LINK = re.compile(
    r"!?\[(?P<label>(?:[^\[\]\\\n]|\\.){1,300})\]"
    r"\([ \t]*(?P<address><[^<>\n]*>|[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)"
    r"(?:[ \t]+(?:\"[^\"\n]*\"|'[^'\n]*'))?[ \t]*\)"
)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`\\^{}|]+", re.IGNORECASE)
_ADDRESS_END = ".,;:!?*_~"
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_MARKERS = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$))[ \t]*)*")
_FORMULA = re.compile(
    r"\\\((?P<round>.{1,300}?)\\\)|\\\[(?P<square>.{1,300}?)\\\]|\$\$(?P<double>[^$]{1,300})\$\$"
    r"|\$(?P<single>[^\s$](?:[^$\n]{0,300}[^\s$\\])?)\$(?!\d)",
    re.DOTALL,
)
_MOST_FORMULA_LINES = 40
_FORMULA_MARKS = (("$$", "$$"), ("\\[", "\\]"))
_STYLES = {"strong": SpanStyle.BOLD, "em": SpanStyle.ITALIC, "s": SpanStyle.STRUCK}


def parse_blocks(lines: Sequence[str], offsets: Sequence[int], skipped: int = 0) -> list[Leaf]:
    """Return the leaves of a text, in order. `offsets` are the offsets of its lines in the reply.

    Leaves that begin within the first `skipped` lines are left out.
    """
    tokens: list[Token] = []
    _parser().block.parse("\n".join(lines), _parser(), {}, tokens)
    return [leaf for leaf in _BlockReader(lines, offsets, skipped).read(tokens) if leaf.first >= skipped]


def parse_plain(lines: Sequence[str], offsets: Sequence[int], skipped: int = 0) -> list[Leaf]:
    """Return each line as a leaf, without Markdown."""
    plain = [
        Leaf((Line(LineKind.PLAIN, (StyledSpan(line, offset),) if line else ()),), number, number + 1)
        for number, (line, offset) in enumerate(zip(lines, offsets, strict=True))
    ]
    return plain[skipped:]


def parse_inline(text: str) -> tuple[StyledSpan, ...]:
    """Return the spans of a text without blocks, such as a table's cell."""
    return tuple(span for line in _read_spans(text, None) for span in line)


def write_opening(line: str) -> str:
    """Return a line with the list and quote marks of `line`, and a heading in place of its text. Text that is parsed
    after it is in the same lists and quotes as text after `line`.
    """
    found = _MARKERS.match(line)
    return f"{found[0] if found else ''}# x"


def indent_of(line: str) -> int:
    """Return the column at which the text after a line's list marks begins."""
    found = _MARKERS.match(line)
    return len((found[0] if found else "").expandtabs(4))


def closes_fence(line: str, fence: str) -> bool:
    """Return whether a line closes the code block that `fence` has opened."""
    marks = line.strip()
    return len(marks) >= len(fence) and marks == fence[0] * len(marks)


class _BlockReader:
    """Reads the leaves from the tokens of markdown-it's blocks."""

    def __init__(self, lines: Sequence[str], offsets: Sequence[int], skipped: int) -> None:
        self._lines, self._offsets, self._skipped = lines, offsets, skipped
        self._openings: list[int] = []
        self._quotes = 0
        self._marker: tuple[LineKind, str, int] | None = None
        """Kind, marker and line of a list's item that has no text yet."""

    def read(self, tokens: "Sequence[Token]") -> Iterator[Leaf]:
        """Yield the leaves."""
        at = 0
        while at < len(tokens):
            token, begin = tokens[at], at
            at += 1
            first, end = token.map or (0, 0)
            if token.type in ("blockquote_open", "list_item_open"):
                self._openings.append(first)
                if token.type == "blockquote_open":
                    self._quotes += 1
                else:
                    bullet = not token.info
                    kind = LineKind.BULLET if bullet else LineKind.NUMBERED
                    self._marker = kind, "•" if bullet else f"{token.info}{token.markup}", first
            elif token.type in ("blockquote_close", "list_item_close"):
                if self._marker is not None:
                    yield self._make_leaf(
                        self._marker[2], self._marker[2] + 1, (self._mark_line(Line(LineKind.PLAIN)),)
                    )
                self._openings.pop()
                self._quotes -= token.type == "blockquote_close"
            elif token.type in ("paragraph_open", "heading_open"):
                yield from self._read_prose(token, tokens[at])
                at += 2
            elif token.type == "table_open":
                while tokens[at].type != "table_close":
                    at += 1
                yield from self._read_table(tokens[begin : at + 1], first, end)
            elif token.type == "fence":
                yield from self._read_code(token, first, end)
            elif token.type == "tool_call":
                self._marker = None
                yield self._make_leaf(first, end, read_tool_call(token.content))
            elif token.type == "hr":
                yield self._make_leaf(first, end, (Line(LineKind.RULE),))
            elif token.type == "math_block":
                spans = (StyledSpan(format_formula(token.content), -1, SpanStyle.FORMULA),)
                yield self._make_leaf(first, end, (self._mark_line(Line(LineKind.FORMULA, spans)),))

    def _make_leaf(self, first: int, end: int, content: tuple[Line, ...] | Code | Table) -> Leaf:
        level, quoted = len(self._openings), self._quotes > 0
        if isinstance(content, tuple):
            content = tuple(replace(line, level=level, quoted=quoted) for line in content)
        before = tuple(dict.fromkeys(opening for opening in self._openings if opening < first))
        return Leaf(content, first, end, level, before, quoted)

    def _mark_line(self, line: Line) -> Line:
        """Return an item's first line with its marker."""
        if self._marker is None:
            return line
        (kind, marker, _), self._marker = self._marker, None
        spans = line.spans
        task = _TASK.match(spans[0].text) if kind is LineKind.BULLET and spans else None
        if task is not None:
            marker = "☐" if task[1] == " " else "☑"
            rest = spans[0].text[task.end() :]
            start = spans[0].start + task.end() if spans[0].start >= 0 else -1
            spans = (replace(spans[0], text=rest, start=start), *spans[1:]) if rest else spans[1:]
        return replace(line, kind=kind, spans=(StyledSpan(f"{marker}\t", -1), *spans))

    def _read_prose(self, token: "Token", inline: "Token") -> Iterator[Leaf]:
        first, end = token.map or (0, 0)
        if first < self._skipped:
            self._marker = None
            return
        heading = int(token.tag[1:]) if token.type == "heading_open" else 0
        kind = LineKind.HEADING if heading else LineKind.PLAIN
        spans = _read_spans(inline.content, self._locate(inline.content, first))
        lines = [Line(kind, tuple(line), heading=heading) for line in spans]
        yield self._make_leaf(first, end, (self._mark_line(lines[0]), *lines[1:]))

    def _read_table(self, tokens: "Sequence[Token]", first: int, end: int) -> Iterator[Leaf]:
        self._marker = None
        rows: list[list[str]] = []
        alignments = []
        for number, token in enumerate(tokens):
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                rows[-1].append(tokens[number + 1].content)
                if token.type == "th_open":
                    alignments.append(str(token.attrs.get("style", "left")).rpartition(":")[2])
        source = [line.strip() for line in self._lines[first:end]]
        while source and not source[-1]:
            source.pop()
        if len(alignments) > _MOST_COLUMNS:
            yield self._make_leaf(first, end, Code("\n".join(source), "", "", is_open=False))
        else:
            yield self._make_leaf(first, end, Table("\n".join(source), tuple(map(tuple, rows)), tuple(alignments)))

    def _read_code(self, token: "Token", first: int, end: int) -> Iterator[Leaf]:
        self._marker = None
        last = _MARKERS.sub("", self._lines[end - 1], count=1) if self._quotes else self._lines[end - 1]
        is_open = end - first < 2 or not closes_fence(last, token.markup)
        count = len(self._lines) - (not self._lines[-1])
        text = token.content if is_open and end >= count else token.content.removesuffix("\n")
        language = token.info.strip().split(" ")[0]
        yield self._make_leaf(first, end, Code(text, language, token.markup, is_open=is_open))

    def _locate(self, content: str, first: int) -> "_Offsets":
        """Return the offsets in the reply of the lines of a leaf's text."""
        starts, offsets, begin = [], [], 0
        for number, line in enumerate(content.split("\n"), first):
            found = self._lines[number].find(line.strip()) if number < len(self._lines) else 0
            starts.append(begin)
            offsets.append(self._offsets[min(number, len(self._offsets) - 1)] + max(found, 0))
            begin += len(line) + 1
        return _Offsets(content, starts, offsets)


@dataclass(frozen=True, slots=True)
class _Offsets:
    """Offsets in the reply: `starts` are the offsets of the lines in `content`, `offsets` those in the reply."""

    content: str
    starts: list[int]
    offsets: list[int]

    def locate(self, at: int) -> int:
        """Return the offset in the reply of an offset in the content."""
        line = max(bisect_right(self.starts, at) - 1, 0)
        return self.offsets[line] + at - self.starts[line]


def _read_spans(content: str, offsets: _Offsets | None) -> list[list[StyledSpan]]:
    """Return the spans of a text by lines. Their offsets are -1 without `offsets`."""
    tokens: list[Token] = []
    _parser().inline.parse(content, _parser(), {}, tokens)
    lines: list[list[StyledSpan]] = [[]]
    style, link, label, at = SpanStyle.NONE, "", "", 0
    for token in tokens:
        name, _, end = token.type.rpartition("_")
        if token.type in ("softbreak", "hardbreak"):
            lines.append([])
        elif name in _STYLES:
            style = style | _STYLES[name] if end == "open" else style & ~_STYLES[name]
        elif token.type == "link_open":
            link, label = _check_address(str(token.attrs["href"])), ""
        elif token.type == "link_close":
            if link and label.strip() not in (link, link.rstrip("/"), link.partition("://")[2]):
                short = link if len(link) <= _SHOWN_ADDRESS else f"{link[:_SHOWN_ADDRESS]}…"
                lines[-1].append(StyledSpan(f" ({short})", -1, SpanStyle.NOTE, link))
            link = ""
        elif token.type == "math":
            lines[-1].append(StyledSpan(format_formula(token.content), -1, style | SpanStyle.FORMULA, link))
        else:
            text = token.content
            if token.type == "text_special":
                text = visible_reply(text)  # "&#27;" is a control character only now
            written = token.markup if token.type == "text_special" and token.info == "entity" else text
            found = content.find(written, at) if written else -1
            at = found + len(written) if found >= 0 else at
            is_there = offsets is not None and found >= 0 and written == text
            start = offsets.locate(found) if offsets is not None and is_there else -1
            label += text
            own = style | SpanStyle.CODE if token.type == "code_inline" else style
            plain = token.type == "text" and not link
            lines[-1] += _find_addresses(text, start, own) if plain else [StyledSpan(text, start, own, link)]
    return [_join_spans(line) for line in lines]


def _find_addresses(text: str, start: int, style: SpanStyle) -> Iterator[StyledSpan]:
    """Yield a text's spans, its web addresses as links."""
    at = 0
    for found in _ADDRESS.finditer(text):
        address = found[0].rstrip(_ADDRESS_END)
        for opening, closing in ("()", "[]"):
            while address.endswith(closing) and address.count(closing) > address.count(opening):
                address = address[:-1].rstrip(_ADDRESS_END)
        link = _check_address(address)
        if link:
            yield StyledSpan(text[at : found.start()], start + at if start >= 0 else -1, style)
            yield StyledSpan(address, start + found.start() if start >= 0 else -1, style, link)
            at = found.start() + len(address)
    yield StyledSpan(text[at:], start + at if start >= 0 else -1, style)


def _join_spans(spans: Sequence[StyledSpan]) -> list[StyledSpan]:
    """Return the spans without empty ones; spans of one style that adjoin in the source are joined."""
    joined: list[StyledSpan] = []
    for span in spans:
        if not span.text:
            continue
        last = joined[-1] if joined else None
        adjoins = last is not None and span.start == last.start + len(last.text) and last.start >= 0
        if last is not None and adjoins and (last.style, last.link) == (span.style, span.link):
            joined[-1] = replace(last, text=last.text + span.text)
        else:
            joined.append(span)
    return joined


def _check_address(address: str) -> str:
    """Return a web address in its encoded form, "" for any other text."""
    try:
        link = _parser().normalizeLink(address)
        parts = urlsplit(link)
    except (ValueError, UnicodeError):
        return ""
    is_web = parts.scheme.lower() in ("http", "https") and parts.hostname and "@" not in parts.netloc
    return link if is_web and link.isascii() and link.isprintable() and " " not in link else ""


# The parser, and our rules for it.


@cache
def _parser() -> "MarkdownIt":
    """Return the parser. It knows no HTML, pictures, references or indented code, and has rules of ours for links,
    formulas and tool calls.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt(
        "js-default", {"html": False, "linkify": False, "typographer": False, "maxNesting": _MOST_NESTED}
    )
    parser.disable(["code", "reference", "html_block", "html_inline", "image", "link", "linkify"])
    parser.inline.ruler.before("escape", "math", _parse_formula)
    parser.inline.ruler.before("autolink", "web_link", _parse_link)
    ends: Any = {"alt": ["paragraph", "blockquote", "list"]}
    parser.block.ruler.before("fence", "math_block", _parse_formula_block, ends)
    parser.block.ruler.before("fence", "tool_call", _parse_tool_call, ends)
    return parser


def _parse_link(state: "StateInline", silent: bool) -> bool:
    """Parse [text](address). markdown-it's own rule takes a time that grows with the square of a line's length."""
    if state.src[state.pos] not in "![":
        return False
    found = _LINK.match(state.src, state.pos, state.posMax)
    link = _check_address(found["address"].strip("<>")) if found else ""
    if found is None or not link:
        return False
    if not silent:
        token: Any = state.push("link_open", "a", 1)
        token.attrs = {"href": link}
        end, state.pos, state.posMax = state.posMax, found.start("label"), found.end("label")
        state.md.inline.tokenize(state)
        state.posMax = end
        state.push("link_close", "a", -1)
    state.pos = found.end()
    return True


def _parse_formula(state: "StateInline", silent: bool) -> bool:
    r"""Parse \(...\), \[...\], $$...$$ and $...$."""
    if state.src[state.pos] not in "\\$":
        return False
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        token = state.push("math", "", 0)
        token.content = next(filter(None, found.groups()))
    state.pos = found.end()
    return True


def _parse_formula_block(state: "StateBlock", first: int, last: int, silent: bool) -> bool:
    r"""Parse $$ or \[ at the beginning of a line up to its closing marks.

    Without closing marks it is not a formula, except at the end of the text, where they may still arrive.
    """
    begin = state.bMarks[first] + state.tShift[first]
    opening, closing = next((marks for marks in _FORMULA_MARKS if state.src.startswith(marks[0], begin)), ("", ""))
    if not opening:
        return False
    texts: list[str] = []
    end, closed = first, ""
    while end < min(last, first + _MOST_FORMULA_LINES) and not closed:
        line = state.src[state.bMarks[end] + state.tShift[end] : state.eMarks[end]]
        line = line.removeprefix(opening) if end == first else line
        if (not line.strip() and end > first) or state.sCount[end] < state.blkIndent:
            return False
        text, closed, behind = line.partition(closing)
        texts.append(text)
        if behind.strip():
            return False
        end += 1
    if not closed and (texts[0].strip() or end < state.lineMax):
        return False
    if not silent:
        state.line = end
        token = state.push("math_block", "", 0)
        token.content, token.map = "\n".join(texts), [first, end]
    return True


def read_tool_call(text: str) -> Code:
    """Return the block of a tool call: its arguments as JSON over several lines, if incomplete the text so far."""
    name = _TOOL_NAME.search(text)
    tool = name[1] or name[2] if name else ""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        call = None
    if isinstance(call, dict) and isinstance(call.get("arguments"), dict):
        tool = str(call.get("name") or tool)
        text = json.dumps(call["arguments"], ensure_ascii=False, indent=2)
    return Code(text, TOOL_CALL, "", is_open=False, tool=tool)


def _parse_tool_call(state: "StateBlock", first: int, last: int, silent: bool) -> bool:
    """Parse a tool call from its opening mark to its closing one, which may not have arrived yet."""
    opening, closing = TOOL_CALL_MARKS
    begin = state.bMarks[first] + state.tShift[first]
    if not state.src.startswith(opening, begin):
        return False
    texts: list[str] = []
    end, closed = first, ""
    while end < last and not closed:
        line = state.src[state.bMarks[end] : state.eMarks[end]]
        text, closed, _ = (line.lstrip().removeprefix(opening) if end == first else line).partition(closing)
        texts.append(text)
        end += 1
    if not silent:
        state.line = end
        token = state.push("tool_call", "", 0)
        token.content, token.map = "\n".join(texts).strip("\n"), [first, end]
    return True
