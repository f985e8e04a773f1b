"""Inline banner instead of a dialog: a message and up to two buttons."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QPushButton

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.translation import render, tr
from launcher.gui.widgets.blocks import ButtonAction, make_button
from launcher.gui.widgets.flow import FlowLayout
from launcher.gui.widgets.focus import find_focus, find_page
from launcher.gui.widgets.glyphs import Glyph

_GLYPHS = {"bad": "cross", "attention": "triangle", "good": "tick", "information": "dot"}
_MOST_BUTTONS = 2
_TEXT_WIDTH, _MARGINS_WIDTH, _LEAST_WIDTH = 280, 64, 160
"""In pixels at 100 %: least text width beside the buttons, width of glyph and margins, least width of the banner."""


class Banner(QFrame):
    """Message that matters now. Hidden while there is none."""

    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self._glyph = Glyph()
        self.text = Label()
        self.text.setWordWrap(True)
        self.text.setTextInteractionFlags(theme.SELECTABLE)
        text_row = QHBoxLayout()
        text_row.setSpacing(theme.px(theme.GAP_M))
        text_row.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignVCenter)
        text_row.addWidget(self.text, 1)
        self._button_layout = FlowLayout(gap=theme.px(theme.GAP))
        self.buttons: list[QPushButton] = []
        self._labels: list[str] = []
        self._actions: list[Callable[[], object]] = []
        self.close_button = QPushButton(tr("Dismiss"))
        self.close_button.setObjectName("quiet")
        self.close_button.setToolTip(tr("Dismiss"))
        self.close_button.clicked.connect(self._on_close)
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._layout.setContentsMargins(theme.px(12), theme.px(8), theme.px(8), theme.px(8))
        self._layout.setSpacing(theme.px(theme.GAP_M))
        self._layout.addLayout(text_row, 1)
        self._layout.addLayout(self._button_layout)
        self._layout.setAlignment(self._button_layout, Qt.AlignmentFlag.AlignVCenter)
        self.hide()

    def show_message(self, text: str, meaning: str = "bad", buttons: Sequence[ButtonAction] = ()) -> None:
        """Show a text with a meaning ("bad", "attention", "good", "information") and up to two buttons.

        Messages of the core are shown in the user's language. Buttons are replaced only if their labels change: some
        texts change each second, and a new button would lose the focus and the mouse click under way.
        """
        text = render(text)
        self._glyph.show_glyph(_GLYPHS[meaning], meaning)
        self.text.setText(text)
        if self.property("meaning") != meaning:
            self.setProperty("meaning", meaning)
            self.style().unpolish(self)
            self.style().polish(self)
        labels = [label for label, _ in buttons[:_MOST_BUTTONS]]
        self._actions = [clicked for _, clicked in buttons[:_MOST_BUTTONS]]
        if labels != self._labels or not self.buttons:
            self._labels = labels
            self._make_buttons()
        self.setAccessibleName(text)
        self._arrange()
        self.show()

    def _make_buttons(self) -> None:
        """Replace the buttons by those for the labels."""
        self._pass_focus()
        for button in self.buttons:
            button.setParent(None)
            button.deleteLater()
        self.buttons = [make_button(label, partial(self._act, index)) for index, label in enumerate(self._labels)]
        for button in self.buttons:
            button.setAutoDefault(True)
            self._button_layout.add(button)
        self._button_layout.add(self.close_button)  # last, both visually and for Tab
        for before, after in pairwise([*self.buttons, self.close_button]):
            self.setTabOrder(before, after)

    def _pass_focus(self) -> None:
        """Pass the focus to the page if a button here has it: Qt would move it to the first button of the window."""
        if find_focus(self) is not None:
            find_page(self).setFocus()

    def _act(self, index: int) -> None:
        self._actions[index]()

    def clear(self) -> None:
        """Hide the banner."""
        self._pass_focus()
        self.hide()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Let Esc dismiss the banner that has the focus."""
        if event.key() == Qt.Key.Key_Escape:
            self._on_close()
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Put the buttons beside or under the text."""
        super().resizeEvent(event)
        self._arrange()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the width of the widest button and the height that the text needs."""
        width = max(self._button_layout.minimumSize().width() + theme.px(20), theme.px(_LEAST_WIDTH))
        return QSize(width, self._layout.heightForWidth(max(self.width(), width)))

    def _arrange(self) -> None:
        """Put the buttons beside the text, or below if that leaves it too little room."""
        narrow = self.width() - self._button_layout.sizeHint().width() < theme.px(_TEXT_WIDTH + _MARGINS_WIDTH)
        self._layout.setDirection(QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight)
        self._layout.setSpacing(theme.px(theme.GAP_S if narrow else theme.GAP_M))

    def _on_close(self) -> None:
        self.clear()
        self.closed.emit()
