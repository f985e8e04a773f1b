"""Number with fixed-width digits and a lighter unit."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QHBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tooltip

UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value


class NumberLabel(QWidget):
    """A value and its unit. `widest` reserves width, so that nothing moves; `name` is the quantity's name."""

    def __init__(self, name: str, unit: str = "", *, pixels: int = theme.BODY_PX, widest: str = "") -> None:
        super().__init__()
        self._name = name
        self.value = Label(UNKNOWN)
        self.unit = Label(unit)
        self.unit.setObjectName("secondary")
        big = theme.font(pixels, bold=True, tabular=True)
        small = theme.font(theme.SECTION_PX if pixels >= theme.READOUT_PX else min(pixels, theme.BODY_PX))
        self.value.setFont(big)
        self.unit.setFont(small)
        self.value.setMinimumWidth(QFontMetrics(big).horizontalAdvance(widest))
        drop = QFontMetrics(big).ascent() - QFontMetrics(small).ascent()
        self.unit.setContentsMargins(0, drop, 0, 0)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(5))
        layout.addWidget(self.value)
        layout.addWidget(self.unit, alignment=Qt.AlignmentFlag.AlignTop)
        layout.addStretch()
        self.show_value(None, "")

    def show_value(self, text: str | None, reason: str = "") -> None:
        """Show a formatted number. None shows an en dash with `reason` as the tooltip."""
        self.value.setText(UNKNOWN if text is None else text)
        set_tooltip(self, reason)
        known = f"{text} {self.unit.text()}".strip() if text is not None else reason
        self.setAccessibleName(f"{self._name}: {known}")
        self.value.setAccessibleName(f"{self._name}: {known}")
