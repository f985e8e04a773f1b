"""Controls for each kind of app setting. They show a value silently and emit the user's choice."""

import re
from abc import abstractmethod
from collections.abc import Callable

from PySide6.QtCore import QLocale, QRect, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QFontMetrics, QPainter, QPaintEvent, QResizeEvent, QValidator, QWheelEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QStyle,
    QStyleOptionFrame,
    QVBoxLayout,
    QWidget,
)

from launcher.app.settings import SettingState
from launcher.app.settings_declared import Setting
from launcher.app.settings_file import AppSettingValue
from launcher.base.text import make_visible
from launcher.gui import theme
from launcher.gui.labels import Label, display_path, set_tooltip
from launcher.gui.translation import join_sentences, tr
from launcher.gui.widgets import Glyph
from launcher.gui.widgets.blocks import make_caption
from launcher.gui.widgets.combo_box import ComboBox
from launcher.gui.widgets.slider import Slider

# Path field that elides its middle.

_MARGIN = 2
"""Left and right text margin of a QLineEdit, in pixels."""


class PathLine(QLineEdit):
    """Path field that elides the middle of the path unless it has the focus."""

    @property
    def elided(self) -> str:
        """The path as shown without the focus."""
        mode = Qt.TextElideMode.ElideMiddle
        return self.fontMetrics().elidedText(
            make_visible(display_path(self.text())), mode, self._text_rect(self._style_option()).width()
        )

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the elided path."""
        shown_path = self.elided
        if self.hasFocus() or shown_path == self.text():
            super().paintEvent(event)
            return
        option = self._style_option()
        with QPainter(self) as painter:
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelLineEdit, option, painter, self)
            painter.setPen(theme.colour("text" if self.isEnabled() else "secondary"))
            alignment = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft
            painter.drawText(self._text_rect(option), alignment, shown_path)

    def _style_option(self) -> QStyleOptionFrame:
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        return option

    def _text_rect(self, option: QStyleOptionFrame) -> QRect:
        inner = self.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, self)
        return inner.adjusted(_MARGIN, 0, -_MARGIN, 0)


_SETTLED_MS = 300
"""Milliseconds without a change after which a value is stored."""
_DECIMALS, _TEXT_HEIGHT, _MOST_STEPS = 2, 84, 200
_NUMBER = re.compile(r"-?[\d,.]+")


class SettingControl(QWidget):
    """Base class of the controls."""

    chosen = Signal(object)
    """The value that the user chose."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.row = QHBoxLayout(self)
        self.row.setContentsMargins(0, 0, 0, 0)
        self.row.setSpacing(theme.px(theme.GAP))

    @abstractmethod
    def show_value(self, value: AppSettingValue) -> None:
        """Show a value without emitting `chosen`."""

    def describe_widget(self, widget: QWidget) -> None:
        """Set a widget's tooltip, and its name and description for screen readers."""
        widget.setAccessibleName(tr(self.setting.title))
        widget.setAccessibleDescription(tr(self.setting.sentence))
        set_tooltip(widget, setting_tooltip(self.setting))


class ChoiceControl(SettingControl):
    """One of a few options."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.box = ComboBox()
        for value, label in setting.choices:
            self.box.addItem(tr(label), value)
        self.box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.box.setMinimumWidth(theme.px(140))
        self.box.activated.connect(lambda at: self.chosen.emit(self.box.itemData(at)))
        self.describe_widget(self.box)
        self.row.addWidget(self.box, 1)

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value."""
        self.box.setCurrentIndex(self.box.findData(value))


