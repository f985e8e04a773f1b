"""Where the time of one verification step goes."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.tune.told import Part
from launcher.gui.widgets import Card, ProgressLine
from launcher.gui.words import tr


class StepCard(Card):
    """A line for each part, as long as its share of the step."""

    def __init__(self) -> None:
        super().__init__(tr("Where a step goes"))
        self.about, self.note = Label(), Label()
        for label in (self.about, self.note):
            label.setObjectName("secondary")
            label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            label.setWordWrap(True)
        self._grid = QGridLayout()
        self._grid.setVerticalSpacing(theme.px(2))
        self._grid.setHorizontalSpacing(theme.px(theme.GAP))
        self._grid.setColumnStretch(0, 1)
        self.bars: list[ProgressLine] = []
        self.body.addWidget(self.about)
        self.body.addLayout(self._grid)
        self.body.addWidget(self.note)
        self.body.addStretch()
        self.show_parts(())

    def show_parts(self, parts: Sequence[Part], about: str = "", note: str = "") -> None:
        """Show a step's parts, over it what step that is, under it what follows; without any, what will be here."""
        while (item := self._grid.takeAt(0)) is not None:
            if widget := item.widget():
                widget.hide()
                widget.deleteLater()
        self.bars = []
        whole = sum(part.ms for part in parts)
        for at, part in enumerate(parts):
            name, value = Label(part.name), Label(tr("{ms:.1f} ms", ms=part.ms))
            name.setWordWrap(True)
            value.setFont(theme.font(theme.BODY_PX, tabular=True))
            bar = ProgressLine(tr("{part}: {ms:.1f} ms", part=part.name, ms=part.ms), "rate")
            bar.show_fraction(part.ms / whole if whole else 0)
            self.bars.append(bar)
            self._grid.addWidget(name, 3 * at, 0)
            self._grid.addWidget(value, 3 * at, 1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignBottom)
            self._grid.addWidget(bar, 3 * at + 1, 0, 1, 2)
            self._grid.setRowMinimumHeight(3 * at + 2, theme.px(6))
        if not parts:
            about = tr(
                "Will show how the milliseconds of one step divide: a token, the MTP head, and what drafted tokens add."
            )
        self.about.setText(about)
        self.about.setVisible(bool(about))
        self.note.setText(note)
        self.note.setVisible(bool(note))
