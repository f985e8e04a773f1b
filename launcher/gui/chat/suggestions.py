"""Questions to begin with, shown while a chat is empty. A click puts one into the prompt field."""

from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from launcher.engine.demo import DEMO
from launcher.gui import theme
from launcher.gui.chat.drafts import make_entry
from launcher.gui.labels import Label
from launcher.gui.translation import tr
from launcher.gui.widgets.blocks import make_caption

_TWO_COLUMNS_WIDTH = 560
"""Width in pixels from which there are two columns of questions."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A question, and one line on what it shows."""

    question: str
    shows: str


def suggest_questions(model: str, *, drafts: bool) -> tuple[Suggestion, ...]:
    """Return questions that show what a model can do. `drafts` is whether it drafts tokens.

    The demo model knows English questions on MTP only.
    """
    if model == DEMO:
        return (
            Suggestion("What is this demo?", tr("What this tiny model is, and what it is not")),
            Suggestion("What is MTP?", tr("Why a model can write twice as fast")),
            Suggestion("What is acceptance?", tr("How drafts are counted")),
            Suggestion("When should I turn MTP off?", tr("Where drafts cost more than they gain")),
        )
    return (
        Suggestion(
            tr("Write a Python program that counts the errors per hour in a web server's log."),
            tr("Code: most drafts are accepted here") if drafts else tr("Code"),
        ),
        Suggestion(
            tr("Plan a week of dinners for four, with a shopping list as a table."),
            tr("Prose and a table: fewer drafts are accepted") if drafts else tr("Prose and a table"),
        ),
        Suggestion(
            tr("One of 12 coins is false, lighter or heavier. How do you find it with three weighings?"),
            tr("Reasoning: a long reply"),
        ),
    )


class _SuggestionButton(QPushButton):
    """A question with the line below it, as one button."""

    def __init__(self, suggestion: Suggestion) -> None:
        super().__init__()
        self.setObjectName("suggestion")
        self.setAccessibleName(suggestion.question)
        self.setAccessibleDescription(suggestion.shows)
        self.setAutoDefault(True)
        question = Label(suggestion.question)
        question.setWordWrap(True)
        question.setFont(theme.font(theme.BODY_PX, bold=True))
        shows = make_caption(suggestion.shows)
        inside = QVBoxLayout(self)
        gap = theme.px(theme.GAP_M)
        inside.setContentsMargins(gap, gap, gap, gap)
        inside.setSpacing(theme.px(theme.GAP_S))
        for label in (question, shows):
            label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            inside.addWidget(label)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def hasHeightForWidth(self) -> bool:  # noqa: N802 -- Qt's name
        """Return True: the question is wrapped."""
        return True

    def heightForWidth(self, width: int) -> int:  # noqa: N802
        """Return the height that both texts need, in pixels."""
        inside = self.layout()
        return inside.totalHeightForWidth(width) if inside is not None else -1

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return the size of both texts: Qt's hint for a button knows nothing of a layout."""
        return self.minimumSizeHint()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the size of both texts."""
        return QSize(0, self.heightForWidth(max(self.width(), 1)))


class Suggestions(QWidget):
    """A heading and a button for each question, in two columns where there is room."""

    chosen = Signal(str)
    """The question."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_for: tuple[str, bool] | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, theme.px(theme.GAP_XL), 0, 0)
        column.setSpacing(theme.px(theme.GAP_M))
        heading = Label(tr("Try one of these"))
        heading.setFont(theme.font(theme.TITLE_PX, bold=True))
        column.addWidget(heading)
        self._grid = QGridLayout()
        self._grid.setSpacing(theme.px(theme.GAP_M))
        column.addLayout(self._grid)
        self.hint = make_entry(1, tr("Colour drafts shows which words were guessed ahead and kept."), wraps=True)
        column.addWidget(self.hint)
        self.buttons: list[QPushButton] = []

    def show_for(self, model: str, *, drafts: bool) -> None:
        """Show the questions for a model, and a hint if it drafts tokens."""
        self.hint.setVisible(drafts)
        if self._shown_for == (model, drafts):
            return
        self._shown_for = model, drafts
        for button in self.buttons:
            self._grid.removeWidget(button)
            button.deleteLater()
        suggestions = suggest_questions(model, drafts=drafts)
        self.buttons = [_SuggestionButton(each) for each in suggestions]
        for button, suggestion in zip(self.buttons, suggestions, strict=True):
            button.clicked.connect(lambda _=False, question=suggestion.question: self.chosen.emit(question))
        self._place_buttons()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Place the buttons for the new width."""
        super().resizeEvent(event)
        self._place_buttons()

    def _place_buttons(self) -> None:
        columns = 2 if self.width() >= theme.px(_TWO_COLUMNS_WIDTH) else 1
        for number, button in enumerate(self.buttons):
            self._grid.addWidget(button, number // columns, number % columns)
        for column in range(2):
            self._grid.setColumnStretch(column, int(column < columns))
