"""The Tune page: workload, time budget, and results."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QComboBox, QFileDialog, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.late import trial_views, tuner, workloads
from launcher.gui.translation import join_sentences, ntr, render, tr
from launcher.gui.tune import card_text
from launcher.gui.tune.cards import (
    BUDGETS_MIN,
    USUAL_BUDGET_MIN,
    HistoryCard,
    StepCard,
    TrialTable,
    TunedSettingsCard,
    VerdictCard,
    WorkloadList,
    describe_faults,
)
from launcher.gui.tune.draft_plot import DraftPlot
from launcher.gui.tune.tune_control import TuneControl, view_of_session
from launcher.gui.tune.view_data import OWN_WORKLOAD, TrialRow, TuneRequest, VerdictText
from launcher.gui.widgets import Card, ComboBox, PageHead, SliderField
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from launcher.app.measuring.saved_tunes import SavedTune
    from launcher.app.measuring.tuner_space import PreparedTune
    from launcher.gui.tune.trial_views import TuneView
    from launcher.tuning.history_records import Session
    from launcher.tuning.records import RunSettings
    from launcher.tuning.tuner import AnswersCompared, ClientsAwaited, Predicted, QuietAwaited, QuietEnded, TrialPlanned

_PLAN_MS = 300
"""Milliseconds without a change after which the tune is planned."""
_GOAL_CHARACTERS = 10
_SIDE_WIDTH, _LEAST_SIDE_WIDTH, _STEP_WIDTH = 300, 250, 220
_ROOMY, _NARROW, _CRAMPED = 1_100, 860, 620
"""In pixels: widths of the choices and of the step card; page widths below which the choices are narrower, plot and
step card are stacked, and then also the choices."""


class TunePage(QWidget):
    """The page. It plans a tune for the current choices, runs it, and shows its progress or the last tune."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.tuning = TuneControl(controller, self)
        self.workloads = WorkloadList()
        self.goal = ComboBox()
        self.goal.setAccessibleName(tr("Goal"))
        self.goal.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.goal.setMinimumContentsLength(_GOAL_CHARACTERS)
        for aim, title, tip in _goal_choices():
            self.goal.addItem(title, aim)
            self.goal.setItemData(self.goal.count() - 1, tip, Qt.ItemDataRole.ToolTipRole)
        set_tooltip(self.goal, tr("Optimise for speed, time to the complete reply, or energy"))
        self.budget = SliderField(
            tr("Budget"),
            BUDGETS_MIN,
            format_value=_format_minutes,
            tip=tr("Longest duration of a measurement. It may finish earlier."),
        )
        self.budget.set_value(USUAL_BUDGET_MIN)
        self.when_idle = QCheckBox(tr("Wait for clients"))
        set_tooltip(
            self.when_idle,
            tr(
                "Measure only while no client uses the server. Replies that are being written go on, and waiting takes"
                " no time of the budget"
            ),
        )
        self.live_text = Label()
        self.verdict = VerdictCard()
        self.plot = DraftPlot()
        self.step = StepCard()
        self.table = TrialTable()
        self.faults = Label()
        """The settings that failed, and why."""
        self.tuned_card = TunedSettingsCard(controller)
        self.history = HistoryCard(controller)
        self._prompt_file = ""
        self._view: TuneView | None = None
        self._session_id = ""
        """The tune in the history that Export writes."""
        self._planned_trials = 0
        self._answer = ""
        """The recommendation so far, while a tune goes on."""
        self._trial: TrialPlanned | None = None
        """The trial that is measured."""
        head = PageHead(tr("Tune"), tr("Measures which settings are fastest on this computer."))
        self.export = head.add_button(tr("Export"), lambda: self.history.export_tune(self._session_id))
        set_tooltip(self.export, tr("Save this measurement to a file: Markdown, CSV or JSON"))
        self.export.setEnabled(False)
        self.measure = head.add_button(tr("Measure"), self._measure, primary=True)
        set_tooltip(self.measure, tr("Run the prompts with each setting in turn, and compare the speeds"))
        self._lay_out(head)
        self._plan_timer = QTimer(self)
        self._plan_timer.setSingleShot(True)
        self._plan_timer.setInterval(_PLAN_MS)
        self._plan_timer.timeout.connect(self._plan_tune)
        self.workloads.chosen.connect(self._handle_workload)
        self.goal.currentIndexChanged.connect(lambda _: self._plan_timer.start())
        self.budget.value_changed.connect(lambda _: self._plan_timer.start())
        self.tuning.planned.connect(self._show_plan)
        self.tuning.changed.connect(self.show_tune)
        self.tuning.trial_planned.connect(self._show_trial)
        self.tuning.delayed.connect(self._show_delay)
        self.tuning.answered.connect(self._show_answer)
        self.tuning.paused.connect(self._show_paused)
        self.tuning.ended.connect(self._show_ended)
        self.tuning.failed.connect(self._show_failed)
        self.tuning.applied.connect(self._show_applied)
        self.tuning.last_read.connect(self._show_last)
        self.tuned_card.measure_requested.connect(self._measure)
        self.history.chosen.connect(self._show_session)
        self.history.listed.connect(self.verdict.set_has_history)
        self.verdict.changed.connect(self._show_cards)
        self.tuned_card.shown.connect(self._show_cards)
        self.show_rows(())

    def on_shown(self) -> None:
        """Read the last tune and the history, and plan a tune for the current choices."""
        if not self.tuning.running:
            if self._view is None:
                self.tuning.read_last()
            self._plan_timer.start()
            self.tuned_card.refresh()
        self.history.refresh()

    @property
    def request(self) -> TuneRequest:
        """The current choices."""
        return TuneRequest(
            self.workloads.value, self._prompt_file, str(self.goal.currentData()), float(str(self.budget.value))
        )

    def show_rows(self, rows: Sequence[TrialRow]) -> None:
        """Show the settings tried so far."""
        self.table.show_rows(rows)
        faults = describe_faults(rows)
        self.faults.setText(faults)
        self.faults.setVisible(bool(faults))
        self._show_cards()

    def _show_cards(self) -> None:
        """Show the cards that have content. Before the first tune, that is the verdict's, which takes all the room."""
        has_rows, is_first = bool(self.table.rows), self.verdict.is_first
        for card in (self._plot_card, self.step, self._table_card):
            card.setVisible(has_rows)
        self.tuned_card.setVisible(not is_first or self.tuned_card.has_content)
        self._right.setStretchFactor(self.verdict, int(is_first and not has_rows))
        self._right.setStretchFactor(self._plot_row, int(has_rows))
        self._right.setStretch(self._right.count() - 1, int(not is_first and not has_rows))

    def show_tune(self, view: "TuneView") -> None:
        """Show a tune's results so far."""
        self._view = view
        self.show_rows(trial_views.trial_rows(view))
        self.plot.show_curves(trial_views.rate_curves(view))
        self.step.show_parts(*trial_views.step_parts(view))
        text = trial_views.machine_text(view)
        self.live_text.setText(text)
        self._live_title.setVisible(bool(text))
        self.live_text.setVisible(bool(text))

    def _measure(self) -> None:
        self.begin_tune(self.request)

    def begin_tune(self, request: TuneRequest | None, *, more_minutes: float = 0.0) -> None:
        """Start a tune, or with None continue the last one."""
        self._answer, self._trial = "", None
        self.measure.setEnabled(False)
        self.tuned_card.setEnabled(False)
        self.export.setEnabled(False)
        self.verdict.show_verdict(card_text.starting_card([(tr("Pause"), self._pause), (tr("Give up"), self._give_up)]))
        self._area.ensureWidgetVisible(self.verdict)
        self.verdict.buttons[0].setFocus()
        self.tuning.start_tune(request, more_minutes=more_minutes, when_idle=self.when_idle.isChecked())

    def _pause(self) -> None:
        self._show_pausing()
        self.tuning.pause()

    def _give_up(self) -> None:
        self._show_pausing()
        self.tuning.give_up()

    def _show_pausing(self) -> None:
        self.verdict.show_texts(*card_text.pausing_texts())
        for button in self.verdict.buttons:
            button.setEnabled(False)

    def _plan_tune(self) -> None:
        if not self.tuning.running:
            self.tuning.plan_tune(self.request)

    def _handle_workload(self, name: str) -> None:
        is_own = OWN_WORKLOAD in self.workloads.chosen_names
        if is_own and name == OWN_WORKLOAD:
            kinds = tr("Prompts (*.toml *.txt *.md);;All files (*)")
            self._prompt_file, _ = QFileDialog.getOpenFileName(self, tr("A file of prompts"), "", kinds)
            if not self._prompt_file:
                self.workloads.leave_out(name)
        elif not is_own:
            self._prompt_file = ""
        self._show_amounts()
        self._plan_timer.start()

    def _show_amounts(self) -> None:
        """Show the number of prompts of each workload. Known once a plan was made."""
        amounts = {
            each.name: ntr("1 prompt", "{n} prompts", len(each.prompts)) for each in workloads.shipped_workloads()
        }
        self.workloads.show_amounts({**amounts, "mine": card_text.file_name(self._prompt_file) or tr("none yet")})

    def _show_plan(self, prepared: "PreparedTune") -> None:
        self._planned_trials = prepared.plan.starts
        chosen = self.budget.value
        self.budget.set_values([each for each in BUDGETS_MIN if 60 * each >= prepared.least_s] or BUDGETS_MIN[-1:])
        if self.budget.value != chosen:  # the chosen time is too short for a result
            self._plan_timer.start()
        self.budget.show_hint(card_text.plan_hint(prepared))
        self._show_amounts()

    def _show_trial(self, planned: "TrialPlanned") -> None:
        self._trial = planned
        if (view := self._running_view) is not None:
            label = trial_views.describe_settings(planned.settings, view.baseline)
            trials = max(self._planned_trials, planned.number + 1)
            kicker, sentence, detail = card_text.trial_texts(planned, label, trials)
            if self._answer:
                sentence, detail = self._answer, join_sentences(sentence, detail)
            self.verdict.show_texts(kicker, sentence, detail)

    @property
    def _running_view(self) -> "TuneView | None":
        """The tune that runs; None if it is being paused."""
        return self._view if self.verdict.buttons and self.verdict.buttons[0].isEnabled() else None

    def _show_delay(self, event: "QuietAwaited | QuietEnded | ClientsAwaited | AnswersCompared") -> None:
        """Show a wait for other programs or clients and its end, and the check of the answers after the last trial."""
        view = self._running_view
        if view is None or (isinstance(event, tuner.ClientsAwaited) and view.verdict is not None):
            return
        if isinstance(event, tuner.QuietAwaited):
            kicker, sentence, detail = card_text.waiting_texts(event)
            if self._answer:
                sentence, detail = self._answer, join_sentences(sentence, detail)
            self.verdict.show_texts(kicker, sentence, detail)
        elif isinstance(event, tuner.ClientsAwaited) and not event.is_over:
            self.verdict.show_texts(*card_text.clients_texts(view))
        elif isinstance(event, tuner.AnswersCompared):
            self.verdict.show_verdict(card_text.compared_card(view, event, [(tr("Skip"), self._pause)]))
        elif self._trial is not None:
            self._show_trial(self._trial)

    def _show_answer(self, predicted: "Predicted") -> None:
        """Show what would be recommended now, with a button that uses it at once."""
        if self._running_view is None:
            return
        answer = predicted.answer
        buttons: list[tuple[str, Callable[[], object]]] = [(tr("Pause"), self._pause), (tr("Give up"), self._give_up)]
        if answer.gain is not None:
            settings = answer.settings
            buttons.insert(0, (card_text.answer_label(settings), lambda: self._apply_answer(settings)))
        self._answer = render(predicted.sentence)
        kicker, detail = tr("Measuring"), tr("This is the first answer. The measurement goes on to confirm it.")
        if (risk := round(100 * (math.exp(answer.risk) - 1))) >= 1:
            detail = join_sentences(detail, tr("Other settings may be about {risk} % better.", risk=risk))
        self.verdict.show_verdict(VerdictText(self._answer, kicker, detail, "information", buttons))

    def _apply_answer(self, settings: "RunSettings") -> None:
        self._show_pausing()
        self.tuning.apply_answer(settings)

    def _show_paused(self, error: LauncherError | None) -> None:
        # There is a verdict: only the comparison of the answers was skipped.
        if error is None and self._view is not None and self._view.verdict is not None:
            self._show_ended()
            return
        self._enable_start()
        if self._view is None or not self._view.trials:
            self.verdict.show_verdict(None if error is None else card_text.failed_card(error))
            return
        buttons = [(tr("Continue"), lambda: self.begin_tune(None)), (tr("Give up"), self.tuning.give_up)]
        self.verdict.show_verdict(card_text.paused_card(self._view, error, buttons))

    def _show_ended(self) -> None:
        self._enable_start()
        if self._view is not None and self._view.verdict is not None:
            self._show_verdict(self._view)
            self._controller.notify(tr("Measured"), self.verdict.sentence.text())
        self.tuning.read_last()

    def _show_verdict(self, view: "TuneView", *, saved: bool = False, may_keep: bool = True) -> None:
        decided = view.verdict is not None and (view.verdict["mtp"] != "undecided" or view.verdict["gain"])
        buttons: list[tuple[str, Callable[[], object]]] = []
        if decided and may_keep and not saved:
            buttons = [(card_text.keep_label(view), self._apply_winner)]
        unconfirmed = view.verdict is not None and view.verdict.get("likely") is not None
        if may_keep and not saved and (not decided or unconfirmed):
            minutes = self.request.minutes
            label = ntr("Measure for 1 minute more", "Measure for {n} minutes more", round(minutes))
            buttons.append((label, lambda: self.begin_tune(None, more_minutes=minutes)))
        self.verdict.show_verdict(card_text.verdict_card(view, buttons, saved=saved))

    def _show_failed(self, error: LauncherError) -> None:
        self._enable_start()
        self.verdict.show_verdict(card_text.failed_card(error))

    def _enable_start(self) -> None:
        """Let the user start a tune again after one has ended or paused."""
        self.measure.setEnabled(True)
        self.tuned_card.setEnabled(True)
        self.tuned_card.refresh()
        self.history.refresh()
        self._plan_timer.start()

    def _apply_winner(self) -> None:
        for button in self.verdict.buttons:
            button.setEnabled(False)
        if self._view is not None:
            verdict = self.verdict
            verdict.show_texts(verdict.kicker.text(), verdict.sentence.text(), card_text.saving_text(self._view))
        self.tuning.apply_winner()

    def _show_applied(self, error: LauncherError | None) -> None:
        if error is not None:
            self.verdict.show_verdict(card_text.failed_card(error))
        elif self._view is not None:
            if self._view.verdict is not None:
                self._show_verdict(self._view, saved=True)
            self.tuned_card.refresh()

    def _show_last(self, saved: "SavedTune | None") -> None:
        """Show the last tune, unless its verdict is already shown."""
        self._session_id = saved.record_id if saved else ""
        self.export.setEnabled(bool(self._session_id))
        if saved is None:
            self._view = None
            self.measure.setEnabled(True)
            self.tuned_card.setEnabled(True)
            self.show_rows(())
            self.plot.show_curves(())
            self.step.show_parts(())
            self.verdict.show_verdict(None)
            return
        view = self.tuning.last_view
        if view is not None and (self._view is None or not self._view.trials):
            self.show_tune(view)
            if view.verdict is None:
                self._show_paused(None)
            else:
                self._show_verdict(view)

    def _show_session(self, session: "Session") -> None:
        """Show a tune from the history, unless one is running."""
        if self.tuning.running:
            return
        view = view_of_session(session)
        self._session_id = session.id
        self.export.setEnabled(True)
        self.show_tune(view)
        if view.verdict is not None:
            self._show_verdict(view, may_keep=False)
        else:
            reason = str(session.result.get("error") or tr("No verdict: the measurement was paused or interrupted."))
            self.verdict.show_verdict(card_text.unfinished_card(view, reason))
        self._area.ensureWidgetVisible(self.verdict)

    def _lay_out(self, head: PageHead) -> None:
        side_card = Card(tr("Optimise for"))
        side_card.body.addWidget(self.workloads)
        side_card.body.addWidget(self.goal)
        side_card.body.addSpacing(theme.px(theme.GAP))
        side_card.body.addWidget(self.budget)
        side_card.body.addWidget(self.when_idle)
        self._live_title = Label(tr("Live"))
        self._live_title.setContentsMargins(0, theme.px(theme.GAP_M), 0, 0)
        self._live_title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.live_text.setWordWrap(True)
        self.live_text.setObjectName("secondary")
        for label in (self._live_title, self.live_text):
            label.hide()
            side_card.body.addWidget(label)
        side_card.body.addStretch()
        self._side_card = side_card
        title = Label(tr("Tokens per second by draft length"))
        title.setFont(theme.font(theme.SECTION_PX, bold=True))
        title.setWordWrap(True)
        plot = Card()
        plot.body.addWidget(title)
        plot.body.addWidget(self.plot, 1)
        table = Card()
        table.add_aligned(self.table, self.table.text_inset)
        sides = table.body.contentsMargins()
        table.body.setContentsMargins(sides.left(), theme.px(theme.GAP), sides.right(), theme.px(theme.GAP))
        self.faults.setObjectName("secondary")
        self.faults.setWordWrap(True)
        self.faults.setContentsMargins(self.table.text_inset, 0, self.table.text_inset, theme.px(theme.GAP))
        table.body.addWidget(self.faults)
        self._plot_card, self._table_card = plot, table
        self._plot_row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._plot_row.setSpacing(theme.px(theme.GAP_L))
        self._plot_row.addWidget(plot, 1)
        self._plot_row.addWidget(self.step)
        right = self._right = QVBoxLayout()
        right.setSpacing(theme.px(theme.GAP_L))
        right.addWidget(self.verdict)
        right.addLayout(self._plot_row, 1)
        right.addWidget(table)
        right.addWidget(self.tuned_card)
        right.addWidget(self.history)
        right.addStretch(0)
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._columns.setContentsMargins(0, 0, 0, 0)
        self._columns.setSpacing(theme.px(theme.GAP_L))
        self._columns.addWidget(side_card)
        self._columns.addLayout(right, 1)
        self._inner = QWidget()
        self._inner.setObjectName("plain")
        self._inner.setLayout(self._columns)
        self._area = make_scroll_area(self._inner, tr("Tune"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(each) for each in (theme.GAP_XL, theme.GAP_L) * 2))
        layout.setSpacing(theme.px(theme.GAP_L))
        for widget in (head, self._area):
            layout.addWidget(widget)
        self._arrange(self.width())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Arrange the columns for the width."""
        super().resizeEvent(event)
        self._arrange(event.size().width())

    def _arrange(self, width: int) -> None:
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        cramped = width < theme.px(_CRAMPED)
        self._columns.setDirection(down if cramped else across)
        self._plot_row.setDirection(down if width < theme.px(_NARROW) else across)
        side = theme.px(_SIDE_WIDTH) if width >= theme.px(_ROOMY) else theme.px(_LEAST_SIDE_WIDTH)
        self._side_card.setMaximumWidth(theme.NO_MAXIMUM if cramped else side)
        self._side_card.setMinimumWidth(0 if cramped else side)
        self.verdict.set_button_direction(down if cramped else across)
        self.step.setMaximumWidth(theme.px(_STEP_WIDTH) if width >= theme.px(_NARROW) else theme.NO_MAXIMUM)
        self.step.setMinimumWidth(theme.px(_STEP_WIDTH) if width >= theme.px(_NARROW) else 0)


def _goal_choices() -> list[tuple[str, str, str]]:
    return [
        ("speed", tr("Tokens per second"), tr("Highest tokens/s while the reply is generated")),
        (
            "answer",
            tr("Time to complete reply"),
            tr("Shortest time to the complete reply, including prompt processing"),
        ),
        (
            "task",
            tr("Seconds per task"),
            tr("Shortest time of a coding agent's loop: 20 turns that read 72,000 tokens. The prompts are its own"),
        ),
        ("energy", tr("Tokens per joule"), tr("Most tokens per joule. The GPU must report its power")),
    ]


def _format_minutes(value: object) -> str:
    return ntr("1 minute", "{n} minutes", int(str(value)))
