"""List of the sections of the Settings page."""

from collections.abc import Mapping, Set

from PySide6.QtCore import QSignalBlocker, QSize, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QButtonGroup, QPushButton, QSizePolicy, QWidget

from launcher.gui import theme
from launcher.gui.translation import tr
from launcher.gui.widgets.flow import FlowLayout

_WIDTH, _BORDER = 152, 4
"""In pixels: width of the list, and of the borders with the focus."""


class SectionButton(QPushButton):
    """Button that shows a section: as wide as the list, or as its text where the sections are in rows."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.setObjectName("page")
        self.setCheckable(True)
        self.setAutoExclusive(True)  # else a screen reader calls it a check box
        self._is_narrow = False

    def set_narrow(self, *, narrow: bool) -> None:
        """Be as wide as the text, or as the list."""
        self._is_narrow = narrow
        self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the width of the list; in rows, the width of the text in bold, as it is when the button is checked."""
        text = QFontMetrics(theme.font(theme.BODY_PX, bold=True)).horizontalAdvance(self.text())
        width = text + 2 * theme.px(theme.GAP_M) + _BORDER if self._is_narrow else theme.px(_WIDTH)
        return QSize(width, theme.px(theme.CONTROL_HEIGHT))


class SectionList(QWidget):
    """The sections, one below the other or in rows; one is shown. Arrow keys choose the next one."""

    chosen = Signal(str)
    """The section that the user chose."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        super().__init__()
        self.setAccessibleName(tr("Sections"))
        self._group = QButtonGroup(self)
        self._buttons: dict[str, SectionButton] = {}
        flow = FlowLayout(self, gap=theme.px(theme.GAP_S))
        for name, title in titles.items():
            button = self._buttons[name] = SectionButton(title)
            # Not `clicked`, which does not come when a screen reader presses the button.
            button.toggled.connect(lambda checked, chosen=name: self.chosen.emit(chosen) if checked else None)
            self._group.addButton(button)
            flow.add(button)
        self.value = next(iter(titles))
        """The section that is shown while nothing is searched."""
        self.set_value(self.value)
        self.set_narrow(narrow=False)

    def set_value(self, name: str) -> None:
        """Choose a section without emitting `chosen`."""
        self.value = name
        with QSignalBlocker(self._buttons[name]):
            self._buttons[name].setChecked(True)

    def mark_found(self, found: Set[str] | None) -> None:
        """List only the sections in which a search found something, and check none. None ends the search."""
        self._group.setExclusive(found is None)
        for name, button in self._buttons.items():
            with QSignalBlocker(button):
                button.setChecked(found is None and name == self.value)
            button.setVisible(found is None or name in found)

    def set_narrow(self, *, narrow: bool) -> None:
        """Put the sections in rows, or one below the other."""
        for button in self._buttons.values():
            button.set_narrow(narrow=narrow)
        self.setMinimumWidth(0 if narrow else theme.px(_WIDTH))
        self.setMaximumWidth(theme.NO_MAXIMUM if narrow else theme.px(_WIDTH))
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the width of the list."""
        return QSize(theme.px(_WIDTH), super().sizeHint().height())
