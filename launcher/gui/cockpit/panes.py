"""Panes side by side that can be hidden and widened; both are remembered. On a narrow window one makes way."""

from collections.abc import Mapping

from PySide6.QtCore import QSettings, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSizePolicy, QSplitter, QWidget

from launcher.base.paths import state_dir
from launcher.gui import theme
from launcher.gui.labels import set_tip
from launcher.gui.widgets.segmented import keep_room
from launcher.gui.words import tr

_KEPT_AFTER_MS = 500
"""So long must what is moved rest before it is written into the file."""


class Panes(QSplitter):
    """`panes` by name, from left to right, each with its least and its usual width in pixels at 100 %.

    `wanted` names them from the one that stays longest to the one that makes way first.
    """

    fitted = Signal()
    """Which panes are shown has changed."""

    def __init__(self, panes: Mapping[str, tuple[QWidget, int, int]], wanted: tuple[str, ...]) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setChildrenCollapsible(False)
        self.setHandleWidth(theme.px(theme.GAP_M))
        self._panes = {name: pane for name, (pane, _, _) in panes.items()}
        self._least = {name: theme.px(least) for name, (_, least, _) in panes.items()}
        self._wanted = [name for name in wanted if name in panes]
        self._off: set[str] = set()
        self._away: set[str] = set()
        for name, pane in self._panes.items():
            pane.setMinimumWidth(self._least[name])
            self.addWidget(pane)
        self.setSizes([theme.px(usual) for _, _, usual in panes.values()])
        self._restore()
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(_KEPT_AFTER_MS)
        self._soon.timeout.connect(self._keep)
        self.splitterMoved.connect(lambda _at, _index: self._soon.start())

    def shows(self, name: str) -> bool:
        """Whether a pane is shown."""
        return not self._panes[name].isHidden()

    def show_pane(self, name: str, *, shown: bool) -> None:
        """Show or hide a pane, as the user wishes; one that has no room beside it makes way."""
        if shown:
            self._off.discard(name)
            self._wanted = [name, *(each for each in self._wanted if each != name)]
        else:
            self._off.add(name)
        self.fit()
        self._keep()

    def send_away(self, names: set[str]) -> None:
        """Leave panes out that mean nothing now, whatever is wished."""
        if names != self._away:
            self._away = names
            self.fit()

    def fit(self) -> None:
        """Show as many of the wanted panes as there is room for, at least one."""
        wanted = [name for name in self._wanted if name not in self._off | self._away]
        shown: list[str] = []
        room = self.width() + self.handleWidth()
        for name in wanted:
            room -= self._least[name] + self.handleWidth()
            if room >= 0 or not shown:
                shown.append(name)
            else:
                break
        before = {name for name in self._panes if self.shows(name)}
        for name, pane in self._panes.items():
            pane.setVisible(name in shown)
        if before != set(shown):
            self.fitted.emit()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Ask for the room of one pane: the others make way."""
        return QSize(max(self._least.values()), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Let one make way, or come back."""
        super().resizeEvent(event)
        self.fit()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Keep what was just moved."""
        super().hideEvent(event)
        if self._soon.isActive():
            self._keep()

    def _restore(self) -> None:
        kept = _settings()
        sizes = kept.value("cockpit/panes")
        if sizes is not None:
            self.restoreState(sizes)
        self._off = set(str(kept.value("cockpit/hidden", "")).split()) & set(self._panes)
        for name in self._off:
            self._panes[name].hide()

    @Slot()
    def _keep(self) -> None:
        self._soon.stop()
        kept = _settings()
        kept.setValue("cockpit/panes", self.saveState())
        kept.setValue("cockpit/hidden", " ".join(sorted(self._off)))


class PaneSwitches(QWidget):
    """A switch for each pane."""

    def __init__(self, panes: Panes, names: Mapping[str, str]) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._panes = panes
        self.buttons: dict[str, QPushButton] = {}
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        for at, (name, words) in enumerate(names.items()):
            button = self.buttons[name] = QPushButton(words)
            button.setObjectName("segment")
            button.setProperty("end", "first" if at == 0 else "last" if at == len(names) - 1 else "middle")
            button.setCheckable(True)
            keep_room(button)
            set_tip(button, tr("Show or hide this pane: {name}", name=words))
            button.clicked.connect(lambda checked, name=name: panes.show_pane(name, shown=checked))
            row.addWidget(button)
        panes.fitted.connect(self.show_state)
        self.show_state()

    def show_state(self) -> None:
        """Show which panes there are."""
        for name, button in self.buttons.items():
            button.setChecked(self._panes.shows(name))


def remembered(name: str, default: str) -> str:
    """Return what was chosen on this page the last time."""
    return str(_settings().value(f"cockpit/{name}", default))


def remember(name: str, value: str) -> None:
    """Keep what was chosen on this page."""
    _settings().setValue(f"cockpit/{name}", value)


def _settings() -> QSettings:
    """Return where the window keeps its sizes."""
    return QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)
