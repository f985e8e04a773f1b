"""The Start page: this computer, the recommended plan and others, and one button that leads to the first token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QGridLayout, QScrollArea, QVBoxLayout, QWidget

from launcher.app.first_steps import Stage, StepProgress
from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.start import computer_text as facts
from launcher.gui.start.cards import MachineCard, PlanCard, PlansTable, StepsCard, goal_name
from launcher.gui.start.flow import StartFlow
from launcher.gui.start.queries import EngineAnswer, PlanRequest, PlanResult, ReadingPhase
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Banner, Card, ComboBox, PageHead

if TYPE_CHECKING:
    from launcher.app.start_settings import KeptPlan
    from launcher.gui.controller import Controller
    from launcher.models.plan import Plan
    from launcher.monitor.reply import Reply

_MACHINE_WIDTH, _NARROW, _CRAMPED = 296, 900, 620
_GOALS = ("balanced", "long-context", "best-quality", "as-published")


class StartPage(QWidget):
    """The page. Nothing is downloaded or started before the button is pressed."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.question = PlanRequest()
        self.found: PlanResult | None = None
        self.plan: Plan | None = None
        """The plan that the button starts; None is the demo."""
        self._chosen = self._looked = self._needs_network = self._broken = False
        self._replaces = self._stepped = self._quiet = False
        """Whether the choice replaces the running server; whether that server was started by the steps on this page."""
        self._answer: EngineAnswer | None = None
        self.flow = StartFlow(controller, self)
        self.banner = Banner()
        self.machine = MachineCard(self.check_again, self.copy_report)
        self.card = PlanCard(
            self.press_main_button, self.flow.pause, self._ask_engine, self._choose_demo, self._switch_settings
        )
        self.steps = StepsCard()
        self.table = PlansTable()
        self.family = ComboBox()
        self.goal = ComboBox()
        self._lay_out()
        self._connect()
        self._show_looking(ReadingPhase.COMPUTER)  # the first frame shows what is coming
        self._show_plan()
        self._show_buttons()

    def on_shown(self) -> None:
        """Read this computer. Its memory is read each time the page is shown."""
        if self._looked:
            self.refresh()
        else:
            self.read_and_plan()

    @Slot()
    def refresh(self) -> None:
        """Read the memory again and plan with it, keeping the selection. Skipped during a read or a first start."""
        if self._looked and not self.flow.running and not self.flow.is_reading:
            self._quiet = True
            self.flow.read_and_plan(self.question, again=True)

    def read_and_plan(self, question: PlanRequest | None = None, *, again: bool = False) -> None:
        """Read and plan, optionally for another question."""
        self.question = question or self.question
        self._looked, self._chosen, self._quiet = True, False, False
        self.flow.read_and_plan(self.question, again=again)

    def check_again(self) -> None:
        """Read the computer again."""
        self.read_and_plan(again=True)

    def copy_report(self) -> None:
        """Copy the card of this computer as text."""
        if self.found is not None:
            QGuiApplication.clipboard().setText(facts.report_of(self.found))
            self.banner.show_message(tr("Report copied."), "good")

    def press_main_button(self) -> None:
        """Carry out the main button's action."""
        if self._is_serving and not self._broken:
            self._controller.open_chat()
            return
        self.banner.clear()
        self.flow.start(self.plan, self._own_settings)

    @property
    def _own_settings(self) -> KeptPlan | None:
        return self.found.kept_for(self.plan) if self.found is not None and self.plan is not None else None

    @property
    def _has_own_settings(self) -> bool:
        """Whether the chosen plan has the user's own settings."""
        kept = self._own_settings
        return kept is not None and self.plan is not None and kept.is_kept_plan(self.plan)

    def _switch_settings(self) -> None:
        """Switch between the plan's own settings and the user's."""
        found, plan = self.found, self.plan
        kept = found.kept_for(plan) if found is not None and plan is not None else None
        if found is None or plan is None or kept is None or kept.kept_plan is None:
            return
        other = kept.planned if self._has_own_settings else kept.kept_plan
        self.found = found.with_plan_replaced(plan, other)
        row = next(at for at, each in enumerate(self.found.plans) if each is other)
        self.table.show_plans(self.found.plans, several=found.question.family is None, row=row)
        self._choose(other)

    def _choose_demo(self) -> None:
        self._chosen = self._replaces = True
        self._choose(None)
        self.table.clearSelection()

    @property
    def _is_serving(self) -> bool:
        """Whether a server runs that the choice does not replace."""
        return self._controller.launch is not None and not self._replaces

    def _lay_out(self) -> None:
        self._content = QWidget()
        self._content.setObjectName("plain")
        self._grid = QGridLayout(self._content)
        self._grid.setSpacing(theme.px(theme.GAP_L))
        self._head = PageHead(tr("Start"), tr("Models that this computer can run, and the memory they need."))
        self._others = Card(tr("Plans"))
        self.family.setAccessibleName(tr("Model"))
        self.family.setToolTip(tr("Plan for one model of the catalogue only"))
        self.family.addItem(tr("All models"), None)
        self.goal.setAccessibleName(tr("Priority"))
        self.goal.setToolTip(tr("What the plans optimise for"))
        for goal in _GOALS:
            self.goal.addItem(goal_name(goal).capitalize(), goal)
        self.family.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.family.setMinimumContentsLength(10)
        self._others.head.addWidget(self.family)
        self._others.head.addWidget(self.goal)
        self._others.body.setSpacing(theme.px(theme.GAP))
        self._others.add_aligned(self.table, self.table.text_inset)
        self._lacking = Label()
        self._lacking.setObjectName("secondary")
        self._lacking.setWordWrap(True)
        self._lacking.hide()
        self._others.body.addWidget(self._lacking)
        self._others.body.addStretch()
        self._right = QWidget()
        self._right.setObjectName("plain")
        right = QVBoxLayout(self._right)
        right.setContentsMargins(0, 0, 0, 0)
        right.setSpacing(theme.px(theme.GAP_L))
        right.addWidget(self.card)
        right.addWidget(self.steps)
        right.addWidget(self._others, 1)
        area = QScrollArea()
        area.setWidget(self._content)
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(area)
        self._grid.addWidget(self._head, 0, 0, 1, 2)
        self._grid.addWidget(self.banner, 1, 0, 1, 2)
        self._narrow: bool | None = None
        self._arrange()

    def _arrange(self) -> None:
        """Put the computer's card at the left, or below where there is no room for two columns."""
        cramped = self.width() < theme.px(_CRAMPED)
        side = QBoxLayout.Direction.TopToBottom if cramped else QBoxLayout.Direction.LeftToRight
        self.card.set_direction(side)
        self._others.head.setDirection(side)
        self._grid.setContentsMargins(*(theme.px(theme.GAP if cramped else theme.GAP_XL),) * 4)
        narrow = self.width() < theme.px(_NARROW)
        if narrow == self._narrow:
            return
        self._narrow = narrow
        self._grid.addWidget(self._right, 2, 0 if narrow else 1, 1, 2 if narrow else 1)
        self._grid.addWidget(self.machine, 3 if narrow else 2, 0, 1, 2 if narrow else 1)
        self._grid.setColumnMinimumWidth(0, 0 if narrow else theme.px(_MACHINE_WIDTH))
        self._grid.setColumnStretch(0, 1 if narrow else 0)
        self._grid.setColumnStretch(1, 1)
        self._grid.setRowStretch(2, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Choose the layout for the width."""
        super().resizeEvent(event)
        self._arrange()

    def _connect(self) -> None:
        flow = self.flow
        flow.looked_at.connect(self._show_looking)
        flow.found.connect(self._show_found)
        flow.surveyed.connect(self._show_survey)
        flow.needs_network.connect(self._record_network_need)
        flow.stepped.connect(self.steps.show_step)
        flow.started.connect(self._show_buttons)
        flow.paused.connect(self._show_buttons)
        flow.ended.connect(self._show_end)
        flow.failed.connect(self._show_failure)
        flow.answered.connect(self._show_answer)
        self.table.chosen.connect(self._choose_row)
        self.family.activated.connect(self._choose_family)
        self.goal.activated.connect(self._choose_goal)
        self._controller.launched.connect(self._handle_launch)

    @Slot(object)
    def _show_looking(self, what: ReadingPhase) -> None:
        words = {
            ReadingPhase.COMPUTER: tr("Checking GPUs, drivers, memory and disk ..."),
            ReadingPhase.PLANS: tr("Checking which models fit ..."),
        }[what]
        if what is ReadingPhase.COMPUTER and not self._quiet:
            self.machine.show_reading(words)
        if self.found is None and not self._is_serving:
            self.card.show_reading(words)

    @Slot(object)
    def _show_found(self, found: PlanResult) -> None:
        quiet, self._quiet = self._quiet, False
        if quiet and self.flow.running:
            return  # a start in progress keeps its plan
        chosen, uses_kept = self.plan, self._has_own_settings
        self.found = found
        self.machine.show_facts(facts.facts_of(found), found.situation.read_at if found.situation else None)
        if self.family.count() == 1:
            for model_id, name in found.families:
                self.family.addItem(name.removesuffix(" with MTP head"), model_id)
        self.family.setCurrentIndex(max(self.family.findData(found.question.family), 0))
        self.goal.setCurrentIndex(self.goal.findData(found.question.intent))
        self.table.show_plans(found.plans, several=found.question.family is None)
        lacking = "\n".join(
            tr(
                "{file}: {why}. {remedy}",
                file=each.quant or each.model,
                why=render(each.reason),
                remedy=render(each.remedy),
            )
            for each in found.lacking[:3]
        )
        self._lacking.setText(lacking)
        self._lacking.setVisible(bool(lacking))
        if quiet and self._chosen:
            self._keep_chosen(chosen, uses_kept=uses_kept)
            return
        no_gpu = found.situation is None or (found.situation.no_gpu and found.question.family is None)
        plan = next((each for each in found.plans if each.status.value != "TOO BIG"), None)
        if plan is None or ((no_gpu or found.offline) and not self._chosen):
            self.table.clearSelection()
            self._choose(None, quiet=quiet)
        else:
            self.table.show_plans(found.plans, several=found.question.family is None, row=found.plans.index(plan))
            self._choose(plan, quiet=quiet)

    def _keep_chosen(self, before: Plan | None, *, uses_kept: bool) -> None:
        """Select the earlier choice again among the new plans."""
        found = self.found
        assert found is not None  # noqa: S101 -- it was just taken
        alike = [each for each in found.plans if before is not None and _is_same_file(each, before)]
        same = next((each for each in alike if before is not None and each.setting == before.setting), None)
        same = same or next(iter(alike), None)
        if same is None:
            self.table.clearSelection()
            self._choose(None, quiet=True)
            return
        kept = found.kept_for(same)
        if kept is not None and kept.kept_plan is not None and kept.is_kept_plan(same) != uses_kept:
            other = kept.kept_plan if uses_kept else kept.planned
            found, same = found.with_plan_replaced(same, other), other
            self.found = found
        row = next(at for at, each in enumerate(found.plans) if each is same)
        self.table.show_plans(found.plans, several=found.question.family is None, row=row)
        self._choose(same, quiet=True)

    @Slot(int)
    def _choose_row(self, row: int) -> None:
        if self.found is not None:
            self._chosen = self._replaces = True
            self._choose(self.found.plans[row])

    def _choose(self, plan: Plan | None, *, quiet: bool = False) -> None:
        """Select a plan, or the demo (None). `quiet` keeps the texts beside it."""
        if self.flow.running:
            return
        before, self.plan = self.plan, plan
        if quiet and (plan is before or (plan and before and _is_same_file(plan, before))):
            self._show_plan()
            return
        self._broken, self._needs_network = False, False
        if not quiet:
            self.banner.clear()
        if self._controller.launch is not None and self._replaces:
            words = tr("{model} is loaded. A model that you start here replaces it.", model=self._served_model)
            self.banner.show_message(words, "information", [(tr("Open the chat"), self._controller.open_chat)])
        self._show_plan()
        self.flow.survey(plan)
        self._show_buttons()

    @property
    def _served_model(self) -> str:
        return one_line(self._controller.inputs.model or "")

    def _show_plan(self) -> None:
        found, plan, inputs = self.found, self.plan, self._controller.inputs
        if self._is_serving:
            self.card.show_served(self._served_model, inputs.settings, inputs.address)
            return
        if found is None:
            return
        if plan is None:
            self.card.show_demo(self._why_demo(found))
            return
        recommended = bool(found.plans) and plan is found.plans[0]
        self.card.show_asking(tr("Ask the engine"))
        self.card.show_plan(found, plan, self._answer, recommended=recommended)

    def _why_demo(self, found: PlanResult) -> str:
        if self._chosen:
            return tr("Chosen by you")
        if found.problem is not None:
            return str(found.problem)
        if found.offline:
            return tr("There is no network (HF_HUB_OFFLINE is set)")
        if found.situation is not None and found.situation.no_gpu:
            return tr("No usable GPU found")
        return tr("No model of the catalogue fits into the free memory")

    @Slot(int)
    def _choose_family(self, _index: int) -> None:
        self._replaces = True
        self.read_and_plan(replace(self.question, family=self.family.currentData()))

    @Slot(int)
    def _choose_goal(self, _index: int) -> None:
        self._replaces = True
        self.read_and_plan(replace(self.question, intent=self.goal.currentData()))

    @Slot(object)
    def _show_survey(self, steps: tuple[StepProgress, ...]) -> None:
        if not self.flow.running:
            self.steps.show_steps(steps)
            self._show_buttons()

    @Slot(bool)
    def _record_network_need(self, needs_network: bool) -> None:
        self._needs_network = needs_network

    @Slot()
    def _show_buttons(self) -> None:
        running = self.flow.running
        paused = any(told.stage is Stage.PAUSED for told in self.steps.progress.values())
        if self._broken:
            words, tip = tr("Retry"), tr("Continue from the failed step")
        elif self._is_serving:
            words, tip = tr("Open the chat"), tr("The model is running. Open the chat in the cockpit")
        elif paused and not running:
            words, tip = tr("Resume"), tr("Continue where it stopped")
        elif self.found is None:
            words, tip = tr("Start"), tr("Finding the engine and model files ...")
        elif self.plan is None:
            words, tip = tr("Start the demo"), tr("Load the built-in demo model")
        elif self._needs_network:
            words, tip = (
                tr("Download and start"),
                tr("Download missing files, verify them and load the model (llama-server --model)"),
            )
        else:
            words, tip = tr("Start"), tr("Load the model; all files are on this computer (llama-server --model)")
        self.card.primary.setText(words)
        self.card.primary.setToolTip(tip)
        self.card.primary.setAccessibleName(words)
        self.card.primary.setVisible(not running)
        self.card.primary.setEnabled(self.found is not None or self._is_serving)
        self.card.pause.setVisible(running)
        self.card.demo.setVisible(not running and not self._is_serving and self.plan is not None)
        self.steps.setVisible(running or self._stepped or not self._is_serving)
        for widget in (self.table, self.family, self.goal, self.machine.check_button):
            widget.setEnabled(not running)

    @Slot(object)
    def _show_end(self, reply: Reply) -> None:
        self._broken, self._stepped = False, True
        first = tr("First token after {seconds:.2f} s.", seconds=reply.first_token_s or 0.0)
        self.banner.show_message(tr("Running. {first}", first=first), "good")
        self._show_plan()
        self._show_buttons()
        self.card.primary.setFocus()
        self._refresh_shown()

    @Slot(object)
    def _handle_launch(self, launch: object) -> None:
        """Show the running server or, when it has stopped, offer to start the choice."""
        self._replaces = False
        if not self.flow.running:
            self._stepped = False
            if launch is None:
                self._choose(self.plan)
            else:
                self.banner.clear()
                self._show_plan()
                self._show_buttons()
            self._refresh_shown()

    def _refresh_shown(self) -> None:
        """Read the memory again if the page is visible; otherwise `on_shown` does."""
        if self.isVisible():
            self.refresh()

    @Slot(object)
    def _show_failure(self, error: LauncherError) -> None:
        failed = any(told.stage is Stage.FAILED for told in self.steps.progress.values())
        self._broken = failed
        buttons = [] if failed else [(tr("Retry"), self.check_again)]  # a failed step is retried by the main button
        self.banner.show_message(str(error), "bad", buttons)
        self._show_buttons()

    def _ask_engine(self) -> None:
        if self.plan is not None:
            self.card.show_asking(tr("Asking the engine: reading the header of {file}", file=self.plan.file.file))
            self.flow.ask_engine(self.plan)

    @Slot(object)
    def _show_answer(self, answer: EngineAnswer | LauncherError) -> None:
        if isinstance(answer, LauncherError):
            self.card.show_asking(tr("Ask the engine"))
            self.banner.show_message(
                tr("The engine could not compute the memory. {why}", why=render(answer.message)), "attention"
            )
            return
        self._answer = answer
        self._show_plan()


def _is_same_file(plan: Plan, other: Plan) -> bool:
    """Return whether two plans are for the same file, whatever their settings."""
    return (plan.entry.id, plan.file.quant) == (other.entry.id, other.file.quant)
