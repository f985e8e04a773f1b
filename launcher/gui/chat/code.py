"""Blocks of a reply in a frame with a copy button, and such a block for code."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from PySide6.QtCore import QSize, Qt, QTimer, Slot
from PySide6.QtGui import QFont, QGuiApplication, QTextCursor, QTextLayout, QTextOption
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.chat.body import BodyBlock
from launcher.gui.chat.highlight import CodeColours
from launcher.gui.chat.markdown import TOOL_CALL
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.labels import Label
from launcher.gui.translation import tr

_COPIED_MS = 2_000
_MEASURED_CHARACTERS = 500
"""Characters of a line that are measured for its width."""
_HEAD_HEIGHT = 32
"""Height of the line with the language and the copy button, in pixels."""
_BORDER = 1
"""Width of the frame's border in the style sheet, in pixels."""
UNKNOWN_OFFSET = -1
"""In place of a line's offset: the reply does not contain the line in the same spelling."""


class FramedBlock(BodyBlock):
    """Lines of source that are shown by `edit` in a frame, with a name, buttons and a copy button."""

    def __init__(self, name: str, edit: QAbstractScrollArea, *buttons: QPushButton) -> None:
        super().__init__()
        self.setObjectName("code")
        self._height = 0
        self._ended = False
        edit.setObjectName("code")
        edit.setFrameShape(QFrame.Shape.NoFrame)
        edit.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        edit.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._name = Label(name)
        self._name.setObjectName("secondary")
        self._name.setFont(theme.font(theme.CAPTION_PX))
        self.copy_button = CopyButton(lambda: self.code, tr("Copy this block"))
        head = QFrame()
        head.setObjectName("codeHead")
        head.setFixedHeight(theme.px(_HEAD_HEIGHT))
        row = QHBoxLayout(head)
        row.setContentsMargins(theme.px(theme.GAP_M), 0, theme.px(theme.GAP_S), 0)
        row.setSpacing(theme.px(theme.GAP_S))
        row.addWidget(self._name)
        row.addStretch()
        for button in (*buttons, self.copy_button):
            row.addWidget(button)
        inside = QVBoxLayout()
        side, end = theme.px(theme.GAP_M), theme.px(theme.GAP)
        inside.setContentsMargins(side, end, side, end)
        inside.addWidget(edit)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(head)
        layout.addLayout(inside)
        self._frame_height = 2 * end + theme.px(_HEAD_HEIGHT) + 2 * _BORDER
        self._frame_width = 2 * side + 2 * _BORDER

    @property
    @abstractmethod
    def code(self) -> str:
        """The source of the block."""

    @abstractmethod
    def end_block(self) -> None:
        """Mark the block as finished."""

    def _set_size(self, width: int, height: int) -> int:
        if (width, height) != (self.width(), self._height):
            self._height = height
            self.setFixedSize(QSize(width, height))
        return height


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A finished code block without a widget."""

    text: str
    language: str
    offsets: tuple[int, ...]
    steps: VerificationSteps | None
    wraps: bool
    indent: int
    tool: str = ""

    def build_block(self, *, coloured: bool) -> "CodeBlock":
        """Build the block's widget."""
        block = CodeBlock(self.language, self.steps, wraps=self.wraps, coloured=coloured)
        block.indent = self.indent
        block.show_code(self.text, self.offsets, tool=self.tool)
        block.end_block()
        return block


