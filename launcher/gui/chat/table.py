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

from launcher.gui import theme
from launcher.gui.chat.code import FramedBlock
from launcher.gui.chat.links import LinkText
from launcher.gui.chat.markdown import Table, parse_inline
from launcher.gui.chat.text import set_span_style
from launcher.gui.translation import tr

_ALIGNMENTS = {"right": Qt.AlignmentFlag.AlignRight, "center": Qt.AlignmentFlag.AlignHCenter}


@dataclass(frozen=True, slots=True)
class TableSource:
    """A finished table without a widget."""

    table: Table
    indent: int
    wraps = True

    def build_block(self, *, coloured: bool) -> "TableBlock":  # noqa: ARG002 -- cells are not coloured by draft step
        """Build the block's widget."""
        block = TableBlock()
        block.indent = self.indent
        block.show_table(self.table)
        block.end_block()
        return block


class TableBlock(FramedBlock):
    """A table, which may grow at its end."""

    def __init__(self) -> None:
        self.edit = LinkText()
        super().__init__(tr("table"), self.edit)
        self._source = Table("", (), ())
        self._table: QTextTable | None = None
        self.edit.setFont(theme.font(theme.BODY_PX))
        self.edit.setTextInteractionFlags(theme.SELECTABLE)
        self.edit.setAccessibleName(tr("Table"))
        self.edit.document().setDocumentMargin(0)

    @property
    def code(self) -> str:
        """The table in Markdown."""
        return self._source.source

    def show_table(self, table: Table) -> None:
        """Show a table. Rows that are shown already stay as they are, but for the last one."""
        before, self._source = self._source, table
        if table.alignments != before.alignments or table.rows[:1] != before.rows[:1]:
            before, self._table = Table("", (), ()), None
            self.edit.document().clear()
        kept = 0
        while kept < min(len(before.rows), len(table.rows)) and before.rows[kept] == table.rows[kept]:
            kept += 1
        cursor = QTextCursor(self.edit.document())
        cursor.beginEditBlock()
        self._set_row_count(len(table.rows))
        for number in range(kept, len(table.rows)):
            self._show_row(number, table.rows[number])
        cursor.endEditBlock()
        self.grew.emit()

    def end_block(self) -> None:
        """Mark the table as finished."""
        self._ended = True

    def make_source(self) -> TableSource | None:
        """Return the table once it is finished, unless part of it is selected."""
        if not self._ended or self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        return TableSource(self._source, self.indent)

    def recolour(self, *, coloured: bool) -> None:  # noqa: ARG002 -- cells are not coloured by draft step
        """Show all rows again in the current theme."""
        table, self._source = self._source, Table("", (), ())
        self.show_table(table)

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

    def _set_row_count(self, count: int) -> None:
        if self._table is None:
            form = QTextTableFormat()
            form.setBorder(0)
            form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_None)
            form.setCellSpacing(0)
            form.setCellPadding(0)
            columns = max(len(self._source.alignments), 1)
            self._table = QTextCursor(self.edit.document()).insertTable(max(count, 1), columns, form)
            for position in (QTextCursor.MoveOperation.Start, QTextCursor.MoveOperation.End):
                self._flatten_paragraph(position)
        elif count > self._table.rows():
            self._table.appendRows(count - self._table.rows())
        elif count < self._table.rows():
            self._table.removeRows(count, self._table.rows() - count)

    def _flatten_paragraph(self, position: QTextCursor.MoveOperation) -> None:
        """Take the height from the empty paragraphs that Qt keeps before and after a table."""
        cursor, flat = QTextCursor(self.edit.document()), QTextBlockFormat()
        cursor.movePosition(position)
        flat.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        cursor.setBlockFormat(flat)

    def _show_row(self, row: int, cells: tuple[str, ...]) -> None:
        table = self._table
        if table is None:
            return
        for column, text in enumerate(cells):
            cell = table.cellAt(row, column)
            form = QTextTableCellFormat()
            form.setPadding(theme.px(theme.GAP_S))
            form.setRightPadding(theme.px(theme.GAP_XL))
            form.setLeftPadding(0)
            if row:
                form.setTopBorder(1)
                form.setTopBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
                form.setTopBorderBrush(QBrush(theme.colour("border")))
            cell.setFormat(form)
            cursor = cell.firstCursorPosition()
            cursor.setPosition(cell.lastPosition(), QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
            alignment = QTextBlockFormat()
            alignment.setAlignment(_ALIGNMENTS.get(self._source.alignments[column], Qt.AlignmentFlag.AlignLeft))
            cursor.mergeBlockFormat(alignment)
            for span in parse_inline(text):
                if span.link:
                    self.edit.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
                style = QTextCharFormat()
                set_span_style(style, span)
                if row == 0:
                    style.setFontWeight(QFont.Weight.DemiBold)
                cursor.insertText(span.text, style)
