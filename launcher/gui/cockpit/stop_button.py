"""Button of one plan in the Simple mode, with the plan's expected speed."""

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QEnterEvent, QFocusEvent
from PySide6.QtWidgets import QBoxLayout, QPushButton, QSizePolicy

from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label
from launcher.gui.translation import tr

if TYPE_CHECKING:
    from launcher.app.planning.model_stops import ModelStop

_BORDER = 2
"""Border with the focus, in pixels."""


class StopButton(QPushButton):
    """One choice: its name, the expected speed, and the range of it. Below one another, or in a row."""

    attended = Signal(bool)
    """The pointer or the focus has come, or has gone."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.setObjectName("segment")
        self.setCheckable(True)
        self.setAutoExclusive(True)  # else a screen reader calls it a check box
        # Else a row of buttons is as high as the lowest one, and cuts the texts of the others.
        self.setSizePolicy(QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Minimum)
        self._title, self._name, self._value, self._range = title, Label(title), Label(), Label()
        self._value.setFont(theme.font(theme.SECTION_PX, bold=True, tabular=True))
        self._range.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._range.setObjectName("secondary")
        self._is_measured = False
        """Whether there is a speed to show."""
        self._box = QBoxLayout(QBoxLayout.Direction.TopToBottom, self)
        for label in (self._name, self._value, self._range):
            label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            self._box.addWidget(label)
        self.set_direction(QBoxLayout.Direction.TopToBottom)

    @property
    def column_width(self) -> int:
        """The width in pixels that the texts need below one another."""
        widest = max(label.sizeHint().width() for label in (self._name, self._value, self._range))
        return widest + 2 * (theme.px(theme.GAP_S) + _BORDER)

    def show_stop(self, stop: "ModelStop | None") -> None:
        """Show a plan's speed, or a dash where there is none to choose; None before the plans are made."""
        plan = stop.stop.plan if stop is not None and not stop.stop.lack else None
        figures = None if plan is None else plan.forecast or plan.reading
        value, speed_range = UNKNOWN, ""
        if figures is not None:
            value = tr("{speed:,.0f} t/s", speed=figures.tokens_per_second)
            speed_range = tr("{low:,.0f} to {high:,.0f}", low=figures.low, high=figures.high)
        elif plan is not None:
            speed_range = tr("not measured")
        self._value.setText(value)
        self._range.setText(speed_range)
        self._is_measured = figures is not None
        self._show_labels()
        self.setAccessibleName(", ".join(filter(None, (self._title, value if figures else "", speed_range))))

    def set_direction(self, direction: QBoxLayout.Direction) -> None:
        """Put the texts below one another, or in a row."""
        is_column = direction is QBoxLayout.Direction.TopToBottom
        self._box.setDirection(direction)
        side, end = theme.px(theme.GAP_S if is_column else theme.GAP_M) + _BORDER, theme.px(6)
        self._box.setContentsMargins(side, end, side, end)
        self._box.setSpacing(theme.px(2 if is_column else theme.GAP))
        centred = Qt.AlignmentFlag.AlignCenter
        for label in (self._name, self._value, self._range):
            label.setAlignment(centred if is_column else Qt.AlignmentFlag.AlignVCenter)
        self._box.setStretchFactor(self._name, 0 if is_column else 1)
        self._show_labels()

    def _show_labels(self) -> None:
        """Hide the range if the labels form a row, which has no room for it, and the dash beside "not measured"."""
        is_row = self._box.direction() is QBoxLayout.Direction.LeftToRight
        says_why = bool(self._range.text()) and not self._is_measured
        self._range.setVisible(says_why or not is_row)
        self._value.setVisible(not (says_why and is_row))
        self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size of the texts."""
        return self._box.totalSizeHint()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the size of the texts."""
        return self._box.totalMinimumSize()

    def enterEvent(self, event: QEnterEvent) -> None:  # noqa: N802
        """Report that the pointer has come."""
        super().enterEvent(event)
        self.attended.emit(True)

    def leaveEvent(self, event: QEvent) -> None:  # noqa: N802
        """Report that the pointer has gone."""
        super().leaveEvent(event)
        self.attended.emit(False)

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802
        """Report that the focus has come."""
        super().focusInEvent(event)
        self.attended.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802
        """Report that the focus has gone."""
        super().focusOutEvent(event)
        self.attended.emit(False)
