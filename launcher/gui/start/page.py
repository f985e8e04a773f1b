"""The Start page: this computer, the recommended plan and others, and one button from here to the first token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QGridLayout, QScrollArea, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.first_steps import Stage, StepTold
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.sentences import say, say_error
from launcher.gui.start import facts
from launcher.gui.start.flow import Flow
from launcher.gui.start.looking import Answer, Found, Looking, Question
from launcher.gui.start.machine_card import MachineCard
from launcher.gui.start.plan_card import PlanCard, goal_name
from launcher.gui.start.plans_table import PlansTable
from launcher.gui.start.steps_card import StepsCard
from launcher.gui.widgets import Banner, Card, ComboBox, PageHead
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.gui.controller import Controller
    from launcher.models.plan import Plan

_MACHINE_WIDTH, _NARROW, _CRAMPED = 296, 900, 620
_GOALS = ("balanced", "long-context", "best-quality", "as-published")


class StartPage(QWidget):
    """From nothing to the first token. Nothing is downloaded or started before the button is pressed."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.question = Question()
        self.found: Found | None = None
        self.plan: Plan | None = None
        """What the button starts; None is the demo."""
        self._chosen = self._looked = self._needs_network = self._broken = False
        self._replaces = self._stepped = False
        """Whether what is chosen is to take the place of what runs; whether what runs went through the steps here."""
        self._answer: Answer | None = None
        self.flow = Flow(controller, self)
        self.banner = Banner()
        self.machine = MachineCard(self.check_again, self.copy_report)
        self.card = PlanCard(self.go, self.flow.pause, self._ask, self._take_demo, self._take_other)
        self.steps = StepsCard()
        self.table = PlansTable()
        self.family = ComboBox()
        self.goal = ComboBox()
        self._lay_out()
        self._connect()
        self._show_looking(Looking.COMPUTER)  # the first frame says what comes
        self._show_plan()
        self._show_buttons()

    def shown(self) -> None:
        """Look at this computer when the page is first seen."""
        if not self._looked:
            self.look()

    def look(self, question: Question | None = None, *, again: bool = False) -> None:
        """Look, and plan; `question` is another one than before."""
        self.question = question or self.question
        self._looked, self._chosen = True, False
        self.flow.look(self.question, again=again)

    def check_again(self) -> None:
        """Read the computer anew."""
        self.look(again=True)

    def copy_report(self) -> None:
        """Copy what the card of this computer says."""
        if self.found is not None:
            QGuiApplication.clipboard().setText(facts.report_of(self.found))
            self.banner.tell(tr("The report is copied."), "good")

    def go(self) -> None:
        """Do what the one button says."""
        if self._serves and not self._broken:
            self._controller.open_chat()
            return
        self.banner.clear()
        self.flow.start(self.plan, kept=self._with_kept)

    @property
    def _with_kept(self) -> bool:
        """Whether what is chosen is a plan with the user's own settings."""
        kept = self.found.kept_for(self.plan) if self.found is not None and self.plan is not None else None
        return kept is not None and self.plan is not None and kept.with_kept(self.plan)

    def _take_other(self) -> None:
        """Take the plan's own settings in place of the user's, or the user's again."""
        found, plan = self.found, self.plan
        kept = found.kept_for(plan) if found is not None and plan is not None else None
        if found is None or plan is None or kept is None or kept.mine is None:
            return
        other = kept.planned if self._with_kept else kept.mine
        self.found = found.with_other(plan, other)
        row = next(at for at, each in enumerate(self.found.plans) if each is other)
        self.table.show_plans(self.found.plans, several=found.question.family is None, row=row)
        self._choose(other)

    def _take_demo(self) -> None:
        self._chosen = self._replaces = True
        self._choose(None)
        self.table.clearSelection()

    @property
    def _serves(self) -> bool:
        """Whether something runs, whose place nothing else is to take."""
        return self._controller.launch is not None and not self._replaces

    def _lay_out(self) -> None:
        self._content = QWidget()
        self._content.setObjectName("plain")
        self._grid = QGridLayout(self._content)
        self._grid.setSpacing(theme.px(theme.GAP_L))
        self._head = PageHead(tr("Start"), tr("What this computer can run, and what it will take."))
        self._others = Card(tr("Plans"))
        self.family.setAccessibleName(tr("Model"))
        self.family.setToolTip(tr("Plan for one model of the catalogue only"))
        self.family.addItem(tr("All models"), None)
        self.goal.setAccessibleName(tr("What matters most"))
        self.goal.setToolTip(tr("What the plans give most weight to"))
        for goal in _GOALS:
            self.goal.addItem(goal_name(goal).capitalize(), goal)
        self.family.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.family.setMinimumContentsLength(10)
        self._others.head.addWidget(self.family)
        self._others.head.addWidget(self.goal)
        self._others.body.setSpacing(theme.px(theme.GAP))
        self._others.hang(self.table, self.table.inset)
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
        """Put the computer at the left, or below where there is no room for two columns."""
        cramped = self.width() < theme.px(_CRAMPED)
        side = QBoxLayout.Direction.TopToBottom if cramped else QBoxLayout.Direction.LeftToRight
        self.card.arrange(side)
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
        """Take the layout that there is room for."""
        super().resizeEvent(event)
        self._arrange()

    def _connect(self) -> None:
        flow = self.flow
        flow.looked_at.connect(self._show_looking)
        flow.found.connect(self._show_found)
        flow.surveyed.connect(self._show_survey)
        flow.needs_network.connect(self._take_needs)
        flow.stepped.connect(self.steps.show_step)
        flow.started.connect(self._show_buttons)
        flow.paused.connect(self._show_buttons)
        flow.ended.connect(self._show_end)
        flow.failed.connect(self._show_failure)
        flow.answered.connect(self._show_answer)
        self.table.chosen.connect(self._choose_row)
        self.family.activated.connect(self._choose_family)
        self.goal.activated.connect(self._choose_goal)
        self._controller.launched.connect(self._take_launch)

    @Slot(object)
    def _show_looking(self, what: Looking) -> None:
        words = {
            Looking.COMPUTER: tr("Reading the GPUs and their drivers, memory and disk."),
            Looking.PLANS: tr("Working out which models fit, and how."),
        }[what]
        if what is Looking.COMPUTER:
            self.machine.show_looking(words)
        if self.found is None and not self._serves:
            self.card.show_looking(words)

    @Slot(object)
    def _show_found(self, found: Found) -> None:
        self.found = found
        self.machine.show_facts(facts.facts_of(found))
        if self.family.count() == 1:
            for model_id, name in found.families:
                self.family.addItem(name.removesuffix(" with MTP head"), model_id)
        self.family.setCurrentIndex(max(self.family.findData(found.question.family), 0))
        self.goal.setCurrentIndex(self.goal.findData(found.question.intent))
        self.table.show_plans(found.plans, several=found.question.family is None)
        lacking = "\n".join(
            tr("{file}: {why}. {remedy}", file=each.quant or each.model, why=say(each.reason), remedy=say(each.remedy))
            for each in found.lacking[:3]
        )
        self._lacking.setText(lacking)
        self._lacking.setVisible(bool(lacking))
        no_gpu = found.situation is None or (found.situation.no_gpu and found.question.family is None)
        plan = next((each for each in found.plans if each.status.value != "TOO BIG"), None)
        if plan is None or ((no_gpu or found.offline) and not self._chosen):
            self.table.clearSelection()
            self._choose(None)
        else:
            self.table.show_plans(found.plans, several=found.question.family is None, row=found.plans.index(plan))
            self._choose(plan)

    @Slot(int)
    def _choose_row(self, row: int) -> None:
        if self.found is not None:
            self._chosen = self._replaces = True
            self._choose(self.found.plans[row])

    def _choose(self, plan: Plan | None) -> None:
        """Take a plan, or the demo, for what the button starts."""
        if self.flow.running:
            return
        self.plan, self._broken, self._needs_network = plan, False, False
        self.banner.clear()
        if self._controller.launch is not None and self._replaces:
            words = tr("{model} is being served. What you start here takes its place.", model=self._served)
            self.banner.tell(words, "information", [(tr("Open the chat"), self._controller.open_chat)])
        self._show_plan()
        self.flow.survey(plan)
        self._show_buttons()

    @property
    def _served(self) -> str:
        return one_line(self._controller.inputs.model or "")

    def _show_plan(self) -> None:
        found, plan, inputs = self.found, self.plan, self._controller.inputs
        if self._serves:
            self.card.show_served(self._served, inputs.settings, inputs.address)
            return
        if found is None:
            return
        if plan is None:
            self.card.show_demo(self._why_demo(found))
            return
        recommended = bool(found.plans) and plan is found.plans[0]
        self.card.show_asking(tr("Ask the engine"))
        self.card.show_plan(found, plan, self._answer, recommended=recommended)

    def _why_demo(self, found: Found) -> str:
        if self._chosen:
            return tr("Chosen by you")
        if found.problem is not None:
            return str(found.problem)
        if found.offline:
            return tr("There is no network (HF_HUB_OFFLINE is set)")
        if found.situation is not None and found.situation.no_gpu:
            return tr("There is no GPU that can be used")
        return tr("No model of the catalogue fits this computer as it is now")

    @Slot(int)
    def _choose_family(self, _index: int) -> None:
        self._replaces = True
        self.look(replace(self.question, family=self.family.currentData()))

    @Slot(int)
    def _choose_goal(self, _index: int) -> None:
        self._replaces = True
        self.look(replace(self.question, intent=self.goal.currentData()))

    @Slot(object)
    def _show_survey(self, steps: tuple[StepTold, ...]) -> None:
        if not self.flow.running:
            self.steps.show_steps(steps)
            self._show_buttons()

    @Slot(bool)
    def _take_needs(self, needs_network: bool) -> None:
        self._needs_network = needs_network

    @Slot()
    def _show_buttons(self) -> None:
        running = self.flow.running
        paused = any(told.stage is Stage.PAUSED for told in self.steps.told.values())
        if self._broken:
            words, tip = tr("Retry"), tr("Go on from the step that failed")
        elif self._serves:
            words, tip = tr("Open the chat"), tr("It serves: go to the cockpit and ask it something")
        elif paused and not running:
            words, tip = tr("Resume"), tr("Go on from where it was")
        elif self.found is None:
            words, tip = tr("Start"), tr("What it starts is being looked for")
        elif self.plan is None:
            words, tip = tr("Start the demo"), tr("Serve the built-in demo model")
        elif self._needs_network:
            words, tip = (
                tr("Download and start"),
                tr("Get what is missing, verify and serve it (llama-server --model)"),
            )
        else:
            words, tip = tr("Start"), tr("Serve it: all of it is here (llama-server --model)")
        self.card.primary.setText(words)
        self.card.primary.setToolTip(tip)
        self.card.primary.setAccessibleName(words)
        self.card.primary.setVisible(not running)
        self.card.primary.setEnabled(self.found is not None or self._serves)
        self.card.pause.setVisible(running)
        self.card.demo.setVisible(not running and not self._serves and self.plan is not None)
        self.steps.setVisible(running or self._stepped or not self._serves)
        for widget in (self.table, self.family, self.goal, self.machine.check_button):
            widget.setEnabled(not running)

    @Slot(object)
    def _show_end(self, reply: Reply) -> None:
        self._broken, self._stepped = False, True
        first = tr("The first token came after {seconds:.2f} s.", seconds=reply.first_token_s or 0.0)
        self.banner.tell(tr("It serves. {first}", first=first), "good")
        self._show_plan()
        self._show_buttons()
        self.card.primary.setFocus()

    @Slot(object)
    def _take_launch(self, launch: object) -> None:
        """Show what runs; once it runs no more, offer to start what is chosen."""
        self._replaces = False
        if not self.flow.running:
            self._stepped = False
            if launch is None:
                self._choose(self.plan)
            else:
                self.banner.clear()
                self._show_plan()
                self._show_buttons()

    @Slot(object)
    def _show_failure(self, error: LauncherError) -> None:
        failed = any(told.stage is Stage.FAILED for told in self.steps.told.values())
        self._broken = failed
        buttons = [] if failed else [(tr("Retry"), self.check_again)]  # the one button retries a step
        self.banner.tell(str(error), "bad", buttons)
        self._show_buttons()

    def _ask(self) -> None:
        if self.plan is not None:
            self.card.show_asking(tr("Asking the engine: reading the header of {file}", file=self.plan.file.file))
            self.flow.ask(self.plan)

    @Slot(object)
    def _show_answer(self, answer: Answer | LauncherError) -> None:
        if isinstance(answer, LauncherError):
            self.card.show_asking(tr("Ask the engine"))
            self.banner.tell(tr("The engine could not be asked. {why}", why=say_error(answer)), "attention")
            return
        self._answer = answer
        self._show_plan()
