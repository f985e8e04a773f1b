"""Cards of the Start page: this computer, the plan, the table of plans, the steps of a first start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QSizePolicy,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from launcher.app.first.first_steps import Step, StepProgress, StepStage
from launcher.gui import theme
from launcher.gui.labels import ElidedLabel, Label, set_tooltip
from launcher.gui.start.computer_text import Fact
from launcher.gui.start.text import (
    evidence_text,
    evidence_tip,
    fit_legend,
    memory_needs_text,
    memory_parts,
    memory_totals,
    plan_title,
    settings_origin_text,
    short_name,
    speed_text,
    step_name,
    step_state,
    step_subject,
)
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Badge, Card, Glyph, MemoryBar, ProgressLine, ReadAge
from launcher.gui.widgets.badge import badge_size, paint_badge
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import clear_layout
from launcher.gui.widgets.row_table import RowTable, text_inset
from launcher.gui.widgets.rows import Cell, Column, TableRows

if TYPE_CHECKING:
    from launcher.app.planning.start_settings import KeptPlan
    from launcher.gui.start.queries import EngineAnswer, PlanResult
    from launcher.models.plan import Plan

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[A-Za-z%])")
"""Spaces before units, where a line must not break."""


class MachineCard(Card):
    """Facts about this computer in a column, and two buttons."""

    def __init__(self, check: Callable[[], object], copy: Callable[[], object]) -> None:
        super().__init__(tr("This computer"))
        self.body.setSpacing(theme.px(theme.GAP))
        self._facts = QVBoxLayout()
        self._facts.setSpacing(theme.px(theme.GAP))
        self.body.addLayout(self._facts)
        self.age = ReadAge()
        self.body.addWidget(self.age)
        self.check_button: QPushButton = make_button(tr("Check again"), check)
        self.check_button.setToolTip(tr("Check GPUs, memory and disk again"))
        self.copy_button: QPushButton = make_button(tr("Copy report"), copy)
        self.copy_button.setToolTip(tr("Copy this report as text. `mtp-launcher doctor` shows more details"))
        buttons = QHBoxLayout()
        buttons.setSpacing(theme.px(theme.GAP))
        buttons.addWidget(self.check_button)
        buttons.addWidget(self.copy_button)
        buttons.addStretch()
        self.body.addLayout(buttons)
        self.body.addStretch()
        self.show_reading(tr("Not checked yet."))

    def show_reading(self, text: str) -> None:
        """Show what is being read in place of the facts."""
        clear_layout(self._facts)
        self.age.show_age(None)
        label = _make_wrapped_label(text, "secondary")
        self._facts.addWidget(label)
        self.copy_button.setEnabled(False)

    def show_facts(self, facts: tuple[Fact, ...], read_at: float | None) -> None:
        """Show facts. `read_at` is when the memory was read, in seconds since the epoch."""
        clear_layout(self._facts)
        self.age.show_age(read_at)
        for fact in facts:
            self._facts.addWidget(_FactRow(fact))
        self.copy_button.setEnabled(True)


class _FactRow(QWidget):
    def __init__(self, fact: Fact) -> None:
        super().__init__()
        self.setObjectName("plain")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(2))
        subject = _make_wrapped_label(fact.subject, "secondary", theme.CAPTION_PX)
        value = _make_wrapped_label(fact.value)
        value.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        layout.addWidget(subject)
        layout.addWidget(value)
        if fact.detail:
            layout.addWidget(_make_wrapped_label(fact.detail, "secondary"))
        for warning in fact.warnings:
            layout.addWidget(_make_warning(warning))
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        layout.addSpacing(theme.px(theme.GAP - 2))
        layout.addWidget(line)
        self.setAccessibleName(". ".join(filter(None, (fact.subject, fact.value, fact.detail, *fact.warnings))))


def _make_warning(text: str) -> QWidget:
    row = QWidget()
    row.setObjectName("plain")
    layout = QHBoxLayout(row)
    layout.setContentsMargins(0, theme.px(4), 0, 0)
    layout.setSpacing(theme.px(6))
    # Aligned, because a stretch below it would make the whole row grow.
    layout.addWidget(Glyph("triangle", "attention", 14), alignment=Qt.AlignmentFlag.AlignTop)
    layout.addWidget(_make_wrapped_label(text, "", theme.CAPTION_PX), 1)
    return row


def _make_wrapped_label(text: str, name: str = "", pixels: int = theme.BODY_PX) -> Label:
    label = Label(_BEFORE_UNIT.sub("\u00a0", text))
    label.setWordWrap(True)
    label.setFont(theme.font(pixels, tabular=True))
    label.setTextInteractionFlags(theme.SELECTABLE)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    if name:
        label.setObjectName(name)
    return label


# The chosen plan: what it is, its memory, the reason, and the start button.

_MIB = 2**20
_FIRST_REASONS, _FIRST_CAUTIONS = 4, 2
"""Number of reasons and of cautions that are shown before the user asks for all.

