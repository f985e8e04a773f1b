"""Cards of the Tune page: this machine, history, step times, verdict, workloads, table of trials."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QBoxLayout,
    QButtonGroup,
    QCheckBox,
    QFileDialog,
    QFrame,
    QGridLayout,
    QHeaderView,
    QPushButton,
    QRadioButton,
    QSizePolicy,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from launcher.app import settings
from launcher.app.settings_declared import ADVICE, VALUE_SUGGEST
from launcher.app.settings_file import AppSettingValue
from launcher.base.paths import explain_os_error
from launcher.base.units import format_figure
from launcher.gui import theme
from launcher.gui.labels import UNKNOWN, Label, set_tooltip
from launcher.gui.late import report_export, tune_history, tuned_match, use_counting
from launcher.gui.settings.controls import make_control
from launcher.gui.translation import mark, render, tr
from launcher.gui.tune.tune_control import current_options
from launcher.gui.tune.view_data import StepPart, TrialRow, VerdictText, WorkloadAnswer
from launcher.gui.widgets import Card, ProgressLine
from launcher.gui.widgets.blocks import EmptyState, make_button, make_caption
from launcher.gui.widgets.flow import clear_layout
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import Cell, Column, TableRows

if TYPE_CHECKING:
    from launcher.app.planning.tuned_match import TunedMatch
    from launcher.app.serving.serving_session import ServingSession
    from launcher.base.errors import LauncherError
    from launcher.gui.controller import Controller
    from launcher.tuning.advice import Advice
    from launcher.tuning.history_records import Session, Summary


@dataclass(frozen=True, slots=True)
class TunedState:
    """Tuned settings and advice for the model that would be measured next."""

    match: TunedMatch | None = None
    advice: Advice | None = None
    mode: AppSettingValue = VALUE_SUGGEST
    """What is done with advice."""


class TunedSettingsCard(Card):
    """Tuned settings with the changes since, and a button to measure again; advice from use, and what it may do."""

    measure_requested = Signal()
    shown = Signal()
    """The state was shown."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Tuned settings"))
        self._controller = controller
        self.has_content = False
        """Whether there are tuned settings, an advice, or a reason why they could not be read."""
        self.tuned, self.changed, self.advice = Label(), Label(), Label()
        self.measure = make_button(tr("Measure again"), self.measure_requested.emit)
        self.mode = make_control(settings.find_setting(ADVICE))
        self.mode.chosen.connect(partial(controller.change_setting, ADVICE))
        for label in (self.tuned, self.changed, self.advice):
            label.setWordWrap(True)
            self.body.addWidget(label)
        below_changed = self.body.indexOf(self.changed) + 1
        self.body.insertWidget(below_changed, self.measure, alignment=Qt.AlignmentFlag.AlignLeft)
        self.body.addWidget(self.mode, alignment=Qt.AlignmentFlag.AlignLeft)
        self.show_state(TunedState())
        controller.setting_changed.connect(self._handle_setting)

    @Slot(str, object)
    def _handle_setting(self, name: str, _value: object) -> None:
        if name == ADVICE:
            self.refresh()

    def refresh(self) -> None:
        """Read the tuned settings and the advice."""
        session, model = self._controller.session, self._controller.served_name

        self._controller.bridge.run(_read_state, session, model, done=self.show_state, failed=self._show_error)

    def _show_error(self, error: LauncherError) -> None:
        """Show why reading failed."""
        self.show_state(TunedState())
        self.tuned.setText(render(error.message))
        self.has_content = True
        self.shown.emit()

    def show_state(self, state: TunedState) -> None:
        """Show the tuned settings and the advice."""
        match = state.match
        self.tuned.setText(_tuned_text(match) if match else tr("No tuned settings yet."))
        self.changed.setText(_changes_text(match) if match else "")
        self.advice.setText(render(state.advice.sentence) if state.advice else "")
        self.mode.show_value(state.mode)
        self.measure.setVisible(bool(self.changed.text()))
        for label in (self.changed, self.advice):
            label.setVisible(bool(label.text()))
        self.has_content = state != TunedState(mode=state.mode)
        self.shown.emit()


