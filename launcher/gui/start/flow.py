"""Requests of the Start page to the core: one of each kind at a time; a newer one replaces an older one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal, Slot

from launcher.app.first.first_steps import StepProgress
from launcher.base.errors import LauncherError, Superseded
from launcher.base.late import asyncio
from launcher.engine.server.state import ServerState
from launcher.gui.late import first_checks, first_start, start_planning
from launcher.gui.service import DEMO

if TYPE_CHECKING:
    from launcher.app.first.first_checks import FirstStartRequest, StartSurvey
    from launcher.app.first.first_start import OnStatus, SendRequest
    from launcher.app.planning.start_settings import KeptPlan, ResolvedStart
    from launcher.app.serving.serving_session import ServingSession
    from launcher.engine.server.launch import Launch
    from launcher.engine.server.state import ServerStatus
    from launcher.gui.controller import Controller
    from launcher.gui.start.queries import Computer, PlanRequest, PlanResult
    from launcher.gui.viewmodel import View
    from launcher.models.plan import Plan
    from launcher.monitor.reply import Reply
    from launcher.runtime import WorkHandle

# Adapter between the core's first start and the controller, which starts the window's server.


class ServeRequest(NamedTuple):
    """Request of the core's first start for a server.

    Whoever starts the server passes each of its statuses to `on_status`, and then its URL to `ready` or an error to
    `failed`. All three may be called from any thread.
    """

    start: ResolvedStart
    on_status: Callable[[ServerStatus], object]
    ready: Callable[[str], object]
    failed: Callable[[LauncherError], object]


async def run_first_start(
    request: FirstStartRequest,
    report: Callable[[object], object],
    read_session: Callable[[], ServingSession | None],
) -> Reply | None:
    """Run all steps of a first start on the core's thread.

    Reports StepProgress, and a ServeRequest when the server has to be started. `read_session` returns the session that
    started it.
    """
    loop = asyncio.get_running_loop()

    async def serve(start: ResolvedStart, on_status: OnStatus) -> SendRequest:
        url_future: asyncio.Future[str] = loop.create_future()

        def set_url(url: str) -> None:
            if not url_future.done():
                url_future.set_result(url)

        def set_error(error: LauncherError) -> None:
            if not url_future.done():
                url_future.set_exception(error)

        report(
            ServeRequest(
                start,
                on_status=lambda status: loop.call_soon_threadsafe(on_status, status),
                ready=lambda url: loop.call_soon_threadsafe(set_url, url),
                failed=lambda error: loop.call_soon_threadsafe(set_error, error),
            )
        )
        await url_future
        session = read_session()
        # Not by the URL: the server's registry entry, which has its key, may not be written yet, or cannot be.
        assert session is not None  # noqa: S101 -- it has started the server
        return session.send_request

    return await first_start.perform_first_start(request, serve, report)


class ServeAdapter(QObject):
    """Starts a requested server through the controller and reports its progress. One at a time."""

    stopped = Signal()
    """The server was stopped before it was ready."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._serve_request: ServeRequest | None = None
        self._last_status: ServerStatus | None = None
        controller.view_changed.connect(self._handle_view)
        controller.launched.connect(self._handle_launch)
        controller.refused.connect(self._handle_refusal)

    def start_server(self, request: ServeRequest) -> None:
        """Start a server."""
        self._serve_request, self._last_status = request, None
        self._controller.start(request.start.model_name, start=request.start)

    def cancel_start(self) -> None:
        """Stop the requested server while it starts. Does nothing if none is starting."""
        request, self._serve_request = self._serve_request, None
        if request is not None:
            self._controller.stop()

    @Slot(object)
    def _handle_view(self, _view: View) -> None:
        request, inputs = self._serve_request, self._controller.inputs
        if request is None:
            return
        status = inputs.status
        if status != self._last_status:
            is_first, self._last_status = self._last_status is None, status
            # The first status may still be the one before this start.
            if not is_first and status.state is ServerState.STOPPED:
                self._serve_request = None
                self.stopped.emit()
                return
            request.on_status(status)
        if status.state is ServerState.FAILED and status.error is not None:
            self._handle_refusal(status.error)

    @Slot(object)
    def _handle_refusal(self, error: LauncherError) -> None:
        request, self._serve_request = self._serve_request, None
        if request is not None:
            request.failed(error)

    @Slot(object)
    def _handle_launch(self, launch: Launch | None) -> None:
        request = self._serve_request
        if request is not None and launch is not None:
            self._serve_request = None
            request.ready(f"http://{self._controller.inputs.address}")


