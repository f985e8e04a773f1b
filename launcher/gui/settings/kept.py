"""What is kept on disk of conversations, with a button that deletes it."""

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QVBoxLayout, QWidget

from launcher.gateway.vault import VaultUse
from launcher.gui import theme
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.models.text import format_size
from launcher.gui.settings.controls import CONTROL_WIDTH, NARROW
from launcher.gui.translation import ntr, render, tr
from launcher.gui.widgets.blocks import make_caption
from launcher.gui.widgets.confirm_button import ConfirmButton


class KeptRow(QWidget):
    """How many conversations are kept, in how many bytes, and a button that has them deleted at its second press."""

    forget_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("plain")
        title = Label(tr("Kept now"))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        title.setMinimumHeight(theme.px(theme.DENSE_HEIGHT))  # as beside the button that resets a setting
        self.caption = make_caption()
        self.button = ConfirmButton(tr("Forget all"))
        set_tooltip(self.button, tr("Asks for confirmation. Conversations are then read again when they go on"))
        self.button.confirmed.connect(self.forget_requested)
        self.button.setEnabled(False)
        texts = QVBoxLayout()
        texts.setSpacing(theme.px(2))
        texts.addWidget(title)
        texts.addWidget(self.caption)
        self._control = QWidget()
        self._control.setObjectName("plain")
        beside = QHBoxLayout(self._control)
        beside.setContentsMargins(0, 0, 0, 0)
        beside.addWidget(self.button)
        beside.addStretch()
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._layout.addLayout(texts, 1)
        self._layout.addWidget(self._control)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(theme.px(theme.GAP_M))
        outer.addWidget(line)
        outer.addLayout(self._layout)

    def show_use(self, use: VaultUse) -> None:
        """Show what is kept, and how much may be."""
        size, limit = format_size(use.size), format_size(use.limit)
        if use.problem:
            text = tr("Nothing can be kept: {why}.", why=render(use.problem))
        elif use.states:
            count = ntr("1 conversation", "{n} conversations", use.states)
            text = tr(
                "{count}, {tokens:,} tokens: {size} of {limit}.", count=count, tokens=use.tokens, size=size, limit=limit
            )
        else:
            text = tr("Nothing yet. At most {limit} are kept.", limit=limit) if use.limit else tr("Nothing.")
        self.caption.setText(text)
        self.button.reset()
        self.button.show_loss(tr("Forget all"), size)
        self.button.setEnabled(bool(use.states or use.problem))  # an index that cannot be read hides files

    def matches(self, words: list[str]) -> bool:
        """Return whether all words occur in its texts."""
        text = f"{tr('Kept now')} {tr('Forget all')}".casefold()
        return all(word in text for word in words)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the button beside or under the text, as the controls of settings are."""
        super().resizeEvent(event)
        narrow = event.size().width() < theme.px(NARROW)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._layout.setDirection(down if narrow else across)
        self._layout.setSpacing(theme.px(theme.GAP if narrow else theme.GAP_XL))
        self._control.setMinimumWidth(0 if narrow else theme.px(CONTROL_WIDTH))
