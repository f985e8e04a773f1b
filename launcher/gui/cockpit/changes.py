"""The box that says what the changes cost, and applies them or takes them back."""

from typing import TYPE_CHECKING

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout

from launcher import settings
from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.widgets import ComboBox
from launcher.gui.words import ntr, tr
from launcher.settings import DRAIN_S
from launcher.settings_declared import APPLY, CANCEL, FINISH

if TYPE_CHECKING:
    from launcher.preview import Preview
    from launcher.preview_words import Told


class ChangesBox(QFrame):
    """Hidden while nothing differs from what runs."""

    def __init__(self, controller: Controller, state: SettingsState) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("meaning", "attention")
        self._state = state
        self._title = Label()
        self._title.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self._title.setWordWrap(True)
        self._costs = Label()
        self._costs.setObjectName("secondary")
        self._costs.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._costs.setWordWrap(True)
        self._problem = Label()
        self._problem.setWordWrap(True)
        self.drain = ComboBox()
        self.drain.setAccessibleName(tr("Replies that run"))
        self.drain.addItem(tr("finish replies first"), FINISH)
        self.drain.addItem(tr("cancel replies"), CANCEL)
        self.drain.setToolTip(
            tr("Replies that run may end first, for up to {seconds:.0f} s, or are cut off at once", seconds=DRAIN_S)
        )
        self.drain.setCurrentIndex(self.drain.findData(settings.value(APPLY)))
        self.drain.activated.connect(lambda _at: controller.change_setting(APPLY, self.drain.currentData()))
        controller.setting_changed.connect(self._take_setting)
        self.apply = QPushButton(tr("Apply"))
        self.apply.setObjectName("primary")
        self.apply.setToolTip(tr("Restart with these settings (Ctrl+Return). If they fail, the old ones come back"))
        self.apply.clicked.connect(self.apply_now)
        self.revert = QPushButton(tr("Revert"))
        self.revert.setToolTip(tr("Take all changes back"))
        self.revert.clicked.connect(lambda: state.revert())
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(self.apply)
        row.addWidget(self.revert)
        row.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (self._title, self._costs, self._problem, self.drain):
            column.addWidget(widget)
        column.addLayout(row)
        state.previewed.connect(self.show_state)
        state.applying_changed.connect(lambda _applying: self.show_state())
        self.show_state()

    @property
    def drain_s(self) -> float:
        """So long may replies that run go on, in seconds."""
        return DRAIN_S if self.drain.currentData() == FINISH else 0.0

    @Slot(str, object)
    def _take_setting(self, name: str, value: object) -> None:
        if name == APPLY:
            self.drain.setCurrentIndex(self.drain.findData(value))

    @Slot()
    def apply_now(self) -> None:
        """Apply as the user chose."""
        self._state.apply(self.drain_s)

    @Slot()
    def show_state(self) -> None:
        """Show what would change."""
        state, preview = self._state, self._state.preview
        count = state.changes
        self.setVisible(bool(preview and (count or state.problem)))
        if preview is None:
            return
        self._title.setText(tr("Restarting ...") if state.applying else _title(preview))
        costs = [say(change.consequence) for change in preview.changes]
        costs += [say(each) for each in preview.warnings]
        self._costs.setText("\n".join(costs))
        self._costs.setVisible(bool(costs))
        problem = state.refusal or _too_big(preview)
        self._problem.setText(problem)
        self._problem.setVisible(bool(problem))
        self.apply.setEnabled(bool(count) and state.problem is None and not state.applying)
        self.revert.setEnabled(not state.applying)
        self.drain.setEnabled(not state.applying)


def say(told: "Told") -> str:
    """Return a sentence of the core in the user's language."""
    return tr(told.text, **told.values)


def _title(preview: "Preview") -> str:
    count = ntr("1 change", "{n} changes", len(preview.changes))
    if preview.restart_s is None:
        return tr("{changes} · restart, never timed here yet", changes=count)
    if preview.restart_s < 1:
        return tr("{changes} · restart under 1 s", changes=count)
    return tr("{changes} · restart about {seconds:.0f} s", changes=count, seconds=preview.restart_s)


def _too_big(preview: "Preview") -> str:
    if not preview.missing_mib:
        return ""
    return tr("{missing:,} MiB more than there are: it will most likely not start.", missing=preview.missing_mib)
