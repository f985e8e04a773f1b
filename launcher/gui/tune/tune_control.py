"""Control of a tune by the window: plan, start, pause, continue, give up. Results are emitted as signals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from launcher.base.codec import to_json
from launcher.base.errors import LauncherError, Superseded
from launcher.gui.late import (
    agent_tasks,
    borrowed_session,
    last_start,
    measured_tunes,
    registry,
    saved_tunes,
    start_settings,
    trial_views,
    tune_goals,
    tuner,
    tuner_space,
    workloads,
)
from launcher.gui.service import DEMO
from launcher.gui.tune.view_data import OWN_WORKLOAD, TuneRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.app.measuring.saved_tunes import SavedTune
    from launcher.app.measuring.tuner_space import PreparedTune
    from launcher.app.serving.serving_session import ServingSession
    from launcher.engine.serve_options import ServeOptions
    from launcher.gui.controller import Controller
    from launcher.gui.tune.trial_views import TuneView
    from launcher.runtime import WorkHandle
    from launcher.tuning.history_records import Session
    from launcher.tuning.verdict import Verdict
    from launcher.tuning.workloads import Workload


class TuneControl(QObject):
    """Runs one tune at a time on the window's server."""

    planned = Signal(object)
    """PreparedTune: the plan of a tune for the current choices, or of the tune that starts."""
    changed = Signal(object)
    """TuneView: a trial was measured or a verdict reached."""
    trial_planned = Signal(object)
    """TrialPlanned: the trial being measured."""
    delayed = Signal(object)
    """QuietAwaited, QuietEnded, ClientsAwaited or AnswersCompared: what is done between trials or after the last."""
    answered = Signal(object)
    """Predicted: what would be recommended now, while the tune goes on."""
    paused = Signal(object)
    """LauncherError | None: paused, can be continued. The error is set if the user did not ask for it."""
    ended = Signal()
    failed = Signal(object)
    """LauncherError: it ended without a verdict."""
    applied = Signal(object)
    """LauncherError | None: the winner is served and kept, or the reason why not."""
    last_read = Signal(object)
    """SavedTune | None: the last tune, with its verdict if it has ended."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._running_tune: WorkHandle[None] | None = None
        self._planning: WorkHandle[None] | None = None
        self._gives_up = False
        self._settings_to_serve: Mapping[str, Any] | None = None
        """Settings of a likely answer to serve once the running tune is paused."""
        self._view: TuneView | None = None
        self._model_path: Path | None = None
        """The model file of the last tune."""

    @property
    def running(self) -> bool:
        """Whether a tune is running or being paused."""
        return self._running_tune is not None

    @property
    def last_view(self) -> TuneView | None:
        """State of the running tune, or else of the last one."""
        return self._view

    def read_last(self) -> None:
        """Read the last tune."""
        self._controller.bridge.run(_read_saved_tune, done=self._handle_last)

    def _handle_last(self, saved: SavedTune | None) -> None:
        if not self.running:
            self._view = _view_of_saved(saved) if saved is not None else None
            self._model_path = saved.options.model if saved is not None else None
            self.last_read.emit(saved)

    def plan_tune(self, request: TuneRequest) -> None:
        """Plan a tune. Ends with `planned`."""
        if self._planning is not None:
            self._planning.cancel()
        session, model = self._controller.session, self._controller.served_name

        self._planning = self._controller.bridge.run(
            _prepare_tune, session, model, request, done=self.planned.emit, failed=lambda _: None
        )

    def start_tune(self, request: TuneRequest | None, *, more_minutes: float = 0.0, when_idle: bool = False) -> None:
        """Start a tune or, with None, continue the last one with some more minutes of budget.

        With `when_idle` it is measured on the running server, if there is one, while no client uses it.
        """
        if self.running:
            return
        self._gives_up = False
        self._settings_to_serve = None
        if request is not None:
            self._model_path = None
        model_path = self._model_path

        async def measure_settings(session: ServingSession, model: str, report: Callable[[object], None]) -> Any:  # noqa: ANN401 -- a Verdict
            saved = await asyncio.to_thread(_read_saved_tune, model_path) if request is None else None
            if saved is not None:
                saved = replace(saved, budget_s=saved.budget_s + 60 * more_minutes)
            prepared = await _prepare_tune(session, model, request or TuneRequest(), saved)
            report(prepared)
            if when_idle and not session.is_idle:
                return await _tune_when_idle(session, prepared, report, saved)
            return await measured_tunes.run_tune(session, prepared, report, resume=saved)

        self._running_tune = self._controller.run_measurement(
            measure_settings,
            reported=self._handle_event,
            done=self._finish_judged,
            failed=self._finish_failed,
            cancelled=lambda: self._finish(self._finish_stopped),
        )

    def pause(self) -> None:
        """Stop measuring and serve the earlier server again. The tune can be continued."""
        if self._running_tune is not None:
            self._running_tune.cancel()

    def give_up(self) -> None:
        """Stop measuring for good; the tune cannot be continued. Also ends a paused one."""
        self._gives_up = True
        if self._running_tune is not None:
            self._running_tune.cancel()
        else:
            self._finish_stopped()

    def apply_answer(self, settings: Mapping[str, Any]) -> None:
        """Pause the running tune, then serve the settings of a likely answer and store them for the next start.

        They are not used if they change the model's answers.
        """
        if self._running_tune is not None:
            self._settings_to_serve = settings
            self._running_tune.cancel()

    def apply_winner(self) -> None:
        """Serve the settings that the last verdict recommends, and store them for the model's next start."""
        self._serve_settings(None)

    def _serve_settings(self, settings: Mapping[str, Any] | None) -> None:
        """Serve and store settings for the model of the last tune; None for those that its verdict recommends."""
        model_path = self._model_path

        async def serve_found(session: ServingSession, _model: str, _report: object) -> None:
            saved = await asyncio.to_thread(_read_saved_tune, model_path)
            if saved is not None and settings is not None:
                await measured_tunes.serve_early_answer(session, saved.model, saved.options, settings)
            elif saved is not None and saved.verdict is not None:  # an ended tune, whose answers were judged
                await measured_tunes.serve_winner(session, saved.model, saved.options, saved.verdict["settings"])

        self._controller.run_measurement(
            serve_found,
            done=self._finish_serving,
            failed=self.applied.emit,
            cancelled=lambda: None,
        )

    def _finish_serving(self, _result: object) -> None:
        self.applied.emit(None)
        self._controller.tuned_saved.emit()

    def _finish_judged(self, verdict: Verdict) -> None:
        """Show the verdict with the quality of the answers, which is judged after the last trial."""
        self._change_view(verdict=to_json(verdict))
        self._finish(self.ended.emit)

    def _finish(self, callback: Callable[[], object]) -> None:
        self._running_tune = None
        callback()

    def _finish_failed(self, error: LauncherError) -> None:
        self._running_tune = None
        if isinstance(error, Superseded):
            self.paused.emit(error)
        else:
            self.failed.emit(error)

    def _finish_stopped(self) -> None:
        if not self._gives_up:
            self.paused.emit(None)
            if self._settings_to_serve is not None:
                self._serve_settings(self._settings_to_serve)
                self._settings_to_serve = None
            return

        # A tune without trials was not stored: the file has an earlier tune, which must not be deleted.
        path_to_delete = self._model_path if self._view is not None and self._view.trials else None

        def delete_saved() -> None:
            if path_to_delete is not None:
                saved_tunes.delete_tune(path_to_delete)

        self._view = None
        self._controller.bridge.run(delete_saved, done=lambda _: self.last_read.emit(None))

    def _handle_event(self, event: object) -> None:
        match event:
            case tuner_space.PreparedTune():
                self._view, self._model_path = _view_of_prepared(event), event.options.model
                self.planned.emit(event)
                self.changed.emit(self._view)
            case tuner.ClientsAwaited(waited_s):
                self._change_view(waited_s=waited_s)
                self.delayed.emit(event)
            case tuner.TrialPlanned():
                self.trial_planned.emit(event)
            case tuner.QuietAwaited() | tuner.QuietEnded() | tuner.AnswersCompared():
                self.delayed.emit(event)
            case tuner.TrialMeasured(state=state) | tuner.TrialFailed(state=state):
                self._change_view(trials=state.trials)
            case tuner.Predicted():
                self._change_view(forecasts=event.forecasts, other_settings=_without_draft(event.settings))
                self.answered.emit(event)
            case tuner.VerdictReached():
                self._change_view(
                    trials=event.state.trials,
                    forecasts=event.verdict.forecasts,
                    other_settings=_without_draft(event.verdict.forecast_settings),
                    verdict=to_json(event.verdict),
                )

    def _change_view(self, **changes: Any) -> None:  # noqa: ANN401 -- fields of TuneView
        if self._view is not None:
            self._view = replace(self._view, **changes)
            self.changed.emit(self._view)