The first reasons explain the choice of the file, compare it with the next best one, and name what other intents choose.
"""
_BOLD_WIDENING = 1.12
"""Room for the semibold text of a primary button, relative to the width of the regular text."""


class PlanCard(Card):
    """Card with a plan, or with the demo if none can be recommended."""

    def __init__(
        self,
        start: Callable[[], object],
        pause: Callable[[], object],
        ask_engine: Callable[[], object],
        choose_demo: Callable[[], object],
        switch_settings: Callable[[], object],
    ) -> None:
        super().__init__()
        self._kind, self._title, self._needs, self._speed = Label(), Label(), Label(), Label()
        self._kind.setObjectName("secondary")
        self._kind.setFont(theme.font(theme.CAPTION_PX))
        self._title.setFont(theme.font(theme.TITLE_PX, bold=True, tabular=True))
        for label in (self._needs, self._speed):
            label.setObjectName("secondary")
            label.setFont(theme.font(theme.BODY_PX, tabular=True))
        for label in (self._title, self._needs, self._speed):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.badge = Badge()
        self.primary: QPushButton = make_button("", start, primary=True)
        self.pause: QPushButton = make_button(tr("Pause"), pause)
        self.demo: QPushButton = make_button(tr("Try the demo instead"), choose_demo)
        self.demo.setObjectName("quiet")
        self.demo.setToolTip(tr("A small built-in model that needs no GPU and no network"))
        self.settings_origin = Label()
        self.settings_origin.setWordWrap(True)
        self.switch_button: QPushButton = make_button(tr("Use my settings"), switch_settings)
        self.switch_button.setObjectName("quiet")
        self.bar = MemoryBar()
        self.ask_button: QPushButton = make_button(tr("Ask the engine"), ask_engine)
        self.ask_button.setObjectName("quiet")
        self.ask_button.setToolTip(tr("Let llama.cpp compute the memory of this plan. Reads only the file's header"))
        self._why = Label(tr("Why this plan"))
        self._why.setFont(theme.font(theme.BODY_PX, bold=True))
        self.more_button: QPushButton = make_button(tr("All reasons"), self._toggle_reasons)
        self.more_button.setObjectName("quiet")
        self.more_button.setToolTip(tr("Show everything that led to this plan, as `mtp-launcher plan` prints it"))
        self._reason_texts: tuple[str, ...] = ()
        self._all_reasons: tuple[str, ...] = ()
        self._first_reasons: tuple[str, ...] = ()
        self._shows_all = False
        """Whether all reasons are shown; stays when another plan is chosen."""
        self._lay_out()

    def _lay_out(self) -> None:
        kind = QHBoxLayout()
        kind.setSpacing(theme.px(theme.GAP))
        kind.addWidget(self._kind)
        kind.addWidget(self.badge)
        kind.addStretch()
        texts = QVBoxLayout()
        texts.setSpacing(theme.px(theme.GAP_S))
        texts.addLayout(kind)
        texts.addWidget(self._title)
        texts.addWidget(self._needs)
        texts.addWidget(self._speed)
        origin_row = QHBoxLayout()
        origin_row.setSpacing(theme.px(theme.GAP))
        origin_row.addWidget(self.settings_origin, 1)
        origin_row.addWidget(self.switch_button, alignment=Qt.AlignmentFlag.AlignTop)
        texts.addLayout(origin_row)
        column = QWidget()
        column.setObjectName("plain")
        # Wide enough for the longest text, so that the text beside the column does not move when the button's changes.
        widest = self.primary.fontMetrics().boundingRect(tr("Download and start")).width() * _BOLD_WIDENING
        column.setMinimumWidth(round(widest) + theme.px(30))
        buttons = QVBoxLayout(column)
        buttons.setContentsMargins(0, 0, 0, 0)
        buttons.setSpacing(theme.px(theme.GAP_S))
        buttons.addWidget(self.primary)
        buttons.addWidget(self.pause)
        buttons.addWidget(self.demo)
        buttons.addStretch()
        self._top = QHBoxLayout()
        self._top.setSpacing(theme.px(theme.GAP_XL))
        self._top.addLayout(texts, 1)
        self._top.addWidget(column)
        self.body.addLayout(self._top)
        self.body.addWidget(self.bar)
        foot = QHBoxLayout()
        foot.addWidget(self._why)
        foot.addStretch()
        foot.addWidget(self.more_button)
        foot.addWidget(self.ask_button)
        below = QVBoxLayout()
        below.setSpacing(theme.px(theme.GAP_S))
        below.addLayout(foot)
        self._reasons = QVBoxLayout()
        self._reasons.setSpacing(theme.px(theme.GAP_S))
        below.addLayout(self._reasons)
        self._below = QWidget()
        self._below.setObjectName("plain")
        self._below.setLayout(below)
        below.setContentsMargins(0, 0, 0, 0)
        self.body.addWidget(self._below)
        self.setTabOrder(self.primary, self.pause)
        self.setTabOrder(self.pause, self.demo)
        self.setTabOrder(self.demo, self.switch_button)
        self._kind.setAlignment(Qt.AlignmentFlag.AlignVCenter)

    def set_direction(self, direction: QBoxLayout.Direction) -> None:
        """Put the buttons beside or below the text."""
        self._top.setDirection(direction)

    def show_reading(self, text: str) -> None:
        """Show what is being read, while there is no plan yet."""
        self._set_texts("", "", tr("Checking this computer"), text, "")
        self.bar.show_unknown(tr("Making a plan ..."))
        self.bar.show()
        self._below.hide()

    def show_plan(self, result: PlanResult, plan: Plan, answer: EngineAnswer | None, *, recommended: bool) -> None:
        """Show a plan. `recommended`: the user has not chosen another one."""
        goal = goal_name(result.request.intent)
        kind = tr("Recommended") if recommended else tr("Chosen by you")
        self._set_texts(
            f"{kind} · {goal}",
            plan.status.value,
            plan_title(plan),
            memory_needs_text(plan, answer, result.situation),
            plan.entry.id,
        )
        total, others = memory_totals(result.situation)
        self._show_settings_origin(result.find_own_settings(plan), plan)
        is_unified = result.situation is not None and result.situation.unified
        self.bar.show_parts(
            memory_parts(plan),
            total,
            others,
            plan.margin_mib * _MIB,
            needed=plan.estimate.needed_bytes,
            others_label=tr("system and other programs") if is_unified else "",
        )
        self.bar.show()
        self._speed.setText(speed_text(plan))
        self._speed.setVisible(bool(self._speed.text()))
        self._all_reasons = (*plan.reasons, *plan.cautions)
        self._first_reasons = (*plan.reasons[:_FIRST_REASONS], *plan.cautions[:_FIRST_CAUTIONS])
        self._show_reasons()
        self._below.show()
        is_answered = answer is not None and answer.plan == plan
        self.ask_button.setVisible(not is_answered)

    def _show_reasons(self) -> None:
        texts = tuple(map(render, self._all_reasons if self._shows_all else self._first_reasons))
        self.more_button.setText(tr("Fewer reasons") if self._shows_all else tr("All reasons"))
        self.more_button.setVisible(len(self._all_reasons) > len(self._first_reasons))
        if texts == self._reason_texts:
            return
        self._reason_texts = texts
        clear_layout(self._reasons)
        for text in texts:
            label = Label(text)
            label.setObjectName("secondary")
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
            self._reasons.addWidget(label)

    def _toggle_reasons(self) -> None:
        self._shows_all = not self._shows_all
        self._show_reasons()

    def set_emphasis(self, *, primary: bool) -> None:
        """Show the main button as the usual next step, or as one of several."""
        name = "primary" if primary else ""
        if self.primary.objectName() != name:
            self.primary.setObjectName(name)
            self.primary.style().unpolish(self.primary)
            self.primary.style().polish(self.primary)

    def show_demo(self, reason: str) -> None:
        """Offer the demo, and show the reason for it and its limits."""
        limits = tr(
            "A small model on the CPU. It shows how drafting works, not the speed-up on a GPU or the answers "
            "of a large model."
        )
        self._set_texts(reason, "", tr("Demo model, built in"), limits, "")
        self.bar.hide()
        self._below.hide()

    def show_served(self, model: str, settings: str, address: str) -> None:
        """Show the running server."""
        self._set_texts(tr("Loaded now"), "", model, " · ".join(filter(None, (settings, address))), "")
        self.bar.hide()
        self._below.hide()

    def show_interruption(self, *, downloads: bool) -> None:
        """Name the button that interrupts a start: it pauses a download, or cancels a start of files that are here."""
        self.pause.setText(tr("Pause") if downloads else tr("Cancel"))
        tip = tr("The downloaded part is kept. Resume continues from there") if downloads else tr("Stop loading")
        self.pause.setToolTip(tip)

    def show_asking(self, progress: str = "") -> None:
        """Show the progress of "Ask the engine" on its button, or enable the button if nothing is being asked."""
        self.ask_button.setText(progress or tr("Ask the engine"))
        self.ask_button.setEnabled(not progress)

    def _show_settings_origin(self, own_settings: KeptPlan | None, plan: Plan) -> None:
        """Show whether the settings are the plan's or the user's, if they differ, with a button that switches."""
        if own_settings is None or not own_settings.settings:
            return
        uses_own = own_settings.is_kept_plan(plan)
        self.settings_origin.setText(settings_origin_text(own_settings, plan))
        self.settings_origin.show()
        self.switch_button.setText(tr("Use recommended") if uses_own else tr("Use my settings"))
        self.switch_button.setToolTip(
            tr("Start with the recommended settings. Your own are kept until then")
            if uses_own
            else tr("Start with your last settings for this model")
        )
        self.switch_button.setVisible(own_settings.kept_plan is not None)
        self.setAccessibleName(f"{self.accessibleName()} {self.settings_origin.text()}")

    def _set_texts(self, kind: str, status: str, title: str, needs: str, tip: str) -> None:
        self.settings_origin.hide()
        self.switch_button.hide()
        self._speed.hide()
        self._kind.setText(kind)
        self._kind.setVisible(bool(kind))
        self.badge.show_status(status)
        self.badge.setVisible(bool(status))
        self._title.setText(title)
        self._needs.setText(needs)
        set_tooltip(self._title, tip)
        self.setAccessibleName(". ".join(filter(None, (kind, status, title, needs))))


def goal_name(intent: str) -> str:
    """Return a goal's name."""
    return {
        "balanced": tr("balanced"),
        "agents": tr("coding agents"),
        "long-context": tr("long context"),
        "best-quality": tr("best quality"),
        "as-published": tr("as published"),
    }[intent]