class StartFlow(QObject):
    """Reads the machine, plans, asks the engine and starts. Signals are emitted on the GUI thread."""

    phase_changed = Signal(object)
    """ReadingPhase: what is being read."""
    planned = Signal(object)
    """PlanResult."""
    surveyed = Signal(object)
    """tuple[StepProgress, ...]: the steps of the chosen plan before anything is started."""
    needs_network = Signal(bool)
    """Whether the chosen plan needs a download."""
    stepped = Signal(object)
    """StepProgress: a step of the running first start has advanced."""
    started = Signal()
    ended = Signal(object)
    """Reply, None for an embedding model: the server works."""
    paused = Signal()
    failed = Signal(object)
    """LauncherError: a step or a read failed."""
    answered = Signal(object)
    """EngineAnswer, or a LauncherError if the engine could not be asked."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._bridge = controller.bridge
        self._server = ServeAdapter(controller, self)
        self._server.stopped.connect(self.pause)
        self._computer: Computer | None = None
        self._planning: WorkHandle[None] | None = None
        self._surveying: WorkHandle[None] | None = None
        self._engine_query: WorkHandle[None] | None = None
        self._starting: WorkHandle[None] | None = None

    @property
    def running(self) -> bool:
        """Whether a first start is in progress."""
        return self._starting is not None

    @property
    def is_reading(self) -> bool:
        """Whether the computer is being read or plans are being made."""
        return self._planning is not None

    def read_and_plan(self, request: PlanRequest, *, again: bool = False) -> None:
        """Read the computer, if not known yet or `again`, and plan. Ends with `planned`."""
        if self._planning is not None:
            self._planning.cancel()
        known = None if again else self._computer
        self._planning = self._bridge.run(
            lambda report: start_planning.read_and_plan(request, known, report),
            done=self._handle_result,
            failed=self._handle_read_failure,
            reported=self.phase_changed.emit,
        )

    def read_headers(self, plans: Sequence[Plan], *, done: Callable[[LauncherError | None], object]) -> None:
        """Read the headers of files on the hub, and then call `done` with the first error or None."""
        self._bridge.run(lambda: start_planning.read_headers(plans), done=done, failed=self.failed.emit)

    def survey_plan(self, plan: Plan | None) -> None:
        """Find out which parts of a plan are already on this computer; None stands for the demo."""
        if self._surveying is not None:
            self._surveying.cancel()
        self._surveying = self._bridge.run(
            lambda: start_planning.survey_plan(plan), done=self._handle_survey, failed=self.failed.emit
        )

    def ask_engine(self, plan: Plan) -> None:
        """Ask an engine build for a plan's memory. Ends with `answered`."""
        if self._engine_query is not None:
            self._engine_query.cancel()
        self._engine_query = self._bridge.run(
            lambda: start_planning.ask_engine(plan), done=self.answered.emit, failed=self.answered.emit
        )

    def start_plan(self, plan: Plan | None, own_settings: KeptPlan | None = None) -> None:
        """Run all steps of a plan, or of the demo (None). `own_settings` has the user's own settings for its file."""
        if self.running:
            return

        async def run_steps(report: Callable[[object], None]) -> Reply | None:
            request = (
                first_checks.make_first_start_request(plan, own_settings)
                if plan is not None
                else first_checks.FirstStartRequest(DEMO)
            )
            return await run_first_start(request, report, lambda: self._controller.session)

        self._starting = self._bridge.run(
            run_steps,
            done=self._finish,
            failed=self._finish_failed,
            reported=self._handle_report,
            cancelled=self._finish_paused,
        )
        self.started.emit()

    def pause(self) -> None:
        """Pause the first start. Downloaded parts are kept."""
        if self._starting is not None:
            self._starting.cancel()

    def _handle_result(self, result: PlanResult) -> None:
        self._planning = None
        self._computer = result.computer
        self.planned.emit(result)

    def _handle_read_failure(self, error: LauncherError) -> None:
        self._planning = None
        self.failed.emit(error)

    def _handle_survey(self, survey: StartSurvey) -> None:
        self._surveying = None
        self.needs_network.emit(survey.needs_network)
        self.surveyed.emit(first_start.initial_steps(survey))

    def _handle_report(self, report: object) -> None:
        if isinstance(report, ServeRequest):
            if self.running:
                self._server.start_server(report)
        elif isinstance(report, StepProgress):
            self.stepped.emit(report)

    def _finish(self, reply: Reply | None) -> None:
        self._starting = None
        self.ended.emit(reply)

    def _finish_paused(self) -> None:
        self._starting = None
        self._server.cancel_start()
        self.paused.emit()

    def _finish_failed(self, error: LauncherError) -> None:
        self._starting = None
        if isinstance(error, Superseded):
            self.paused.emit()
        else:
            self.failed.emit(error)
