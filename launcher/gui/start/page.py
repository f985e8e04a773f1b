"""The Start page: this computer, the recommended plan and others, and one button that leads to the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer, Slot
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QComboBox,
    QFileDialog,
    QGridLayout,
    QLineEdit,
    QVBoxLayout,
    QWidget,
)

from launcher.app.first.first_steps import StepProgress, StepStage
from launcher.app.settings_declared import READ_HEADERS, VALUE_OFF, VALUE_ON
from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.start.agent_card import AgentCard
from launcher.gui.start.cards import MachineCard, PlanCard, PlansTable, StepsCard, goal_name
from launcher.gui.start.computer_text import format_report, list_facts
from launcher.gui.start.flow import StartFlow
from launcher.gui.start.queries import EngineAnswer, PlanRequest, PlanResult, ReadingPhase
from launcher.gui.translation import page_title, render, tr
from launcher.gui.widgets import Banner, Card, ComboBox, PageHead
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from launcher.app.planning.start_settings import KeptPlan
    from launcher.gui.controller import Controller
    from launcher.models.plan import Plan
    from launcher.models.preset import Intent
    from launcher.monitor.reply import Reply

_MACHINE_WIDTH, _NARROW, _CRAMPED = 296, 900, 620
"""In pixels: width of the computer's card; page widths below which it goes below the plans, and margins shrink."""
_FIELD_EDGES = 10
"""Pixels that borders and inner margins of the field for a model's name take."""
_MOST_UNPLANNED = 3
"""Files without a plan whose reasons are shown."""
_GOALS = ("balanced", "agents", "long-context", "best-quality", "as-published")


