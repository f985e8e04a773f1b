"""Card that starts a coding agent in a terminal, and shows whether the server suits it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QBoxLayout, QFileDialog, QHBoxLayout, QPushButton

from launcher.agents.program import FoundAgents, find_agents
from launcher.base.errors import LauncherError, ModelMissing, Superseded
from launcher.gui import theme
from launcher.gui.labels import ElidedLabel, Label, display_path, set_tooltip
from launcher.gui.start.flow import ServeAdapter, ServeRequest
from launcher.gui.translation import join_sentences, render, tr
from launcher.gui.widgets import Card, ComboBox, Glyph
from launcher.gui.widgets.blocks import make_button
from launcher.gui.window_settings import open_window_settings

if TYPE_CHECKING:
    from launcher.agents.agent import Agent
    from launcher.agents.check import Verdict
    from launcher.agents.configuration import AgentServer
    from launcher.app.start_settings import ResolvedStart
    from launcher.gui.bridge import Work
    from launcher.gui.controller import Controller
    from launcher.runtime import WorkHandle

_T = TypeVar("_T")
_FIRST_AGENT = "opencode"
"""The agent that is proposed while none is installed."""
_AGENT_SETTING, _FOLDER_SETTING = "agents/agent", "agents/folder"
_GLYPHS = {"bad": "cross", "good": "tick", "accent": "dashed", "secondary": "dot"}
_NODE_PAGE = "https://nodejs.org"


class AgentCard(Card):
    """Card with the agents, a folder, one button that starts an agent there, and a line with the outcome."""

    plans_requested = Signal()
    """The user wants to see plans for coding agents."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Coding agent"))
        self._controller, self._bridge = controller, controller.bridge
        self._server = ServeAdapter(controller, self)
        self._server.stopped.connect(self._handle_stop)
        self._found = FoundAgents((), (), has_npm=True)
        self._work: WorkHandle[None] | None = None
        self._is_busy = False
        self._checked: tuple[Agent, str] | None = None
        """The agent that was started last, and the URL of its server."""
        self._command = ""
        """The text that "Copy the command" copies."""
        self._suggested: str | None = None
        """A model to show the plan of, as ID:QUANT; None for all plans for agents."""
        stored = str(open_window_settings().value(_FOLDER_SETTING, ""))
        self.chosen_folder: Path | None = Path(stored) if stored and Path(stored).is_dir() else None
        self.agents = ComboBox()
        self.agents.setAccessibleName(tr("Coding agent"))
        self.agents.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)
        set_tooltip(self.agents, tr("The agent to start. It has a prompt and tools to read and change files"))
        self.agents.activated.connect(self._choose_agent)
        self.folder = ElidedLabel(mode=Qt.TextElideMode.ElideMiddle)
        self.folder_button: QPushButton = make_button(tr("Choose a folder …"), self.choose_folder)
        set_tooltip(self.folder_button, tr("The folder of your project, in which the agent reads and changes files"))
        self.start_button: QPushButton = make_button("", self.start)
        self._glyph, self.outcome = Glyph(), Label()
        self.outcome.setWordWrap(True)
        self.outcome.setTextInteractionFlags(theme.SELECTABLE)
        self.check_button: QPushButton = make_button(tr("Check again"), self.check_again)
        set_tooltip(self.check_button, tr("Send a few short requests to the server, as an agent would"))
        self.copy_button: QPushButton = make_button(tr("Copy the command"), self._copy_command)
        self.plans_button: QPushButton = make_button(tr("Show plans for agents"), self._show_plans)
        self._lay_out()
        controller.launched.connect(self._handle_launch)
        self._show_folder()
        self._show_choice()

    def _lay_out(self) -> None:
        self.head.addWidget(self.agents)
        self.body.setSpacing(theme.px(theme.GAP))
        self._choices = QHBoxLayout()
        self._choices.setSpacing(theme.px(theme.GAP))
        self._choices.addWidget(self.folder, 1)
        self._choices.addWidget(self.folder_button)
        self._choices.addWidget(self.start_button)
        self.body.addLayout(self._choices)
        text = QHBoxLayout()
        text.setSpacing(theme.px(theme.GAP))
        text.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignVCenter)
        text.addWidget(self.outcome, 1)
        self._outcome_row = QHBoxLayout()
        self._outcome_row.setSpacing(theme.px(theme.GAP))
        self._outcome_row.addLayout(text, 1)
        for button in (self.check_button, self.copy_button, self.plans_button):
            self._outcome_row.addWidget(button)
        self.body.addLayout(self._outcome_row)
        self.body.addStretch()

    def set_direction(self, direction: QBoxLayout.Direction) -> None:
        """Put the buttons beside or below the texts."""
        for layout in (self.head, self._choices, self._outcome_row):
            layout.setDirection(direction)

    @property
    def agent(self) -> Agent | None:
        """The chosen agent; None until it is known which are installed."""
        agents = (*self._found.installed, *self._found.others)
        return next((each for each in agents if each.name == self.agents.currentData()), None)

    def refresh(self) -> None:
        """Find out which agents are installed."""

        async def work(_report: object) -> FoundAgents:
            return await asyncio.to_thread(find_agents)

        self._bridge.run(work, done=self._show_agents)

    def _show_agents(self, found: FoundAgents) -> None:
        if found == self._found and self.agents.count():
            return
        chosen = self.agents.currentData() or open_window_settings().value(_AGENT_SETTING, "")
        names = [each.name for each in (*found.installed, *found.others)]
        if chosen not in names:
            chosen = found.installed[0].name if found.installed else _FIRST_AGENT
        self._found = found
        self.agents.clear()
        for each in found.installed:
            self.agents.addItem(each.title, each.name)
        for each in found.others:
            self.agents.addItem(tr("{title} (not installed)", title=each.title), each.name)
        self.agents.setCurrentIndex(self.agents.findData(chosen))
        if not self._is_busy and self._checked is None:
            self._show_choice()

    @Slot()
    def _choose_agent(self) -> None:
        open_window_settings().setValue(_AGENT_SETTING, self.agents.currentData())
        self._checked = None
        self._show_choice()

    def _show_choice(self) -> None:
        """Show what the chosen agent is, or how it is installed."""
        agent = self.agent
        if agent is None:
            self._show_outcome("secondary", tr("Looking for coding agents ..."))
        elif agent in self._found.installed:
            self._show_outcome(
                "secondary",
                tr("Reads, writes and runs code in a folder, with a model on this computer. It opens in a terminal."),
            )
        else:
            self._show_install_line(agent)

    def _show_install_line(self, agent: Agent) -> None:
        if not agent.install.startswith("npm "):
            page = agent.install.removeprefix("see ")
            self._show_outcome(
                "secondary", tr("{title} is not installed. How to install it: {page}", title=agent.title, page=page)
            )
            return
        needed = ""
        if not self._found.has_npm:
            needed = tr("npm is missing: it comes with Node.js, {page}.", page=_NODE_PAGE)
        text = tr(
            "{title} is not installed. Run this in a terminal, then come back: {command}",
            title=agent.title,
            command=agent.install,
        )
        self._command = agent.install
        self._show_outcome("secondary", join_sentences(needed, text), copies=True)

    def choose_folder(self) -> None:
        """Let the user choose the folder of a project."""
        before = str(self.chosen_folder or Path.home())
        if chosen := QFileDialog.getExistingDirectory(self, tr("Choose the folder of your project"), before):
            self.chosen_folder = Path(chosen)
            open_window_settings().setValue(_FOLDER_SETTING, chosen)
            self._show_folder()

    def _show_folder(self) -> None:
        folder = self.chosen_folder
        self.folder.setText(tr("No folder chosen yet") if folder is None else display_path(folder))

    def start(self) -> None:
        """Start the chosen agent; ask for the folder first if none is chosen."""
        agent = self.agent
        if self.chosen_folder is None:
            self.choose_folder()
        if agent is None or self.chosen_folder is None or self._is_busy:
            return
        self._begin_work(tr("Preparing a server for {title} ...", title=agent.title))
        launch, inputs = self._controller.launch, self._controller.inputs
        own = (f"http://{inputs.address}", self._controller.served_name) if launch is not None else None

        async def work(_report: object) -> AgentServer | ResolvedStart:
            from launcher.app.coding import prepare_server

            session = self._controller.session
            pid = session.supervisor.engine_pid if session is not None else None
            return await prepare_server(agent, own, ending=(pid,) if pid else ())

        self._run(work, lambda prepared: self._serve(agent, prepared))

    def _serve(self, agent: Agent, prepared: AgentServer | ResolvedStart) -> None:
        """Start the server that was prepared, or use the one that runs; then open the agent."""
        from launcher.agents.configuration import AgentServer

        if isinstance(prepared, AgentServer):
            self._open(agent, prepared.url)
            return
        model = prepared.options.alias or prepared.options.model.stem
        text = tr(
            "Loading {model} with {context} tokens of context ...", model=model, context=_format_context(prepared)
        )
        self._show_outcome("accent", text)
        self._server.start_server(
            ServeRequest(
                prepared,
                on_status=lambda _status: None,
                ready=lambda url: self._open(agent, url),
                failed=self._show_failure,
            )
        )

    def _open(self, agent: Agent, url: str) -> None:
        """Open the agent in a terminal, then check its server."""
        self._checked = (agent, url)
        folder, prompt = self.chosen_folder, tr("Press Enter to close this terminal.")

        async def work(_report: object) -> None:
            from launcher.agents.terminal import open_terminal
            from launcher.base.own_command import own_command

            assert folder is not None  # noqa: S101 -- chosen before
            await asyncio.to_thread(open_terminal, own_command("code", agent.name, "--url", url), folder, prompt)

        self._run(work, lambda _: self._check(agent, url), lambda error: self._show_command(agent, error))

    def _show_command(self, agent: Agent, error: LauncherError) -> None:
        """Show the command for a terminal, where none could be opened."""
        self._command = f"mtp-launcher code {agent.name}"
        self._show_outcome(
            "bad",
            join_sentences(
                render(error.title),
                tr("Run this in a terminal, in the folder of your project: {command}", command=self._command),
            ),
            copies=True,
        )
        self._end_work()

    def check_again(self) -> None:
        """Check the server once more."""
        if self._checked is not None and not self._is_busy:
            self._begin_work("")
            self._check(*self._checked)

    def _check(self, agent: Agent, url: str) -> None:
        self._show_outcome("accent", tr("{title} is open in a terminal. Checking the server ...", title=agent.title))

        async def work(_report: object) -> Verdict:
            from launcher.app.coding import check_running

            return await check_running(agent, url)

        self._run(work, self._show_verdict)

    def _show_verdict(self, verdict: Verdict) -> None:
        self._show_outcome("good" if verdict.ready else "bad", render(verdict.sentence))
        self._end_work()

    def _show_failure(self, error: LauncherError) -> None:
        self._end_work()
        if isinstance(error, Superseded):
            self._show_choice()
            return
        suggested = error.facts.get("suggested")
        self._suggested = str(suggested) if suggested else None
        has_plans = isinstance(error, ModelMissing) or suggested is not None
        self._show_outcome("bad", str(error), plans=has_plans)

    def _show_plans(self) -> None:
        if self._suggested is None:
            self.plans_requested.emit()
        else:
            self._controller.show_plan(self._suggested)

    @Slot()
    def _handle_stop(self) -> None:
        """Show the choice again after the user has stopped the server while it started."""
        self._end_work()
        self._show_choice()

    @Slot(object)
    def _handle_launch(self, launch: object) -> None:
        """Forget the verdict on a server that has stopped."""
        if launch is None and not self._is_busy and self._checked is not None:
            self._checked = None
            self._show_choice()

    def _run(
        self,
        work: Work[_T],
        done: Callable[[_T], object],
        failed: Callable[[LauncherError], object] | None = None,
    ) -> None:
        self._work = self._bridge.run(work, done=done, failed=failed or self._show_failure)

    def _begin_work(self, text: str) -> None:
        self._is_busy = True
        if text:
            self._checked = None
            self._show_outcome("accent", text)
        self._show_buttons()

    def _end_work(self) -> None:
        self._is_busy, self._work = False, None
        self._show_buttons()

    def _show_outcome(self, meaning: str, text: str, *, copies: bool = False, plans: bool = False) -> None:
        """Show a text with a meaning, and the buttons that go with it."""
        self._glyph.show_glyph(_GLYPHS[meaning], meaning)
        self._glyph.setVisible(meaning != "secondary")
        self.outcome.setText(render(text))
        self.outcome.setObjectName("secondary" if meaning == "secondary" else "")
        self.outcome.style().unpolish(self.outcome)
        self.outcome.style().polish(self.outcome)
        self.copy_button.setVisible(copies)
        self.copy_button.setText(tr("Copy the command"))
        self.plans_button.setVisible(plans)
        self.plans_button.setText(tr("Show plans for agents") if self._suggested is None else tr("Show its plan"))
        self._show_buttons()

    def _show_buttons(self) -> None:
        agent = self.agent
        name = agent.title if agent is not None else ""
        self.start_button.setText(tr("Start {title}", title=name) if name else tr("Start"))
        self.start_button.setEnabled(not self._is_busy and agent is not None and agent in self._found.installed)
        for widget in (self.agents, self.folder_button):
            widget.setEnabled(not self._is_busy)
        self.check_button.setVisible(self._checked is not None and not self._is_busy)

    def _copy_command(self) -> None:
        QGuiApplication.clipboard().setText(self._command)
        self.copy_button.setText(tr("Copied"))


def _format_context(start: ResolvedStart) -> str:
    from launcher.app.coding import slot_context

    return f"{slot_context(start):,}"
