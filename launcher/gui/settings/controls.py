"""A control for each kind of setting. It shows a value without telling, and tells what the user chose."""

import re
from collections.abc import Callable

from PySide6.QtCore import QLocale, Qt, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QFontMetrics, QValidator, QWheelEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QWidget,
)

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.settings.path_line import PathLine
from launcher.gui.widgets.combo_box import ComboBox
from launcher.gui.widgets.slider import Slider
from launcher.gui.words import tr
from launcher.settings_declared import Setting
from launcher.settings_file import Value

_SETTLED_MS = 300
"""So long must what is moved or written rest before it is kept."""
_DECIMALS, _WORDS_HEIGHT = 2, 84
_NUMBER = re.compile(r"-?[\d,.]+")


class Control(QWidget):
    """What a setting is changed with."""

    chosen = Signal(object)
    """The value that the user chose."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.row = QHBoxLayout(self)
        self.row.setContentsMargins(0, 0, 0, 0)
        self.row.setSpacing(theme.px(theme.GAP))

    def show_value(self, value: Value) -> None:
        """Show a value."""
        raise NotImplementedError

    def name(self, widget: QWidget) -> None:
        """Give a widget the setting's name for screen readers, and a tip with its name in the file and the terminal."""
        widget.setAccessibleName(tr(self.setting.title))
        widget.setAccessibleDescription(tr(self.setting.sentence))
        set_tip(widget, tip(self.setting))