class StartPage(QWidget):
    """The page. Nothing is downloaded or started before the user presses the button."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.request = PlanRequest()
        self.result: PlanResult | None = None
        self.plan: Plan | None = None
        """The plan that the button starts; None is the demo."""
        self._user_chose = self._has_read = self._needs_network = self._step_failed = False
        self._replaces = False
        """Whether the choice replaces the running server."""
        self._started_here = False
        """Whether the running server was started by the steps on this page."""
        self._is_refreshing = False
        """Whether the computer is being read again without a request by the user, so that the choice must stay."""
        self._headers_tried: set[tuple[str, str]] = set()
        """Id and quantisation of the files whose headers were read, or could not be."""
        self._answer: EngineAnswer | None = None
        self.flow = StartFlow(controller, self)
        self.banner = Banner()
        self.machine = MachineCard(self.check_again, self.copy_report)
        self.card = PlanCard(
            self.press_main_button, self.flow.pause, self._ask_engine, self._choose_demo, self._switch_settings
        )
        self.steps = StepsCard()
        self.agent = AgentCard(lambda: controller.show_page("agents"))
        self.table = PlansTable()
        self.name_field = QLineEdit()
        self.family = ComboBox()
        self.goal = ComboBox()
        self._lay_out()
        self._connect_signals()
        self._show_phase(ReadingPhase.COMPUTER)  # the first frame shows what is coming
        self._show_plan()
        self._show_buttons()

    def on_shown(self) -> None:
        """Read this computer. Its memory is read each time the page is shown."""
        if self._has_read:
            self.refresh()
        else:
            self.read_and_plan()

    @Slot()
    def refresh(self) -> None:
        """Read the memory again and plan with it, keeping the selection. Skipped during a read or a first start."""
        if self._has_read and not self.flow.running and not self.flow.is_reading:
            self._is_refreshing = True
            self.flow.read_and_plan(self.request, again=True)

    def read_and_plan(self, request: PlanRequest | None = None, *, again: bool = False) -> None:
        """Read the computer if it is not known yet, or `again`, and plan, optionally for another request."""
        self.request = request or self.request
        self._has_read, self._user_chose, self._is_refreshing = True, False, False
        self.flow.read_and_plan(self.request, again=again)

    def check_again(self) -> None:
        """Read the computer again."""
        self.read_and_plan(again=True)

    def plan_named(self, name: str) -> None:
        """Plan for a model by the path of its file, or by its name or link on the hub."""
        if self.flow.running or not name.strip():
            return
        self.name_field.setText(name.strip())
        self._replaces = True
        self.banner.clear()
        self.read_and_plan(self.request._replace(family=None, named=name.strip()))

    def choose_file(self) -> None:
        """Let the user choose a model file, and plan for it."""
        kinds = f"{tr('Models')} (*.gguf);;{tr('All files')} (*)"
        self.plan_named(QFileDialog.getOpenFileName(self, tr("Choose a model"), "", kinds)[0])

    def copy_report(self) -> None:
        """Copy the card of this computer as text."""
        if self.result is not None:
            QGuiApplication.clipboard().setText(format_report(self.result))
            self.banner.show_message(tr("Report copied."), "good")

    def press_main_button(self) -> None:
        """Open the chat if a server runs, else start the chosen plan or the demo."""
        if self._is_serving and not self._step_failed:
            self._controller.open_chat()
            return
        self.banner.clear()
        self.flow.start_plan(self.plan, self._own_settings)

    @property
    def _own_settings(self) -> KeptPlan | None:
        if self.result is None or self.plan is None:
            return None
        return self.result.find_own_settings(self.plan)

    @property
    def _has_own_settings(self) -> bool:
        """Whether the chosen plan has the user's own settings."""
        own_settings = self._own_settings
        return own_settings is not None and self.plan is not None and own_settings.is_kept_plan(self.plan)

    def _switch_settings(self) -> None:
        """Switch between the plan's own settings and the user's."""
        result, plan = self.result, self.plan
        own_settings = self._own_settings
        if result is None or plan is None or own_settings is None or own_settings.kept_plan is None:
            return
        other = own_settings.planned if self._has_own_settings else own_settings.kept_plan
        self.result = result.with_plan_replaced(plan, other)
        row = next(number for number, each in enumerate(self.result.plans) if each is other)
        self._show_table(self.result, row)
        self._choose_plan(other)

    def _choose_demo(self) -> None:
        self._user_chose = self._replaces = True
        self._choose_plan(None)
        self.table.clearSelection()

    @property
    def _is_serving(self) -> bool:
        """Whether a server runs and the user has not chosen to replace it."""
        return self._controller.launch is not None and not self._replaces

    def _lay_out(self) -> None:
        self._content = QWidget()
        self._content.setObjectName("plain")
        self._grid = QGridLayout(self._content)
        self._grid.setSpacing(theme.px(theme.GAP_L))
        self._head = PageHead(page_title("Start"), tr("Models that this computer can run, and the memory they need."))
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
        self.name_field.setPlaceholderText(tr("File, link or name"))
        self.name_field.setAccessibleName(tr("File or Hugging Face link"))
        self.name_field.setToolTip(tr("Plan for a GGUF file, or for a model on Hugging Face such as OWNER/NAME:Q4_K_M"))
        words = self.name_field.fontMetrics().horizontalAdvance(self.name_field.placeholderText())
        self.name_field.setMinimumWidth(words + 2 * theme.px(theme.GAP) + _FIELD_EDGES)
        self._head.add_widget(self.name_field)
        self.file_button = self._head.add_button(tr("Choose a file …"), self.choose_file)
        self.file_button.setToolTip(tr("Plan for a GGUF file on this computer. You can also drop it on the window"))
        self._others.head.addWidget(self.family)
        self._others.head.addWidget(self.goal)
        self._others.body.setSpacing(theme.px(theme.GAP))
        self._others.add_aligned(self.table, self.table.text_inset)
        self.looking = Label(tr("Checking which models fit ..."))
        """Shown in place of the table while the plans are made."""
        self.looking.setObjectName("secondary")
        self.looking.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.looking.setWordWrap(True)
        self._others.body.addWidget(self.looking, 1)
        self._unplanned = Label()
        self._unplanned.setObjectName("secondary")
        self._unplanned.setWordWrap(True)
        self._unplanned.hide()
        self._others.body.addWidget(self._unplanned)
        self._others.body.addStretch()
        self._left, self._right = _Column(self.machine), _Column(self.card, self.steps, self._others)
        self._right.cards.setStretchFactor(self._others, 1)
        self._left.cards.addStretch()
        area = make_scroll_area(self._content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(area)
        self._grid.addWidget(self._head, 0, 0, 1, 2)
        self._grid.addWidget(self.banner, 1, 0, 1, 2)
        self._narrow: bool | None = None
        self._arrange()

    def _arrange(self) -> None:
        """Put the cards of the computer and the agent at the left, or below and above the plans on a narrow page."""
        cramped = self.width() < theme.px(_CRAMPED)
        direction = QBoxLayout.Direction.TopToBottom if cramped else QBoxLayout.Direction.LeftToRight
        self.card.set_direction(direction)
        self._others.head.setDirection(direction)
        side = theme.px(theme.GAP if cramped else theme.GAP_XL)
        end = theme.px(theme.GAP if cramped else theme.GAP_L)
        self._grid.setContentsMargins(side, end, side, end)
        narrow = self.width() < theme.px(_NARROW)
        self.agent.set_direction(direction if narrow else QBoxLayout.Direction.TopToBottom)
        if narrow == self._narrow:
            return
        self._narrow = narrow
        if narrow:
            self._grid.addWidget(self._right, 2, 0, 1, 2)
            self._grid.addWidget(self._left, 3, 0, 1, 2)
            self._right.cards.insertWidget(self._right.cards.indexOf(self._others), self.agent)
        else:
            self._grid.addWidget(self._right, 2, 1)
            self._grid.addWidget(self._left, 2, 0)
            self._left.cards.insertWidget(1, self.agent)
        self._grid.setColumnMinimumWidth(0, 0 if narrow else theme.px(_MACHINE_WIDTH))
        self._grid.setColumnStretch(0, 1 if narrow else 0)
        self._grid.setColumnStretch(1, 1)
        self._grid.setRowStretch(2, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Choose the layout for the width."""
        super().resizeEvent(event)
        self._arrange()

    def _connect_signals(self) -> None:
        flow = self.flow
        flow.phase_changed.connect(self._show_phase)
        flow.planned.connect(self._show_result)
        flow.surveyed.connect(self._show_survey)
        flow.needs_network.connect(self._record_network_need)
        flow.stepped.connect(self.steps.show_step)
        flow.started.connect(self._show_buttons)
        flow.paused.connect(self._show_buttons)
        flow.ended.connect(self._show_end)
        flow.failed.connect(self._show_failure)
        flow.answered.connect(self._show_answer)
        self.table.chosen.connect(self._choose_row)
        self.name_field.returnPressed.connect(lambda: self.plan_named(self.name_field.text()))
        self.family.activated.connect(self._choose_family)
        self.goal.activated.connect(self._choose_goal)
        self._controller.launched.connect(self._handle_launch)

    @Slot(object)
    def _show_phase(self, phase: ReadingPhase) -> None:
        text = {
            ReadingPhase.COMPUTER: tr("Checking GPUs, drivers, memory and disk ..."),
            ReadingPhase.PLANS: tr("Checking which models fit ..."),
        }[phase]
        if phase is ReadingPhase.COMPUTER and not self._is_refreshing:
            self.machine.show_reading(text)
        if self.result is None:
            self.looking.show()
            if not self._is_serving:
                self.card.show_reading(text)

    @Slot(object)
    def _show_result(self, result: PlanResult) -> None:
        is_refresh, self._is_refreshing = self._is_refreshing, False
        if is_refresh and self.flow.running:
            return  # a start in progress keeps its plan
        if result.request.named is not None and result.problem is not None and self.result is not None:
            self.request = self.result.request  # the earlier plans stay
            self.banner.show_message(str(result.problem), "bad")
            self._show_plan()
            return
        chosen, used_own_settings = self.plan, self._has_own_settings
        self.result = result
        self.looking.hide()
        self.machine.show_facts(list_facts(result), result.situation.read_at if result.situation else None)
        self._show_request(result)
        self._show_table(result)
        self._show_unplanned(result)
        if is_refresh and self._user_chose:
            self._reselect_plan(result, chosen, use_own_settings=used_own_settings)
            return
        plan = self._recommend_plan(result)
        if plan is None:
            self.table.clearSelection()
            self._choose_plan(None, keeps_texts=is_refresh)
        else:
            self._show_table(result, result.plans.index(plan))
            self._choose_plan(plan, keeps_texts=is_refresh)
        self._show_smaller(result)
        self._ask_for_headers(result)

    def _show_request(self, result: PlanResult) -> None:
        if self.family.count() == 1:  # only "All models" yet
            for model_id, name in result.families:
                self.family.addItem(name.removesuffix(" with MTP head"), model_id)
        self.family.setCurrentIndex(max(self.family.findData(result.request.family), 0))
        self.goal.setCurrentIndex(self.goal.findData(result.request.intent))

    def _show_unplanned(self, result: PlanResult) -> None:
        lines = []
        for each in result.unplanned[:_MOST_UNPLANNED]:
            file, reason, remedy = each.quant or each.model, render(each.reason), render(each.remedy)
            lines.append(tr("{file}: {why}. {remedy}", file=file, why=reason, remedy=remedy))
        self._unplanned.setText("\n".join(lines))
        self._unplanned.setVisible(bool(lines))

    def _recommend_plan(self, result: PlanResult) -> Plan | None:
        """Return the plan to select, or None for the demo.

        For a model or family that the user chose it is the first plan that fits, else the first one. Otherwise it is
        one that fits, if there are a GPU and a network, or if it is for agents.
        """
        plan = next((each for each in result.plans if not _is_too_big(each)), None)
        if result.request.named is not None:
            return plan or next(iter(result.plans), None)
        no_gpu = result.situation is None or (result.situation.no_gpu and result.request.family is None)
        demo_would_do = result.request.intent != "agents"  # the demo calls no tools
        if (no_gpu or result.offline) and demo_would_do and not self._user_chose:
            return None
        return plan or (next(iter(result.plans), None) if result.request.family is not None else None)

    def _show_smaller(self, result: PlanResult) -> None:
        """Show why none of the plans fits, and name a model that does."""
        smaller, buttons = result.smaller, []
        if smaller is not None:
            name = f"{smaller.entry.id}:{smaller.file.quant}"
            buttons = [(tr("Show its plan"), lambda: self.plan_named(name))]
        if smaller is not None or _is_too_big(self.plan):
            from launcher.models.smaller_model import describe_misfit

            self.banner.show_message(render(describe_misfit(result.plans[0], smaller)), "attention", buttons)

    def _ask_for_headers(self, result: PlanResult) -> None:
        """Ask once whether headers may be read on the hub; read them if the user has agreed."""
        if not result.estimated or self.plan is None or self.flow.running or self._is_serving:
            return
        if result.asks_headers and self.banner.isHidden():
            text = tr(
                "Some of these plans are estimates. Read the headers of such files from Hugging Face, about 10 MB "
                "each, now and later?"
            )
            self.banner.show_message(
                text,
                "information",
                [
                    (tr("Read headers"), lambda: self._keep_header_answer(VALUE_ON)),
                    (tr("Never"), lambda: self._keep_header_answer(VALUE_OFF)),
                ],
            )
        elif not result.asks_headers:
            self._read_headers(result)

    def _keep_header_answer(self, answer: str) -> None:
        self.banner.clear()
        self._controller.change_setting(READ_HEADERS, answer)
        if answer == VALUE_ON and self.result is not None:
            self._read_headers(self.result)

    def _read_headers(self, result: PlanResult) -> None:
        """Read the headers of estimated files once, and plan again with them."""
        names = {(plan.entry.id, plan.file.quant) for plan in result.estimated}
        if names <= self._headers_tried:
            return
        self._headers_tried |= names

        def plan_again(error: LauncherError | None) -> None:
            if error is None:
                self.refresh()
            elif self.banner.isHidden():
                self.banner.show_message(str(error), "attention")

        self.flow.read_headers(result.estimated, done=plan_again)

    def _reselect_plan(self, result: PlanResult, before: Plan | None, *, use_own_settings: bool) -> None:
        """Select the earlier choice again among the new plans, with the user's own settings or the plan's."""
        plan = None
        if before is not None:
            candidates = [each for each in result.plans if _is_same_file(each, before)]
            same_settings = [each for each in candidates if each.setting == before.setting]
            plan = next(iter(same_settings + candidates), None)
        if plan is None:
            self.table.clearSelection()
            self._choose_plan(None, keeps_texts=True)
            return
        own_settings = result.find_own_settings(plan)
        kept_plan = own_settings.kept_plan if own_settings is not None else None
        if own_settings is not None and kept_plan is not None and own_settings.is_kept_plan(plan) != use_own_settings:
            other = kept_plan if use_own_settings else own_settings.planned
            result, plan = result.with_plan_replaced(plan, other), other
            self.result = result
        row = next(number for number, each in enumerate(result.plans) if each is plan)
        self._show_table(result, row)
        self._choose_plan(plan, keeps_texts=True)

    def _show_table(self, result: PlanResult, row: int = 0) -> None:
        self.table.show_plans(result.plans, several=result.request.family is None, row=row)

    @Slot(int)
    def _choose_row(self, row: int) -> None:
        if self.result is not None:
            self._user_chose = self._replaces = True
            self._choose_plan(self.result.plans[row])

    def _choose_plan(self, plan: Plan | None, *, keeps_texts: bool = False) -> None:
        """Select a plan, or the demo (None). `keeps_texts` keeps the banner, and for the same file also the steps."""
        if self.flow.running:
            return
        before, self.plan = self.plan, plan
        if keeps_texts and (plan is before or (plan and before and _is_same_file(plan, before))):
            self._show_plan()
            return
        self._step_failed, self._needs_network = False, False
        if not keeps_texts:
            self.banner.clear()
        if self._controller.launch is not None and self._replaces:
            text = tr("{model} is loaded. A model that you start here replaces it.", model=self._served_model)
            self.banner.show_message(text, "information", [(tr("Open the chat"), self._controller.open_chat)])
        self._show_plan()
        self.flow.survey_plan(plan)
        self._show_buttons()

    @property
    def _served_model(self) -> str:
        return one_line(self._controller.inputs.model or "")

    def _show_plan(self) -> None:
        result, plan, inputs = self.result, self.plan, self._controller.inputs
        if self._is_serving:
            self.card.show_served(self._served_model, render(inputs.settings), inputs.address)
            return
        if result is None:
            return
        if plan is None:
            self.card.show_demo(self._demo_reason(result))
            return
        recommended = bool(result.plans) and plan is result.plans[0] and result.request.named is None
        self.card.show_asking()
        self.card.show_plan(result, plan, self._answer, recommended=recommended)

    def _demo_reason(self, result: PlanResult) -> str:
        if self._user_chose:
            return tr("Chosen by you")
        if result.problem is not None:
            return str(result.problem)
        if result.offline:
            return tr("There is no network (HF_HUB_OFFLINE is set)")
        if result.situation is not None and result.situation.no_gpu:
            return tr("No usable GPU found")
        return tr("No model of the catalogue fits into the free memory")

    @Slot(int)
    def _choose_family(self, _index: int) -> None:
        self._replaces = True
        self.name_field.clear()
        self.read_and_plan(self.request._replace(family=self.family.currentData(), named=None))

    @Slot(int)
    def _choose_goal(self, _index: int) -> None:
        self._replaces = True
        self.read_and_plan(self.request._replace(intent=self.goal.currentData()))

    def show_plans_for(self, intent: Intent) -> None:
        """Show the plans of all models for a priority, such as "agents"."""
        self.goal.setCurrentIndex(self.goal.findData(intent))
        self.name_field.clear()
        self._replaces = True
        self.read_and_plan(PlanRequest(intent=intent))

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
        paused = any(report.stage is StepStage.PAUSED for report in self.steps.progress.values())
        if self._step_failed:
            text, tip = tr("Retry"), tr("Continue from the failed step")
        elif self._is_serving:
            text, tip = tr("Open the chat"), tr("The model is running. Open the chat on Cockpit")
        elif paused and not running:
            text, tip = tr("Resume"), tr("Continue where it stopped")
        elif self.result is None:
            text, tip = tr("Start"), tr("Finding the engine and model files ...")
        elif self.plan is None:
            text, tip = tr("Start the demo"), tr("Load the built-in demo model")
        elif _is_too_big(self.plan):
            text = tr("Download anyway") if self._needs_network else tr("Start anyway")
            tip = tr("This model needs more memory than there is. The engine may fail to load it, or be very slow")
        elif self._needs_network:
            text, tip = (
                tr("Download and start"),
                tr("Download missing files, verify them and load the model (llama-server --model)"),
            )
        else:
            text, tip = tr("Start"), tr("Load the model; all files are on this computer (llama-server --model)")
        self.card.set_emphasis(primary=self._step_failed or self._is_serving or not _is_too_big(self.plan))
        self.card.primary.setText(text)
        self.card.primary.setToolTip(tip)
        self.card.primary.setAccessibleName(text)
        self.card.primary.setVisible(not running)
        self.card.primary.setEnabled(self.result is not None or self._is_serving)
        self.card.show_interruption(downloads=self._needs_network)
        self.card.pause.setVisible(running)
        self.card.demo.setVisible(not running and not self._is_serving and self.plan is not None)
        is_known = self.result is not None
        self.table.setVisible(is_known)
        self.steps.setVisible(running or self._started_here or (is_known and not self._is_serving))
        choices = (self.name_field, self.file_button, self.family, self.goal, self.table)
        for widget in (*choices, self.machine.check_button):
            widget.setEnabled(not running)

    @Slot(object)
    def _show_end(self, reply: Reply | None) -> None:
        self._step_failed, self._started_here = False, True
        first = tr("This model generates no text.")
        if reply is not None:
            first = tr("First token after {seconds:.2f} s.", seconds=reply.first_token_s or 0.0)
        self.banner.show_message(tr("Running. {first}", first=first), "good")
        self._show_plan()
        self._show_buttons()
        self.card.primary.setFocus()
        self._refresh_shown()

    @Slot(object)
    def _handle_launch(self, launch: object) -> None:
        """Show the running server; after it has stopped, offer to start the chosen plan."""
        self._replaces = False
        if not self.flow.running:
            self._started_here = False
            if launch is None:
                self._choose_plan(self.plan)
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
        failed = any(report.stage is StepStage.FAILED for report in self.steps.progress.values())
        self._step_failed = failed
        buttons = [] if failed else [(tr("Retry"), self.check_again)]  # a failed step is retried by the main button
        self.banner.show_message(str(error), "bad", buttons)
        self.looking.hide()
        self._show_buttons()

    def _ask_engine(self) -> None:
        if self.plan is not None:
            self.card.show_asking(tr("Asking the engine: reading the header of {file}", file=self.plan.file.file))
            self.flow.ask_engine(self.plan)

    @Slot(object)
    def _show_answer(self, answer: EngineAnswer | LauncherError) -> None:
        if isinstance(answer, LauncherError):
            self.card.show_asking()
            self.banner.show_message(
                tr("The engine could not compute the memory. {why}", why=render(answer.message)), "attention"
            )
            return
        self._answer = answer
        self._show_plan()


class _Column(QWidget):
    """Cards below one another."""

    def __init__(self, *cards: QWidget) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.cards = QVBoxLayout(self)
        self.cards.setContentsMargins(0, 0, 0, 0)
        self.cards.setSpacing(theme.px(theme.GAP_L))
        for card in cards:
            self.cards.addWidget(card)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Request the height that the cards need in the new width."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()
            QTimer.singleShot(0, self, self.updateGeometry)  # a layout that is at work just now may miss the first

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the height that the cards need in this width, in which texts wrap less than in the minimum width."""
        width = super().minimumSizeHint().width()
        return QSize(width, self.heightForWidth(max(self.width(), width)))


def _is_too_big(plan: Plan | None) -> bool:
    return plan is not None and plan.status.value == "TOO BIG"


def _is_same_file(plan: Plan, other: Plan) -> bool:
    """Return whether two plans are for the same file, whatever their settings."""
    return (plan.entry.id, plan.file.quant) == (other.entry.id, other.file.quant)
