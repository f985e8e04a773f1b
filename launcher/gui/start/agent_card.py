"""Card of the Start page that leads to the Agents page."""

from collections.abc import Callable

from PySide6.QtWidgets import QBoxLayout, QPushButton, QSizePolicy

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.translation import tr
from launcher.gui.widgets import Card
from launcher.gui.widgets.blocks import make_button


class AgentCard(Card):
    """A line on coding agents, and a button that shows their page."""

    def __init__(self, show_agents: Callable[[], object]) -> None:
        super().__init__(tr("Coding agent"))
        text = Label(tr("Reads, writes and runs code in a folder, with a model on this computer."))
        text.setObjectName("secondary")
        text.setWordWrap(True)
        self.button: QPushButton = make_button(tr("Choose an agent …"), show_agents)
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._row.setSpacing(theme.px(theme.GAP_M))
        self._row.addWidget(text)
        self._row.addWidget(self.button)
        self.body.addLayout(self._row)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)

    def set_direction(self, direction: QBoxLayout.Direction) -> None:
        """Put the button beside or below the text."""
        self._row.setDirection(direction)
        self._row.setStretch(0, int(direction == QBoxLayout.Direction.LeftToRight))