def _tuned_text(match: TunedMatch) -> str:
    return tr("{model}: {what}.", model=match.tuned.model.label_with_quant, what=render(match.tuned.summary))


def _changes_text(match: TunedMatch) -> str:
    if not match.tuned.verified:
        return tr("Imported from another computer. Used once a measurement here confirms it.")
    if not match.changed:
        return ""
    differs = " ".join(map(render, match.changed))
    if match.used:
        return tr("Measure again. {differs}", differs=differs)
    return tr("Not used. Measure again. {differs}", differs=differs)


async def _read_state(session: ServingSession | None, model: str) -> TunedState:
    """Read the state for the running model, else the last served one, else the demo. Wakes no GPU."""
    _, options = await current_options(session, model)
    launch = None if session is None or session.is_idle else session.supervisor.launch
    advice = await asyncio.to_thread(use_counting.find_advice, launch) if launch is not None else None
    mode = await asyncio.to_thread(settings.stored_value, ADVICE)
    return TunedState(await tuned_match.find_tuned_match(options, wake=False), advice, mode)


# Earlier tunes on this computer: choose one to show it; the shown one can be exported.

_MOST_TUNES, _VERDICT_COLUMN = 20, 3


def _history_columns() -> list[Column[Summary]]:
    def verdict_cell(row: Summary) -> Cell:
        return Cell(render(row.sentence) if row.sentence else tr("In progress"))

    return [
        Column(tr("When"), "", lambda row: Cell(time.strftime("%Y-%m-%d %H:%M", time.localtime(row.began_s)))),
        Column(tr("Model"), "", lambda row: Cell(f"{row.model} {row.quant}" if row.quant else row.model)),
        Column(tr("Prompts"), "", lambda row: Cell(row.workload)),
        Column(tr("Verdict"), "", verdict_cell),
    ]


