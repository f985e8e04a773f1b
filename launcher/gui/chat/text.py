"""Blocks of prose in a reply, which grow at their end while the reply streams."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFormat,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QTextEdit, QVBoxLayout

from launcher.gui import theme
from launcher.gui.chat.body import Block
from launcher.gui.chat.markdown import Line, LineKind, Span, SpanStyle, parse_line
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.translation import tr

_HEADING_PX = {1: theme.TITLE_PX, 2: theme.SECTION_PX}


class ReadOnlyText(QTextEdit):
    """Read-only text without links and pictures. Formats are set by code, never by HTML.

    `quiet` text, such as the model's thinking, is small and shown as received, without Markdown.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self.setObjectName("reply")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(tr("Thoughts") if quiet else tr("Reply"))
        self.setTextInteractionFlags(theme.SELECTABLE)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setFont(theme.font(theme.CAPTION_PX if quiet else theme.BODY_PX))
        self.document().setDocumentMargin(0)
        self.quiet = quiet


def set_span_style(form: QTextCharFormat, style: SpanStyle) -> None:
    """Set a span's style in its format."""
    if style & SpanStyle.BOLD:
        form.setFontWeight(QFont.Weight.DemiBold)
    if style & SpanStyle.ITALIC:
        form.setFontItalic(True)
    if style & SpanStyle.STRUCK:
        form.setFontStrikeOut(True)
    if style & SpanStyle.CODE:
        form.setFont(theme.monospace())
        form.setBackground(theme.colour("raised"))


@dataclass(frozen=True, slots=True)
class ProseSource:
    """Content of a ProseBlock without its widget: lines of text, and the offset of each in the reply."""

    text: str
    offsets: "array[int]"
    steps: VerificationSteps | None
    quiet: bool
    wraps = True

    def build_block(self, *, coloured: bool) -> "ProseBlock":
        """Build the block's widget."""
        block = ProseBlock(self.steps, quiet=self.quiet, coloured=coloured)
        block.show_lines(zip(self.offsets, self.text.split("\n"), strict=True))
        return block