# Table of plans.

_FIT_COLUMN, _MODEL_COLUMN, _QUANT_COLUMN = 0, 1, 2
_Index = QModelIndex | QPersistentModelIndex


def _plan_columns() -> tuple[Column[Plan], ...]:
    def join_reasons(plan: Plan) -> str:
        return "\n".join(map(render, plan.reasons))

    def make_column(
        title: str, tip: str, text: Callable[[Plan], str], *, right: bool = False, spare: int = 0
    ) -> Column[Plan]:
        def make_cell(plan: Plan) -> Cell:
            return Cell(text(plan), tip=f"{text(plan)}\n{join_reasons(plan)}")  # the text may be cut

        return Column(title, tip, make_cell, right=right, spare=spare)

    return (
        make_column(
            tr("Fit"),
            fit_legend(),
            lambda plan: tr(plan.status.value),
        ),
        make_column(tr("Model"), tr("The model's name in the catalogue"), short_name),
        make_column(tr("Quant"), tr("Quantisation of the model file"), lambda plan: plan.file.quant),
        make_column(
            tr("Context"),
            tr("Context length in tokens (--ctx-size)"),
            lambda plan: f"{plan.setting.context:,}",
            right=True,
            spare=1,
        ),
        make_column(
            tr("KV"),
            tr("KV cache type (--cache-type-k, --cache-type-v)"),
            lambda plan: plan.setting.kv,
            spare=4,
        ),
        make_column(
            tr("Draft"),
            tr("What drafts tokens, and how many per step (--spec-type, --spec-draft-n-max)"),
            lambda plan: render(plan.setting.draft_choice.short_label),
            right=True,
            spare=3,
        ),
        make_column(
            tr("Needs, MiB"),
            tr("Estimated memory in MiB"),
            lambda plan: f"{plan.required_mib:,}",
            right=True,
            spare=2,
        ),
        Column(
            tr("Measured"),
            tr("Nearest published speed. Hover for the source"),
            lambda plan: Cell(evidence_text(plan), tip=evidence_tip(plan), dim=True),
            spare=5,
        ),
    )