class HistoryCard(Card):
    """Earlier tunes on this computer. Hidden while there is neither one to list nor an error to show."""

    chosen = Signal(object)
    """Session, with all its runs."""
    listed = Signal(bool)
    """Whether there are earlier tunes. Also true if the history cannot be read, as there may be some."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Measured before"))
        self._controller = controller
        self.table = RowTable(tr("Measured before"))
        self._model: TableRows[Summary] = TableRows(_history_columns(), self.table)
        self.table.setModel(self._model)
        self.table.horizontalHeader().setSectionResizeMode(_VERDICT_COLUMN, QHeaderView.ResizeMode.Stretch)
        self.table.horizontalHeader().setSectionsClickable(False)
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.clicked.connect(lambda index: self._load_row(index.row()))
        self.table.activated.connect(lambda index: self._load_row(index.row()))
        self._hint = tr("Select a row to show it above. `mtp-launcher compare` compares two.")
        self.note = make_caption(self._hint)
        self.table.align_head()
        inset = self.table.text_inset
        self.add_aligned(self.table, inset)
        self.note.setContentsMargins(inset, 0, inset, 0)
        self.body.addWidget(self.note)
        self.hide()

    @property
    def rows(self) -> Sequence[Summary]:
        """The listed tunes, newest first."""
        return self._model.rows

    def refresh(self) -> None:
        """Read the list."""
        self._controller.bridge.run(_list_tunes, done=self._show_rows, failed=self._show_error)

    def export_tune(self, session_id: str) -> None:
        """Let the user choose a file and export a tune to it."""
        kinds = tr("Markdown (*.md);;CSV (*.csv);;JSON (*.json)")
        name, kind = QFileDialog.getSaveFileName(self, tr("Export"), "tune.md", kinds)
        if name:
            path = Path(name)
            if not path.suffix:
                suffix = kind[kind.rfind(".") : -1]  # .md of "Markdown (*.md)"
                path = path.with_suffix(suffix)
            self._controller.bridge.run(_export_session, session_id, path)

    def _show_rows(self, rows: Sequence[Summary], problem: str = "") -> None:
        self._model.show_rows(rows)
        height = self.table.row_height * (len(rows) + 1) + 2 * self.table.frameWidth()
        self.table.setFixedHeight(height)
        self.table.setVisible(bool(rows))
        self.note.setText(problem or self._hint)
        self.setVisible(bool(rows or problem))
        self.listed.emit(bool(rows or problem))

    def _show_error(self, error: LauncherError) -> None:
        self._show_rows((), render(error.message))

    def _load_row(self, row: int) -> None:
        if 0 <= row < len(self.rows):
            session_id = self.rows[row].id
            self._controller.bridge.run(_load_session, session_id, done=self.chosen.emit)


def _list_tunes() -> tuple[Summary, ...]:
    if not tune_history.history_file().exists():
        return ()
    with tune_history.History() as history:
        return history.find_sessions(kind="tune", most=_MOST_TUNES)


def _load_session(session_id: str) -> Session:
    with tune_history.History() as history:
        return history.load(session_id)


def _export_session(session_id: str, path: Path) -> None:
    text = report_export.writer_for(path)(_load_session(session_id))
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise explain_os_error(error) from error


# Time of one verification step by part.


class StepCard(Card):
    """Time of one verification step by part, as proportional bars."""

    def __init__(self) -> None:
        super().__init__(tr("Time per step"))
        self.about, self.note = make_caption(), make_caption()
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

    def show_parts(self, parts: Sequence[StepPart], about: str = "", note: str = "") -> None:
        """Show a step's parts, with a line above and a note below; without parts, a placeholder."""
        clear_layout(self._grid)
        self.bars = []
        total_ms = sum(part.ms for part in parts)
        for number, part in enumerate(parts):
            row = 3 * number  # three rows a part: its name and value, its bar, a gap
            name, value = Label(part.name), Label(tr("{ms:.1f} ms", ms=part.ms))
            name.setWordWrap(True)
            value.setFont(theme.font(theme.BODY_PX, tabular=True))
            bar = ProgressLine(tr("{part}: {ms:.1f} ms", part=part.name, ms=part.ms), "rate")
            bar.show_fraction(part.ms / total_ms if total_ms else 0)
            self.bars.append(bar)
            self._grid.addWidget(name, row, 0)
            self._grid.addWidget(value, row, 1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignBottom)
            self._grid.addWidget(bar, row + 1, 0, 1, 2)
            self._grid.setRowMinimumHeight(row + 2, theme.px(6))
        if not parts:
            about = tr("Will show the milliseconds of one step: base token, MTP head and drafted tokens.")
        self.about.setText(about)
        self.about.setVisible(bool(about))
        self.note.setText(note)
        self.note.setVisible(bool(note))


# The verdict in one sentence, or a placeholder.


