"""Field for a message, with what belongs to it below: files, a hint, and the button that sends."""

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QPushButton, QVBoxLayout

from launcher.gui import theme
from launcher.gui.chat.attachments import AttachmentBar
from launcher.gui.chat.prompt import PromptField
from launcher.gui.chat.style import glyph_icon
from launcher.gui.labels import Label
from launcher.gui.translation import tr

_HINT_WIDTH, _THINKING_WIDTH = 520, 360
"""Widths in pixels from which the keys are named beside the button, and from which thinking can be chosen."""


class ThinkingButton(QPushButton):
    """Says whether the model thinks before it replies; a menu has the other choices."""

    changed = Signal(object)
    """True, False, or None for what the server does by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("quiet")
        self.setAutoDefault(True)
        self.setToolTip(tr("Lets the model think before it replies"))
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow is to the right of the text
        menu, group = QMenu(self), QActionGroup(self)
        menu.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        self._entries: dict[bool | None, QAction] = {}
        for value, text in ((None, tr("auto")), (True, tr("on")), (False, tr("off"))):
            entry = self._entries[value] = menu.addAction(text)
            entry.setCheckable(True)
            group.addAction(entry)
            entry.triggered.connect(lambda _checked=False, value=value: self.changed.emit(value))
        self.setMenu(menu)
        self.show_value(None)

    def show_value(self, value: bool | None) -> None:
        """Show what is chosen."""
        self._entries[value].setChecked(True)
        self.setText(tr("Thinking: {value}", value=self._entries[value].text()))


class Composer(QFrame):
    """The prompt field in a frame with its buttons."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("composer")
        self.prompt = PromptField()
        self.attach_button = QPushButton(tr("Attach"))
        self.attach_button.setObjectName("quiet")
        self.attach_button.setToolTip(tr("Add pictures, texts or PDFs. They can also be pasted and dropped"))
        self.attach_button.setAutoDefault(True)
        self._keys = Label(tr("Enter sends · Shift+Enter new line"))
        self._keys.setObjectName("secondary")
        self._keys.setFont(theme.font(theme.CAPTION_PX))
        self.send_button = QPushButton(tr("Send"))
        self.send_button.setObjectName("primary")
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        self.thinking = ThinkingButton()
        self._can_think = True
        row.addWidget(self.attach_button)
        row.addWidget(self.thinking)
        row.addStretch(1)
        row.addWidget(self._keys)
        row.addWidget(self.send_button)
        self._column = QVBoxLayout(self)
        side = theme.px(theme.GAP)
        self._column.setContentsMargins(side, side, side, side)
        self._column.setSpacing(theme.px(theme.GAP_S))
        self.files = AttachmentBar()
        self._column.addWidget(self.files)
        self._column.addWidget(self.prompt)
        self._column.addLayout(row)
        self.setCursor(Qt.CursorShape.IBeamCursor)
        for button in (self.attach_button, self.thinking, self.send_button):
            button.setCursor(Qt.CursorShape.ArrowCursor)
        self.prompt.installEventFilter(self)
        self.recolour()

    def recolour(self) -> None:
        """Paint the icons in the current theme."""
        self.attach_button.setIcon(glyph_icon("clip"))
        self.thinking.setIcon(glyph_icon("open"))

    def set_can_think(self, can_think: bool) -> None:
        """Offer thinking, unless the model's chat template has no switch for it."""
        self._can_think = can_think
        self._fit_row()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Frame the field while it has the focus."""
        if watched is self.prompt and event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self.setProperty("active", event.type() == QEvent.Type.FocusIn)
            self.style().polish(self)
        return super().eventFilter(watched, event)

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Focus the field, wherever in the frame the click was."""
        super().mousePressEvent(event)
        self.prompt.setFocus()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Show what there is room for."""
        super().resizeEvent(event)
        self._fit_row()

    def _fit_row(self) -> None:
        self._keys.setVisible(self.width() >= theme.px(_HINT_WIDTH))
        self.thinking.setVisible(self._can_think and self.width() >= theme.px(_THINKING_WIDTH))