class _FitDelegate(QStyledItemDelegate):
    """Paints a fit badge instead of text."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        bare = QStyleOptionViewItem(option)
        self.initStyleOption(bare, index)
        bare.text = ""
        style = option.widget.style()
        style.drawControl(style.ControlElement.CE_ItemViewItem, bare, painter, option.widget)
        rect: QRect = option.rect
        model = index.model()
        if isinstance(model, TableRows):
            word = model.rows[index.row()].status.value
            paint_badge(painter, rect.left() + text_inset(option.widget), rect.center().y(), word)

    def sizeHint(self, _option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        model = index.model()
        word = model.rows[index.row()].status.value if isinstance(model, TableRows) else ""
        return badge_size(word) + QSize(2 * theme.px(theme.CELL_PADDING) + 6, 0)


class PlansTable(RowTable):
    """Table of plans, as high as its rows."""

    chosen = Signal(int)
    """The number of the row that the user has selected."""

    def __init__(self) -> None:
        super().__init__(tr("Plans to choose from"))
        self._rows: TableRows[Plan] = TableRows(_plan_columns(), self)
        self.setModel(self._rows)
        self.setItemDelegateForColumn(_FIT_COLUMN, _FitDelegate(self))
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        head = self.horizontalHeader()
        head.setSectionsClickable(False)
        head.setMinimumSectionSize(theme.px(32))
        head.setSectionResizeMode(self._rows.columnCount() - 1, QHeaderView.ResizeMode.Stretch)
        self.align_head()
        self.selectionModel().currentRowChanged.connect(self._emit_chosen)
        self._filling = False
        self.show_plans((), several=False)

    def show_plans(self, plans: tuple[Plan, ...], *, several: bool, row: int = 0) -> None:
        """Show plans, with a column for the model if `several`, and select a row without emitting `chosen`."""
        self._filling = True
        self._rows.show_rows(plans)
        self.setColumnHidden(_MODEL_COLUMN, not several)
        self.show_columns()
        if plans:
            self.selectRow(row)
        self._filling = False
        self.setFixedHeight(self.row_height * (len(plans) + 1) + 2 * self.frameWidth() + theme.px(4))

    def show_columns(self) -> None:
        """See RowTable. Where the last column is left out, another one takes the spare width, or gives way."""
        head, last = self.horizontalHeader(), self._rows.columnCount() - 1
        others = (last - 1, _MODEL_COLUMN, _QUANT_COLUMN)
        for column in others:  # before the columns are counted, so that each counts with the width that it needs
            head.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        super().show_columns()
        if self.isColumnHidden(last):
            shown = next(column for column in others if not self.isColumnHidden(column))
            head.setSectionResizeMode(shown, QHeaderView.ResizeMode.Stretch)

    def _emit_chosen(self, current: QModelIndex, _before: QModelIndex) -> None:
        if current.isValid() and not self._filling:
            self.chosen.emit(current.row())


# Steps of a first start, a row each.

_GLYPHS = {
    StepStage.WAITING: ("ring", "secondary"),
    StepStage.RUNNING: ("dashed", "accent"),
    StepStage.DONE: ("tick", "good"),
    StepStage.PAUSED: ("pause", "attention"),
    StepStage.FAILED: ("cross", "bad"),
}
_BAR_WIDTH = 148


class _StepRow(NamedTuple):
    glyph: Glyph
    name: Label
    subject: ElidedLabel
    state: ElidedLabel
    bar: ProgressLine


class StepsCard(Card):
    """All steps of a first start, a row each. Rows are never moved or hidden."""

    def __init__(self) -> None:
        super().__init__()
        grid = QGridLayout()
        grid.setHorizontalSpacing(theme.px(theme.GAP_M))
        grid.setVerticalSpacing(theme.px(6))
        grid.setColumnStretch(2, 2)
        grid.setColumnStretch(3, 4)
        self._rows = {step: self._add_row(grid, row_number, step) for row_number, step in enumerate(Step)}
        self.progress = {step: StepProgress(step) for step in Step}
        self.body.addLayout(grid)
        for row in self._rows.values():  # neutral state until it is known what has to be done
            row.glyph.show_glyph(*_GLYPHS[StepStage.WAITING])
            row.name.setEnabled(False)
            row.bar.hide()

    @staticmethod
    def _add_row(grid: QGridLayout, row_number: int, step: Step) -> _StepRow:
        row = _StepRow(Glyph(), Label(step_name(step)), ElidedLabel(), ElidedLabel(), ProgressLine(step_name(step)))
        row.name.setFont(theme.font(theme.BODY_PX, bold=True))
        for label in (row.subject, row.state):
            label.setFont(theme.font(theme.BODY_PX, tabular=True))
            label.setMinimumWidth(theme.px(40))
            label.setAccessibleDescription(step_name(step))
        row.state.setObjectName("secondary")
        row.bar.setMaximumWidth(theme.px(_BAR_WIDTH))
        for column, widget in enumerate((row.glyph, row.name, row.subject)):
            grid.addWidget(widget, row_number, column, Qt.AlignmentFlag.AlignVCenter)
        rest = QHBoxLayout()  # the state has all of it while there is no bar
        rest.setSpacing(theme.px(theme.GAP_M))
        rest.addWidget(row.state, 3)
        rest.addWidget(row.bar, 1)
        grid.addLayout(rest, row_number, 3)
        grid.setRowMinimumHeight(row_number, theme.px(20))
        return row

    def show_steps(self, reports: Iterable[StepProgress]) -> None:
        """Show the progress of all steps."""
        for report in reports:
            self.show_step(report)

    def show_step(self, report: StepProgress) -> None:
        """Show the progress of one step."""
        self.progress[report.step] = report
        row = self._rows[report.step]
        row.glyph.show_glyph(*_GLYPHS[report.stage])
        row.subject.setText(step_subject(report))
        row.state.setText(step_state(report))
        for label in (row.name, row.subject):
            label.setEnabled(report.stage is not StepStage.WAITING)
        row.bar.setVisible(
            report.stage is StepStage.RUNNING or (report.stage is StepStage.PAUSED and bool(report.progress.done_bytes))
        )
        row.bar.show_fraction(_step_fraction(report))
        row.bar.show_role("attention" if report.stage is StepStage.PAUSED else "accent")


def _step_fraction(report: StepProgress) -> float | None:
    if report.percent is not None:
        return report.percent / 100
    if report.progress.bytes:
        return report.progress.done_bytes / report.progress.bytes
    return None
