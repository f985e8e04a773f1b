"""This computer: its GPUs and who uses them, processor, memory, disk, system, each with a warning where one applies."""

import re
from collections.abc import Callable

from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.start.facts import Fact
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[A-Za-z%])")
"""Where a line is not to be broken."""


class MachineCard(Card):
    """The facts, one below the other, and two buttons."""

    def __init__(self, check: Callable[[], object], copy: Callable[[], object]) -> None:
        super().__init__(tr("This computer"))
        self.body.setSpacing(theme.px(theme.GAP))
        self._facts = QVBoxLayout()
        self._facts.setSpacing(theme.px(theme.GAP))
        self.body.addLayout(self._facts)
        self.check_button: QPushButton = make_button(tr("Check again"), check)
        self.check_button.setToolTip(tr("Read the GPUs, their memory and the disk anew"))
        self.copy_button: QPushButton = make_button(tr("Copy report"), copy)
        self.copy_button.setToolTip(tr("Copy what stands here as text; mtp-launcher doctor tells more"))
        buttons = QHBoxLayout()
        buttons.setSpacing(theme.px(theme.GAP))
        buttons.addWidget(self.check_button)
        buttons.addWidget(self.copy_button)
        buttons.addStretch()
        self.body.addLayout(buttons)
        self.body.addStretch()
        self.show_looking(tr("Not looked at yet."))

    def show_looking(self, what: str) -> None:
        """Say what is looked at."""
        self._clear()
        label = _wrapped(what, "secondary")
        self._facts.addWidget(label)
        self.copy_button.setEnabled(False)

    def show_facts(self, facts: tuple[Fact, ...]) -> None:
        """Show facts."""
        self._clear()
        for fact in facts:
            self._facts.addWidget(_FactRow(fact))
        self.copy_button.setEnabled(True)

    def _clear(self) -> None:
        while (item := self._facts.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()


class _FactRow(QWidget):
    def __init__(self, fact: Fact) -> None:
        super().__init__()
        self.setObjectName("plain")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(2))
        subject = _wrapped(fact.subject, "secondary", theme.CAPTION_PX)
        what = _wrapped(fact.what)
        what.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        for label in (subject, what, *([_wrapped(fact.more, "secondary")] if fact.more else [])):
            layout.addWidget(label)
        for warning in fact.warnings:
            layout.addWidget(_warning(warning))
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        layout.addSpacing(theme.px(theme.GAP - 2))
        layout.addWidget(line)
        said = ". ".join(filter(None, (fact.subject, fact.what, fact.more, *fact.warnings)))
        self.setAccessibleName(said)


def _warning(text: str) -> QWidget:
    row = QWidget()
    row.setObjectName("plain")
    layout = QHBoxLayout(row)
    layout.setContentsMargins(0, theme.px(4), 0, 0)
    layout.setSpacing(theme.px(6))
    glyph = Glyph("triangle", "attention", 14)
    column = QVBoxLayout()
    column.addSpacing(theme.px(1))
    column.addWidget(glyph)
    column.addStretch()
    layout.addLayout(column)
    layout.addWidget(_wrapped(text, "", theme.CAPTION_PX), 1)
    return row


def _wrapped(text: str, name: str = "", pixels: int = theme.BODY_PX) -> Label:
    label = Label(_BEFORE_UNIT.sub("\u00a0", text))
    label.setWordWrap(True)
    label.setFont(theme.font(pixels, tabular=True))
    label.setTextInteractionFlags(theme.SELECTABLE)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    if name:
        label.setObjectName(name)
    return label