class VerdictCard(QFrame):
    """Card of the verdict, with an edge in the colour of its meaning. Before the first tune it explains what a tune
    does."""

    changed = Signal()
    """Something else is shown than before."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.kicker, self.sentence, self.detail = Label(), Label(), Label()
        self.kicker.setObjectName("secondary")
        self.kicker.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.sentence.setFont(theme.font(theme.TITLE_PX, bold=True, tabular=True))
        self.detail.setObjectName("secondary")
        for label in (self.kicker, self.sentence, self.detail):
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.buttons: list[QPushButton] = []
        self._actions: list[Callable[[], object]] = []
        self._has_history, self._is_empty = True, True
        self._answers = QGridLayout()
        self._answers.setHorizontalSpacing(theme.px(theme.GAP_XL))
        self._answers.setVerticalSpacing(theme.px(theme.GAP_S))
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._row.setSpacing(theme.px(theme.GAP_M))
        self._row.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(*(theme.px(theme.GAP_L),) * 4)
        column.setSpacing(theme.px(theme.GAP_S))
        for label in (self.kicker, self.sentence, self.detail):
            column.addWidget(label)
        column.insertLayout(column.indexOf(self.detail), self._answers)
        column.addLayout(self._row)
        first = _empty_verdict(has_history=False)
        how = tr("Choose what to optimise for, then press Measure.")
        self._first_state = EmptyState(first.sentence, f"{first.detail} {how}")
        column.addWidget(self._first_state, 1)
        self.show_verdict(None)

    def set_button_direction(self, direction: QBoxLayout.Direction) -> None:
        """Put the buttons in a row or a column."""
        self._row.setDirection(direction)

    def show_texts(self, kicker: str, sentence: str, detail: str) -> None:
        """Replace the text and keep the buttons, with their focus."""
        for label, text in ((self.kicker, kicker), (self.sentence, sentence), (self.detail, detail)):
            label.setText(text)
            label.setVisible(bool(text) and not self.is_first)
        self.setAccessibleName(sentence)

    @property
    def is_first(self) -> bool:
        """Whether there is nothing to show yet, now or before."""
        return self._is_empty and not self._has_history

    def set_has_history(self, has_history: bool) -> None:
        """Record whether there are earlier tunes. Until that is known, the card does not claim that there are none."""
        self._has_history = has_history
        if self._is_empty:
            self.show_verdict(None)

    def show_verdict(self, verdict: VerdictText | None) -> None:
        """Show a verdict, or the placeholder for None."""
        self._is_empty = verdict is None
        verdict = verdict or _empty_verdict(self._has_history)
        self.show_texts(verdict.kicker, verdict.sentence, verdict.detail)
        self._show_answers(verdict.answers)
        self._show_buttons(verdict.buttons)
        if self.property("meaning") != verdict.meaning:
            self.setProperty("meaning", verdict.meaning)
            self.style().unpolish(self)
            self.style().polish(self)
        self._first_state.setVisible(self.is_first)
        self.changed.emit()

    def _show_answers(self, answers: Sequence[WorkloadAnswer]) -> None:
        """Show the answers for several workloads as a table."""
        clear_layout(self._answers)
        gap = theme.px(theme.GAP) if answers else 0
        self._answers.setContentsMargins(0, gap, 0, gap)
        if not answers:
            return
        heads = (tr("Workload"), tr("Recommended"), tr("Gain with MTP"), tr("Likely"))
        rows = [heads, *((each.workload, each.settings, each.change, each.chance) for each in answers)]
        for number, row in enumerate(rows):
            for column, text in enumerate(row):
                label = Label(text) if number else make_caption(text)
                label.setFont(theme.font(theme.BODY_PX if number else theme.CAPTION_PX, tabular=True))
                self._answers.addWidget(label, number, column)
        self._answers.setColumnStretch(len(heads), 1)

    def _show_buttons(self, buttons: Sequence[tuple[str, Callable[[], object]]]) -> None:
        """Show buttons. Those with the same labels stay, so that a click or the focus is not lost."""
        self._actions = [action for _, action in buttons]
        if [label for label, _ in buttons] == [button.text() for button in self.buttons]:
            for button in self.buttons:
                button.setEnabled(True)
            return
        for button in self.buttons:
            self._row.removeWidget(button)
            button.hide()
            button.deleteLater()
        self.buttons = []
        for number, (label, _) in enumerate(buttons):
            button = make_button(label, partial(self._run_action, number), primary=number == 0)
            button.setAutoDefault(True)
            self._row.insertWidget(number, button)
            self.buttons.append(button)
        self._row.setContentsMargins(0, theme.px(theme.GAP) if self.buttons else 0, 0, 0)

    def _run_action(self, number: int) -> None:
        self._actions[number]()


def _empty_verdict(has_history: bool) -> VerdictText:
    return VerdictText(
        tr("No measurement is running.") if has_history else tr("No measurements on this computer yet."),
        detail=tr(
            "A measurement sends the same prompts with MTP off and with each draft length, in turn, until "
            "the difference is clear or the time is up. The result shows which is faster, by how much, and "
            "how certain that is."
        ),
        meaning="none",
    )


# Workload and time budget.

_BUTTON_HEIGHT, _BUTTON_INSET, _TICK = 36, 12, 16
BUDGETS_MIN = (2, 3, 5, 10, 15, 20, 30, 45, 60)
"""Choices for the time budget, in minutes."""
USUAL_BUDGET_MIN = 10


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """A workload to optimise for. `title` and `about` are English, translated when shown."""

    name: str
    title: str
    about: str


WORKLOADS = (
    WorkloadChoice("code", mark("Code"), mark("Writing and editing code: long, predictable replies.")),
    WorkloadChoice("prose", mark("Prose"), mark("Essays and explanations: lower draft acceptance than code.")),
    WorkloadChoice("reasoning", mark("Reasoning"), mark("Problems that need thinking before the reply.")),
    WorkloadChoice("extraction", mark("Extraction"), mark("Facts from a text, as JSON: short, predictable replies.")),
    WorkloadChoice("long", mark("Long prompt"), mark("Long prompts with short replies: prompt speed matters most.")),
    WorkloadChoice("turns", mark("Conversation"), mark("A conversation of several turns.")),
    WorkloadChoice("mine", mark("My prompts"), mark("Prompts of your own, from a file.")),
    WorkloadChoice("published", mark("Published run"), mark("The prompt of a published result, for comparison.")),
)


def _paint_tick(painter: QPainter, box: QRectF, *, checked: bool) -> None:
    """Paint a tick box as the style sheet has it."""
    painter.setPen(QPen(theme.colour("accent" if checked else "control")))
    painter.setBrush(theme.colour("accent" if checked else "card"))
    painter.drawRoundedRect(box, theme.px(3), theme.px(3))
    if checked:
        painter.setPen(QPen(theme.colour("on_accent"), theme.px(2)))
        corners = ((0.24, 0.52), (0.43, 0.71), (0.77, 0.31))
        painter.drawPolyline([QPointF(box.x() + x * box.width(), box.y() + y * box.height()) for x, y in corners])


class _WorkloadButton(QRadioButton):
    """Radio button as a full-width row: name at the left, amount at the right. As one of several it has a tick."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.amount = ""
        self.ticked = False
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the room for both texts."""
        metrics = self.fontMetrics()
        amount = metrics.horizontalAdvance(self.amount) + theme.px(theme.GAP) if self.amount else 0
        tick = theme.px(_TICK) + theme.px(theme.GAP) if self.ticked else 0
        return QSize(
            metrics.horizontalAdvance(self.text()) + amount + tick + 2 * theme.px(_BUTTON_INSET),
            theme.px(_BUTTON_HEIGHT),
        )

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the room for both texts."""
        return self.sizeHint()

    def hitButton(self, _pos: object) -> bool:  # noqa: N802
        """Accept clicks anywhere in the row."""
        return True

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the row. The chosen one has an accent border, thicker with the focus."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            width = 2.0 if self.hasFocus() else 1.0
            edge = "accent" if self.isChecked() or self.hasFocus() else "border"
            painter.setPen(QPen(theme.colour(edge), width))
            painter.setBrush(theme.colour("raised" if self.underMouse() or self.isChecked() else "card"))
            inner = QRectF(self.rect()).adjusted(width / 2, width / 2, -width / 2, -width / 2)
            painter.drawRoundedRect(inner, theme.px(theme.CONTROL_RADIUS), theme.px(theme.CONTROL_RADIUS))
            room = self.rect().adjusted(theme.px(_BUTTON_INSET), 0, -theme.px(_BUTTON_INSET), 0)
            painter.setPen(theme.colour("text"))
            painter.setFont(theme.font(theme.BODY_PX, bold=self.isChecked()))
            if self.ticked:
                side = theme.px(_TICK)
                box = QRectF(room.left(), room.center().y() - side / 2, side, side)
                _paint_tick(painter, box, checked=self.isChecked())
                painter.setPen(theme.colour("text"))
                room.setLeft(room.left() + side + theme.px(theme.GAP))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), self.text())
            painter.setPen(theme.colour("secondary"))
            painter.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), self.amount)


