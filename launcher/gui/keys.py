"""Table of all keyboard shortcuts, and the page with it that F1 opens."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QGridLayout, QWidget

from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.pages import PAGES
from launcher.gui.translation import mark, page_title, tr
from launcher.gui.widgets.blocks import Card, PageHead
from launcher.gui.widgets.flow import make_headed_column


@dataclass(frozen=True, slots=True)
class ShortcutGroup:
    """A group of shortcuts as (key, description). Keys have Qt's names."""

    title: str
    keys: tuple[tuple[str, str], ...]


SHORTCUTS = (
    ShortcutGroup(
        mark("Everywhere"),
        (
            ("F1", mark("Show this list, or go back")),
            *((spec.key, spec.title) for spec in PAGES if spec.in_rail),
            ("Ctrl+O", mark("Open a GGUF file and load it")),
            ("Ctrl+V", mark("Show the plan of a copied Hugging Face link")),
            ("Ctrl+Q", mark("Quit, and stop the server")),
            ("Tab", mark("Next control; Shift+Tab: previous")),
            ("Space", mark("Press the focused button, like Enter")),
        ),
    ),
    ShortcutGroup(
        mark("Cockpit"),
        (
            ("Ctrl+Return", mark("Apply the changed settings")),
            ("Alt+1", mark("Layout with room for the plots")),
            ("Alt+2", mark("Layout with room for the settings")),
            ("Alt+3", mark("Layout with room for the chat")),
        ),
    ),
    ShortcutGroup(
        mark("Sliders and choices"),
        (
            ("Left", mark("One step down; Right: one step up")),
            ("PgUp", mark("Large step up; PgDown: large step down")),
            ("Home", mark("Minimum; End: maximum")),
        ),
    ),
    ShortcutGroup(
        mark("Chat"),
        (
            ("Return", mark("Send; Shift+Return: new line")),
            ("Esc", mark("Stop the reply")),
            ("Up", mark("Edit the last question, if the field is empty")),
            ("Ctrl+N", mark("A new conversation")),
            ("Ctrl+F", mark("Search in the conversations")),
            ("Ctrl+Shift+C", mark("Copy the last reply")),
        ),
    ),
    ShortcutGroup(
        mark("Plots"),
        (
            ("Left", mark("Read earlier values; Right: later values")),
            ("Home", mark("Back to live values")),
        ),
    ),
    ShortcutGroup(
        mark("Models"),
        (
            ("Ctrl+F", mark("Search; Down: to the list")),
            ("Return", mark("Start the model, or download it")),
            ("Space", mark("Show or hide its files")),
        ),
    ),
    ShortcutGroup(
        mark("Logs"),
        (
            ("Ctrl+F", mark("Filter lines by text")),
            ("Ctrl+P", mark("Pause or resume the log")),
            ("End", mark("Follow new lines")),
        ),
    ),
)


class KeysPage(QWidget):
    """All shortcuts, grouped by page."""

    def __init__(self, _controller: Controller) -> None:
        super().__init__()
        head = PageHead(tr("Keyboard"), tr("Everything works without a mouse. Esc or F1 goes back."))
        column = make_headed_column(self, tr("Keyboard"), head)
        for group in SHORTCUTS:
            column.addWidget(self._make_card(group))
        column.addStretch()

    @staticmethod
    def _make_card(group: ShortcutGroup) -> Card:
        card = Card(tr(group.title))
        grid = QGridLayout()
        grid.setHorizontalSpacing(theme.px(theme.GAP_XL))
        grid.setVerticalSpacing(theme.px(theme.GAP))
        grid.setColumnMinimumWidth(0, theme.px(120))
        grid.setColumnStretch(1, 1)
        for row, (key, description) in enumerate(group.keys):
            key_label = Label(QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText))
            key_label.setFont(theme.font(theme.BODY_PX, bold=True))
            text_label = Label(page_title(description))  # translates texts other than titles, too
            text_label.setWordWrap(True)
            text_label.setObjectName("secondary")
            grid.addWidget(key_label, row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(text_label, row, 1)
        card.body.addLayout(grid)
        return card