class CodeBlock(FramedBlock):
    """Code, verbatim. Long lines are wrapped unless the user says no; tokens from drafts underlined if `coloured`."""

    def __init__(
        self,
        language: str,
        steps: VerificationSteps | None = None,
        *,
        wraps: bool = True,
        coloured: bool = False,
    ) -> None:
        self.edit, self.wrap_button = QPlainTextEdit(), QPushButton(tr("Wrap"))
        name = tr("tool call") if language == TOOL_CALL else language or tr("code")
        super().__init__(name, self.edit, self.wrap_button)
        self._language, self._wraps = language, wraps
        self._lines = [""]
        self._offsets = [UNKNOWN_OFFSET]
        """Offset of each line's first character in the reply."""
        self._steps = steps
        self._tool = ""
        self._rows: list[int] = []
        """Rows that each line takes when it is wrapped to `_rows_width`; lines beyond the end of this list are not
        counted yet.
        """
        self._rows_width = 0
        self._longest = ""
        self._line_height = measure_line(theme.monospace(theme.BODY_PX))
        self._set_wrap_mode()
        self.edit.setReadOnly(True)
        self.edit.setUndoRedoEnabled(False)
        self.edit.setFont(theme.monospace(theme.BODY_PX))
        self.edit.setTextInteractionFlags(theme.SELECTABLE)
        self.edit.setAccessibleName(tr("Code"))
        self.edit.document().setDocumentMargin(0)
        self.wrap_button.setObjectName("quiet")
        self.wrap_button.setToolTip(tr("Wrap long lines"))
        self.wrap_button.setCheckable(True)
        self.wrap_button.setChecked(wraps)
        self.wrap_button.setAutoDefault(True)
        self.wrap_button.toggled.connect(self._wrap_lines)
        self._colours = CodeColours(self.edit.document(), language, self._split_line)
        self._colours.marks_drafts = coloured

    @property
    def code(self) -> str:
        """The code of the block."""
        return "\n".join(self._lines)

    def append_text(self, text: str, offsets: Sequence[int] = ()) -> None:
        """Append code, which may contain line ends. `offsets` are those of the first character of each of its lines."""
        first, *others = text.split("\n")
        known = offsets or [UNKNOWN_OFFSET] * (len(others) + 1)
        if not self._lines[-1]:
            self._offsets[-1] = known[0]
        self._lines[-1] += first
        self._lines += others
        self._offsets += known[1:]
        ends = len(others)
        self._longest = max(self._longest, *self._lines[-ends - 1 :], key=len)
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        del self._rows[len(self._lines) - ends - 1 :]
        self._colours.colour_new_lines()
        if ends or self._wraps or not self._height:
            self.grew.emit()

    def show_code(self, code: str, offsets: Sequence[int] = (), *, tool: str = "") -> None:
        """Show `code`: append to the shown code if `code` begins with it, else replace it. `offsets` are those of its
        lines.

        `tool` is the name of the tool that is called.
        """
        if not code.startswith(self.code):
            self._lines, self._offsets, self._rows, self._longest = [""], [UNKNOWN_OFFSET], [], ""
            self.edit.clear()
            self._colours.restart()
        self.append_text(code[len(self.code) :], offsets[len(self._lines) - 1 :])
        self._tool = tool
        if tool:
            self._name.setText(tr("tool call: {name}", name=one_line(tool, 60)))

    def drop_line(self) -> None:
        """Remove the last line, which turned out to be the closing fence or to belong to another block."""
        self._lines.pop()
        del self._rows[len(self._lines) :], self._offsets[len(self._lines) :]
        cursor = QTextCursor(self.edit.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.deletePreviousChar()
        self.grew.emit()

    def end_block(self) -> None:
        """Mark the block as finished."""
        self._ended = True
        self._longest = max(self._lines, key=len)
        self.grew.emit()

    def make_source(self) -> CodeSource | None:
        """Return the block's content once it is finished, unless part of it is selected."""
        if not self._ended or self.edit.hasFocus() or self.edit.textCursor().hasSelection():
            return None
        offsets = tuple(self._offsets)
        return CodeSource(self.code, self._language, offsets, self._steps, self._wraps, self.indent, self._tool)

    def recolour(self, *, coloured: bool) -> None:
        """Colour the code for the current theme, and underline the tokens from drafts or not."""
        self._colours.marks_drafts = coloured
        self._colours.restart()

    def _split_line(self, number: int) -> Iterator[tuple[int, int, int]]:
        """Yield begin, end and draft position of the parts of a line, in characters."""
        offset = self._offsets[number]
        if self._steps is not None and offset != UNKNOWN_OFFSET:
            for begin, end, position in self._steps.split_by_position(offset, offset + len(self._lines[number])):
                yield begin - offset, end - offset, position

    def set_width(self, width: int) -> int:
        """Set the width. Returns the height needed, both in pixels."""
        room = width - self._frame_width
        rows = self._count_rows(room) if self._wraps else max(len(self._lines), 1)
        # With exactly the height of its lines a QPlainTextEdit still scrolls by one.
        height = ceil(rows * self._line_height) + self._frame_height + theme.px(4)
        if not self._wraps:
            widest = self.edit.fontMetrics().horizontalAdvance(self._longest[:_MEASURED_CHARACTERS])
            if widest > room:
                height += self.edit.horizontalScrollBar().sizeHint().height()
        return self._set_size(width, height)

    def _set_wrap_mode(self) -> None:
        modes = QPlainTextEdit.LineWrapMode
        self.edit.setLineWrapMode(modes.WidgetWidth if self._wraps else modes.NoWrap)
        policies = Qt.ScrollBarPolicy
        self.edit.setHorizontalScrollBarPolicy(
            policies.ScrollBarAlwaysOff if self._wraps else policies.ScrollBarAsNeeded
        )
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


def measure_line(font: QFont) -> float:
    """Return the height of a line in pixels as editors lay it out, which is more than the font's line spacing."""
    layout = QTextLayout("x", font)
    layout.beginLayout()
    line = layout.createLine()
    layout.endLayout()
    return line.height()


class CopyButton(QPushButton):
    """Button that copies a text and confirms it for a moment."""

    def __init__(self, get_text: Callable[[], str], tip: str) -> None:
        super().__init__(tr("Copy"))
        self._get_text = get_text
        self.setObjectName("quiet")
        self.setAutoDefault(True)
        self.setToolTip(tip)
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