class WorkloadList(QWidget):
    """Choice of a workload by mouse and arrow keys, or of several at once."""

    chosen = Signal(str)
    """The workload that was clicked, or added or removed as one of several."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName(tr("Optimise for"))
        self._group = QButtonGroup(self)
        self.buttons: dict[str, _WorkloadButton] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for workload in WORKLOADS:
            button = self.buttons[workload.name] = _WorkloadButton(tr(workload.title))
            set_tooltip(button, tr(workload.about))
            button.clicked.connect(lambda _checked=False, name=workload.name: self._handle_click(name))
            self._group.addButton(button)
            column.addWidget(button)
        next(iter(self.buttons.values())).setChecked(True)
        self.several = QCheckBox(tr("Several at once"))
        set_tooltip(
            self.several,
            tr("Each start measures all that are ticked. Each gets an answer, and all together, with equal weights."),
        )
        self.several.toggled.connect(self._allow_several)
        column.addWidget(self.several)

    @property
    def value(self) -> str:
        """The names of the chosen workloads, with commas between."""
        return ",".join(self.chosen_names)

    @property
    def chosen_names(self) -> list[str]:
        """The names of the chosen workloads."""
        return [name for name, button in self.buttons.items() if button.isChecked()]

    def choose_workload(self, name: str) -> None:
        """Choose a workload without emitting `chosen`."""
        self.buttons[name].setChecked(True)

    def leave_out(self, name: str) -> None:
        """Leave out a workload without emitting `chosen`; without another one, choose the first."""
        self._group.setExclusive(False)
        self.buttons[name].setChecked(False)
        self._group.setExclusive(not self.several.isChecked())
        if not self.chosen_names:
            self.choose_workload(WORKLOADS[0].name)

    def _handle_click(self, name: str) -> None:
        if not self.chosen_names:  # the last chosen workload cannot be left out
            self.choose_workload(name)
        self.chosen.emit(name)

    def _allow_several(self, on: bool) -> None:
        first, *others = self.chosen_names
        for name in others:
            self.buttons[name].setChecked(False)
        self._group.setExclusive(not on)
        for button in self.buttons.values():
            button.ticked = on
            button.updateGeometry()
            button.update()
        if others:
            self.chosen.emit(first)

    def show_amounts(self, amounts: Mapping[str, str]) -> None:
        """Show an amount beside each workload, such as "6 prompts"; nothing where unknown."""
        for name, button in self.buttons.items():
            button.amount = amounts.get(name, "")
            button.setAccessibleDescription(button.amount)
            button.updateGeometry()
            button.update()


# Table of the tried settings.

_SETTING, _RATE, _VRAM, _AGAINST_OFF, _ORIGIN = 0, 1, 5, 6, 7
_SPARE = {2: 1, 3: 2, 4: 4, _VRAM: 3}
"""The columns that are left out in a narrow table, those with the highest number first."""
_Index = QModelIndex | QPersistentModelIndex


class _TrialRows(TableRows[TrialRow]):
    """Model of the trials, with the best one highlighted."""

    def __init__(self, parent: QWidget) -> None:
        columns = [
            Column(
                title,
                tip,
                partial(_make_cell, column),
                right=column not in (_SETTING, _ORIGIN),
                spare=_SPARE.get(column, 0),
            )
            for column, (title, tip) in enumerate(_column_titles())
        ]
        super().__init__(columns, parent)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return a cell's data as TableRows does, with the best row and the rates in bold."""
        if not self.has_cell(index):
            return None
        is_best_name = self.rows[index.row()].best and index.column() == _SETTING
        if role == Qt.ItemDataRole.FontRole and (is_best_name or index.column() == _RATE):
            return theme.font(theme.BODY_PX, bold=True, tabular=True)
        value = super().data(index, role)
        if is_best_name and role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{value}, {tr('best')}"
        return value


