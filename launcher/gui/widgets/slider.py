"""Slider over a list of values, with its value, which some let the user type, a hint line and a mark."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QSizePolicy, QSlider, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label, set_tooltip
from launcher.gui.translation import join_sentences, render, tr
from launcher.gui.widgets.glyphs import Glyph

_RADIUS = 8
"""Radius of the handle in pixels."""


class Slider(QSlider):
    """Thin slider. The wheel moves it only with the focus, so that pages can be scrolled.

    A click on the line moves the handle there, and a drag goes on from that place.
    """

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.mark: int | None = None
        self._grip = 0.0
        """Distance of the pointer from the handle's middle while it is dragged, in pixels."""
        self.is_known = True
        """Whether the value means something; else there is no handle, which would look like a setting."""
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the usual size."""
        return QSize(theme.px(120), theme.px(24))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the minimum size."""
        return QSize(theme.px(80), theme.px(24))

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802
        """Move only with the focus."""
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Move the handle to the place of the click. One on the handle itself takes hold of it as it is."""
        if event.button() != Qt.MouseButton.LeftButton:
            super().mousePressEvent(event)
            return
        x = event.position().x()
        grip = x - self._position_of(self.value())
        self._grip = grip if self.is_known and abs(grip) <= theme.px(_RADIUS) else 0.0
        self.setSliderDown(True)
        before = self.value()
        self.setSliderPosition(self._value_at(x - self._grip))
        if not self.is_known and self.value() == before:  # the handle appears there, which is a choice, too
            self.valueChanged.emit(before)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Drag the handle."""
        if self.isSliderDown():
            self.setSliderPosition(self._value_at(event.position().x() - self._grip))
        else:
            super().mouseMoveEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Let go of the handle."""
        if event.button() == Qt.MouseButton.LeftButton:
            self.setSliderDown(False)
        else:
            super().mouseReleaseEvent(event)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint line, mark and handle."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            enabled = self.isEnabled()
            radius, thick, middle = theme.px(_RADIUS), theme.px(4), self.height() / 2
            handle_x, width = self._position_of(self.value()), self.width()  # the line is as wide as the text above it
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("border"))
            painter.drawRoundedRect(QRectF(0, middle - thick / 2, width, thick), thick / 2, thick / 2)
            if not self.is_known:
                if self.hasFocus():
                    painter.setPen(QPen(theme.colour("accent"), 2))
                    painter.setBrush(Qt.BrushStyle.NoBrush)
                    painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), radius, radius)
                return
            painter.setBrush(theme.colour("accent" if enabled else "control"))
            painter.drawRoundedRect(QRectF(0, middle - thick / 2, handle_x, thick), thick / 2, thick / 2)
            if self.mark is not None:
                x = self._position_of(self.mark)
                painter.setPen(QPen(theme.colour("text"), 2))
                painter.drawLine(QPointF(x, middle - theme.px(6)), QPointF(x, middle + theme.px(6)))
            painter.setPen(QPen(theme.colour("accent" if enabled else "control"), 2))
            painter.setBrush(theme.colour("card"))
            painter.drawEllipse(QPointF(handle_x, middle), radius - 1, radius - 1)
            if self.hasFocus():
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(QPointF(handle_x, middle), radius + 2, radius + 2)

    @property
    def _ends(self) -> tuple[int, int]:
        """The lowest and the highest x coordinate of the handle's middle, in pixels."""
        inset = theme.px(_RADIUS) + 2
        return inset, max(self.width() - inset, inset + 1)

    def _position_of(self, value: int) -> float:
        """Return where the handle's middle is at a value, in pixels."""
        left, right = self._ends
        span = max(self.maximum() - self.minimum(), 1)
        return left + (right - left) * (value - self.minimum()) / span

    def _value_at(self, x: float) -> int:
        """Return the value nearest to a place, in pixels."""
        left, right = self._ends
        share = min(max((x - left) / (right - left), 0.0), 1.0)
        return self.minimum() + round(share * (self.maximum() - self.minimum()))


_WIDEST_TYPED = "00,000,000"
"""Text for which a field for a typed value has room."""