class ProseBlock(Block):
    """Lines of prose. Only the last line is laid out again when text arrives."""

    def __init__(self, steps: VerificationSteps | None, *, quiet: bool = False, coloured: bool = False) -> None:
        super().__init__()
        self.edit = ReadOnlyText(quiet=quiet)
        self._steps, self._coloured = steps, coloured
        self._lines: list[tuple[int, str]] = []
        self._plain = True
        """Whether the last line has no Markdown so far, so that text can be appended without replacing the line."""
        self._height = 0
        self.characters = 0
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.edit)
        self.edit.document().documentLayout().documentSizeChanged.connect(self._report_growth)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self._lines)

    @property
    def ends_blank(self) -> bool:
        """Whether the last line is blank."""
        return not self._lines[-1][1].strip()

    def begin_line(self, offset: int) -> None:
        """Start a line at an offset in the reply, in characters."""
        cursor = self._end_cursor()
        blank = self._block_format(Line(LineKind.BLANK, 0, ()))
        if self._lines:
            cursor.insertBlock(blank, QTextCharFormat())
        else:
            cursor.setBlockFormat(blank)
        self._lines.append((offset, ""))
        self._plain = True

    def show_lines(self, lines: Iterable[tuple[int, str]]) -> None:
        """Fill an empty block with lines of (offset, text)."""
        cursor = self._end_cursor()
        cursor.beginEditBlock()
        for offset, line in lines:
            if self._lines:
                cursor.insertBlock()
            self._lines.append((offset, line))
            self.characters += len(line)
            self._replace_line(self._parse_line(line), offset, cursor)
        cursor.endEditBlock()
        self._plain = False

    def append_text(self, text: str) -> None:
        """Append to the last line."""
        offset, before = self._lines[-1]
        line = before + text
        self._lines[-1] = offset, line
        self.characters += len(text)
        shown = self._parse_line(line)
        plain = shown.kind is LineKind.PLAIN and len(shown.spans) == 1 and shown.spans[0].text == line
        if plain and self._plain and before and not self._coloured:
            self._end_cursor().insertText(text, self._char_format(SpanStyle.NONE, LineKind.PLAIN, 0))
        else:
            self._replace_line(shown, offset, self._end_cursor())
        self._plain = plain

    def drop_line(self) -> None:
        """Remove the last line, which turned out to belong to another block."""
        self._lines.pop()
        cursor = self._end_cursor()
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.deletePreviousChar()

    def set_width(self, width: int) -> int:
        """Set the width. Returns the height needed, both in pixels."""
        self.setFixedWidth(width)
        self.edit.ensurePolished()  # the style sheet's border is not known before
        margin = 2 * self.edit.frameWidth()
        if self.edit.document().textWidth() != width - margin:
            self.edit.resize(width, max(self.edit.height(), 8))
            self.edit.document().setTextWidth(width - margin)
        self._height = self._needed_height()
        self.setFixedHeight(self._height)
        return self._height

    def make_source(self) -> ProseSource | None:
        """Return the block's content, unless part of it is selected."""
        if self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        text, offsets = "\n".join(line for _, line in self._lines), array("q", (offset for offset, _ in self._lines))
        return ProseSource(text, offsets, self._steps, self.edit.quiet)

    def recolour(self, *, coloured: bool) -> None:
        """Format all lines again."""
        self._coloured = coloured
        self.edit.setUpdatesEnabled(False)
        cursor = QTextCursor(self.edit.document())
        cursor.beginEditBlock()
        for number, (offset, line) in enumerate(self._lines):
            line_cursor = QTextCursor(self.edit.document().findBlockByNumber(number))
            self._replace_line(self._parse_line(line), offset, line_cursor)
        cursor.endEditBlock()
        self.edit.setUpdatesEnabled(True)

    def _parse_line(self, line: str) -> Line:
        return parse_line(line) if not self.edit.quiet else Line(LineKind.PLAIN, 0, (Span(line, 0),))

    def _replace_line(self, line: Line, offset: int, cursor: QTextCursor) -> None:
        cursor.beginEditBlock()
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock)
        cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.setBlockFormat(self._block_format(line))
        for span in line.spans:
            form = self._char_format(span.style, line.kind, line.level)
            if not self._coloured or self._steps is None or span.start < 0:
                cursor.insertText(span.text, form)
                continue
            first = offset + span.start
            for begin, end, tint in self._steps.split_by_tint(first, first + len(span.text)):
                stretch = QTextCharFormat(form)
                if tint is not None:
                    stretch.setBackground(QColor(theme.current().drafted[tint]))
                cursor.insertText(span.text[begin - first : end - first], stretch)
        cursor.endEditBlock()

    def _block_format(self, line: Line) -> QTextBlockFormat:
        form = QTextBlockFormat()
        gap = theme.px(18)
        if line.kind is LineKind.BLANK and not self.edit.quiet:
            form.setLineHeight(theme.px(8), QTextBlockFormat.LineHeightTypes.FixedHeight.value)
            return form
        form.setLineHeight(132, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        if line.kind in (LineKind.BULLET, LineKind.NUMBERED):
            width = theme.px(18 if line.kind is LineKind.BULLET else 22)
            form.setLeftMargin(line.level * gap + width)
            form.setTextIndent(-width)
            tab = QTextOption.Tab()
            tab.position = width
            form.setTabPositions([tab])
        elif line.kind is LineKind.QUOTE:
            form.setLeftMargin(line.level * gap)
        elif line.kind is LineKind.HEADING:
            form.setTopMargin(theme.px(theme.GAP))
            form.setBottomMargin(theme.px(theme.GAP_S))
        elif line.kind is LineKind.RULE:
            form.setProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth, True)
        return form

    def _char_format(self, style: SpanStyle, kind: LineKind, level: int) -> QTextCharFormat:
        form = QTextCharFormat()
        if kind is LineKind.HEADING:
            form.setFont(theme.font(_HEADING_PX.get(level, theme.BODY_PX), bold=True))
        if kind is LineKind.QUOTE or self.edit.quiet:
            form.setForeground(theme.colour("secondary"))
        set_span_style(form, style)
        return form

    def _end_cursor(self) -> QTextCursor:
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        return cursor

    def _report_growth(self) -> None:
        if self._needed_height() != self._height:
            self.grew.emit()

    def _needed_height(self) -> int:
        return ceil(self.edit.document().size().height()) + 2 * self.edit.frameWidth()
