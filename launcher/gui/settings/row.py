"""One setting in the page: what it is, its control, whether it was changed, and the way back."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.settings.controls import Control, control_for
from launcher.gui.widgets import Glyph
from launcher.gui.words import tr
from launcher.settings import Standing
from launcher.settings_declared import Setting

CONTROL_WIDTH, _NARROW = 320, 640


class Row(QWidget):
    """A setting. On a narrow page its control is under its words."""

    changed = Signal(str, object)
    """Name and value that the user chose."""
    reset = Signal(str)
    """The name of the setting that is to be as usual again."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.setting = setting
        self.standing: Standing | None = None
        """How it stands; None until that is known."""
        title = Label(tr(setting.title))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        self._title = title
        self.mark = Glyph("dot", "attention", 12)
        set_tip(self.mark, tr("Changed"))
        self._sentence = _line(" ".join(filter(None, (tr(setting.sentence), applies(setting)))).replace("。 ", "。"))
        self._note = _line("")
        self.back = QPushButton(tr("Reset"))
        self.back.setObjectName("quiet")
        self.back.setAccessibleName(tr("Reset: {title}", title=tr(setting.title)))
        _keep_room(self.back)
        _keep_room(self.mark)
        self.back.clicked.connect(lambda _checked=False: self.reset.emit(setting.name))
        self._head = head = QHBoxLayout()
        head.setSpacing(theme.px(6))
        head.addWidget(title)
        head.addWidget(self.mark)
        head.addWidget(self.back)
        head.addStretch()
        words = QVBoxLayout()
        words.setSpacing(theme.px(2))
        words.addLayout(head)
        words.addWidget(self._sentence)
        words.addWidget(self._note)
        words.addStretch()
        self.control: Control = control_for(setting)
        self.control.chosen.connect(lambda value: self.changed.emit(setting.name, value))
        self.line = QFrame()
        self.line.setObjectName("line")
        self.line.setFixedHeight(1)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(theme.px(theme.GAP_M))
        whole.addWidget(self.line)
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        whole.addLayout(self._layout)
        self._layout.setSpacing(theme.px(theme.GAP_XL))
        self._layout.addLayout(words, 1)
        self._layout.addWidget(self.control)
        self.control.setEnabled(False)  # until it is known how it stands
        self.back.hide()
        self.mark.hide()
        self._note.hide()

    def show_standing(self, standing: Standing, default: str) -> None:
        """Show how it stands; `default` is the usual value in words."""
        self.standing = standing
        self.control.setEnabled(not standing.overridden)
        self.control.show_value(standing.value)
        shown = standing.changed and not standing.overridden
        self.mark.setVisible(standing.changed)
        self.back.setVisible(shown)
        set_tip(self.back, tr("Back to the usual: {value}", value=default))
        note = standing.note
        if standing.overridden:
            note = tr("{variable} is set, and goes before what is chosen here.", variable=self.setting.variable)
        self._note.setText(note)
        self._note.setVisible(bool(note))

    def holds(self, words: list[str]) -> bool:
        """Whether all words are in what it is called and says."""
        setting = self.setting
        said = (setting.title, setting.sentence, setting.group, *(words for _, words in setting.choices))
        text = " ".join((setting.name, *map(tr, said))).casefold()
        return all(word in text for word in words)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the control beside or under the words."""
        super().resizeEvent(event)
        narrow = event.size().width() < theme.px(_NARROW)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._layout.setDirection(down if narrow else across)
        self._title.setWordWrap(narrow)
        self._head.setStretchFactor(self._title, 1 if narrow else 0)
        self._layout.setSpacing(theme.px(theme.GAP if narrow else theme.GAP_XL))
        self.control.setMaximumWidth(theme.px(CONTROL_WIDTH))
        self.control.setMinimumWidth(0 if narrow else theme.px(CONTROL_WIDTH))


def applies(setting: Setting) -> str:
    """Return when another value applies, where that is not at once."""
    return {
        "now": "",
        "next window": tr("Applies when the window is opened the next time."),
        "next download": tr("Applies to the next download."),
        "next login": "",
    }[setting.applies]


def _line(text: str) -> Label:
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(theme.font(theme.CAPTION_PX))
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


def _keep_room(widget: QWidget) -> None:
    """Let nothing move when it is hidden."""
    policy = widget.sizePolicy()
    policy.setRetainSizeWhenHidden(True)
    widget.setSizePolicy(policy)