class NumberControl(SettingControl):
    """Slider with its value. Emits `chosen` once it has not moved for a moment."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.slider = Slider()
        self.slider.setRange(0, round((setting.most - setting.least) / setting.step))
        self.slider.setPageStep(max(self.slider.maximum() // 8, 1))
        self.slider.setMinimumWidth(theme.px(100))
        self.value = Label()
        font = theme.font(theme.BODY_PX, bold=True, tabular=True)
        self.value.setFont(font)
        self.value.setMinimumWidth(QFontMetrics(font).horizontalAdvance(self._format_number(int(setting.most))))
        self.value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._settle_timer = _make_settle_timer(self, lambda: self.chosen.emit(self._read_number()))
        self.slider.valueChanged.connect(self._handle_move)
        self.describe_widget(self.slider)
        self.row.addWidget(self.slider, 1)
        self.row.addWidget(self.value)

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value."""
        if self._settle_timer.isActive():
            return  # the user is moving it
        self.slider.blockSignals(True)
        self.slider.setValue(round((int(value) - self.setting.least) / self.setting.step))
        self.slider.blockSignals(False)
        self.slider.update()
        self._show_number(int(value))

    def _handle_move(self) -> None:
        self._show_number(self._read_number())
        self._settle_timer.start()

    def _read_number(self) -> int:
        return int(self.setting.least + self.setting.step * self.slider.value())

    def _show_number(self, number: int) -> None:
        self.value.setText(self._format_number(number))
        self.slider.setAccessibleDescription(self._format_number(number))

    def _format_number(self, number: int) -> str:
        return f"{number:,} {self.setting.unit}".strip()


class SwitchControl(SettingControl):
    """On or off."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.box = QCheckBox(tr("On"))
        # Not `clicked`, which does not come when a screen reader presses the box.
        self.box.toggled.connect(lambda checked: self.chosen.emit(checked))
        self.describe_widget(self.box)
        self.row.addWidget(self.box)
        self.row.addStretch()

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value."""
        with QSignalBlocker(self.box):
            self.box.setChecked(bool(value))
        self.box.update()


class NumberBox(QDoubleSpinBox):
    """Number field. The wheel scrolls the page.

    With a `none_text` the field shows it one step below the minimum, for no number. The setting may name its minimum.
    """

    def __init__(self, setting: Setting, none_text: str) -> None:
        super().__init__()
        self.setDecimals(0 if setting.whole else _DECIMALS)
        self.setRange(setting.least - (setting.step if none_text else 0), setting.most)
        self.setSingleStep(setting.step)
        self.setSpecialValueText(none_text or tr(setting.least_text))
        self.setSuffix(f" {setting.unit}" if setting.unit else "")
        self.setLocale(QLocale.c())
        self.setGroupSeparatorShown(setting.whole)
        # a style sheet's padding does not affect the inner line edit
        self.lineEdit().setTextMargins(theme.px(theme.GAP) - 2, 0, 0, 0)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setKeyboardTracking(False)

    def validate(self, text: str, at: int) -> tuple[QValidator.State, str, int]:
        """Accept a comma as the decimal point, and numbers outside the range while typing.

        Leaving the field restores the last valid number.
        """
        state, text, at = super().validate(self._with_decimal_point(text), at)
        if state == QValidator.State.Invalid and _NUMBER.fullmatch(text.removesuffix(self.suffix())):
            state = QValidator.State.Intermediate
        return state, text, at

    def valueFromText(self, text: str) -> float:  # noqa: N802 -- Qt's name
        """Return the number in a text."""
        return super().valueFromText(self._with_decimal_point(text))

    def _with_decimal_point(self, text: str) -> str:
        return text.replace(",", ".") if self.decimals() and text != self.specialValueText() else text

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave the wheel to the page."""
        event.ignore()


class NumberFieldControl(SettingControl):
    """A field for a number. Some settings also accept a word, such as "never", in place of a number."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._none_value, none_label = setting.choices[0] if setting.choices else ("", "")
        self._shown: AppSettingValue = self._none_value
        self.box = NumberBox(setting, tr(none_label))
        self.box.setMinimumWidth(theme.px(140))
        self._settle_timer = _make_settle_timer(self, self._emit_change)
        self.box.valueChanged.connect(lambda _value: self._settle_timer.start())
        self.describe_widget(self.box)
        self.row.addWidget(self.box, 1)

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value."""
        if self._settle_timer.isActive():
            return  # the user is changing it
        self._shown = value
        self.box.blockSignals(True)
        self.box.setValue(self.box.minimum() if isinstance(value, str) else value)
        self.box.blockSignals(False)

    def _emit_change(self) -> None:
        number = round(self.box.value(), _DECIMALS)
        value: AppSettingValue = int(number) if self.setting.whole else number
        if number < self.setting.least:
            value = self._none_value
        if value != self._shown:
            self._shown = value
            self.chosen.emit(value)


class TextArea(QPlainTextEdit):
    """Multi-line text field. Tab leaves it."""

    left = Signal()
    """The field has lost the focus."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("prompt")
        self.setTabChangesFocus(True)
        self.setFixedHeight(theme.px(_TEXT_HEIGHT))

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 -- Qt's name
        """Emit `left`."""
        super().focusOutEvent(event)
        self.left.emit()


