"""The left pane: what needs a restart, what applies now, and in Advanced every flag."""

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.cockpit.advanced import AdvancedFields
from launcher.gui.cockpit.changes import ChangesBox
from launcher.gui.cockpit.fields import RestartFields
from launcher.gui.cockpit.panes import remember, remembered
from launcher.gui.cockpit.sampling import SamplingFields
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.widgets import Card, Segmented
from launcher.gui.words import tr

_SIMPLE, _ADVANCED = "simple", "advanced"


class ControlsPane(Card):
    """Sliders above, what they change below, always in sight."""

    def __init__(self, state: SettingsState, controller: Controller) -> None:
        super().__init__()
        self.body.setContentsMargins(theme.px(theme.GAP_L), theme.px(theme.GAP_M), theme.px(4), theme.px(theme.GAP_M))
        self.body.setSpacing(theme.px(theme.GAP))
        self.mode = Segmented(
            tr("Settings shown"), [(_SIMPLE, tr("Simple")), (_ADVANCED, tr("Advanced"))], remembered("mode", _SIMPLE)
        )
        self.mode.button(_SIMPLE).setToolTip(tr("The settings that matter most"))
        self.mode.button(_ADVANCED).setToolTip(tr("Also every flag of the engine, and your own arguments"))
        self.mode.changed.connect(self._choose_mode)
        self.restart, self.sampling = RestartFields(state), SamplingFields(state)
        self.advanced, self.changes = AdvancedFields(state, controller), ChangesBox(controller, state)
        self._advanced_title = _title(tr("Every flag"))
        inner = QWidget()
        inner.setObjectName("plain")
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        column.setSpacing(theme.px(theme.GAP_M))
        column.addWidget(_title(tr("Needs a restart")))
        column.addWidget(self.restart)
        column.addWidget(self._advanced_title)
        column.addWidget(self.advanced)
        column.addWidget(_title(tr("Applies now")))
        column.addWidget(self.sampling)
        column.addStretch()
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setAccessibleName(tr("Settings"))
        area.setWidget(inner)
        self.body.addWidget(self.mode)
        self.body.addWidget(area, 1)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        foot.addWidget(self.changes)
        self.body.addLayout(foot)
        self._show_mode()

    @Slot(object)
    def _choose_mode(self, mode: object) -> None:
        remember("mode", str(mode))
        self._show_mode()

    def _show_mode(self) -> None:
        advanced = self.mode.value == _ADVANCED
        self._advanced_title.setVisible(advanced)
        self.advanced.setVisible(advanced)
        if advanced:
            self.advanced.shown()


def _title(text: str) -> Label:
    title = Label(text)
    title.setFont(theme.font(theme.SECTION_PX, bold=True))
    return title
