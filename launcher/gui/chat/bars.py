"""Lines above the prompt: a question that is edited, prompts from a file; and the system prompt above the talk."""

from collections import deque
from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.chat.look import dense, icon
from launcher.gui.labels import Label
from launcher.gui.words import tr

_SYSTEM_HEIGHT = 84


class EditingBar(QFrame):
    """Says that a question is edited, and ends that."""

    cancelled = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("editing")
        text = Label(tr("Editing a question. What follows it is kept as an earlier version."))
        text.setFont(theme.font(theme.CAPTION_PX))
        text.setWordWrap(True)
        cancel = dense(tr("Cancel"), tr("Leave the question as it was (Esc)"))
        cancel.clicked.connect(self.cancelled)
        row = QHBoxLayout(self)
        row.setContentsMargins(
            theme.px(theme.GAP_M), theme.px(theme.GAP_S), theme.px(theme.GAP_S), theme.px(theme.GAP_S)
        )
        row.addWidget(text, 1)
        row.addWidget(cancel)
        self.hide()


class PromptsBar(QFrame):
    """Prompts of a file that are asked in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("editing")
        self._left: deque[str] = deque()
        self._count = 0
        self._name = ""
        self._text = Label()
        self._text.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._text.setWordWrap(True)
        self.alone = QCheckBox(tr("Each on its own"))
        self.alone.setChecked(True)
        self.alone.setToolTip(tr("Send each prompt without those before it, so that replies can be compared"))
        stop = dense(tr("Stop"), tr("Ask no more of them; the reply that is under way goes on (Esc stops it)"))
        stop.clicked.connect(self.clear)
        row = QHBoxLayout()
        row.addWidget(self.alone)
        row.addStretch()
        row.addWidget(stop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(
            theme.px(theme.GAP_M), theme.px(theme.GAP_S), theme.px(theme.GAP_S), theme.px(theme.GAP_S)
        )
        layout.setSpacing(theme.px(theme.GAP_S))
        layout.addWidget(self._text)
        layout.addLayout(row)
        self.hide()

    @property
    def active(self) -> bool:
        """Whether prompts of a file are being asked."""
        return bool(self._count)

    def begin(self, file: Path, prompts: tuple[str, ...]) -> None:
        """Take the prompts of a file."""
        self._left, self._count, self._name = deque(prompts), len(prompts), one_line(file.name, 60)
        self.show()

    def next(self) -> str | None:
        """Return the next prompt, None when all have been asked."""
        if not self._left:
            self.clear()
            return None
        prompt = self._left.popleft()
        number = self._count - len(self._left)
        self._text.setText(
            tr("Prompt {number} of {count} from {file}", number=number, count=self._count, file=self._name)
        )
        return prompt

    @Slot()
    def clear(self) -> None:
        """Ask no more."""
        self._left.clear()
        self._count = 0
        self.hide()


class SystemPrompt(QWidget):
    """The system prompt, folded to a line; `beside` stands at the end of that."""

    changed = Signal(str)

    def __init__(self, beside: QWidget) -> None:
        super().__init__()
        self._beside = beside
        self._button = QPushButton()
        self._button.setObjectName("fold")
        self._button.setCheckable(True)
        self._button.setAutoDefault(True)
        self._button.setToolTip(tr("What the model is told before the conversation"))
        self._button.toggled.connect(self._unfold)
        self._button.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.edit = QPlainTextEdit()
        self.edit.setAccessibleName(tr("System prompt"))
        self.edit.setPlaceholderText(tr("Such as: Answer in one sentence."))
        self.edit.setTabChangesFocus(True)
        self.edit.setFixedHeight(theme.px(_SYSTEM_HEIGHT))
        self.edit.hide()
        self._said = ""
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_S))
        line = QHBoxLayout()
        line.setSpacing(theme.px(theme.GAP))
        line.addWidget(self._button, 1)
        line.addWidget(beside)
        layout.addLayout(line)
        layout.addWidget(self.edit)
        self.edit.textChanged.connect(self._name)
        self._name()

    @property
    def said(self) -> str:
        """The prompt."""
        return self.edit.toPlainText().strip()

    def show_text(self, text: str) -> None:
        """Show another one, without telling."""
        self._said = text
        self.edit.setPlainText(text)

    def settle(self) -> None:
        """Tell a prompt that is another one than before."""
        if self.said != self._said:
            self._said = self.said
            self.changed.emit(self.said)

    def recolour(self) -> None:
        """Take over another theme."""
        self._name()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Say as much of it as there is room for."""
        super().resizeEvent(event)
        self._name()

    def _name(self) -> None:
        text = one_line(self.said, 200)
        whole = tr("System prompt: {text}", text=text) if text and not self.edit.isVisible() else tr("System prompt")
        room = self.width() - self._beside.sizeHint().width() - theme.px(32 + theme.GAP)
        self._button.setText(
            self._button.fontMetrics().elidedText(whole, Qt.TextElideMode.ElideRight, room).replace("&", "&&")
        )
        self._button.setAccessibleName(whole)
        self._button.setIcon(icon("open" if self._button.isChecked() else "right"))

    @Slot(bool)
    def _unfold(self, unfolded: bool) -> None:
        self.edit.setVisible(unfolded)
        if unfolded:
            self.edit.setFocus()
        else:
            self.settle()
        self._name()
