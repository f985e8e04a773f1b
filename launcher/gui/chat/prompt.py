"""The prompt field, and the bubble of a sent question."""

from collections.abc import Sequence

from PySide6.QtCore import QMimeData, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from launcher.conversations.attachments import Attachment
from launcher.gui import theme
from launcher.gui.chat.attachments import AttachmentTile, find_image, list_files
from launcher.gui.labels import Label
from launcher.gui.translation import tr

_LEAST_HEIGHT, _MOST_HEIGHT = 34, 160
"""Heights of the field in pixels at 100 % scale: empty, and with many lines."""
_BUBBLE_WIDTH = 560
"""Width of a question at most, in pixels at 100 % scale."""
_SHOWN_CHARACTERS = 20_000
"""Characters of a question that are shown. All of it is sent."""


class PromptField(QPlainTextEdit):
    """Input field: Enter sends, Shift+Enter breaks the line, Up in an empty field edits the last question."""

    sent = Signal()
    edit_requested = Signal()
    files_added = Signal(object)
    """A list of paths that were pasted or dropped."""
    image_added = Signal(object)
    """A QImage that was pasted or dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("prompt")
        self.setAccessibleName(tr("Your message"))
        self.setToolTip(tr("Enter sends, Shift+Enter begins a new line, Up edits the last question"))
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().documentLayout().documentSizeChanged.connect(self._fit_height)
        self._fit_height()

    @Slot()
    def _fit_height(self) -> None:
        """Make room for all lines, as far as there is some."""
        lines = self.document().size().height()  # QPlainTextEdit counts in lines
        needed = round(lines * self.fontMetrics().lineSpacing()) + theme.px(theme.GAP_M)
        self.setFixedHeight(min(max(needed, theme.px(_LEAST_HEIGHT)), theme.px(_MOST_HEIGHT)))

    def show_hint(self, text: str) -> None:
        """Show a placeholder text."""
        if text != self.placeholderText():
            self.setPlaceholderText(text)
            # Qt 6.11 repaints a QPlainTextEdit when its placeholder appears or disappears, but not when it changes:
            # the old one stayed until something else repainted the field, such as the focus.
            self.viewport().update()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Send, edit the last question, or type."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        elif event.key() == Qt.Key.Key_Up and not self.toPlainText():
            self.edit_requested.emit()
        else:
            super().keyPressEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:  # noqa: N802
        """Return True for text, pictures and files. A model file is left to the window, which opens it."""
        has_model = any(url.fileName().lower().endswith(".gguf") for url in source.urls())
        return not has_model and (source.hasImage() or source.hasUrls() or super().canInsertFromMimeData(source))

    def insertFromMimeData(self, source: QMimeData) -> None:  # noqa: N802
        """Insert text; pictures and files are added to the question."""
        if files := list_files(source):
            self.files_added.emit(files)
        elif (image := find_image(source)) is not None:
            self.image_added.emit(image)
        else:
            self.insertPlainText(source.text())


class QuestionBubble(QWidget):
    """The user's question in a bubble at the right, below its files."""

    def __init__(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        super().__init__()
        self.text, self.attachments = text, tuple(attachments)
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
        bubble = Label(shown)
        bubble.setObjectName("bubble")
        bubble.setTextInteractionFlags(theme.SELECTABLE)
        bubble.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        bubble.setMargin(theme.px(theme.GAP_M))
        bubble.setAccessibleName(tr("Your message: {text}", text=shown))
        bubble.setWordWrap(True)
        bubble.setFont(theme.font(theme.PROSE_PX))
        one_line_width = max(map(bubble.fontMetrics().horizontalAdvance, shown.split("\n"))) + 2 * theme.px(14)
        bubble.setMaximumWidth(min(one_line_width, theme.px(_BUBBLE_WIDTH)))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(theme.px(theme.GAP_XXL), 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        for attachment in self.attachments:
            tile = AttachmentTile(attachment.name, "")
            tile.show_attachment(attachment)
            layout.addWidget(tile, alignment=Qt.AlignmentFlag.AlignRight)
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(bubble, 10_000)  # the greatest width, or all the width that there is
        layout.addLayout(row)
        bubble.setVisible(bool(text))
