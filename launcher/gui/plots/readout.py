"""A name, a large number, its unit, and how it changed; nothing moves while the number does."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QSpacerItem, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.plots.quantities import Quantity
from launcher.gui.sentences import say
from launcher.gui.words import tr
from launcher.machine.reading import Reading

DASH = "–"  # noqa: RUF001 -- the sign for an unknown value


class Elided(Label):
    """Text in secondary colour that is cut with an ellipsis where room is short; the tooltip then says all of it.

    What stands at the right is cut at its beginning. A single line goes on in a second one where it has room.
    """

    def __init__(self, text: str = "", pixels: int = theme.CAPTION_PX) -> None:
        super().__init__(text)
        self._shorter: tuple[str, ...] = ()
        self.setObjectName("secondary")
        self.setFont(theme.font(pixels, tabular=True))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Ask for no width."""
        return QSize(0, super().minimumSizeHint().height())

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint what fits."""
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.rect(), self.alignment().value, "\n".join(self._fitting(QFontMetrics(self.font()))))

    def show_text(self, text: str, *shorter: str) -> None:
        """Show `text`, or the first of the `shorter` ones that fits where that does not."""
        self._shorter = shorter
        if text != self.text():
            self.setText(text)
        self.update()

    def _fitting(self, metrics: QFontMetrics) -> list[str]:
        width = self.width()
        lines = self.text().split("\n")
        if len(lines) == 1 and self.height() >= 2 * metrics.height() and metrics.horizontalAdvance(lines[0]) > width:
            lines = _broken(lines[0], metrics, width)
        elif len(lines) == 1 and self._shorter:
            texts = (lines[0], *self._shorter)
            lines = [next((each for each in texts if metrics.horizontalAdvance(each) <= width), self._shorter[-1])]
        right = bool(self.alignment() & Qt.AlignmentFlag.AlignRight)  # what such a line ends with is its number
        mode = Qt.TextElideMode.ElideLeft if right else Qt.TextElideMode.ElideRight
        return [metrics.elidedText(line, mode, width) for line in lines]


class ReadOut(QWidget):
    """Unknown is an en dash with the reason beside it; a value that has ended says since when."""

    def __init__(self, quantity: Quantity, pixels: int) -> None:
        super().__init__()
        self._quantity = quantity
        self._shown: tuple[str, ...] = ()
        self._large = pixels == theme.READOUT_PX
        caption = theme.font(theme.CAPTION_PX, tabular=True)
        self._title = _secondary(tr(quantity.title), caption)
        self.value = Label()
        big = theme.font(pixels, bold=True, tabular=True)
        self.value.setFont(big)
        self._unit = Elided(tr(quantity.unit), theme.SECTION_PX if self._large else theme.BODY_PX)
        self.change = Elided()
        self._metrics = QFontMetrics(big)
        self._bare = False
        self._room = 0
        """For the number: as wide as the widest there was, so that its unit stands still."""
        self._number_width = self._metrics.horizontalAdvance(quantity.widest) + 1
        usual = quantity.widest[1:].lstrip(",") if len(quantity.widest) > 2 else quantity.widest
        beside = [quantity.unit, tr("{change} in 1 min", change="+" + usual)]
        self._beside_width = max(QFontMetrics(caption).horizontalAdvance(text) for text in beside)
        unit_width = self._unit.fontMetrics().horizontalAdvance(quantity.unit)
        self._least = self._number_width + theme.px(6) + unit_width
        below = self._metrics.descent() - self._unit.fontMetrics().descent()
        self._drop = max(below, 0)
        self._below = QSpacerItem(0, self._drop, QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Fixed)
        stack = self._stack = QVBoxLayout()
        stack.setSpacing(0)
        stack.addStretch()
        stack.addWidget(self._unit)
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
        self.show_reading(Reading.unknown(tr("Nothing runs.")))

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Reserve the width of the widest value and of its change."""
        title_width = self._title.sizeHint().width()
        if self._bare:
            return QSize(title_width, super().sizeHint().height())
        wanted = max(self._number_width + theme.px(6) + self._beside_width, title_width)
        return QSize(wanted, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Where room is short the change goes, not the number."""
        if self._bare:
            return self.sizeHint()
        return QSize(max(self._least, self._title.sizeHint().width()), super().minimumSizeHint().height())

    def show_reading(
        self,
        reading: Reading,
        last: tuple[float, float] | None = None,
        *,
        minute_before: float | None = None,
        limit: str = "",
        explains: bool = True,
    ) -> None:
        """Show a value, its unit with its `limit`, and the change against the mean of the minute before.

        Without a value the `last` one is shown with its age in seconds, else a dash, and why there is none: beside it
        if it `explains` itself, always in the tooltip.
        """
        quantity = self._quantity
        title, why, change = tr(quantity.title), "", ""
        shorter: tuple[str, ...] = ()
        if reading.value is not None:
            text = quantity.text(reading.value)
            if minute_before is not None:
                signed = self._signed(reading.value - minute_before)
                change, shorter = tr("{change} in 1 min", change=signed), (signed, "")
        elif quantity.lasts and last is not None:
            text, why, change = quantity.text(last[0]), say(reading.absent or ""), _age(last[1])
        else:
            text, why = DASH, say(reading.absent or "") or tr("Not known.")
            change = why if explains else ""
        self._set_bare(text == DASH and not explains)
        unit = "" if text == DASH else limit or tr(quantity.unit)
        shown = (text, unit, change, why)
        if shown == self._shown:
            return
        self._shown = shown
        if self.value.text() != text:
            self._room = max(self._room, self._metrics.horizontalAdvance(text) + 1)
            self.value.setText(text)
            self.value.setFixedWidth(self._room)
        self.value.setEnabled(reading.value is not None)  # what is not live is dimmed
        self._unit.show_text(unit, tr(quantity.unit))
        self._unit.setVisible(bool(unit))
        self.change.show_text(change, *shorter)
        self.change.setVisible(bool(change))
        rise = 0 if change and unit else self._drop  # a line alone stands where the number does
        if self._below.sizeHint().height() != rise:
            self._below.changeSize(0, rise, QSizePolicy.Policy.Minimum, QSizePolicy.Policy.Fixed)
            self._stack.invalidate()
        set_tip(self, why)
        self.value.setAccessibleName(" ".join(filter(None, [f"{title}:", text, unit, change or why])))

    def _set_bare(self, bare: bool) -> None:
        if bare != self._bare:
            self._bare = bare
            self.updateGeometry()

    def _signed(self, difference: float) -> str:
        text = self._quantity.text(difference)
        zero = self._quantity.text(0.0)
        if text.lstrip("-") == zero:
            return "±" + zero
        return text.replace("-", "−") if difference < 0 else "+" + text  # noqa: RUF001 -- a minus sign


def _broken(text: str, metrics: QFontMetrics, width: int) -> list[str]:
    """Break a line in two between words."""
    words = text.split(" ")
    fits = next((n for n in range(len(words), 0, -1) if metrics.horizontalAdvance(" ".join(words[:n])) <= width), 1)
    return list(filter(None, [" ".join(words[:fits]), " ".join(words[fits:])]))


def _secondary(text: str, font: QFont) -> Label:
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(font)
    label.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return label


def _age(seconds: float) -> str:
    if seconds < 1.5:
        return tr("just now")
    if seconds < 60:
        return tr("{seconds:.0f} s ago", seconds=seconds)
    return tr("{minutes:.0f} min ago", minutes=seconds / 60)
