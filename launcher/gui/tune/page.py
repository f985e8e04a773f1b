"""The Tune page: workload, time budget, and results."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QFileDialog, QScrollArea, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.translation import ntr, tr
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
)
from launcher.gui.tune.draft_plot import DraftPlot
from launcher.gui.tune.tune_control import TuneControl
from launcher.gui.tune.view_data import TrialRow, TuneRequest
from launcher.gui.widgets import Card, ComboBox, PageHead, SliderField

if TYPE_CHECKING:
    from launcher.app.tuner_kept import SavedTune
    from launcher.app.tuner_space import PreparedTune
    from launcher.gui.tune.trial_views import TuneView
    from launcher.tuning.history_records import Session
    from launcher.tuning.tuner import TrialPlanned

_PLAN_MS = 300
"""Milliseconds without a change after which the tune is planned."""
_LETTERS = 10
_ASIDE, _STEP, _NARROW, _CRAMPED = 300, 220, 860, 620


class TunePage(QWidget):
    """The page. It plans a tune for the current choices, runs it and shows its progress; otherwise the last one."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.tuning = TuneControl(controller, self)
        self.workloads = WorkloadList()
        self.goal = ComboBox()
        self.goal.setAccessibleName(tr("Goal"))
        self.goal.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.goal.setMinimumContentsLength(_LETTERS)
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
        self.during = Label()
        self.verdict = VerdictCard()
        self.plot = DraftPlot()
        self.step = StepCard()
        self.table = TrialTable()
        self.here = TunedSettingsCard(controller)
        self.history = HistoryCard(controller)
        self._file = ""
        self._shown: TuneView | None = None
        self._session = ""
        self._planned = 0
        head = PageHead(tr("Tune"), tr("Measures which settings are fastest on this computer."))
        self.export = head.add_button(tr("Export"), lambda: self.history.export(self._session))
        set_tooltip(self.export, tr("Save this measurement to a file: Markdown, CSV or JSON"))
        self.export.setEnabled(False)
        self.measure = head.add_button(tr("Measure"), self._measure, primary=True)
        set_tooltip(self.measure, tr("Run the prompts with each setting in turn, and compare the speeds"))
        self._lay_out(head)
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.setInterval(_PLAN_MS)
        self._later.timeout.connect(self._plan_tune)
        self.workloads.chosen.connect(self._workload_chosen)
        self.goal.currentIndexChanged.connect(lambda _: self._later.start())
        self.budget.value_changed.connect(lambda _: self._later.start())
        self.tuning.planned.connect(self._show_plan)
        self.tuning.changed.connect(self.show_tune)
        self.tuning.step.connect(self._show_step)
        self.tuning.paused.connect(self._show_paused)
        self.tuning.ended.connect(self._show_ended)
        self.tuning.failed.connect(self._show_failed)
        self.tuning.applied.connect(self._show_applied)
        self.tuning.found.connect(self._show_found)
        self.here.again.connect(self._measure)
        self.history.chosen.connect(self._show_session)
        self.history.listed.connect(lambda some: self.verdict.set_has_history(before=some))

    def on_shown(self) -> None:
        """Read the last tune and the history, and plan a tune for the current choices."""
        if not self.tuning.running:
            if self._shown is None:
                self.tuning.read_last()
            self._later.start()
            self.here.refresh()
        self.history.refresh()

    @property
    def request(self) -> TuneRequest:
        """The current choices."""
        return TuneRequest(
            self.workloads.value, self._file, str(self.goal.currentData()), float(str(self.budget.value))
        )

    def show_rows(self, rows: Sequence[TrialRow]) -> None:
        """Show the settings tried so far."""
        self.table.show_rows(rows)
        self.to_come.setVisible(not rows)

    def show_tune(self, told: "TuneView") -> None:
        """Show a tune's results so far."""
        from launcher.gui.tune import trial_views as shown

        self._shown = told
        self.show_rows(shown.trial_rows(told))
        self.plot.show_curves(shown.rate_curves(told))
        self.step.show_parts(*shown.step_parts(told))
        said = shown.machine_text(told)
        self.during.setText(said)
        self._during_title.setVisible(bool(said))
        self.during.setVisible(bool(said))

    def _measure(self) -> None:
        self.begin_tune(self.request)

    def begin_tune(self, wanted: TuneRequest | None, *, more_minutes: float = 0.0) -> None:
        """Start a tune, or with None continue the last one."""
        self.measure.setEnabled(False)
        self.here.setEnabled(False)
        self.export.setEnabled(False)
        self.verdict.show_verdict(card_text.starting_card([(tr("Pause"), self._pause), (tr("Give up"), self._give_up)]))
        self._area.ensureWidgetVisible(self.verdict)
        self.verdict.buttons[0].setFocus()
        self.tuning.start_tune(wanted, more_minutes=more_minutes)

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
            self.tuning.plan(self.request)

    def _workload_chosen(self, name: str) -> None:
        if name == "mine":
            kinds = tr("Prompts (*.toml *.txt *.md);;All files (*)")
            self._file, _ = QFileDialog.getOpenFileName(self, tr("A file of prompts"), "", kinds)
            if not self._file:
                self.workloads.choose("code")
        else:
            self._file = ""
        self._show_amounts()
        self._later.start()

    def _show_amounts(self) -> None:
        """Show the number of prompts of each workload. Known once a plan was made."""
        from launcher.tuning.workloads import shipped_workloads

        amounts = {each.name: ntr("1 prompt", "{n} prompts", len(each.prompts)) for each in shipped_workloads()}
        mine = self._file.replace("\\", "/").rsplit("/", 1)[-1]
        self.workloads.show_amounts({**amounts, "mine": mine or tr("none yet")})

    def _show_plan(self, prepared: "PreparedTune") -> None:
        self._planned = prepared.plan.starts
        self.budget.show_hint(card_text.plan_hint(prepared))
        self._show_amounts()

    def _show_step(self, step: "TrialPlanned") -> None:
        from launcher.gui.tune.trial_views import settings_text

        if self._shown is not None and self.verdict.buttons and self.verdict.buttons[0].isEnabled():
            words = settings_text(step.settings, self._shown.home)
            self.verdict.show_texts(*card_text.trial_texts(step, words, max(self._planned, step.number + 1)))

    def _show_paused(self, why: LauncherError | None) -> None:
        self._show_idle()
        if self._shown is None or not self._shown.trials:
            self.verdict.show_verdict(None if why is None else card_text.failed_card(why))
            return
        buttons = [(tr("Continue"), lambda: self.begin_tune(None)), (tr("Give up"), self.tuning.give_up)]
        self.verdict.show_verdict(card_text.paused_card(self._shown, why, buttons))

    def _show_ended(self) -> None:
        self._show_idle()
        if self._shown is not None and self._shown.verdict is not None:
            self._show_verdict(self._shown)
            self._controller.notify(tr("Measured"), self.verdict.sentence.text())
        self.tuning.read_last()

    def _show_verdict(self, told: "TuneView", *, kept: bool = False, may_keep: bool = True) -> None:
        decided = told.verdict is not None and (told.verdict["mtp"] != "undecided" or told.verdict["gain"])
        buttons: list[tuple[str, Callable[[], object]]] = []
        if decided and may_keep and not kept:
            buttons = [(card_text.keep_label(told), self._apply_winner)]
        elif not decided and may_keep:
            minutes = self.request.minutes
            words = ntr("Measure for 1 minute more", "Measure for {n} minutes more", round(minutes))
            buttons = [(words, lambda: self.begin_tune(None, more_minutes=minutes))]
        self.verdict.show_verdict(card_text.verdict_card(told, buttons, kept=kept))

    def _show_failed(self, error: LauncherError) -> None:
        self._show_idle()
        self.verdict.show_verdict(card_text.failed_card(error))

    def _show_idle(self) -> None:
        self.measure.setEnabled(True)
        self.here.setEnabled(True)
        self.here.refresh()
        self.history.refresh()
        self._later.start()

    def _apply_winner(self) -> None:
        for button in self.verdict.buttons:
            button.setEnabled(False)
        self.tuning.apply()

    def _show_applied(self, error: LauncherError | None) -> None:
        if error is not None:
            self.verdict.show_verdict(card_text.failed_card(error))
        elif self._shown is not None:
            self._show_verdict(self._shown, kept=True)
            self.here.refresh()

    def _show_found(self, kept: "SavedTune | None") -> None:
        """Show the last tune, unless its verdict is already shown."""
        self._session = kept.session if kept else ""
        self.export.setEnabled(bool(self._session))
        if kept is None:
            self._shown = None
            self.measure.setEnabled(True)
            self.here.setEnabled(True)
            self.show_rows(())
            self.plot.show_curves(())
            self.step.show_parts(())
            self.verdict.show_verdict(None)
            return
        told = self.tuning.last
        if told is not None and (self._shown is None or not self._shown.trials):
            self.show_tune(told)
            if told.verdict is None:
                self._show_paused(None)
            else:
                self._show_verdict(told)

    def _show_session(self, session: "Session") -> None:
        """Show a tune from the history, unless one is running."""
        if self.tuning.running:
            return
        from launcher.gui.tune.tune_control import view_of_session

        told = view_of_session(session)
        self._session = session.id
        self.export.setEnabled(True)
        self.show_tune(told)
        if told.verdict is not None:
            self._show_verdict(told, may_keep=False)
        else:
            why = str(session.result.get("error") or tr("No verdict: the measurement was paused or interrupted."))
            self.verdict.show_verdict(card_text.unfinished_card(told, why))
        self._area.ensureWidgetVisible(self.verdict)

    def _lay_out(self, head: PageHead) -> None:
        aside = Card(tr("Optimise for"))
        aside.body.addWidget(self.workloads)
        aside.body.addWidget(self.goal)
        aside.body.addSpacing(theme.px(theme.GAP))
        aside.body.addWidget(self.budget)
        self._during_title = Label(tr("Live"))
        self._during_title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.during.setWordWrap(True)
        self.during.setObjectName("secondary")
        for label in (self._during_title, self.during):
            label.hide()
            aside.body.addWidget(label)
        aside.body.addStretch()
        self._aside = aside
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
        self.to_come = Label(tr("Each tested setting gets a row here."))
        self.to_come.setObjectName("secondary")
        self.to_come.setWordWrap(True)
        self.to_come.setContentsMargins(self.table.text_inset, 0, self.table.text_inset, theme.px(theme.GAP))
        table.body.addWidget(self.to_come)
        table.body.addStretch()
        self._middle = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._middle.setSpacing(theme.px(theme.GAP_L))
        self._middle.addWidget(plot, 1)
        self._middle.addWidget(self.step)
        right = QVBoxLayout()
        right.setSpacing(theme.px(theme.GAP_L))
        right.addWidget(self.verdict)
        right.addLayout(self._middle, 1)
        right.addWidget(table)
        right.addWidget(self.here)
        right.addWidget(self.history)
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._columns.setContentsMargins(0, 0, 0, 0)
        self._columns.setSpacing(theme.px(theme.GAP_L))
        self._columns.addWidget(aside)
        self._columns.addLayout(right, 1)
        self._inner = QWidget()
        self._inner.setObjectName("plain")
        self._inner.setLayout(self._columns)
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setWidget(self._inner)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.setAccessibleName(tr("Tune"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(theme.GAP_XL),) * 4)
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
        self._middle.setDirection(down if width < theme.px(_NARROW) else across)
        self._aside.setMaximumWidth(theme.NO_MAXIMUM if cramped else theme.px(_ASIDE))
        self._aside.setMinimumWidth(0 if cramped else theme.px(min(_ASIDE, max(220, width // 4))))
        self.verdict.set_button_direction(down if cramped else across)
        self.step.setMaximumWidth(theme.px(_STEP) if width >= theme.px(_NARROW) else theme.NO_MAXIMUM)
        self.step.setMinimumWidth(theme.px(_STEP) if width >= theme.px(_NARROW) else 0)


def _goal_choices() -> list[tuple[str, str, str]]:
    return [
        ("speed", tr("Tokens per second"), tr("Highest tokens/s while the reply is generated")),
        (
            "answer",
            tr("Time to complete reply"),
            tr("Shortest time to the complete reply, including prompt processing"),
        ),
        ("energy", tr("Tokens per joule"), tr("Most tokens per joule. The GPU must report its power")),
    ]


def _format_minutes(value: object) -> str:
    return ntr("1 minute", "{n} minutes", int(str(value)))
