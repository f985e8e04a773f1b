"""Read-out: title, large number, unit and change. The layout stays fixed while the number changes."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QSpacerItem, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label, set_tooltip
from launcher.gui.plots.quantities import Quantity
from launcher.gui.translation import render, tr
from launcher.machine.gpu import Reading


class ElidedText(Label):
    """Secondary text that is elided when it does not fit; the tooltip has all of it.

    Right-aligned text is cut at its beginning. A single line wraps into a second one where there is room.
    """

    def __init__(self, text: str = "", pixels: int = theme.CAPTION_PX) -> None:
        super().__init__(text)
        self._shorter: tuple[str, ...] = ()
        self.setObjectName("secondary")
        self.setFont(theme.font(pixels, tabular=True))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Require no width."""
        return QSize(0, super().minimumSizeHint().height())

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the text that fits."""
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.rect(), self.alignment().value, "\n".join(self._fitting_lines(QFontMetrics(self.font()))))

    def show_text(self, text: str, *shorter: str) -> None:
        """Show `text` or, if it does not fit, the first of `shorter` that does."""
        self._shorter = shorter
        if text != self.text():
            self.setText(text)
        self.update()

    def _fitting_lines(self, metrics: QFontMetrics) -> list[str]:
        width = self.width()
        lines = self.text().split("\n")
        if len(lines) == 1 and self.height() >= 2 * metrics.height() and metrics.horizontalAdvance(lines[0]) > width:
            lines = _break_line(lines[0], metrics, width)
        elif len(lines) == 1 and self._shorter:
            texts = (lines[0], *self._shorter)
            lines = [next((each for each in texts if metrics.horizontalAdvance(each) <= width), self._shorter[-1])]
        right = bool(self.alignment() & Qt.AlignmentFlag.AlignRight)  # the number is at the end of such a line
        mode = Qt.TextElideMode.ElideLeft if right else Qt.TextElideMode.ElideRight
        return [metrics.elidedText(line, mode, width) for line in lines]


class ReadOut(QWidget):
    """One quantity's current value. Unknown is an en dash with the reason; an old value shows its age."""

    def __init__(self, quantity: Quantity, pixels: int) -> None:
        super().__init__()
        self._quantity = quantity
        self._shown: tuple[str, ...] = ()

        caption = theme.font(theme.CAPTION_PX, tabular=True)
        self._title = _make_secondary_label(tr(quantity.title), caption)
        self.value = Label()
        value_font = theme.font(pixels, bold=True, tabular=True)
        self.value.setFont(value_font)
        self.unit = ElidedText(tr(quantity.unit), theme.SECTION_PX if pixels == theme.READOUT_PX else theme.BODY_PX)
        self.change = ElidedText()
        self._metrics = QFontMetrics(value_font)
        self._is_bare = False
        """Whether only the title and a dash are shown, because the reason is shown elsewhere."""
        self._value_width = 0
        """The number's width: as wide as the widest so far, so that the unit does not move."""
        self._number_width = self._metrics.horizontalAdvance(quantity.widest) + 1
        # A change within a minute usually has one digit less than the widest value.
        typical = quantity.widest[1:].lstrip(",") if len(quantity.widest) > 2 else quantity.widest
        beside = [quantity.unit, tr("{change} in 1 min", change="+" + typical)]
        self._beside_width = max(QFontMetrics(caption).horizontalAdvance(text) for text in beside)
        unit_width = self.unit.fontMetrics().horizontalAdvance(quantity.unit)
        self._least_width = self._number_width + theme.px(6) + unit_width
        self._baseline_gap = max(self._metrics.descent() - self.unit.fontMetrics().descent(), 0)
        self._below = QSpacerItem(0, self._baseline_gap, QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Fixed)
        stack = self._stack = QVBoxLayout()
        stack.setSpacing(0)
        stack.addStretch()
        stack.addWidget(self.unit)
        stack.addWidget(self.change)
        stack.addSpacerItem(self._below)
        line = QHBoxLayout()
        line.setSpacing(theme.px(6))
        line.addWidget(self.value)
        line.addLayout(stack, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._title)
        layout.addLayout(line)
        self.show_reading(Reading.unknown(tr("Nothing is running.")))

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Reserve the width of the widest value and change."""
        title_width = self._title.sizeHint().width()
        if self._is_bare:
            return QSize(title_width, super().sizeHint().height())
        width = max(self._number_width + theme.px(6) + self._beside_width, title_width)
        return QSize(width, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Drop the change, not the number, where there is little room."""
        if self._is_bare:
            return self.sizeHint()
        return QSize(max(self._least_width, self._title.sizeHint().width()), super().minimumSizeHint().height())

    def show_reading(
        self,
        reading: Reading,
        last: tuple[float, float] | None = None,
        *,
        minute_before: float | None = None,
        limit: str = "",
        with_reason: bool = True,
    ) -> None:
        """Show a value, its unit or `limit` ("of 300 W"), and the change against `minute_before`.

        `minute_before` is the mean of the minute before. Without a value show `last` (value, age in seconds), else a
        dash. The reason is in the tooltip and, if `with_reason`, beside the dash.
        """
        quantity = self._quantity
        title, why, change = tr(quantity.title), "", ""
        shorter: tuple[str, ...] = ()
        """Shorter texts for `change`, for a narrow card."""
        if reading.value is not None:
            text = quantity.format_value(reading.value)
            if minute_before is not None:
                signed = self._format_change(reading.value - minute_before)
                change, shorter = tr("{change} in 1 min", change=signed), (signed, "")
        elif quantity.keeps_last and last is not None:
            text, why, change = quantity.format_value(last[0]), render(reading.absent or ""), _format_age(last[1])
        else:
            text, why = UNKNOWN, render(reading.absent or "") or tr("Unknown.")
            change = why if with_reason else ""
        self._set_bare(text == UNKNOWN and not with_reason)
        unit = "" if text == UNKNOWN else limit or tr(quantity.unit)
        shown = (text, unit, change, why)
        if shown == self._shown:
            return
        self._shown = shown
        if self.value.text() != text:
            self._value_width = max(self._value_width, self._metrics.horizontalAdvance(text) + 1)
            self.value.setText(text)
            self.value.setFixedWidth(self._value_width)
        self.value.setEnabled(reading.value is not None)  # dim a value that is not live
        self.unit.show_text(unit, tr(quantity.unit))
        self.unit.setVisible(bool(unit))
        self.change.show_text(change, *shorter)
        self.change.setVisible(bool(change))
        bottom_gap = 0 if change and unit else self._baseline_gap  # a single line is aligned with the number
        if self._below.sizeHint().height() != bottom_gap:
            self._below.changeSize(0, bottom_gap, QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Fixed)
            self._stack.invalidate()
        set_tooltip(self, why)
        self.value.setAccessibleName(" ".join(filter(None, [f"{title}:", text, unit, change or why])))

    def _set_bare(self, bare: bool) -> None:
        if bare != self._is_bare:
            self._is_bare = bare
            self.updateGeometry()

    def _format_change(self, difference: float) -> str:
        text = self._quantity.format_value(difference)
        zero = self._quantity.format_value(0.0)
        if text.lstrip("-") == zero:
            return "±" + zero
        return text.replace("-", "−") if difference < 0 else "+" + text  # noqa: RUF001 -- a minus sign


def _break_line(text: str, metrics: QFontMetrics, width: int) -> list[str]:
    """Break a line in two between words."""
    words = text.split(" ")
    fits = next((n for n in range(len(words), 0, -1) if metrics.horizontalAdvance(" ".join(words[:n])) <= width), 1)
    return list(filter(None, [" ".join(words[:fits]), " ".join(words[fits:])]))


def _make_secondary_label(text: str, font: QFont) -> Label:
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(font)
    label.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return label


def _format_age(seconds: float) -> str:
    if seconds < 1.5:
        return tr("just now")
    if seconds < 60:
        return tr("{seconds:.0f} s ago", seconds=seconds)
    return tr("{minutes:.0f} min ago", minutes=seconds / 60)
