"""Side-by-side panes that the user can hide and resize. Both are remembered. A narrow window also hides panes."""

from collections.abc import Mapping

from PySide6.QtCore import QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSizePolicy, QSplitter, QWidget

from launcher.gui import theme
from launcher.gui.labels import set_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets.segmented import reserve_width, segment_position
from launcher.gui.window_settings import open_window_settings

_SAVE_AFTER_MS = 500
"""Milliseconds without a move after which the sizes are saved."""


class PaneSplitter(QSplitter):
    """Splitter with named panes.

    `panes` are (widget, least width, usual width) by name, from left to right, in pixels at 100 % scale. `priority`
    lists the names: where there is no room, the last one is hidden first.
    """

    fitted = Signal()
    """The set of visible panes has changed."""

    def __init__(self, panes: Mapping[str, tuple[QWidget, int, int]], priority: tuple[str, ...]) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setChildrenCollapsible(False)
        self.setHandleWidth(theme.px(theme.GAP_M))
        self._panes = {name: pane for name, (pane, _, _) in panes.items()}
        self._least = {name: theme.px(least) for name, (_, least, _) in panes.items()}
        self._priority = list(priority)
        self._switched_off: set[str] = set()
        self._suppressed: set[str] = set()
        for name, pane in self._panes.items():
            pane.setMinimumWidth(self._least[name])
            self.addWidget(pane)
        self.setSizes([theme.px(usual) for _, _, usual in panes.values()])
        self._restore_state()
        self._save_timer = QTimer(self)
        self._save_timer.setSingleShot(True)
        self._save_timer.setInterval(_SAVE_AFTER_MS)
        self._save_timer.timeout.connect(self._save_state)
        self.splitterMoved.connect(lambda _at, _index: self._save_timer.start())

    def is_shown(self, name: str) -> bool:
        """Return whether a pane is visible."""
        return not self._panes[name].isHidden()

    def show_pane(self, name: str, *, shown: bool) -> None:
        """Show or hide a pane, as the user chose. A shown one may hide others for lack of room."""
        if shown:
            self._switched_off.discard(name)
            self._priority = [name, *(each for each in self._priority if each != name)]
        else:
            self._switched_off.add(name)
        self.fit_panes()
        self._save_state()

    def set_suppressed(self, names: set[str]) -> None:
        """Set the panes that are hidden whatever the user chose, because they have no meaning now."""
        if names != self._suppressed:
            self._suppressed = names
            self.fit_panes()

    def fit_panes(self) -> None:
        """Show as many panes as fit, at least one, leaving out those that are switched off or suppressed."""
        candidates = [name for name in self._priority if name not in self._switched_off | self._suppressed]
        shown: list[str] = []
        room = self.width() + self.handleWidth()
        for name in candidates:
            room -= self._least[name] + self.handleWidth()
            if room >= 0 or not shown:
                shown.append(name)
            else:
                break
        before = {name for name in self._panes if self.is_shown(name)}
        for name, pane in self._panes.items():
            pane.setVisible(name in shown)
        if before != set(shown):
            self.fitted.emit()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the width of the widest pane alone: the others can be hidden."""
        return QSize(max(self._least.values()), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Hide or show panes for the new width."""
        super().resizeEvent(event)
        self.fit_panes()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Save the sizes if they have just changed."""
        super().hideEvent(event)
        if self._save_timer.isActive():
            self._save_state()

    def _restore_state(self) -> None:
        stored = open_window_settings()
        sizes = stored.value("cockpit/panes")
        if sizes is not None:
            self.restoreState(sizes)
        self._switched_off = set(str(stored.value("cockpit/hidden", "")).split()) & set(self._panes)
        for name in self._switched_off:
            self._panes[name].hide()

    @Slot()
    def _save_state(self) -> None:
        self._save_timer.stop()
        stored = open_window_settings()
        stored.setValue("cockpit/panes", self.saveState())
        stored.setValue("cockpit/hidden", " ".join(sorted(self._switched_off)))


class PaneSwitches(QWidget):
    """A toggle button for each pane."""

    def __init__(self, panes: PaneSplitter, names: Mapping[str, str]) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._panes = panes
        self.buttons: dict[str, QPushButton] = {}
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        for at, (name, title) in enumerate(names.items()):
            button = self.buttons[name] = QPushButton(title)
            button.setObjectName("segment")
            button.setProperty("end", segment_position(at, len(names)))
            button.setCheckable(True)
            reserve_width(button)
            set_tooltip(button, tr("Show or hide this pane: {name}", name=title))
            button.clicked.connect(lambda checked, name=name: panes.show_pane(name, shown=checked))
            row.addWidget(button)
        panes.fitted.connect(self.show_state)
        self.show_state()

    def show_state(self) -> None:
        """Show which panes are visible."""
        for name, button in self.buttons.items():
            button.setChecked(self._panes.is_shown(name))


def load_choice(name: str, default: str) -> str:
    """Return a stored choice of this page."""
    return str(open_window_settings().value(f"cockpit/{name}", default))


def save_choice(name: str, value: str) -> None:
    """Store a choice of this page."""
    open_window_settings().setValue(f"cockpit/{name}", value)
