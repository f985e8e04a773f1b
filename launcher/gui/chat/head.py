"""Head of the chat: one row with buttons for the saved chats and a new chat, the title, and a menu for the rest."""

from PySide6.QtCore import QSize
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QSizePolicy, QWidget

from launcher.gui import theme
from launcher.gui.chat.style import glyph_icon, make_dense_button
from launcher.gui.labels import ElidedLabel
from launcher.gui.translation import tr

_LEAST_TITLE = 96
"""Width in pixels that the title has before buttons move into the menu."""


class ChatHead(QWidget):
    """One row. Buttons for which there is no room are entries of the menu."""

    def __init__(self) -> None:
        super().__init__()
        self.chats_button = make_dense_button(tr("Chats"), tr("Saved chats (Ctrl+F searches them)"), checkable=True)
        self.new_button = make_dense_button(tr("New"), tr("Start a new chat (Ctrl+N). This one is saved"))
        self.title = ElidedLabel()
        self.title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.title.setMinimumWidth(theme.px(theme.GAP_XL))
        self.colour_button = make_dense_button(
            tr("Colour drafts"),
            tr("Colour the tokens that came from drafts, by their position. The model's own tokens stay plain"),
            checkable=True,
        )
        self.compare_button = make_dense_button(
            tr("Compare"), tr("Send each question twice: with the current settings and with others"), checkable=True
        )
        self.wide_button = make_dense_button(tr("Wide"), tr("Use the whole width for the text"), checkable=True)
        self.more_button = make_dense_button("", tr("System prompt, prompts from a file"))
        self.more_button.setAccessibleName(tr("More"))
        self.more_button.setFixedWidth(theme.px(36))
        self.menu = QMenu(self.more_button)
        self._entries = [
            self._add_entry(button) for button in (self.colour_button, self.compare_button, self.wide_button)
        ]
        self._separator = self.menu.addSeparator()
        self.system_entry = self.menu.addAction(tr("System prompt …"))
        self.from_file = self.menu.addAction(tr("Prompts from a file …"))
        self.more_button.setMenu(self.menu)
        self.row = QHBoxLayout(self)
        self.row.setContentsMargins(0, 0, 0, 0)
        self.row.setSpacing(theme.px(theme.GAP))
        self.row.addWidget(self.chats_button)
        self.row.addWidget(self.new_button)
        self.row.addWidget(self.title, 1)
        for button in (self.colour_button, self.compare_button, self.wide_button, self.more_button):
            self.row.addWidget(button)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.recolour()

    def recolour(self) -> None:
        """Paint the icons in the current theme."""
        self.more_button.setIcon(glyph_icon("more", "text"))

    def show_list_buttons(self, shown: bool) -> None:
        """Show the buttons for the saved chats and a new one, or leave them to the column of chats."""
        for button in (self.chats_button, self.new_button):
            button.setVisible(shown)
        self._fit_buttons()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the buttons for which there is room."""
        super().resizeEvent(event)
        self._fit_buttons()

    def _fit_buttons(self) -> None:
        """Move buttons into the menu, the last ones first, until the title has room."""
        gap, extras = self.row.spacing(), (self.colour_button, self.compare_button, self.wide_button)
        others = [item.widget() for at in range(self.row.count()) if (item := self.row.itemAt(at)) is not None]
        fixed = [each for each in others if each is not None and each is not self.title and each not in extras]
        fixed = [each for each in fixed if not each.isHidden()]
        room = self.width() - theme.px(_LEAST_TITLE) - sum(each.sizeHint().width() + gap for each in fixed)
        for button, entry in zip(extras, self._entries, strict=True):
            room -= button.sizeHint().width() + gap
            button.setVisible(room >= 0)
            entry.setVisible(room < 0)
        self._separator.setVisible(room < 0)

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the height of a row; the width is that of the pane."""
        return QSize(0, self.row.sizeHint().height())

    def _add_entry(self, button: QPushButton) -> QAction:
        """Add a menu entry that switches a button."""
        entry = self.menu.addAction(button.text())
        entry.setCheckable(True)
        entry.toggled.connect(button.setChecked)
        button.toggled.connect(entry.setChecked)
        entry.setVisible(False)
        return entry