async def _tune_when_idle(
    session: ServingSession, prepared: PreparedTune, report: Callable[[object], None], saved: SavedTune | None
) -> Verdict:
    """Tune on the server of `session` while no client uses it; then restore its settings."""
    entry = await asyncio.to_thread(registry.find_server, session.supervisor.endpoint.url)
    with session.monitor.pause_traffic_reports():
        async with borrowed_session.borrow_server(entry) as borrowed:
            borrowed.check_model(prepared.options)
            verdict = await measured_tunes.run_tune_when_idle(borrowed, prepared, report, resume=saved)
            report(tuner.ClientsAwaited(borrowed.waited_s, is_over=True))
            return verdict


def _read_saved_tune(model: Path | None = None) -> SavedTune | None:
    """Return the last tune of a model file, or of any if None. Another program may have tuned another file since."""
    return saved_tunes.load_tune(model)


async def current_options(session: ServingSession | None, model: str) -> tuple[str, ServeOptions]:
    """Return the running model, else the last served one, else the demo; and its actual or resolved settings."""
    options = None if session is None or session.is_idle else session.supervisor.options
    if options is not None and model:
        return model, options
    last_model = await asyncio.to_thread(last_start.load_last_model)
    model = last_model or DEMO
    return model, (await start_settings.resolve_start(model, use_tuned=False)).options


