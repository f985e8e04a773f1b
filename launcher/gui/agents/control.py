"""State and actions of the Agents page: finds agents, reads what one would get, starts it, and checks the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from launcher.agents.program import FoundAgents, find_agents, find_program, read_version
from launcher.base.errors import LauncherError, Superseded
from launcher.gui.late import agent_session, agent_terminal
from launcher.gui.start.flow import ServeAdapter, ServeRequest
from launcher.gui.translation import tr
from launcher.gui.window_settings import open_window_settings

if TYPE_CHECKING:
    from launcher.agents.agent import Agent
    from launcher.agents.check import CheckedRequest, CheckVerdict
    from launcher.app.agent_session import AgentSession
    from launcher.gui.controller import Controller
    from launcher.models.server_settings import Value
    from launcher.runtime import WorkHandle

_T = TypeVar("_T")
_FIRST_AGENT = "opencode"
"""The agent that is proposed while none is installed."""
_AGENT_SETTING, _FOLDER_SETTING, _TERMINAL_SETTING = "agents/agent", "agents/folder", "agents/terminal"
_FOLDERS_SETTING = "agents/folders"
_MOST_FOLDERS = 6


class Activity(Enum):
    """Work in progress for the chosen agent."""

    NONE = "none"
    PREPARING = "preparing"
    """Finding out which server suits it."""
    LOADING = "loading"
    """Starting that server."""
    OPENING = "opening"
    """Opening its terminal."""
    CHECKING = "checking"


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """A check of a server for an agent, at `checked_at` (seconds since the epoch). `basis` is the server as it was."""

    verdict: CheckVerdict
    checked_at: float
    basis: object


class AgentControl(QObject):
    """Reads and acts for the page. `changed` is emitted when anything is known or done that was not before."""

    changed = Signal()
    agents_changed = Signal()
    """Other agents are installed, or their versions are known."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self.controller, self._bridge = controller, controller.bridge
        self._server = ServeAdapter(controller, self)
        self._server.stopped.connect(self._end_activity)
        self._reading: WorkHandle[None] | None = None
        self._work: WorkHandle[None] | None = None
        self._name = str(open_window_settings().value(_AGENT_SETTING, ""))
        self._records: dict[str, CheckRecord] = {}
        self._is_shown = False
        self._checks_when_applied = False
        self.found: FoundAgents | None = None
        self.versions: dict[str, str | None] = {}
        """Versions of installed agents by name; None for one that prints none."""
        self.terminals: tuple[str, ...] = ()
        self.terminal = str(open_window_settings().value(_TERMINAL_SETTING, ""))
        """The name of the terminal to open; empty for the system's."""
        self.session: AgentSession | None = None
        self.reading_error: LauncherError | None = None
        """Why it is unknown what the agent would get."""
        self.failure: LauncherError | None = None
        """Why the last action failed."""
        self.activity = Activity.NONE
        self.requests: tuple[CheckedRequest, ...] = ()
        """The requests of the running check that have ended."""
        stored = str(open_window_settings().value(_FOLDER_SETTING, ""))
        self.folder: Path | None = Path(stored) if stored and Path(stored).is_dir() else None
        controller.launched.connect(self._handle_launch)
        controller.stopped.connect(self._handle_stop)
        controller.view_changed.connect(self._handle_view)
        controller.applied.connect(self._handle_applied)

    # What is known about the agents.

    @property
    def agents(self) -> tuple[Agent, ...]:
        """All agents, installed ones first; empty until they are known."""
        return () if self.found is None else (*self.found.installed, *self.found.others)

    @property
    def agent(self) -> Agent | None:
        """The chosen agent; None until agents are known."""
        return next((each for each in self.agents if each.name == self._name), None)

    @property
    def is_installed(self) -> bool:
        """Whether the chosen agent is installed."""
        return self.found is not None and self.agent in self.found.installed

    @property
    def is_busy(self) -> bool:
        """Whether anything is being done for the chosen agent."""
        return self.activity is not Activity.NONE

    @property
    def is_loading(self) -> bool:
        """Whether the window's server is starting or ending, so that nothing can be asked of it."""
        return self.controller.launch is None and not self.controller.view.resting

    @property
    def recent_folders(self) -> list[str]:
        """Folders that were chosen before and are still there, the last one first."""
        stored = open_window_settings().value(_FOLDERS_SETTING)
        folders = stored if isinstance(stored, list) else [stored] if stored else []  # Qt stores one as a text
        return [str(each) for each in folders if Path(each).is_dir()]

    @property
    def record(self) -> CheckRecord | None:
        """The last check for the chosen agent."""
        return self._records.get(self._name)

    @property
    def is_record_fresh(self) -> bool:
        """Whether the server is as it was at the last check."""
        return self.find_record(self._name) is not None

    def find_record(self, name: str) -> CheckRecord | None:
        """Return the last check for an agent if the server is as it was then."""
        record, basis = self._records.get(name), self._read_basis()
        return record if record is not None and basis is not None and record.basis == basis else None

    def _read_basis(self) -> object:
        """Return what identifies the present server and its settings; None if none runs."""
        launch, session = self.controller.launch, self.session
        if launch is not None:
            return (self.controller.inputs.address, launch.options)
        if session is None or session.start is not None:
            return None
        return (session.server.url, session.server.model, session.context)

    @property
    def _own_server(self) -> tuple[str, str] | None:
        """URL and model of the window's server."""
        controller = self.controller
        return None if controller.launch is None else (f"http://{controller.inputs.address}", controller.served_name)

    # The user's choices.

    def choose_agent(self, name: str) -> None:
        """Choose an agent by its name."""
        if name == self._name or self.is_busy:
            return
        open_window_settings().setValue(_AGENT_SETTING, name)
        self._name = name
        self.session = self.reading_error = self.failure = None
        self.requests = ()
        self.changed.emit()
        self.read_session()

    def choose_folder(self, folder: Path) -> None:
        """Choose the folder in which agents start."""
        self.folder, settings = folder, open_window_settings()
        settings.setValue(_FOLDER_SETTING, str(folder))
        others = [each for each in self.recent_folders if each != str(folder)]
        settings.setValue(_FOLDERS_SETTING, [str(folder), *others][:_MOST_FOLDERS])
        self.changed.emit()

    def choose_terminal(self, name: str) -> None:
        """Choose a terminal by its name; empty for the system's."""
        self.terminal = name
        open_window_settings().setValue(_TERMINAL_SETTING, name)

    # Reading: agents, their versions, and the server.

    def set_shown(self, *, shown: bool) -> None:
        """Read which agents are installed, and what the chosen one would get, while the page is shown."""
        self._is_shown = shown
        if shown:
            self.find_agents()

    def find_agents(self) -> None:
        """Find out which agents are installed, and then what the chosen one would get."""

        async def find_programs() -> tuple[FoundAgents, tuple[str, ...]]:
            return await asyncio.to_thread(find_agents), await asyncio.to_thread(agent_terminal.list_terminals)

        self._bridge.run(find_programs, done=lambda found: self._show_found(*found))

    def _show_found(self, found: FoundAgents, terminals: tuple[str, ...]) -> None:
        is_new = found != self.found
        self.found, self.terminals = found, terminals
        if self.agent is None:
            self._name = found.installed[0].name if found.installed else _FIRST_AGENT
        if is_new:
            self.agents_changed.emit()
            self._read_versions(found.installed)
        self.changed.emit()
        self.read_session()

    def _read_versions(self, agents: tuple[Agent, ...]) -> None:
        async def read_versions(report: Callable[[object], None]) -> None:
            for agent in agents:  # one after another: each starts a program
                try:
                    program = await asyncio.to_thread(find_program, agent)
                except LauncherError:
                    continue
                report((agent.name, await read_version(program)))

        def show(version: tuple[str, str | None]) -> None:
            self.versions[version[0]] = version[1]
            self.agents_changed.emit()

        self._bridge.run(read_versions, reported=show)

    def read_session(self) -> None:
        """Read what the chosen agent would get now."""
        agent, own = self.agent, self._own_server
        if agent is None or self.is_loading:
            return
        if self._reading is not None:
            self._reading.cancel()

        self._reading = self._bridge.run(
            self._read_session, agent, own, done=self._show_session, failed=self._show_reading_error
        )

    async def _read_session(self, agent: Agent, own: tuple[str, str] | None) -> AgentSession:
        """Return what an agent would get. Runs on the core's thread."""
        session = self.controller.session if own is not None else None
        pid = session.supervisor.engine_pid if session is not None else None
        return await agent_session.read_session(agent, own, ending=(pid,) if pid else ())

    def _show_session(self, session: AgentSession) -> None:
        self.session, self.reading_error = session, None
        self.changed.emit()

    def _show_reading_error(self, error: LauncherError) -> None:
        self.session, self.reading_error = None, error
        self.changed.emit()

    # Actions: the check, starts of the server and of the agent.

    def start_agent(self) -> None:
        """Start the chosen agent in the chosen folder, on a server that suits it, and check that server."""
        if self.folder is not None:
            self._prepare_server(self._open_terminal)

    def start_server(self) -> None:
        """Start a server that suits the agent, without the agent."""
        self._prepare_server(lambda _url: self._end_activity())

    def start_check(self) -> None:
        """Check the server; start it first if it does not run or does not suit the agent."""
        self._prepare_server(self._check_server)

    def change_settings(self, changes: dict[str, Value]) -> None:
        """Change settings of the window's server, then check it."""
        if not self.is_busy:
            self._checks_when_applied = True
            self._begin_activity(Activity.LOADING)
            self.controller.apply_settings(changes, drain_s=0.0)

    def cancel(self) -> None:
        """Cancel what is being done. A server that was started goes on."""
        if self._work is not None:
            self._work.cancel()
        if self.activity is Activity.LOADING:
            self._server.cancel_start()
        self._end_activity()

    def _prepare_server(self, ready: Callable[[str], object]) -> None:
        """Have a server that suits the agent, and call `ready` with its URL."""
        agent, own = self.agent, self._own_server
        if agent is None or self.is_busy:
            return
        self._begin_activity(Activity.PREPARING)

        self._run(partial(self._read_session, agent, own), lambda session: self._serve(session, ready))

    def _serve(self, session: AgentSession, ready: Callable[[str], object]) -> None:
        self._show_session(session)
        if session.start is None:
            ready(session.server.url)
            return
        self._begin_activity(Activity.LOADING)
        self._server.start_server(
            ServeRequest(session.start, on_status=lambda _: None, ready=ready, failed=self._show_failure)
        )

    def _open_terminal(self, url: str) -> None:
        """Open the agent in a terminal, then check its server unless that was done."""
        agent, folder, terminal = self.agent, self.folder, self.terminal
        prompt = tr("Press Enter to close this terminal.")
        if agent is None or folder is None:
            self._end_activity()
            return
        self._begin_activity(Activity.OPENING)
        is_checked = self.is_record_fresh and self.record is not None and self.record.verdict.ready

        async def open_agent() -> None:
            from launcher.base.own_command import own_command

            command = own_command("code", agent.name, "--url", url)
            await asyncio.to_thread(agent_terminal.open_terminal, command, folder, prompt, terminal)

        self._run(open_agent, lambda _: self._end_activity() if is_checked else self._check_server(url))

    def _check_server(self, url: str) -> None:
        agent = self.agent
        if agent is None:
            self._end_activity()
            return
        self.requests = ()
        self._begin_activity(Activity.CHECKING)

        self._run(
            lambda report: agent_session.check_running(agent, url, report),
            lambda verdict: self._keep_verdict(agent, verdict),
            reported=self._show_request,
        )

    def _show_request(self, request: CheckedRequest) -> None:
        self.requests = (*self.requests, request)
        self.changed.emit()

    def _keep_verdict(self, agent: Agent, verdict: CheckVerdict) -> None:
        self._records[agent.name] = CheckRecord(verdict, time.time(), self._read_basis())
        self.agents_changed.emit()
        self._end_activity()

    def _run(
        self,
        work: Callable[..., Awaitable[_T]],
        done: Callable[[_T], object],
        reported: Callable[[CheckedRequest], object] | None = None,
    ) -> None:
        self._work = self._bridge.run(work, done=done, failed=self._show_failure, reported=reported)

    def _begin_activity(self, activity: Activity) -> None:
        self.activity, self.failure = activity, None
        self.changed.emit()

    @Slot()
    def _end_activity(self) -> None:
        self.activity, self._work = Activity.NONE, None
        self.changed.emit()

    def _show_failure(self, error: LauncherError) -> None:
        self.failure = None if isinstance(error, Superseded) else error
        self._end_activity()

    # Changes of the server.

    @Slot(object)
    def _handle_launch(self, _launch: object) -> None:
        """Read anew what the agent would get from a server that has started, changed or stopped."""
        if not self.is_busy:
            self.failure = None
        self.agents_changed.emit()
        self.changed.emit()
        if self._is_shown:
            self.read_session()

    @Slot()
    def _handle_stop(self) -> None:
        """Read anew: until now the window's server could still be found at its address."""
        if self._is_shown:
            self.read_session()

    @Slot(object)
    def _handle_view(self, _view: object) -> None:
        if self._is_shown and (self.is_loading or self.activity is Activity.LOADING):
            self.changed.emit()

    @Slot(object)
    def _handle_applied(self, error: LauncherError | None) -> None:
        if not self._checks_when_applied:
            return
        self._checks_when_applied = False
        if error is not None:
            self._show_failure(error)
        elif self._own_server is not None:
            self._check_server(self._own_server[0])
        else:
            self._end_activity()
