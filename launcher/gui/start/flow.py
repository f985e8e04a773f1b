"""Requests of the Start page to the core: one of each kind at a time; a newer one replaces an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from launcher.app.first_steps import StepProgress
from launcher.base.errors import LauncherError, Superseded
from launcher.engine.server.state import ServerState
from launcher.gui.start import queries as looking

if TYPE_CHECKING:
    from launcher.app.first_checks import StartRequest, StartSurvey
    from launcher.app.first_start import OnStatus, SendRequest
    from launcher.app.start_settings import KeptPlan, Start
    from launcher.base.errors import LauncherError
    from launcher.engine.server.client import ChatRequest
    from launcher.engine.server.launch import Launch
    from launcher.engine.server.state import ServerStatus
    from launcher.gui.controller import Controller
    from launcher.gui.start.queries import Computer, PlanRequest, PlanResult
    from launcher.gui.viewmodel import View
    from launcher.models.plan import Plan
    from launcher.monitor.reply import Reply
    from launcher.runtime import WorkHandle

# Adapter between the core's first start and the window's server: the controller serves.


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """Request of the core's first start for a server.

    Report each status to `hear`, then call `ready` with the address, or `failed`. All three may be called from any
    thread.
    """

    start: Start
    hear: Callable[[ServerStatus], object]
    ready: Callable[[str], object]
    failed: Callable[[LauncherError], object]


async def run_first_start(aim: StartRequest, report: Callable[[object], object]) -> Reply:
    """Run all steps of a first start on the core's thread. Reports StepTold, and ServeRequest to get a server."""
    from launcher.app.first_start import perform_first_start
    from launcher.app.serving import chat

    loop = asyncio.get_running_loop()

    async def serve(start: Start, hear: OnStatus) -> SendRequest:
        ready: asyncio.Future[str] = loop.create_future()

        def settle(settling: Callable[[], object]) -> None:
            loop.call_soon_threadsafe(lambda: None if ready.done() else settling())

        report(
            ServeRequest(
                start,
                lambda status: loop.call_soon_threadsafe(hear, status),
                lambda url: settle(lambda: ready.set_result(url)),
                lambda error: settle(lambda: ready.set_exception(error)),
            )
        )
        url = await ready

        async def ask(request: ChatRequest) -> Reply:
            return await chat(request, url=url)

        return ask

    return await perform_first_start(aim, serve, report)


class ServeAdapter(QObject):
    """Starts a requested server through the controller and reports its progress. One at a time."""

    stopped = Signal()
    """The server was stopped before it was ready."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._asked: ServeRequest | None = None
        self._last: ServerStatus | None = None
        controller.view_changed.connect(self._follow)
        controller.launched.connect(self._launched)
        controller.refused.connect(self._refused)

    def serve(self, asked: ServeRequest) -> None:
        """Start a server."""
        self._asked, self._last = asked, None
        self._controller.start(asked.start.named, start=asked.start)

    def give_up(self) -> None:
        """Stop a server that is starting, even at an early stage. Does nothing without one."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._controller.stop()

    @Slot(object)
    def _follow(self, _view: View) -> None:
        asked, inputs = self._asked, self._controller.inputs
        if asked is None:
            return
        status = inputs.status
        if status != self._last:
            begun, self._last = self._last is not None, status
            if begun and status.state is ServerState.STOPPED:
                self._asked = None
                self.stopped.emit()
                return
            asked.hear(status)
        if status.state is ServerState.FAILED and status.error is not None:
            self._refused(status.error)

    @Slot(object)
    def _refused(self, error: LauncherError) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.failed(error)

    @Slot(object)
    def _launched(self, launch: Launch | None) -> None:
        asked = self._asked
        if asked is not None and launch is not None:
            self._asked = None
            asked.ready(f"http://{self._controller.inputs.address}")


