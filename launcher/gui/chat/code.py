"""A block of code or a table, and the button that copies it."""

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout

from launcher.gui import theme
from launcher.gui.chat.body import Block
from launcher.gui.chat.markdown import aligned
from launcher.gui.labels import Label
from launcher.gui.words import tr

_COPIED_MS = 2_000
_LONGEST = 500
"""Characters of a line that are measured."""


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code or a table that has come to its end, without a widget."""

    text: str
    language: str
    table: bool
    bends = False

    def build(self, *, coloured: bool) -> "CodeBlock":  # noqa: ARG002 -- code has no colours
        """Return it as a block."""
        block = CodeBlock(self.language, table=self.table)
        block.add(self.text)
        block.end()
        return block


class CodeBlock(Block):
    """Code or a table: as it was written, in lines that are not broken, with a button that copies it."""

    def __init__(self, language: str, *, table: bool = False) -> None:
        super().__init__()
        self.setObjectName("code")
        self._language, self._table = language, table
        self._rows: list[str] = [""]
        self._longest = ""
        self._height = 0
        self._ended = False
        self.edit = QPlainTextEdit()
        self.edit.setObjectName("code")
        self.edit.setReadOnly(True)
        self.edit.setUndoRedoEnabled(False)
        self.edit.setFrameShape(QFrame.Shape.NoFrame)
        self.edit.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
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
        head = QHBoxLayout()
        head.addWidget(self._name)
        head.addStretch()
        head.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.px(theme.GAP_M), theme.px(2), theme.px(theme.GAP_S), theme.px(theme.GAP))
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(self.edit)
        self._outside = layout.contentsMargins().top() + layout.contentsMargins().bottom() + theme.px(30)

    @property
    def code(self) -> str:
        """What stands in it."""
        return "\n".join(self._rows)

    def add(self, text: str) -> None:
        """Append text, with ends of lines."""
        first, *others = text.split("\n")
        self._rows[-1] += first
        self._rows += others
        self._longest = max(self._longest, *self._rows[-len(others) - 1 :], key=len)
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        if others or not self._height:
            self.grew.emit()

    def drop_line(self) -> None:
        """Take the last line away: it closed the block."""
        self._rows.pop()
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.deletePreviousChar()
        self.grew.emit()

    def end(self) -> None:
        """Take note that nothing more comes: a table can be set in columns."""
        self._ended = True
        shown = self._rows
        if self._table:
            text = aligned(self._rows)
            self.edit.setPlainText(text)
            shown = text.split("\n")
        self._longest = max(shown, key=len)
        self.grew.emit()

    def source(self) -> Code | None:
        """Return what it says, once it has ended, unless something of it is selected."""
        if not self._ended or self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        return Code(self.code, self._language, self._table)

    def fit(self, width: int) -> int:
        """Take a width and return the height that it needs."""
        lines = max(len(self._rows), 1)
        height = lines * self.edit.fontMetrics().lineSpacing() + self._outside + theme.px(4)
        widest = self.edit.fontMetrics().horizontalAdvance(self._longest[:_LONGEST])
        if widest > width - 2 * theme.px(theme.GAP_M):
            height += self.edit.horizontalScrollBar().sizeHint().height()
        if (width, height) != (self.width(), self._height):
            self._height = height
            self.setFixedSize(QSize(width, height))
        return height


class CopyButton(QPushButton):
    """Copies what it is given, and says so for a moment."""

    def __init__(self, text: Callable[[], str], tip: str, *, name: str = "quiet") -> None:
        super().__init__(tr("Copy"))
        self._text = text
        self.setObjectName(name)
        self.setAutoDefault(True)
        self.setToolTip(tip)
        self.setMinimumWidth(self.fontMetrics().horizontalAdvance(tr("Copied")) + theme.px(24))
        self._back = QTimer(self)
        self._back.setSingleShot(True)
        self._back.setInterval(_COPIED_MS)
        self._back.timeout.connect(lambda: self.setText(tr("Copy")))
        self.clicked.connect(self.copy)

    def copy(self) -> None:
        """Copy it."""
        QGuiApplication.clipboard().setText(self._text())
        self.setText(tr("Copied"))
        self._back.start()