class TextControl(SettingControl):
    """Multi-line text, stored when the field is left or typing pauses."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._shown = ""
        self.edit = TextArea()
        self._settle_timer = _make_settle_timer(self, self._emit_change)
        self.edit.textChanged.connect(self._settle_timer.start)
        self.edit.left.connect(self._emit_change)
        self.describe_widget(self.edit)
        self.row.addWidget(self.edit, 1)

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value, unless the user is typing."""
        text = str(value)
        if not self._settle_timer.isActive() and text != self._shown:
            self._shown = text
            self.edit.blockSignals(True)
            self.edit.setPlainText(text)
            self.edit.blockSignals(False)

    def _emit_change(self) -> None:
        self._settle_timer.stop()
        text = self.edit.toPlainText()
        if text.strip() != self._shown.strip():
            self._shown = text
            self.chosen.emit(text)


class FolderControl(SettingControl):
    """Path that can be typed or chosen."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._shown = ""
        self.line = PathLine()
        self.line.setMinimumWidth(theme.px(100))
        self.line.editingFinished.connect(self._emit_typed)
        self.describe_widget(self.line)
        self.button = QPushButton(tr("Choose …"))
        set_tooltip(self.button, tr("Choose a folder: {title}", title=tr(setting.title)))
        self.button.clicked.connect(lambda _checked=False: self._choose_folder())
        self.row.addWidget(self.line, 1)
        self.row.addWidget(self.button)

    def show_value(self, value: AppSettingValue) -> None:
        """Show a value, scrolled to its beginning."""
        self._shown = str(value)
        self.line.setText(self._shown)
        self.line.setCursorPosition(0)
        set_tooltip(self.line, f"{self._shown}\n{setting_tooltip(self.setting)}")

    def _emit_typed(self) -> None:
        text = self.line.text().strip()
        if text and text != self._shown:
            self._shown = text
            self.chosen.emit(text)
        elif not text:
            self.line.setText(self._shown)

    def _choose_folder(self) -> None:
        dialog = QFileDialog(self, tr(self.setting.title), self._shown)
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self.chosen.emit)
        dialog.open()


_CONTROLS: dict[str, type[SettingControl]] = {
    "choice": ChoiceControl,
    "number": NumberControl,
    "switch": SwitchControl,
    "folder": FolderControl,
    "text": TextControl,
}


def make_control(setting: Setting) -> SettingControl:
    """Return a control for a setting's kind. A number that a slider could not hit is typed."""
    if setting.kind == "number" and (setting.choices or (setting.most - setting.least) / setting.step > _MOST_STEPS):
        return NumberFieldControl(setting)
    return _CONTROLS[setting.kind](setting)


def setting_tooltip(setting: Setting) -> str:
    """Return the tooltip with a setting's title and its name in file and terminal."""
    return tr(
        "{title}. Name in the settings file and on the command line: {name}", title=tr(setting.title), name=setting.name
    )


def _make_settle_timer(control: SettingControl, callback: Callable[[], object]) -> QTimer:
    """Return a timer that calls `callback` when it was not started again for _SETTLED_MS."""
    timer = QTimer(control)
    timer.setSingleShot(True)
    timer.setInterval(_SETTLED_MS)
    timer.timeout.connect(callback)
    return timer


# Row of one setting: text, control, change mark and reset button.

CONTROL_WIDTH, NARROW = 320, 640
"""In pixels: width of a control, and width of a row below which the control is under the text."""


