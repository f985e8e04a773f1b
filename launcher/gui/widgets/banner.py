"""A line in place of a dialog: what happened, and up to two ways on."""

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.widgets.blocks import Button, make_button
from launcher.gui.widgets.glyphs import Glyph
from launcher.gui.words import tr

_GLYPHS = {"bad": "cross", "attention": "triangle", "good": "tick", "information": "dot"}
_MOST_BUTTONS = 2


class Banner(QFrame):
    """Says something that matters here and now; hidden until it does."""

    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self._glyph = Glyph()
        self.text = Label()
        self.text.setWordWrap(True)
        self.text.setTextInteractionFlags(theme.SELECTABLE)
        self._row = QHBoxLayout()
        self._row.setSpacing(theme.px(theme.GAP))
        self.buttons: list[QPushButton] = []
        self._close = QPushButton(tr("Dismiss"))
        self._close.setObjectName("quiet")
        self._close.setToolTip(tr("Take this line away"))
        self._close.clicked.connect(self._closes)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(theme.px(12), theme.px(8), theme.px(8), theme.px(8))
        layout.setSpacing(theme.px(theme.GAP_M))
        layout.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignVCenter)
        layout.addWidget(self.text, 1)
        layout.addLayout(self._row)
        layout.addWidget(self._close)
        self.hide()

    def tell(
        self, text: str, meaning: str = "bad", buttons: Sequence[Button] = (), *, closes: bool = True, tip: str = ""
    ) -> None:
        """Show a text with a meaning ("bad", "attention", "good", "information") and up to two buttons."""
        self._glyph.show_glyph(_GLYPHS[meaning], meaning)
        self.text.setText(text)
        self.text.setToolTip(tip)
        if self.property("meaning") != meaning:
            self.setProperty("meaning", meaning)
            self.style().unpolish(self)
            self.style().polish(self)
        for button in self.buttons:
            button.setParent(None)
            button.deleteLater()
        self.buttons = [make_button(said, clicked) for said, clicked in buttons[:_MOST_BUTTONS]]
        for button in self.buttons:
            button.setAutoDefault(True)
            self._row.addWidget(button)
        self._close.setVisible(closes)
        self.setAccessibleName(text)
        self.show()

    def clear(self) -> None:
        """Say nothing."""
        self.hide()

    def _closes(self) -> None:
        self.hide()
        self.closed.emit()