class StartFlow(QObject):
    """Reads the machine, plans, asks the engine and starts. Signals are emitted on the GUI thread."""

    looked_at = Signal(object)
    """ReadingPhase: what is being read."""
    found = Signal(object)
    """PlanResult."""
    surveyed = Signal(object)
    """tuple[StepTold, ...]: the steps of the chosen plan before anything is started."""
    needs_network = Signal(bool)
    stepped = Signal(object)
    """StepTold."""
    started = Signal()
    ended = Signal(object)
    """Reply: the first token has arrived."""
    paused = Signal()
    failed = Signal(object)
    """LauncherError: a step or a read failed."""
    answered = Signal(object)
    """EngineAnswer, or a LauncherError if the engine could not be asked."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = controller.bridge
        self._server = ServeAdapter(controller, self)
        self._server.stopped.connect(self.pause)
        self._computer: Computer | None = None
        self._looking: WorkHandle[None] | None = None
        self._surveying: WorkHandle[None] | None = None
        self._asking: WorkHandle[None] | None = None
        self._starting: WorkHandle[None] | None = None

    @property
    def running(self) -> bool:
        """Whether a first start is in progress."""
        return self._starting is not None

    @property
    def is_reading(self) -> bool:
        """Whether the computer is being read or plans are being made."""
        return self._looking is not None

    def read_and_plan(self, question: PlanRequest, *, again: bool = False) -> None:
        """Read the computer, if not known yet or `again`, and plan. Ends with `found`."""
        if self._looking is not None:
            self._looking.cancel()
        known = None if again else self._computer
        self._looking = self._bridge.run(
            lambda report: looking.read_and_plan(question, report, known),
            done=self._handle_result,
            failed=self._handle_read_failure,
            reported=self.looked_at.emit,
        )

    def survey(self, plan: Plan | None) -> None:
        """Find out which parts of a plan are already here; None stands for the demo."""
        if self._surveying is not None:
            self._surveying.cancel()
        self._surveying = self._bridge.run(
            lambda _report: looking.survey_plan(plan), done=self._handle_survey, failed=self.failed.emit
        )

    def ask_engine(self, plan: Plan) -> None:
        """Ask an engine build for a plan's memory. Ends with `answered`."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = self._bridge.run(
            lambda _report: looking.ask_engine(plan), done=self.answered.emit, failed=self.answered.emit
        )

    def start(self, plan: Plan | None, kept: KeptPlan | None = None) -> None:
        """Run all steps of a plan, or of the demo (None). `kept` has the user's own settings for its file."""
        if self.running:
            return

        async def work(report: object) -> Reply:
            from launcher.app.first_checks import StartRequest, start_request_of
            from launcher.engine.demo import DEMO

            aim = start_request_of(plan, kept) if plan is not None else StartRequest(DEMO)
            return await run_first_start(aim, report)  # type: ignore[arg-type]

        self._starting = self._bridge.run(
            work,
            done=self._finish,
            failed=self._finish_failed,
            reported=self._handle_progress,
            cancelled=self._finish_paused,
        )
        self.started.emit()

    def pause(self) -> None:
        """Pause. Received data is kept."""
        if self._starting is not None:
            self._starting.cancel()

    def _handle_result(self, found: PlanResult) -> None:
        self._looking = None
        self._computer = found.computer
        self.found.emit(found)

    def _handle_read_failure(self, error: LauncherError) -> None:
        self._looking = None
        self.failed.emit(error)

    def _handle_survey(self, survey: StartSurvey) -> None:
        from launcher.app.first_start import initial_steps

        self._surveying = None
        self.needs_network.emit(survey.needs_network)
        self.surveyed.emit(initial_steps(survey))

    def _handle_progress(self, told: object) -> None:
        if isinstance(told, ServeRequest):
            if self.running:
                self._server.serve(told)
        elif isinstance(told, StepProgress):
            self.stepped.emit(told)

    def _finish(self, reply: Reply) -> None:
        self._starting = None
        self.ended.emit(reply)

    def _finish_paused(self) -> None:
        self._starting = None
        self._server.give_up()
        self.paused.emit()

    def _finish_failed(self, error: LauncherError) -> None:
        self._starting = None
        if isinstance(error, Superseded):
            self.paused.emit()
        else:
            self.failed.emit(error)