def _make_cell(column: int, row: TrialRow) -> Cell:
    text = row_texts(row)[column]
    tip = row.fault if column == _ORIGIN else ""
    if text == UNKNOWN and column != _ORIGIN:
        tip = tr("Unknown: {setting} was not measured this way, or does not draft.", setting=row.setting)
    return Cell(text, tip=tip, dim=column == _ORIGIN)


def row_texts(row: TrialRow) -> tuple[str, ...]:
    """Return a row's texts. A predicted rate has no decimals; a measured one is written as in the verdict."""
    digits = 0 if row.predicted else 1
    return (
        row.setting,
        _format_number(row.rate, 0) if row.predicted else format_figure(row.rate),
        UNKNOWN if row.spread is None else f"± {row.spread:,.{digits}f}",
        UNKNOWN if row.accepted is None else f"{100 * row.accepted:.0f} %",
        _format_number(row.tokens_per_step, 2),
        _format_number(row.vram_mib, 0),
        UNKNOWN if row.against_off is None else f"{row.against_off:.2f} ×",  # noqa: RUF001 -- the sign for a factor
        row.origin,
    )


def _format_number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _column_titles() -> tuple[tuple[str, str], ...]:
    """Return column titles and tooltips."""
    return (
        (tr("Setting"), tr("The draft length (--spec-draft-n-max), or MTP off")),
        (tr("t/s"), tr("Tokens/s of the replies, mean of all prompts")),
        (tr("95 %"), tr("95 % confidence interval of the mean")),
        (tr("Accepted"), tr("Draft acceptance: accepted of all drafted tokens")),
        (tr("Tokens/step"), tr("Tokens per verification step")),
        (tr("VRAM, MiB"), tr("GPU memory of the server")),
        (tr("Against off"), tr("Speed compared with MTP off")),
        (tr("Known from"), tr("Measured, with the number of starts, or predicted")),
    )


