"""The verdict: what the measurement says, in one sentence; before there is one, what it will say."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QFrame, QPushButton, QVBoxLayout

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.tune.told import Told
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr


class VerdictCard(QFrame):
    """A card whose edge has the colour of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.kicker, self.sentence, self.detail = Label(), Label(), Label()
        self.kicker.setObjectName("secondary")
        self.kicker.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.sentence.setFont(theme.font(theme.TITLE_PX, bold=True, tabular=True))
        self.detail.setObjectName("secondary")
        for label in (self.kicker, self.sentence, self.detail):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.buttons: list[QPushButton] = []
        self._before, self._none = True, True
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._row.setSpacing(theme.px(theme.GAP_M))
        self._row.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(*(theme.px(theme.GAP_L),) * 4)
        column.setSpacing(theme.px(theme.GAP_S))
        for label in (self.kicker, self.sentence, self.detail):
            column.addWidget(label)
        column.addLayout(self._row)
        self.show_verdict(None)

    def stack(self, direction: QBoxLayout.Direction) -> None:
        """Put the buttons beside or under each other."""
        self._row.setDirection(direction)

    def say(self, kicker: str, sentence: str, detail: str) -> None:
        """Show other words over the same buttons: what has the focus keeps it."""
        for label, text in ((self.kicker, kicker), (self.sentence, sentence), (self.detail, detail)):
            label.setText(text)
            label.setVisible(bool(text))
        self.setAccessibleName(sentence)

    def know(self, *, before: bool) -> None:
        """Take in whether anything was measured before; while that is not known, it is not said that nothing was."""
        self._before = before
        if self._none:
            self.show_verdict(None)

    def show_verdict(self, told: Told | None) -> None:
        """Show a verdict; None is that there is none to show."""
        self._none = told is None
        told = told or _nothing(self._before)
        self.say(told.kicker, told.sentence, told.detail)
        for button in self.buttons:
            self._row.removeWidget(button)
            button.deleteLater()
        self.buttons = [make_button(words, do, primary=not at) for at, (words, do) in enumerate(told.buttons)]
        for at, button in enumerate(self.buttons):
            button.setAutoDefault(True)
            self._row.insertWidget(at, button)
        self._row.setContentsMargins(0, theme.px(theme.GAP) if self.buttons else 0, 0, 0)
        if self.property("meaning") != told.meaning:
            self.setProperty("meaning", told.meaning)
            self.style().unpolish(self)
            self.style().polish(self)


def _nothing(before: bool) -> Told:
    return Told(
        tr("Nothing is measured at the moment.") if before else tr("Nothing was measured on this machine yet."),
        detail=tr(
            "A measurement asks the same prompts with MTP off and with each draft length, in turn, until the difference"
            " is clear or the time is over. Then it says here which one is faster, by how much and how sure that is, or"
            " that MTP is better left off."
        ),
        meaning="none",
    )
