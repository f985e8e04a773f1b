"""Blocks of prose in a reply, which grow at their end while the reply streams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import (
    QFont,
    QPainter,
    QPaintEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFormat,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QVBoxLayout

from launcher.gui import theme
from launcher.gui.chat.body import BodyBlock
from launcher.gui.chat.drafts import mark_draft
from launcher.gui.chat.links import LinkText
from launcher.gui.chat.markdown import Line, LineKind, SpanStyle, StyledSpan
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.translation import tr

_HEADING_PX = {1: theme.TITLE_PX, 2: 17, 3: theme.SECTION_PX}
_FORMULA_FONTS = ("STIX Two Text", "Cambria Math", "DejaVu Serif", "Noto Serif", "serif")
_QUOTE_PROPERTY, _QUOTE_BAR = int(QTextFormat.Property.UserProperty) + 1, 3
"""Property of quoted paragraphs: where the bar beside them is, in pixels; and the bar's width."""
LEVEL_WIDTH = 24
"""Width by which the text of a list or a quote is indented, in pixels at 100 % scale."""


class ReadOnlyText(LinkText):
    """Text of a reply, as high as its content.

    `quiet` text, such as the model's thinking, is small and shown as received, without Markdown.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self.setObjectName("reply")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(tr("Thoughts") if quiet else tr("Reply"))
        self.setTextInteractionFlags(theme.SELECTABLE)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setFont(theme.font(theme.CAPTION_PX if quiet else theme.PROSE_PX))
        self.document().setDocumentMargin(0)
        self.quiet = quiet

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the text, and a bar beside what is quoted."""
        with QPainter(self.viewport()) as painter:
            layout, block = self.document().documentLayout(), self.document().begin()
            while block.isValid():
                if (indent := block.blockFormat().property(_QUOTE_PROPERTY)) is not None:
                    box = layout.blockBoundingRect(block)
                    painter.fillRect(QRectF(int(indent), box.y(), _QUOTE_BAR, box.height()), theme.colour("border"))
                block = block.next()
        super().paintEvent(event)


def set_span_style(form: QTextCharFormat, span: StyledSpan) -> None:
    """Set a span's style and its link in its format."""
    style = span.style
    if style & SpanStyle.BOLD:
        form.setFontWeight(QFont.Weight.DemiBold)
    if style & SpanStyle.ITALIC:
        form.setFontItalic(True)
    if style & SpanStyle.STRUCK:
        form.setFontStrikeOut(True)
    if style & SpanStyle.CODE:
        form.setFont(theme.monospace(theme.BODY_PX))
        form.setBackground(theme.colour("raised"))
    if style & SpanStyle.FORMULA:
        form.setFontFamilies(list(_FORMULA_FONTS))
        form.setFontStyleHint(QFont.StyleHint.Serif)
    if span.link:
        form.setAnchor(True)
        form.setAnchorHref(span.link)
        form.setForeground(theme.colour("accent"))
        form.setFontUnderline(True)
    if style & SpanStyle.NOTE:
        form.setForeground(theme.colour("secondary"))
        form.setFontUnderline(False)


@dataclass(frozen=True, slots=True)
class ProseSource:
    """Content of a ProseBlock without its widget."""

    lines: tuple[Line, ...]
    steps: VerificationSteps | None
    quiet: bool
    wraps = True

    def build_block(self, *, coloured: bool) -> "ProseBlock":
        """Build the block's widget."""
        block = ProseBlock(self.steps, quiet=self.quiet, coloured=coloured)
        block.replace_lines(0, self.lines)
        return block


