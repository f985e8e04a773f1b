"""Segmented control: one of a few options, all visible."""

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFontMetrics, QKeyEvent
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QSizePolicy, QWidget

from launcher.gui import theme

_BORDER = 2
"""Border with the focus, in pixels."""


class Segmented(QWidget):
    """Row of exclusive buttons. `name` is for screen readers; options are (value, label)."""

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
        for at, (each, label) in enumerate(options):
            button = self._buttons[each] = QPushButton(label)
            button.setObjectName("segment")
            button.setCheckable(True)
            button.setAutoExclusive(True)  # else a screen reader calls it a check box
            button.setAccessibleName(f"{name}: {label}")
            button.setProperty("end", segment_position(at, len(options)))
            reserve_width(button)
            # Not `clicked`, which does not come when a screen reader presses the button.
            button.toggled.connect(lambda checked, chosen=each: self.changed.emit(chosen) if checked else None)
            self._group.addButton(button)
            layout.addWidget(button)
        self.set_value(options[0][0] if value is None and options else value)

    @property
    def value(self) -> object:
        """The chosen value, or None."""
        return next((each for each, button in self._buttons.items() if button.isChecked()), None)

    def set_value(self, value: object) -> None:
        """Choose a value without emitting `changed`."""
        if value in self._buttons:
            with QSignalBlocker(self._buttons[value]):
                self._buttons[value].setChecked(True)

    def button(self, value: object) -> QPushButton:
        """Return the button of a value, for example to set a tooltip or hide it."""
        return self._buttons[value]

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Move the choice with the arrow keys."""
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None:
            super().keyPressEvent(event)
            return
        values = list(self._buttons)
        at = values.index(self.value) + step if self.value in values else 0
        if 0 <= at < len(values):
            self._buttons[values[at]].setFocus(Qt.FocusReason.TabFocusReason)
            self._buttons[values[at]].click()


def reserve_width(button: QPushButton) -> None:
    """Reserve the width for the pressed and focused state, so that nothing moves or is cut."""
    bold = QFontMetrics(theme.font(theme.BODY_PX, bold=True)).horizontalAdvance(button.text())
    button.setMinimumWidth(bold + 2 * (theme.px(theme.GAP_M) + _BORDER) + 2)


def segment_position(at: int, count: int) -> str:
    """Return the position of a button in a row of `count`, for the style sheet."""
    if count == 1:
        return "only"
    if at == 0:
        return "first"
    return "last" if at == count - 1 else "middle"
