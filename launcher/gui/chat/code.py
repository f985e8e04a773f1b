"""Blocks of a reply for code and tables, with a copy button."""

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication, QTextCursor, QTextLayout, QTextOption
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout

from launcher.gui import theme
from launcher.gui.chat.body import Block
from launcher.gui.chat.highlight import CodeColours
from launcher.gui.chat.markdown import align_table
from launcher.gui.labels import Label
from launcher.gui.translation import tr

_COPIED_MS = 2_000
_MEASURED_CHARACTERS = 500
"""Characters of a line that are measured for its width."""
_HEAD_HEIGHT = 30
"""Height of the line with the language and the copy button, in pixels."""
_BORDER = 1
"""Width of the frame's border in the style sheet, in pixels."""


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A finished code block or table, without a widget."""

    text: str
    language: str
    table: bool
    wraps: bool

    def build_block(self, *, coloured: bool) -> "CodeBlock":  # noqa: ARG002 -- code has no colours
        """Build the block's widget."""
        block = CodeBlock(self.language, table=self.table, wraps=self.wraps)
        block.append_text(self.text)
        block.end_block()
        return block


class CodeBlock(Block):
    """Code or a table, verbatim, with a copy button. Long lines of code are wrapped unless the user says no."""

    def __init__(self, language: str, *, table: bool = False, wraps: bool = True) -> None:
        super().__init__()
        self.setObjectName("code")
        self._language, self._table = language, table
        self._wraps = wraps and not table
        self._rows: list[int] = []
        """Rows that each line takes when it is wrapped to `_rows_width`; those behind are not counted yet."""
        self._rows_width = 0
        self._lines: list[str] = [""]
        self._longest = ""
        self._height = 0
        self._ended = False
        self.edit = QPlainTextEdit()
        self.edit.setObjectName("code")
        self.edit.setReadOnly(True)
        self.edit.setUndoRedoEnabled(False)
        self.edit.setFrameShape(QFrame.Shape.NoFrame)
        self._set_wrap_mode()
        self.edit.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.edit.setFont(theme.monospace())
        self.edit.setTextInteractionFlags(theme.SELECTABLE)
        self.edit.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.edit.setAccessibleName(tr("Table") if table else tr("Code"))
        self.edit.document().setDocumentMargin(0)
        self._name = Label(tr("table") if table else language or tr("code"))
        self._name.setObjectName("secondary")
        self._name.setFont(theme.font(theme.CAPTION_PX))
        self.copy_button = CopyButton(lambda: self.code, tr("Copy this block"))
        self.wrap_button = QPushButton(tr("Wrap"))
        self.wrap_button.setObjectName("quiet")
        self.wrap_button.setToolTip(tr("Wrap long lines"))
        self.wrap_button.setCheckable(True)
        self.wrap_button.setChecked(self._wraps)
        self.wrap_button.setAutoDefault(True)
        self.wrap_button.setVisible(not table)
        self.wrap_button.toggled.connect(self._wrap_lines)
        self._colours = CodeColours(self.edit.document(), "" if table else language)
        head = QHBoxLayout()
        head.addWidget(self._name)
        head.addStretch()
        head.addWidget(self.wrap_button)
        head.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.px(theme.GAP_M), theme.px(2), theme.px(theme.GAP_S), theme.px(theme.GAP))
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(self.edit)
        margins = layout.contentsMargins()
        self._frame_height = margins.top() + margins.bottom() + theme.px(_HEAD_HEIGHT)
        self._frame_width = margins.left() + margins.right() + 2 * _BORDER

    @property
    def code(self) -> str:
        """The text of the block."""
        return "\n".join(self._lines)

    def append_text(self, text: str) -> None:
        """Append text, which may contain line ends."""
        first, *others = text.split("\n")
        self._lines[-1] += first
        self._lines += others
        self._longest = max(self._longest, *self._lines[-len(others) - 1 :], key=len)
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        del self._rows[len(self._lines) - len(others) - 1 :]
        self._colours.colour_new_lines()
        if others or self._wraps or not self._height:
            self.grew.emit()

    def drop_line(self) -> None:
        """Remove the last line, which turned out to be the closing fence or to belong to another block."""
        self._lines.pop()
        del self._rows[len(self._lines) :]
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.deletePreviousChar()
        self.grew.emit()

    def end_block(self) -> None:
        """Mark the block as finished; a table is then aligned in columns."""
        self._ended = True
        shown = self._lines
        if self._table:
            text = align_table(self._lines)
            self.edit.setPlainText(text)
            shown = text.split("\n")
        self._longest = max(shown, key=len)
        self.grew.emit()

    def make_source(self) -> CodeSource | None:
        """Return the block's content once it is finished, unless part of it is selected."""
        if not self._ended or self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        return CodeSource(self.code, self._language, self._table, self._wraps)

    def recolour(self, *, coloured: bool) -> None:  # noqa: ARG002 -- code is not coloured by draft step
        """Colour the code for the current theme."""
        self._colours.restart()

    def set_width(self, width: int) -> int:
        """Set the width. Returns the height needed, both in pixels."""
        room = width - self._frame_width
        rows = self._count_rows(room) if self._wraps else max(len(self._lines), 1)
        height = rows * self.edit.fontMetrics().lineSpacing() + self._frame_height + theme.px(4)
        if not self._wraps:
            widest = self.edit.fontMetrics().horizontalAdvance(self._longest[:_MEASURED_CHARACTERS])
            if widest > room:
                height += self.edit.horizontalScrollBar().sizeHint().height()
        if (width, height) != (self.width(), self._height):
            self._height = height
            self.setFixedSize(QSize(width, height))
        return height


    def _set_wrap_mode(self) -> None:
        modes = QPlainTextEdit.LineWrapMode
        self.edit.setLineWrapMode(modes.WidgetWidth if self._wraps else modes.NoWrap)
        self.edit.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)

    @Slot(bool)
    def _wrap_lines(self, wrapped: bool) -> None:
        self._wraps = wrapped
        self._set_wrap_mode()
        self.grew.emit()

    def _count_rows(self, width: int) -> int:
        """Return the rows of all lines, wrapped to a width in pixels.

        They are counted here because the editor does not lay out its document before it is shown.
        """
        if width != self._rows_width:
            self._rows, self._rows_width = [], width
        font, option = self.edit.font(), self.edit.document().defaultTextOption()
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        option.setTabStopDistance(self.edit.tabStopDistance())
        narrow = width // max(self.edit.fontMetrics().maxWidth(), 1)
        for line in self._lines[len(self._rows) :]:
            if len(line) <= narrow and "\t" not in line:
                self._rows.append(1)
                continue
            layout = QTextLayout(line, font)
            layout.setTextOption(option)
            layout.beginLayout()
            count = 0
            while (row := layout.createLine()).isValid():
                row.setLineWidth(width)
                count += 1
            layout.endLayout()
            self._rows.append(max(count, 1))
        return sum(self._rows)


class CopyButton(QPushButton):
    """Button that copies a text and confirms it for a moment."""

    def __init__(self, get_text: Callable[[], str], tip: str) -> None:
        super().__init__(tr("Copy"))
        self._get_text = get_text
        self.setObjectName("quiet")
        self.setAutoDefault(True)
        self.setToolTip(tip)
        self.setMinimumWidth(self.fontMetrics().horizontalAdvance(tr("Copied")) + theme.px(24))
        self._reset_timer = QTimer(self)
        self._reset_timer.setSingleShot(True)
        self._reset_timer.setInterval(_COPIED_MS)
        self._reset_timer.timeout.connect(lambda: self.setText(tr("Copy")))
        self.clicked.connect(self.copy)

    def copy(self) -> None:
        """Copy the text to the clipboard."""
        QGuiApplication.clipboard().setText(self._get_text())
        self.setText(tr("Copied"))
        self._reset_timer.start()