class SettingRow(QWidget):
    """Row of one setting. On a narrow page the control is under the text."""

    changed = Signal(str, object)
    """Name and value that the user chose."""
    reset = Signal(str)
    """Name of the setting to reset to its default."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.setting = setting
        self.state: SettingState | None = None
        """The setting's value and origin; None until they are read."""
        title = Label(tr(setting.title))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        self._title = title
        self.mark = Glyph("dot", "attention", 12)
        set_tooltip(self.mark, tr("Changed"))
        sentences = join_sentences(tr(setting.sentence), applies_text(setting))
        self._sentence = _make_selectable_caption(sentences)
        self.note = _make_selectable_caption("")
        """A remark on the value, such as what overrides it. Hidden without one."""
        self.reset_button = QPushButton(tr("Reset"))
        self.reset_button.setObjectName("quiet")
        self.reset_button.setAccessibleName(tr("Reset: {title}", title=tr(setting.title)))
        _retain_size(self.reset_button)
        _retain_size(self.mark)
        self.reset_button.clicked.connect(lambda _checked=False: self.reset.emit(setting.name))
        self._head = head = QHBoxLayout()
        head.setSpacing(theme.px(6))
        head.addWidget(title)
        head.addWidget(self.mark)
        head.addWidget(self.reset_button)
        head.addStretch()
        texts = QVBoxLayout()
        texts.setSpacing(theme.px(2))
        texts.addLayout(head)
        texts.addWidget(self._sentence)
        texts.addWidget(self.note)
        texts.addStretch()
        self.control: SettingControl = make_control(setting)
        self.control.chosen.connect(lambda value: self.changed.emit(setting.name, value))
        self.line = QFrame()
        self.line.setObjectName("line")
        self.line.setFixedHeight(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(theme.px(theme.GAP_M))
        outer.addWidget(self.line)
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        outer.addLayout(self._layout)
        self._layout.setSpacing(theme.px(theme.GAP_XL))
        self._layout.addLayout(texts, 1)
        self._layout.addWidget(self.control)
        self.control.setEnabled(False)  # until the value is read
        self.reset_button.hide()
        self.mark.hide()
        self.note.hide()

    def show_state(self, state: SettingState, default: str) -> None:
        """Show the value and its origin. `default` is the default value as text."""
        self.state = state
        self.control.setEnabled(not state.overridden)
        self.control.show_value(state.value)
        shown = state.changed and not state.overridden
        self.mark.setVisible(state.changed)
        self.reset_button.setVisible(shown)
        set_tooltip(self.reset_button, tr("Reset to default: {value}", value=default))
        note = state.note
        if state.overridden:
            note = tr("{variable} is set and overrides this setting.", variable=self.setting.variable)
        self.note.setText(note)
        self.note.setVisible(bool(note))

    def matches(self, words: list[str]) -> bool:
        """Return whether all words occur in the setting's texts."""
        setting = self.setting
        texts = (setting.title, setting.sentence, setting.group, *(label for _, label in setting.choices))
        text = " ".join((setting.name, *map(tr, texts))).casefold()
        return all(word in text for word in words)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the control beside or under the text."""
        super().resizeEvent(event)
        narrow = event.size().width() < theme.px(NARROW)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._layout.setDirection(down if narrow else across)
        self._title.setWordWrap(narrow)
        self._head.setStretchFactor(self._title, 1 if narrow else 0)
        self._layout.setSpacing(theme.px(theme.GAP if narrow else theme.GAP_XL))
        self.control.setMaximumWidth(theme.px(CONTROL_WIDTH))
        self.control.setMinimumWidth(0 if narrow else theme.px(CONTROL_WIDTH))


def applies_text(setting: Setting) -> str:
    """Return when a new value takes effect; "" if at once, or if the setting's own sentence already says it."""
    return {
        "now": "",
        "next window": tr("Applies the next time the window opens."),
        "next download": tr("Applies to the next download."),
        "next login": "",
    }[setting.applies]


def _make_selectable_caption(text: str) -> Label:
    label = make_caption(text)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


def _retain_size(widget: QWidget) -> None:
    """Retain the widget's size when it is hidden, so that nothing moves."""
    policy = widget.sizePolicy()
    policy.setRetainSizeWhenHidden(True)
    widget.setSizePolicy(policy)