class ProseBlock(BodyBlock):
    """Lines of prose. Only lines that differ are laid out again."""

    def __init__(self, steps: VerificationSteps | None, *, quiet: bool = False, coloured: bool = False) -> None:
        super().__init__()
        self.edit = ReadOnlyText(quiet=quiet)
        self._steps, self._coloured = steps, coloured
        self._lines: list[Line] = []
        self._height = 0
        self.characters = 0
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.edit)
        self.edit.document().documentLayout().documentSizeChanged.connect(self._report_growth)

    @property
    def line_count(self) -> int:
        """Number of lines."""
        return len(self._lines)

    def replace_lines(self, first: int, lines: Sequence[Line]) -> None:
        """Show other lines from number `first` on."""
        while first < len(self._lines) and lines and self._lines[first] == lines[0]:
            first, lines = first + 1, lines[1:]
        if not lines and first == len(self._lines):
            return
        if any(span.link for line in lines for span in line.spans):
            self.edit.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # Tab goes to links, and past all other texts
        cursor = self._end_cursor()
        cursor.beginEditBlock()
        if len(lines) == 1 and first == len(self._lines) - 1 and self._append_spans(first, lines[0], cursor):
            cursor.endEditBlock()
            return
        self._cut_lines(max(first, 1), cursor)
        for number, line in enumerate(lines, first):
            self.characters += _count_characters(line)
            if number == 0 and self._lines:
                self.characters -= _count_characters(self._lines[0])
                self._lines[0] = line
            else:
                if number:
                    cursor.insertBlock()
                self._lines.append(line)
            self._replace_line(line, cursor)
        cursor.endEditBlock()

    def cut_lines(self, first: int) -> None:
        """Remove the lines from number `first` on, which must not be 0."""
        self._cut_lines(first, self._end_cursor())

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
        return ProseSource(tuple(self._lines), self._steps, self.edit.quiet)

    def recolour(self, *, coloured: bool) -> None:
        """Format all lines again."""
        self._coloured = coloured
        self.edit.setUpdatesEnabled(False)
        cursor = QTextCursor(self.edit.document())
        cursor.beginEditBlock()
        for number, line in enumerate(self._lines):
            self._replace_line(line, QTextCursor(self.edit.document().findBlockByNumber(number)))
        cursor.endEditBlock()
        self.edit.setUpdatesEnabled(True)

    def _append_spans(self, number: int, line: Line, cursor: QTextCursor) -> bool:
        """Append to the last line what `line` has in addition; return whether that is possible."""
        before = self._lines[number]
        if self._coloured or not before.spans or replace(line, spans=()) != replace(before, spans=()):
            return False
        kept, last = before.spans[:-1], before.spans[-1]
        if line.spans[: len(kept)] != kept or len(line.spans) == len(kept):
            return False
        grown = line.spans[len(kept)]
        if replace(grown, text="") != replace(last, text="") or not grown.text.startswith(last.text):
            return False
        for span in (replace(grown, text=grown.text[len(last.text) :]), *line.spans[len(kept) + 1 :]):
            cursor.insertText(span.text, self._char_format(span, line))
        self.characters += _count_characters(line) - _count_characters(before)
        self._lines[number] = line
        return True

    def _cut_lines(self, first: int, cursor: QTextCursor) -> None:
        if first < len(self._lines):
            self.characters -= sum(map(_count_characters, self._lines[first:]))
            del self._lines[first:]
            cursor.setPosition(self.edit.document().findBlockByNumber(first).position() - 1)
            cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()

    def _replace_line(self, line: Line, cursor: QTextCursor) -> None:
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock)
        cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.setBlockFormat(self._block_format(line))
        for span in line.spans:
            form = self._char_format(span, line)
            if not self._coloured or self._steps is None or span.start < 0:
                cursor.insertText(span.text, form)
                continue
            first = span.start
            for begin, end, position in self._steps.split_by_position(first, first + len(span.text)):
                stretch = QTextCharFormat(form)
                if position:
                    mark_draft(stretch, position)
                cursor.insertText(span.text[begin - first : end - first], stretch)

    def _block_format(self, line: Line) -> QTextBlockFormat:
        form = QTextBlockFormat()
        if line.kind is LineKind.BLANK and not self.edit.quiet:
            form.setLineHeight(theme.px(theme.GAP), QTextBlockFormat.LineHeightTypes.FixedHeight.value)
            return form
        form.setLineHeight(132, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        width = theme.px(LEVEL_WIDTH)
        form.setLeftMargin(line.level * width)
        if line.quoted:
            form.setProperty(_QUOTE_PROPERTY, theme.px(theme.GAP))
        if line.kind in (LineKind.BULLET, LineKind.NUMBERED):
            form.setTextIndent(-width)
            tab = QTextOption.Tab()
            tab.position = width
            form.setTabPositions([tab])
        elif line.kind is LineKind.FORMULA:
            form.setLeftMargin((line.level + 1) * width)
        elif line.kind is LineKind.HEADING:
            form.setTopMargin(theme.px(theme.GAP))
            form.setBottomMargin(theme.px(theme.GAP_S))
        elif line.kind is LineKind.RULE:
            form.setProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth, True)
        return form

    def _char_format(self, span: StyledSpan, line: Line) -> QTextCharFormat:
        form = QTextCharFormat()
        if line.kind is LineKind.HEADING:
            form.setFont(theme.font(_HEADING_PX.get(line.heading, theme.PROSE_PX), bold=True))
        if line.quoted or self.edit.quiet:
            form.setForeground(theme.colour("secondary"))
        set_span_style(form, span)
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


def _count_characters(line: Line) -> int:
    return sum(len(span.text) for span in line.spans) + 1
