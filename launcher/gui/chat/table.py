"""Block of a reply for a table, which gets its rows while the reply streams."""

from dataclasses import dataclass
from math import ceil

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QBrush,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFrameFormat,
    QTextTable,
    QTextTableCellFormat,
    QTextTableFormat,
)
from PySide6.QtWidgets import QTextEdit

from launcher.gui import theme
from launcher.gui.chat.code import FramedBlock
from launcher.gui.chat.markdown import is_table_rule, parse_inline, split_cells
from launcher.gui.chat.text import set_span_style
from launcher.gui.translation import tr

_MOST_COLUMNS, _MOST_ROWS = 30, 100
"""A larger table would be laid out for too long whenever a row comes."""


def fits_table(row: str) -> bool:
    """Return whether a table row has few enough cells to be shown as a table."""
    return len(split_cells(row)) <= _MOST_COLUMNS


@dataclass(frozen=True, slots=True)
class TableSource:
    """A finished table without a widget."""

    text: str
    wraps = True

    def build_block(self, *, coloured: bool) -> "TableBlock":  # noqa: ARG002 -- cells are not coloured by draft step
        """Build the block's widget."""
        block = TableBlock()
        block.append_text(self.text)
        block.end_block()
        return block


class TableBlock(FramedBlock):
    """A table. A row is shown once it is complete."""

    def __init__(self) -> None:
        self.edit = QTextEdit()
        super().__init__(tr("table"), self.edit)
        self._shown_lines = 0
        self._table: QTextTable | None = None
        self._alignments: list[Qt.AlignmentFlag] = []
        self.edit.setReadOnly(True)
        self.edit.setUndoRedoEnabled(False)
        self.edit.setFont(theme.font(theme.BODY_PX))
        self.edit.setTextInteractionFlags(theme.SELECTABLE)
        self.edit.setAccessibleName(tr("Table"))
        self.edit.document().setDocumentMargin(0)

    @property
    def is_full(self) -> bool:
        """Whether further rows belong into another block."""
        return self._shown_lines >= _MOST_ROWS

    def append_text(self, text: str) -> None:
        """Append source, which may contain line ends."""
        super().append_text(text)
        if "\n" in text:
            self._show_rows(len(self._lines) - 1)

    def drop_line(self) -> None:
        """Remove the last line, which turned out to belong to another block."""
        self._lines.pop()

    def end_block(self) -> None:
        """Mark the table as finished, and show its last row."""
        self._ended = True
        self._show_rows(len(self._lines))

    def make_source(self) -> TableSource | None:
        """Return the table's source once it is finished, unless part of it is selected."""
        if not self._ended or self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        return TableSource(self.code)

    def recolour(self, *, coloured: bool) -> None:  # noqa: ARG002 -- cells are not coloured by draft step
        """Show all rows again in the current theme."""
        lines, self._shown_lines, self._table = self._shown_lines, 0, None
        self.edit.document().clear()
        self._show_rows(lines)

    def set_width(self, width: int) -> int:
        """Set the width. Returns the height needed, both in pixels."""
        room, document = width - self._frame_width, self.edit.document()
        if document.textWidth() != room:
            self.edit.resize(room, max(self.edit.height(), 8))
            document.setTextWidth(room)
        height = ceil(document.size().height()) + self._frame_height
        if document.size().width() > room:
            height += self.edit.horizontalScrollBar().sizeHint().height()
        return self._set_size(width, height)

    def _show_rows(self, end: int) -> None:
        """Show the lines before `end` that are not shown yet."""
        cursor = QTextCursor(self.edit.document())
        cursor.beginEditBlock()
        for number in range(self._shown_lines, end):
            line = self._lines[number]
            if number == 1 and is_table_rule(line):
                self._alignments = [_find_alignment(cell) for cell in split_cells(line)]
                self._show_row(0, split_cells(self._lines[0]), is_head=True)
            elif line.strip():
                self._add_row(split_cells(line))
        self._shown_lines = max(self._shown_lines, end)
        cursor.endEditBlock()
        self.grew.emit()

    def _add_row(self, cells: list[str]) -> None:
        if self._table is None:
            form = QTextTableFormat()
            form.setBorder(0)
            form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_None)
            form.setCellSpacing(0)
            form.setCellPadding(0)
            self._table = QTextCursor(self.edit.document()).insertTable(1, max(len(cells), 1), form)
            for position in (QTextCursor.MoveOperation.Start, QTextCursor.MoveOperation.End):
                self._flatten_paragraph(position)
        else:
            self._table.appendRows(1)
        self._show_row(self._table.rows() - 1, cells, is_head=False)

    def _flatten_paragraph(self, position: QTextCursor.MoveOperation) -> None:
        """Take the height from the empty paragraph that Qt keeps before and behind a table."""
        cursor, flat = QTextCursor(self.edit.document()), QTextBlockFormat()
        cursor.movePosition(position)
        flat.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        cursor.setBlockFormat(flat)

    def _show_row(self, row: int, cells: list[str], *, is_head: bool) -> None:
        """Show a row's cells. Those beyond the columns go into the last one."""
        table = self._table
        if table is None:
            return
        columns = table.columns()
        texts = [*cells[: columns - 1], " | ".join(cells[columns - 1 :])]
        for column, text in enumerate(texts):
            cell = table.cellAt(row, column)
            form = QTextTableCellFormat()
            form.setPadding(theme.px(theme.GAP_S))
            form.setRightPadding(theme.px(theme.GAP_L))
            form.setLeftPadding(0)
            if row:
                form.setTopBorder(1)
                form.setTopBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
                form.setTopBorderBrush(QBrush(theme.colour("border")))
            cell.setFormat(form)
            cursor = cell.firstCursorPosition()
            cursor.setPosition(cell.lastPosition(), QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
            if column < len(self._alignments):
                alignment = QTextBlockFormat()
                alignment.setAlignment(self._alignments[column])
                cursor.mergeBlockFormat(alignment)
            for span in parse_inline(text):
                style = QTextCharFormat()
                set_span_style(style, span.style)
                if is_head:
                    style.setFontWeight(QFont.Weight.DemiBold)
                cursor.insertText(span.text.replace("\\|", "|"), style)


def _find_alignment(cell: str) -> Qt.AlignmentFlag:
    """Return the alignment of a column by its cell in the rule below the head."""
    if cell.endswith(":"):
        return Qt.AlignmentFlag.AlignHCenter if cell.startswith(":") else Qt.AlignmentFlag.AlignRight
    return Qt.AlignmentFlag.AlignLeft
