"""Read-out: title, large number, unit, and text below. The layout stays fixed while the number changes."""

from collections import deque

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label, set_tooltip
from launcher.gui.plots.quantities import Quantity
from launcher.gui.translation import render, tr
from launcher.machine.gpu import Reading

_REMEMBERED_NUMBERS = 30
"""The unit's place follows the widest of this many recent numbers (some ten seconds of a reply), so it seldom moves."""
_UNIT_GAP = 5
"""Distance between number and unit, in pixels at 100 % scale."""
_WIDEST = 100_000
"""Width in pixels in which any text stands in one line."""


class ElidedText(Label):
    """Secondary text that wraps where there is height for it and is elided at the end; the tooltip has all of it."""

    def __init__(self, text: str = "", pixels: int = theme.CAPTION_PX) -> None:
        super().__init__(text)
        self.setObjectName("secondary")
        self.setFont(theme.font(pixels, tabular=True))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Require no width."""
        return QSize(0, super().minimumSizeHint().height())

    @property
    def line_height(self) -> int:
        """Height of a line in pixels. Characters that the font lacks, such as Chinese ones, make lines higher."""
        metrics = QFontMetrics(self.font())
        words = self.text().replace("\n", " ") or tr("Not read yet.")
        return max(metrics.lineSpacing(), metrics.boundingRect(QRect(0, 0, _WIDEST, _WIDEST), 0, words).height())

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the lines that fit, none where there is no height for one."""
        with QPainter(self) as painter:
            painter.setPen(self.palette().color(self.foregroundRole()))
            metrics = QFontMetrics(self.font())
            most = (self.height() + metrics.leading()) // self.line_height
            lines = _fit_lines(self.text(), metrics, self.width(), most) if most > 0 else []
            painter.drawText(self.rect(), self.alignment().value, "\n".join(lines))


