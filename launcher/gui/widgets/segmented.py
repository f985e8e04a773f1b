"""One of a few, all in sight."""

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QSizePolicy, QWidget

from launcher.gui import theme

_BORDER = 2
"""Pixels, with the focus."""


class Segmented(QWidget):
    """Buttons in a row, one of which is down. `name` says what is chosen; options are (value, words)."""

    changed = Signal(object)
    """The value that the user chose."""

    def __init__(self, name: str, options: Sequence[tuple[object, str]], value: object = None) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._group = QButtonGroup(self)
        self._buttons: dict[object, QPushButton] = {}
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        for at, (each, words) in enumerate(options):
            button = self._buttons[each] = QPushButton(words)
            button.setObjectName("segment")
            button.setCheckable(True)
            button.setAccessibleName(f"{name}: {words}")
            button.setProperty("end", _end(at, len(options)))
            keep_room(button)
            button.clicked.connect(lambda _checked=False, chosen=each: self.changed.emit(chosen))
            self._group.addButton(button)
            layout.addWidget(button)
        self.set_value(options[0][0] if value is None and options else value)

    @property
    def value(self) -> object:
        """What is chosen."""
        return next((each for each, button in self._buttons.items() if button.isChecked()), None)

    def set_value(self, value: object) -> None:
        """Choose without telling."""
        if value in self._buttons:
            self._buttons[value].setChecked(True)

    def button(self, value: object) -> QPushButton:
        """Return the button of a value, to give it a tooltip or take it away."""
        return self._buttons[value]

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Go left and right by the arrows."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        values = list(self._buttons)
        at = values.index(self.value) + step if self.value in values else 0
        if 0 <= at < len(values):
            self._buttons[values[at]].setFocus(Qt.FocusReason.TabFocusReason)
            self._buttons[values[at]].click()


def keep_room(button: QPushButton) -> None:
    """Give a segment the width that it needs when it is down and has the focus, so that nothing moves or is cut."""
    bold = QFontMetrics(theme.font(theme.BODY_PX, bold=True)).horizontalAdvance(button.text())
    button.setMinimumWidth(bold + 2 * (theme.px(theme.GAP_M) + _BORDER) + 2)


def _end(at: int, count: int) -> str:
    if count == 1:
        return "only"
    return "first" if at == 0 else "last" if at == count - 1 else "middle"