async def _prepare_tune(
    session: ServingSession | None, model: str, request: TuneRequest, saved: SavedTune | None = None
) -> PreparedTune:
    """Prepare a tune of the running model, else the last served one, else the demo; or a stored tune."""
    engine_pid: int | None = None
    engine_log: list[str] = []
    if session is not None and not session.is_idle:
        engine_pid, engine_log = session.supervisor.engine_pid, session.supervisor.log.last_lines()
    if saved is not None:
        return await tuner_space.prepare_tune(
            saved.model,
            saved.options,
            saved.workload,
            saved.goal,
            saved.budget_s,
            space=saved.space,
            engine_pid=engine_pid,
            log=engine_log,
        )
    model, options = await current_options(session, model)
    aim = tune_goals.Aim(request.aim)
    goal, budget_s = tune_goals.Goal(aim), 60.0 * request.minutes
    if aim is tune_goals.Aim.TASK:
        shape = agent_tasks.find_shape(agent_tasks.DEFAULT_AGENT)
        goal, workload = agent_tasks.task_goal(shape), agent_tasks.task_workload(shape)
    else:
        workload = await asyncio.to_thread(_load_requested, request)
    return await tuner_space.prepare_tune(
        model, options, workload, goal, budget_s, engine_pid=engine_pid, log=engine_log
    )


def _load_requested(request: TuneRequest) -> Workload:
    """Return the workloads of a request, joined. Raises BadOption and WorkloadUnusable."""
    names = request.workload.split(",")
    if request.file and OWN_WORKLOAD not in names:
        names = [OWN_WORKLOAD]
    chosen = [
        workloads.read_workload_file(Path(request.file)) if name == OWN_WORKLOAD else workloads.load_workload(name)
        for name in names
    ]
    return chosen[0] if len(chosen) == 1 else workloads.join_workloads(chosen)


def _view_of_prepared(prepared: PreparedTune) -> trial_views.TuneView:
    from launcher.gui.tune.card_text import workload_title

    return trial_views.TuneView(
        prepared.model,
        workload_title(prepared.workload.name),
        prepared.goal,
        prepared.space.baseline,
        estimate_mib=prepared.estimate_mib,
    )


def _view_of_saved(saved: SavedTune) -> trial_views.TuneView:
    from launcher.gui.tune.card_text import workload_title

    verdict = saved.verdict
    return trial_views.TuneView(
        saved.model,
        workload_title(saved.workload.name),
        saved.goal,
        saved.space.baseline,
        saved.state.trials,
        trial_views.read_forecasts(verdict) if verdict else (),
        _without_draft(verdict["shown"]) if verdict else {},
        verdict,
    )


def view_of_session(session: Session) -> trial_views.TuneView:
    """Return the display data of a tune from the history."""
    from launcher.gui.tune.card_text import workload_title

    result = session.result
    ended = "mtp" in result
    return trial_views.TuneView(
        session.environment.model.name,
        workload_title(session.workload),
        tune_goals.Goal(tune_goals.Aim(result.get("goal", "speed"))),
        session.settings,
        trial_views.group_trials(session.runs),
        trial_views.read_forecasts(result) if ended else (),
        _without_draft(result.get("shown", {})),
        result if ended else None,
    )


def _without_draft(settings: Mapping[str, Any]) -> dict[str, Any]:
    from launcher.tuning.space import DRAFT

    return {name: value for name, value in settings.items() if name != DRAFT}
