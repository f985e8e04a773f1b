"""The steps of a first start, a line each: how far it is, what is left, how fast."""

from collections.abc import Iterable
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy

from launcher.first_steps import Stage, Step, StepTold
from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.start import said
from launcher.gui.widgets import Card, Glyph, ProgressLine

_GLYPHS = {
    Stage.WAITING: ("ring", "secondary"),
    Stage.RUNNING: ("dashed", "accent"),
    Stage.DONE: ("tick", "good"),
    Stage.PAUSED: ("pause", "attention"),
    Stage.FAILED: ("cross", "bad"),
}
_BAR_WIDTH = 148


class _Elided(Label):
    """A label that shows as much of its text as there is room for, and all of it as its tip."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = ""
        self.setFont(theme.font(theme.BODY_PX, tabular=True))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setMinimumWidth(theme.px(40))

    def say(self, text: str) -> None:
        """Show another text."""
        if text != self._whole:
            self._whole = text
            set_tip(self, text)
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Fit the text into the new width."""
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        self.setText(self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideRight, self.width()))


@dataclass(frozen=True, slots=True)
class _Row:
    glyph: Glyph
    name: Label
    subject: _Elided
    state: _Elided
    bar: ProgressLine


class StepsCard(Card):
    """All steps, in order; their places never move."""

    def __init__(self) -> None:
        super().__init__()
        grid = QGridLayout()
        grid.setHorizontalSpacing(theme.px(theme.GAP_M))
        grid.setVerticalSpacing(theme.px(6))
        grid.setColumnStretch(2, 2)
        grid.setColumnStretch(3, 3)
        grid.setColumnStretch(4, 1)
        self._rows = {step: self._add(grid, place, step) for place, step in enumerate(Step)}
        self.told = {step: StepTold(step) for step in Step}
        self.body.addLayout(grid)
        for row in self._rows.values():  # what has to be done is not known yet
            row.glyph.show_glyph(*_GLYPHS[Stage.WAITING])
            row.name.setEnabled(False)
            row.bar.hide()

    @staticmethod
    def _add(grid: QGridLayout, place: int, step: Step) -> _Row:
        row = _Row(Glyph(), Label(said.step_name(step)), _Elided(), _Elided(), ProgressLine(said.step_name(step)))
        row.name.setFont(theme.font(theme.BODY_PX, bold=True))
        row.state.setObjectName("secondary")
        row.bar.setMaximumWidth(theme.px(_BAR_WIDTH))
        policy = row.bar.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        row.bar.setSizePolicy(policy)
        for column, widget in enumerate((row.glyph, row.name, row.subject, row.state, row.bar)):
            grid.addWidget(widget, place, column, Qt.AlignmentFlag.AlignVCenter)
        grid.setRowMinimumHeight(place, theme.px(20))
        return row

    def show_steps(self, steps: Iterable[StepTold]) -> None:
        """Show how far all are."""
        for told in steps:
            self.show_step(told)

    def show_step(self, told: StepTold) -> None:
        """Show how far one is."""
        self.told[told.step] = told
        row = self._rows[told.step]
        row.glyph.show_glyph(*_GLYPHS[told.stage])
        subject, state = said.step_subject(told), said.step_state(told)
        row.subject.say(subject)
        row.state.say(state)
        for label in (row.name, row.subject):
            label.setEnabled(told.stage is not Stage.WAITING)
        row.bar.setVisible(told.stage is Stage.RUNNING or (told.stage is Stage.PAUSED and bool(told.done_bytes)))
        row.bar.show_fraction(_fraction(told))
        row.bar.show_role("attention" if told.stage is Stage.PAUSED else "accent")
        row.state.setAccessibleName(f"{said.step_name(told.step)}: {subject}, {state}")


def _fraction(told: StepTold) -> float | None:
    if told.percent is not None:
        return told.percent / 100
    if told.bytes and told.done_bytes is not None:
        return told.done_bytes / told.bytes
    return None