class _BestRowDelegate(QStyledItemDelegate):
    """Paints the best row's background; style sheet cells are transparent."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        model = index.model()
        if isinstance(model, _TrialRows) and model.rows[index.row()].best:
            painter.fillRect(option.rect, theme.colour("raised"))
        super().paint(painter, option, index)


def describe_faults(rows: Sequence[TrialRow]) -> str:
    """Return the settings that failed, with the reason, in lines; empty without any."""
    settings: dict[str, list[str]] = {}
    for row in rows:
        if row.fault:
            settings.setdefault(row.fault, []).append(row.setting)
    return "\n".join(f"{', '.join(failed)}: {fault}" for fault, failed in settings.items())


class TrialTable(RowTable):
    """Table of trials, as high as its rows."""

    def __init__(self) -> None:
        super().__init__(tr("Settings that were tried"))
        self._model = _TrialRows(self)
        self.setModel(self._model)
        self.setItemDelegate(_BestRowDelegate(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.horizontalHeader().setSectionsClickable(False)
        self.align_head()
        self.show_rows(())

    @property
    def rows(self) -> Sequence[TrialRow]:
        """The rows shown."""
        return self._model.rows

    def show_rows(self, rows: Sequence[TrialRow]) -> None:
        """Show rows."""
        chosen = self.currentIndex().row()
        self._model.show_rows(rows)
        self.unused = frozenset({_VRAM} if all(row.vram_mib is None for row in rows) else ())
        self.show_columns()
        self.setFixedHeight(self.row_height * (len(rows) + 1) + 2 * self.frameWidth())
        if 0 <= chosen < len(rows):
            self.selectRow(chosen)

    def show_columns(self) -> None:
        """Show as many columns as fit beside the full names of the settings; without room for those, elide them."""
        self.setColumnHidden(_AGAINST_OFF, False)
        self._set_widths(stretched=_ORIGIN)
        super().show_columns()
        if not self.has_room:
            self._set_widths(stretched=_SETTING)
            self.setColumnHidden(_AGAINST_OFF, not self.has_room)

    def _set_widths(self, *, stretched: int) -> None:
        """Give each column the width of its texts; one of them takes the spare width, or gives way."""
        head = self.horizontalHeader()
        for column in (_SETTING, _ORIGIN):
            is_stretched = column == stretched
            mode = QHeaderView.ResizeMode.Stretch if is_stretched else QHeaderView.ResizeMode.ResizeToContents
            head.setSectionResizeMode(column, mode)
