"""What is wrong, above the lines that say it: the cause in a sentence, and one button that mends it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.logs.sources import Cause
from launcher.gui.sentences import say
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.base.action import Action


class CauseCard(Card):
    """Hidden until something is wrong."""

    def __init__(self, fix: Callable[["Action"], object], show_line: Callable[[], object]) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("meaning", "bad")
        self._fix = fix
        self._action: Action | None = None
        self._glyph = Glyph("cross", "bad")
        self.title, self.text, self.hint = Label(), Label(), Label()
        self.title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.hint.setObjectName("secondary")
        for label in (self.title, self.text, self.hint):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.fix_button = make_button("", self._do, primary=True)
        self.line_button = make_button(tr("Show the line"), show_line)
        self.line_button.setToolTip(tr("Go to the line of the log that names the cause; it is marked"))
        self.close_button = make_button(tr("Dismiss"), self.hide)
        self.close_button.setObjectName("quiet")
        self.close_button.setToolTip(tr("Take this away"))
        words = QVBoxLayout()
        words.setSpacing(theme.px(theme.GAP_S))
        for label in (self.title, self.text, self.hint):
            words.addWidget(label)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP_M))
        row.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignTop)
        row.addLayout(words, 1)
        self.body.addLayout(row)
        buttons = Flow(gap=theme.px(theme.GAP))
        for button in (self.fix_button, self.line_button, self.close_button):
            buttons.add(button)
        self.body.addLayout(buttons)
        self.hide()

    def show_cause(self, cause: Cause, action: "Action | None", *, names_line: bool) -> None:
        """Show it, with the action that the one button does (None: only the user can)."""
        self._action = action
        title, text, hint = map(say, (cause.title, cause.text, cause.hint))
        self.title.setText(title)
        self.text.setText(text)
        helps = "; ".join(say(each.label) for each in cause.actions)
        self.hint.setText(tr("What helps: {actions}.", actions=helps) if cause.foreign and helps else hint)
        self.text.setVisible(bool(cause.text))
        self.hint.setVisible(bool(self.hint.text()) and action is None)  # the button says it
        self.fix_button.setVisible(action is not None)
        if action is not None:
            self.fix_button.setText(say(action.label))
            self.fix_button.setToolTip(tr("Changes the settings as it says, and starts again"))
        self.line_button.setVisible(names_line)
        self.setAccessibleName(" ".join(filter(None, (title, text, hint))))
        self.show()

    def _do(self) -> None:
        if self._action is not None:
            self._fix(self._action)