class TypedValue(QLineEdit):
    """Field for a value that the user types. Esc gives up what was typed."""

    given_up = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("dense")
        self.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self.setFixedWidth(self.fontMetrics().horizontalAdvance(_WIDEST_TYPED) + theme.px(theme.GAP_L))

    def event(self, event: QEvent) -> bool:
        """Take Esc before the window does, if something was typed."""
        is_escape = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
        if is_escape and event.type() is QEvent.Type.ShortcutOverride and self.isModified():
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Give up what was typed at Esc."""
        if event.key() == Qt.Key.Key_Escape and self.isModified():
            self.given_up.emit()
        else:
            super().keyPressEvent(event)


class SliderField(QWidget):
    """A label, a slider over `values`, the value as text, and a hint line.

    `format_value` formats a value; `tip` explains the setting and its llama-server flag. With `parse_value` the value
    can be typed, too, also between two steps: it returns the value of a text, or raises a LauncherError whose hint says
    what is possible; `typed_tip` says how to write it.
    """

    value_changed = Signal(object)
    """The value that the user chose."""

    def __init__(
        self,
        label: str,
        values: Sequence[object],
        *,
        format_value: Callable[[object], str] = str,
        tip: str = "",
        parse_value: Callable[[str], object] | None = None,
        typed_tip: str = "",
    ) -> None:
        super().__init__()
        self._label, self._format_value, self._parse_value = label, format_value, parse_value
        self._steps: tuple[object, ...] = tuple(values)
        self._values = self._steps
        """The steps, and the value if it lies between two of them."""
        self._mark_value: object | None = None
        self._hint = self._refusal = ""
        """The hint, and why the typed text is no value, which is shown instead."""
        self._old_text: str | None = None
        self._is_known = True
        """Whether the value means something."""
        name = Label(label)
        self._dot = Glyph("dot", "attention", 12)
        self._dot.hide()
        self.typed = TypedValue() if parse_value is not None else None
        """The field with the value, if it can be typed."""
        self._value = self.typed or Label()
        self._value.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self.slider = Slider()
        self.slider.setRange(0, max(len(self._values) - 1, 0))
        self.slider.setPageStep(max(len(self._values) // 8, 1))
        self.slider.valueChanged.connect(self._handle_move)
        self._old_value, self._hint_label = Label(), Label()
        for label_widget in (self._old_value, self._hint_label):
            label_widget.setObjectName("secondary")
            label_widget.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._hint_label.setWordWrap(True)
        policy = self._hint_label.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self._hint_label.setSizePolicy(policy)
        set_tooltip(self, tip)
        set_tooltip(self.slider, tip)
        if self.typed is not None:
            self.typed.setAccessibleName(label)
            set_tooltip(self.typed, f"{tip}\n{typed_tip}".strip())
            self.typed.editingFinished.connect(self.take_typed)
            self.typed.given_up.connect(self.forget_typed)
        head = QHBoxLayout()
        head.setSpacing(theme.px(6))
        head.addWidget(name)
        head.addWidget(self._dot)
        head.addStretch()
        head.addWidget(self._old_value)
        head.addWidget(self._value)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(self.slider)
        layout.addWidget(self._hint_label)
        self._update_texts()

    @property
    def value(self) -> object:
        """The current value; None while it is unknown or there are no values."""
        return self._values[self.slider.value()] if self._values and self._is_known else None

    def set_value(self, value: object) -> None:
        """Set the value without emitting `value_changed`. A number between two steps becomes a step."""
        numbers = [each for each in (value, *self._steps) if isinstance(each, int | float)]
        is_between = value not in self._steps and len(numbers) == 1 + len(self._steps)
        numbers.sort(key=_order_unlimited_last)
        self._values = tuple(numbers) if is_between else self._steps
        self._show_value(value)
        self.forget_typed()

    def _show_value(self, value: object) -> None:
        """Move the slider to a value, or near it."""
        self._is_known = True
        self.slider.blockSignals(True)
        self.slider.setRange(0, max(len(self._values) - 1, 0))
        self.slider.setValue(self._nearest_index(value))
        self.slider.blockSignals(False)
        self.show_mark(self._mark_value)
        self._update_texts()

    def show_unknown(self) -> None:
        """Show a dash and neither a mark nor a change: there is no value yet."""
        self._is_known = False
        self.show_mark(None)
        self.show_changed(None)

    def set_values(self, values: Sequence[object]) -> None:
        """Replace the steps. The value stays as near as possible."""
        value = self.value
        self._steps = self._values = tuple(values)
        if value is not None:
            self._show_value(value)
        else:
            self.slider.blockSignals(True)
            self.slider.setRange(0, max(len(self._values) - 1, 0))
            self.slider.blockSignals(False)
            self._update_texts()

    def show_hint(self, text: str) -> None:
        """Show a hint line; none if it is empty."""
        self._hint = text
        self._update_texts()

    def show_mark(self, value: object | None) -> None:
        """Mark a value on the line, such as the largest that fits; None removes the mark."""
        self._mark_value = value
        self.slider.mark = None if value is None else self._nearest_index(value)
        self.slider.update()

    def show_changed(self, old: str | None) -> None:
        """Show the value before a change as text; None if it is unchanged."""
        self._old_text = old
        self._update_texts()

    @Slot()
    def take_typed(self) -> None:
        """Take the typed value, or say why it is none. Without text the value stays."""
        text = self.typed.text().strip() if self.typed is not None and self.typed.isModified() else ""
        if not text or self._parse_value is None:
            self.forget_typed()
            return
        try:
            value = self._parse_value(text)
        except LauncherError as error:
            self._refusal = join_sentences(
                tr("{setting} cannot be {text}.", setting=self._label, text=text), render(error.hint)
            )
            self._update_texts()
            return
        is_new = value != self.value
        self.set_value(value)
        if is_new:
            self.value_changed.emit(value)

    @property
    def is_refused(self) -> bool:
        """Whether a typed text is shown that is no value."""
        return bool(self._refusal)

    @Slot()
    def forget_typed(self) -> None:
        """Show the value again in place of what was typed."""
        self._refusal = ""
        if self.typed is not None:
            self.typed.setModified(False)
        self._update_texts()

    def _nearest_index(self, value: object) -> int:
        if value in self._values:
            return self._values.index(value)
        numbers = [each for each in self._values if isinstance(each, int | float)]
        if not isinstance(value, int | float) or len(numbers) != len(self._values) or not numbers:
            return self.slider.value()
        at = bisect_left(numbers, value)
        near = [i for i in (at - 1, at) if 0 <= i < len(numbers)]
        return min(near, key=lambda i: abs(numbers[i] - value))

    def _handle_move(self) -> None:
        self._is_known = True
        self.forget_typed()
        self.value_changed.emit(self.value)

    def _update_texts(self) -> None:
        is_known = self._is_known and bool(self._values)
        text = self._format_value(self.value) if is_known else UNKNOWN
        if self.typed is None or not self.typed.isModified():  # else the user is typing
            self._value.setText(text)
        if self.slider.is_known != is_known:
            self.slider.is_known = is_known
            self.slider.update()
        self._dot.setVisible(self._old_text is not None)
        changed = tr("was {value}", value=self._old_text) if self._old_text is not None else ""
        self._old_value.setText(changed)
        self._old_value.setVisible(bool(changed))
        hint = self._refusal or self._hint
        self._hint_label.setText(hint)
        self._hint_label.setVisible(bool(hint))
        self._show_refused(is_refused=bool(self._refusal))
        self._reserve_hint_height()
        self.slider.setAccessibleName(self._label)
        line = " · ".join(part for part in (changed, self._hint) if part)
        self.slider.setAccessibleDescription(f"{text} {line}".strip())

    def _show_refused(self, *, is_refused: bool) -> None:
        """Show whether the typed text is no value: a border, and the hint in the colour of normal text."""
        if self.typed is None or bool(self.typed.property("refused")) == is_refused:
            return
        self.typed.setProperty("refused", is_refused)
        self._hint_label.setObjectName("" if is_refused else "secondary")
        for widget in (self.typed, self._hint_label):
            widget.style().unpolish(widget)
            widget.style().polish(widget)
        self.typed.setAccessibleDescription(self._refusal)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Reserve the hint's height for another width."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._hint_label.setMinimumHeight(0)
            self._reserve_hint_height()

    def _reserve_hint_height(self) -> None:
        """Keep the largest height that the hint has had, so that the widgets below do not jump."""
        if self.width() > 0 and self._hint_label.text():
            self._hint_label.setMinimumHeight(
                max(self._hint_label.minimumHeight(), self._hint_label.heightForWidth(self.width()))
            )


def _order_unlimited_last(value: float) -> tuple[bool, float]:
    """Return the sort key of a step: -1 means no limit."""
    return value < 0, value
