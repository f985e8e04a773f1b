"""The prompt field, and the bubble of a sent question."""

from PySide6.QtCore import QMimeData, Qt, Signal
from PySide6.QtGui import QImageReader, QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.translation import tr

_LEAST_HEIGHT, _MOST_HEIGHT = 36, 76
_SHORT_BUBBLE = 240
"""Width in pixels up to which a question on one line is not wrapped."""
_SHOWN_CHARACTERS = 20_000
"""Characters of a question that are shown. All of it is sent."""


class Prompt(QPlainTextEdit):
    """Input field: Enter sends, Shift+Enter breaks the line, Up in an empty field edits the last question."""

    sent = Signal()
    edit_requested = Signal()
    image_refused = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("prompt")
        self.setAccessibleName(tr("Your message"))
        self.setToolTip(tr("Enter sends, Shift+Enter begins a new line, Up edits the last question"))
        self.setTabChangesFocus(True)
        self.setMinimumHeight(theme.px(_LEAST_HEIGHT))
        self.setMaximumHeight(theme.px(_MOST_HEIGHT))

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
        """Return True for text, and for pictures, so that their refusal is explained.

        A model file is left to the window, which opens it.
        """
        is_model = any(url.fileName().lower().endswith(".gguf") for url in source.urls())
        return not is_model and (has_image(source) or super().canInsertFromMimeData(source))

    def insertFromMimeData(self, source: QMimeData) -> None:  # noqa: N802
        """Insert text. Pictures are refused with a message."""
        if has_image(source):
            self.image_refused.emit()
        else:
            self.insertPlainText(source.text())


def has_image(data: QMimeData) -> bool:
    """Return whether pasted or dropped data is a picture or a picture file."""
    if data.hasImage() and not data.hasText():
        return True
    endings = {bytes(each.data()).decode() for each in QImageReader.supportedImageFormats()}
    return any(url.isLocalFile() and url.fileName().rpartition(".")[2].lower() in endings for url in data.urls())


class QuestionBubble(QWidget):
    """The user's question in a bubble at the right."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
        bubble = Label(shown)
        bubble.setObjectName("bubble")
        bubble.setTextInteractionFlags(theme.SELECTABLE)
        bubble.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        bubble.setMargin(theme.px(theme.GAP_M))
        bubble.setAccessibleName(tr("Your message: {text}", text=shown))
        layout = QHBoxLayout(self)
        layout.setContentsMargins(theme.px(theme.GAP_XL), 0, 0, 0)
        short = "\n" not in shown and bubble.fontMetrics().horizontalAdvance(shown) < theme.px(_SHORT_BUBBLE)
        bubble.setWordWrap(not short)
        layout.addStretch(1)
        layout.addWidget(bubble, 0 if short else 12)  # a long question takes nearly the whole width