def _fit_lines(text: str, metrics: QFontMetrics, width: int, most: int) -> list[str]:
    """Break a text between words into at most `most` lines of `width` pixels; the last one is elided."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and len(lines) < most - 1 and metrics.horizontalAdvance(longer) > width:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return [metrics.elidedText(line, Qt.TextElideMode.ElideRight, width) for line in lines[:most]]


class ReadOut(QWidget):
    """A row's current value: title, number, unit, and below them up to three lines of text.

    Unknown is an en dash with the reason; an old value shows its age. A `small` read-out has no lines below.
    """

    def __init__(self, quantity: Quantity, *, small: bool = False) -> None:
        super().__init__()
        self._quantity = quantity
        self._small = small
        self._shown: tuple[str, ...] = ()
        self._change = self._aside = ""
        self._numbers: deque[str] = deque(maxlen=_REMEMBERED_NUMBERS)
        """The last numbers as they are shown."""
        self.title = Label(tr(quantity.title))
        self.title.setObjectName("secondary")
        self.title.setFont(theme.font(theme.CAPTION_PX))
        self.value = Label()
        self.unit = Label(tr(quantity.unit))
        self.unit.setObjectName("secondary")
        self.caption = ElidedText()
        self.caption.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.caption.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        line = QHBoxLayout()
        line.setSpacing(theme.px(_UNIT_GAP))
        line.addWidget(self.value, 0, Qt.AlignmentFlag.AlignBottom)
        line.addWidget(self.unit, 1, Qt.AlignmentFlag.AlignBottom)
        layout = self._layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.title)
        layout.addLayout(line)
        if small:
            self.caption.hide()
            layout.addStretch()
        else:
            layout.addSpacing(theme.px(2))
            layout.addWidget(self.caption, 1)
        self.set_pixels(theme.READOUT_PX)
        self.show_reading(quantity, Reading.unknown(tr("Not read yet.")))

    def insert_line(self, widget: QWidget, *, caption_lines: int) -> None:
        """Put a widget between the number and the text below it, which gets a height of `caption_lines` lines."""
        self._layout.insertWidget(2, widget)
        self.caption.setFixedHeight(caption_lines * self.caption.line_height)

    def set_pixels(self, pixels: int) -> None:
        """Set the height of the number. It is lower where the width is too small."""
        self._pixels = pixels
        self._numbers.clear()
        self.unit.setFont(theme.font(theme.BODY_PX if self._small else theme.SECTION_PX))
        self._fit_number()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Fit the number to another width."""
        super().resizeEvent(event)
        self._fit_number()

    def _fit_number(self) -> None:
        """Make the number as high as wanted, or as the width allows for the widest recent one.

        It gets the width of that one, so that the unit does not move, but an old peak leaves no gap before the unit.
        """
        room = self.width() - self.unit.sizeHint().width() - theme.px(_UNIT_GAP)
        for pixels in range(self._pixels, theme.CAPTION_PX - 1, -1):
            font = theme.font(pixels, bold=True, tabular=True)
            metrics = QFontMetrics(font)
            widest = max((metrics.horizontalAdvance(each) for each in self._numbers), default=0) + 1
            if widest <= room:
                break
        if self.value.font() != font:
            self.value.setFont(font)
        self.value.setMinimumWidth(widest)
        # On one baseline with the number.
        below = metrics.descent() - QFontMetrics(self.unit.font()).descent()
        self.unit.setContentsMargins(0, 0, 0, max(below, 0))

    def show_reading(
        self,
        quantity: Quantity,
        reading: Reading,
        last: tuple[float, float] | None = None,
        *,
        minute_before: float | None = None,
    ) -> None:
        """Show a value of a quantity, its unit, and the change against `minute_before`.

        `minute_before` is the mean of the minute before. Without a value show `last` (value, age in seconds), else a
        dash. The reason is in the tooltip and, where there is room, below the dash.
        """
        self._quantity = quantity
        title, why, change = tr(quantity.title), "", ""
        if reading.value is not None:
            text = quantity.format_value(reading.value)
            if minute_before is not None:
                change = tr("{change} in 1 min", change=self._format_change(reading.value - minute_before))
        elif quantity.keeps_last and last is not None:
            text, why, change = quantity.format_value(last[0]), render(reading.absent or ""), _format_age(last[1])
        else:
            text, why = UNKNOWN, render(reading.absent or "") or tr("Unknown.")
            change = why
        unit = "" if text == UNKNOWN else tr(quantity.unit)
        shown = (title, text, unit, change, why)
        if shown == self._shown:
            return
        self._shown = shown
        self._change = change
        for label, words in ((self.title, title), (self.value, text), (self.unit, unit)):
            if label.text() != words:
                label.setText(words)
        self._numbers.append(text)
        self._fit_number()
        self.value.setEnabled(reading.value is not None)  # dim a value that is not live
        self._show_caption()
        set_tooltip(self, why)
        spoken = "" if self._small and not why else change or why
        self.value.setAccessibleName(" ".join(filter(None, [f"{title}:", text, unit, spoken])))

    def show_aside(self, text: str, tip: str = "") -> None:
        """Show lines below the change."""
        self._aside = text
        self._show_caption()
        set_tooltip(self.caption, tip or self.caption.text())

    @property
    def aside(self) -> str:
        """The lines below the change."""
        return self._aside

    def _show_caption(self) -> None:
        text = "\n".join(filter(None, [self._change, self._aside]))
        if text != self.caption.text():
            self.caption.setText(text)

    def _format_change(self, difference: float) -> str:
        text = self._quantity.format_value(difference)
        zero = self._quantity.format_value(0.0)
        if text.lstrip("-") == zero:
            return "±" + zero
        return text.replace("-", "−") if difference < 0 else "+" + text  # noqa: RUF001 -- a minus sign


def _format_age(seconds: float) -> str:
    if seconds < 1.5:
        return tr("just now")
    if seconds < 60:
        return tr("{seconds:.0f} s ago", seconds=seconds)
    return tr("{minutes:.0f} min ago", minutes=seconds / 60)