class Choice(Control):
    """One of a few words."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.box = ComboBox()
        for value, words in setting.choices:
            self.box.addItem(tr(words), value)
        self.box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.box.setMinimumWidth(theme.px(140))
        self.box.activated.connect(lambda at: self.chosen.emit(self.box.itemData(at)))
        self.name(self.box)
        self.row.addWidget(self.box, 1)

    def show_value(self, value: Value) -> None:
        """Show a value."""
        self.box.setCurrentIndex(self.box.findData(value))


class Number(Control):
    """A slider with its value; it tells when it has come to rest."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.slider = Slider()
        self.slider.setRange(0, round((setting.most - setting.least) / setting.step))
        self.slider.setPageStep(max(self.slider.maximum() // 8, 1))
        self.slider.setMinimumWidth(theme.px(100))
        self.value = Label()
        font = theme.font(theme.BODY_PX, bold=True, tabular=True)
        self.value.setFont(font)
        self.value.setMinimumWidth(QFontMetrics(font).horizontalAdvance(self._words(int(setting.most))))
        self.value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._rest = _rests(self, lambda: self.chosen.emit(self._number()))
        self.slider.valueChanged.connect(self._moved)
        self.name(self.slider)
        self.row.addWidget(self.slider, 1)
        self.row.addWidget(self.value)

    def show_value(self, value: Value) -> None:
        """Show a value."""
        if self._rest.isActive():
            return  # it is under the user's hand
        self.slider.blockSignals(True)
        self.slider.setValue(round((int(value) - self.setting.least) / self.setting.step))
        self.slider.blockSignals(False)
        self.slider.update()
        self._say(int(value))

    def _moved(self) -> None:
        self._say(self._number())
        self._rest.start()

    def _number(self) -> int:
        return int(self.setting.least + self.setting.step * self.slider.value())

    def _say(self, number: int) -> None:
        self.value.setText(self._words(number))
        self.slider.setAccessibleDescription(self._words(number))

    def _words(self, number: int) -> str:
        return f"{number:,} {self.setting.unit}".strip()


class Switch(Control):
    """On or off."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.box = QCheckBox(tr("On"))
        self.box.clicked.connect(lambda checked: self.chosen.emit(checked))
        self.name(self.box)
        self.row.addWidget(self.box)
        self.row.addStretch()

    def show_value(self, value: Value) -> None:
        """Show a value."""
        self.box.setChecked(bool(value))


class Box(QDoubleSpinBox):
    """A number to type or step; below the least is the word for none. The wheel scrolls the page instead."""

    def __init__(self, setting: Setting, word: str) -> None:
        super().__init__()
        self.setDecimals(0 if setting.whole else _DECIMALS)
        self.setRange(setting.least - setting.step, setting.most)
        self.setSingleStep(setting.step)
        self.setSpecialValueText(word)
        self.setSuffix(f" {setting.unit}" if setting.unit else "")
        self.setLocale(QLocale.c())
        self.setGroupSeparatorShown(setting.whole)
        self.lineEdit().setTextMargins(theme.px(theme.GAP) - 2, 0, 0, 0)  # a style sheet's padding does not reach it
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setKeyboardTracking(False)

    def validate(self, text: str, at: int) -> tuple[QValidator.State, str, int]:
        """Take a comma for a point; a number that cannot be may be written, and leaves the one before."""
        state, text, at = super().validate(self._plain(text), at)
        if state == QValidator.State.Invalid and _NUMBER.fullmatch(text.removesuffix(self.suffix())):
            state = QValidator.State.Intermediate
        return state, text, at

    def valueFromText(self, text: str) -> float:  # noqa: N802 -- Qt's name
        """Return the number that is written."""
        return super().valueFromText(self._plain(text))

    def _plain(self, text: str) -> str:
        return text.replace(",", ".") if self.decimals() and text != self.specialValueText() else text

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave it to the page."""
        event.ignore()


class NumberOrNone(Control):
    """A number, or the word that stands for none."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._none, word = setting.choices[0]
        self._shown: Value = self._none
        self.box = Box(setting, tr(word))
        self.box.setMinimumWidth(theme.px(140))
        self._rest = _rests(self, self._settle)
        self.box.valueChanged.connect(lambda _value: self._rest.start())
        self.name(self.box)
        self.row.addWidget(self.box, 1)

    def show_value(self, value: Value) -> None:
        """Show a value."""
        if self._rest.isActive():
            return  # it is under the user's hand
        self._shown = value
        self.box.blockSignals(True)
        self.box.setValue(self.box.minimum() if isinstance(value, str) else value)
        self.box.blockSignals(False)

    def _settle(self) -> None:
        number = round(self.box.value(), _DECIMALS)
        value: Value = self._none if number < self.setting.least else int(number) if self.setting.whole else number
        if value != self._shown:
            self._shown = value
            self.chosen.emit(value)


class Words(QPlainTextEdit):
    """Lines of text; Tab leaves them."""

    left = Signal()
    """The focus has gone elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("prompt")
        self.setTabChangesFocus(True)
        self.setFixedHeight(theme.px(_WORDS_HEIGHT))

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802 -- Qt's name
        """Tell it."""
        super().focusOutEvent(event)
        self.left.emit()


class Text(Control):
    """A text of some lines, kept when it is left or rests."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._shown = ""
        self.edit = Words()
        self._rest = _rests(self, self._settle)
        self.edit.textChanged.connect(self._rest.start)
        self.edit.left.connect(self._settle)
        self.name(self.edit)
        self.row.addWidget(self.edit, 1)

    def show_value(self, value: Value) -> None:
        """Show a value, unless the user is writing."""
        text = str(value)
        if not self._rest.isActive() and text != self._shown:
            self._shown = text
            self.edit.blockSignals(True)
            self.edit.setPlainText(text)
            self.edit.blockSignals(False)

    def _settle(self) -> None:
        self._rest.stop()
        text = self.edit.toPlainText()
        if text.strip() != self._shown.strip():
            self._shown = text
            self.chosen.emit(text)


class Folder(Control):
    """A path that can be typed, or chosen."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._shown = ""
        self.line = PathLine()
        self.line.setMinimumWidth(theme.px(100))
        self.line.editingFinished.connect(self._typed)
        self.name(self.line)
        self.button = QPushButton(tr("Choose …"))
        set_tip(self.button, tr("Choose a folder: {title}", title=tr(setting.title)))
        self.button.clicked.connect(lambda _checked=False: self._choose())
        self.row.addWidget(self.line, 1)
        self.row.addWidget(self.button)

    def show_value(self, value: Value) -> None:
        """Show a value, from its beginning."""
        self._shown = str(value)
        self.line.setText(self._shown)
        self.line.setCursorPosition(0)
        set_tip(self.line, f"{self._shown}\n{tip(self.setting)}")

    def _typed(self) -> None:
        text = self.line.text().strip()
        if text and text != self._shown:
            self._shown = text
            self.chosen.emit(text)
        elif not text:
            self.line.setText(self._shown)

    def _choose(self) -> None:
        dialog = QFileDialog(self, tr(self.setting.title), self._shown)
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self.chosen.emit)
        dialog.open()


_CONTROLS: dict[str, type[Control]] = {
    "choice": Choice,
    "number": Number,
    "switch": Switch,
    "folder": Folder,
    "text": Text,
}


def control_for(setting: Setting) -> Control:
    """Return the control of a setting's kind."""
    return (NumberOrNone if setting.kind == "number" and setting.choices else _CONTROLS[setting.kind])(setting)


def tip(setting: Setting) -> str:
    """Return what a setting is called, here and elsewhere."""
    return tr("{title}. In the file and the terminal: {name}", title=tr(setting.title), name=setting.name)


def _rests(control: Control, then: Callable[[], object]) -> QTimer:
    """Return a timer that calls once what it is started for rests."""
    timer = QTimer(control)
    timer.setSingleShot(True)
    timer.setInterval(_SETTLED_MS)
    timer.timeout.connect(then)
    return timer
