"""A tune as the window runs it: prepared, begun, paused, continued, given up; what comes of it is told by signals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError, Superseded
from launcher.gui.service import DEMO
from launcher.gui.tune.told import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.engine.launch import ServeOptions
    from launcher.gui.controller import Controller
    from launcher.gui.tune.shown import TuneShown
    from launcher.runtime import Handle
    from launcher.session import Session
    from launcher.tuner_kept import KeptTune
    from launcher.tuner_space import Prepared
    from launcher.tuning.history_records import Session as KeptSession


class Tuning(QObject):
    """Runs one tune at a time on the window's server."""

    planned = Signal(object)
    """Prepared: what a tune as it is wanted now would do, or one that begins"""
    changed = Signal(object)
    """TuneShown: a trial was made, or a verdict reached"""
    step = Signal(object)
    """TrialPlanned: what is measured now"""
    paused = Signal(object)
    """LauncherError | None: it stands, and can be continued; the error is why it did not end by the user's wish"""
    ended = Signal()
    failed = Signal(object)
    """LauncherError: it has ended without a verdict"""
    applied = Signal(object)
    """LauncherError | None: the winner is served and kept, or why not"""
    found = Signal(object)
    """KeptTune | None: the tune that was begun last, with its verdict if it has ended"""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._handle: Handle[None] | None = None
        self._planning: Handle[None] | None = None
        self._forgets = False
        self._shown: TuneShown | None = None
        self._path: Path | None = None

    @property
    def running(self) -> bool:
        """Whether a tune is under way, or is being paused."""
        return self._handle is not None

    @property
    def last(self) -> TuneShown | None:
        """What is known of the tune that was begun last."""
        return self._shown

    def look(self) -> None:
        """Find the tune that was begun last."""
        self._controller.bridge.run(lambda _tell: asyncio.to_thread(_kept), done=self._look_ended)

    def _look_ended(self, kept: KeptTune | None) -> None:
        if not self.running:
            self._shown, self._path = (None, None) if kept is None else (_shown_of(kept), kept.options.model)
            self.found.emit(kept)

    def plan(self, wanted: Wanted) -> None:
        """Find out what a tune would do; `planned` tells."""
        if self._planning is not None:
            self._planning.cancel()
        session, model = self._controller.session, self._controller.named

        async def work(_tell: object) -> Prepared:
            return await _prepare(session, model, wanted)

        self._planning = self._controller.bridge.run(work, done=self.planned.emit, failed=lambda _: None)

    def begin(self, wanted: Wanted | None, *, more_minutes: float = 0.0) -> None:
        """Begin a tune, or with None go on with the one that was begun last, for some minutes more than it had."""
        if self.running:
            return
        self._forgets = False
        if wanted is not None:
            self._path = None
        path = self._path

        async def work(session: Session, model: str, tell: Callable[[object], None]) -> Any:  # noqa: ANN401 -- a Verdict
            from launcher.tuner import tune_on

            kept = await asyncio.to_thread(_kept, path) if wanted is None else None
            if kept is not None:
                kept = replace(kept, budget_s=kept.budget_s + 60 * more_minutes)
            prepared = await _prepare(session, model, wanted or Wanted(), kept)
            tell(prepared)
            return await tune_on(session, prepared, tell, resume=kept)

        self._handle = self._controller.measure(
            work,
            told=self._take,
            done=lambda _verdict: self._end(self.ended.emit),
            failed=self._failed,
            cancelled=lambda: self._end(self._stopped),
        )

    def pause(self) -> None:
        """Stop measuring; what ran before is served again, and the tune can be continued."""
        if self._handle is not None:
            self._handle.cancel()

    def give_up(self) -> None:
        """Stop measuring, or having stopped, and let it not be continued."""
        self._forgets = True
        if self._handle is not None:
            self._handle.cancel()
        else:
            self._stopped()

    def apply(self) -> None:
        """Serve what the last verdict recommends, and keep it for the model's next start."""
        path = self._path

        async def work(session: Session, _model: str, _tell: object) -> None:
            from launcher.tuner import serve_winner

            kept = await asyncio.to_thread(_kept, path)
            if kept is not None and kept.verdict is not None:
                await serve_winner(session, kept.model, kept.options, kept.verdict["settings"])

        self._controller.measure(
            work,
            told=lambda _: None,
            done=lambda _: self.applied.emit(None),
            failed=self.applied.emit,
            cancelled=lambda: None,
        )

    def _end(self, tell: Callable[[], object]) -> None:
        self._handle = None
        tell()

    def _failed(self, error: LauncherError) -> None:
        self._handle = None
        if isinstance(error, Superseded):
            self.paused.emit(error)
        else:
            self.failed.emit(error)

    def _stopped(self) -> None:
        if not self._forgets:
            self.paused.emit(None)
            return

        begun = self._path if self._shown is not None and self._shown.trials else None  # else another tune is kept

        def work() -> None:
            from launcher.tuner_kept import forget_tune

            if begun is not None:
                forget_tune(begun)

        self._shown = None
        self._controller.bridge.run(lambda _tell: asyncio.to_thread(work), done=lambda _: self.found.emit(None))

    def _take(self, event: object) -> None:
        from launcher.tuner_space import Prepared
        from launcher.tuning.tuner_events import Predicted, TrialFailed, TrialMeasured, TrialPlanned, VerdictReached

        match event:
            case Prepared():
                self._shown, self._path = _shown_at(event), event.options.model
                self.planned.emit(event)
                self.changed.emit(self._shown)
            case TrialPlanned():
                self.step.emit(event)
            case TrialMeasured(state=state) | TrialFailed(state=state):
                self._show(trials=state.trials)
            case Predicted():
                self._show(forecasts=event.forecasts, beside=_others(event.settings))
            case VerdictReached():
                told = event.verdict.as_json()
                self._show(
                    trials=event.state.trials,
                    forecasts=event.verdict.forecasts,
                    beside=_others(event.verdict.shown),
                    verdict=told,
                )
            case _:
                pass

    def _show(self, **changes: Any) -> None:  # noqa: ANN401 -- fields of TuneShown
        if self._shown is not None:
            self._shown = replace(self._shown, **changes)
            self.changed.emit(self._shown)


def _kept(model: Path | None = None) -> KeptTune | None:
    """Return the last tune of a model's file: that of another may have been begun elsewhere since."""
    from launcher.tuner_kept import kept_tune

    return kept_tune(model)


async def options_here(session: Session | None, model: str) -> tuple[str, ServeOptions]:
    """Return what runs, else the model that was served last, else the demo; and how it is, or would be, served."""
    from launcher.app import usual_options
    from launcher.engine.last import last_model

    options = None if session is None or session.rests else session.supervisor.options
    if options is not None and model:
        return model, options
    found = await asyncio.to_thread(last_model)
    model = found or DEMO
    return model, await asyncio.to_thread(usual_options, model)


async def _prepare(session: Session | None, model: str, wanted: Wanted, kept: KeptTune | None = None) -> Prepared:
    """Prepare a tune of what runs, else of the model that was served last, else of the demo; or one that was kept."""
    from launcher.tuner_space import prepare
    from launcher.tuning.goal import Aim, Goal
    from launcher.tuning.workloads import of_file, workload

    engine_pid, log = None, list[str]()
    if session is not None and not session.rests:
        engine_pid, log = session.supervisor.engine_pid, session.supervisor.log.last()
    if kept is not None:
        return await prepare(
            kept.model,
            kept.options,
            kept.workload,
            kept.goal,
            kept.budget_s,
            space=kept.space,
            engine_pid=engine_pid,
            log=log,
        )
    model, options = await options_here(session, model)
    read = (lambda: of_file(Path(wanted.file))) if wanted.file else (lambda: workload(wanted.workload))
    asked = await asyncio.to_thread(read)
    goal, budget_s = Goal(Aim(wanted.aim)), 60.0 * wanted.minutes
    return await prepare(model, options, asked, goal, budget_s, engine_pid=engine_pid, log=log)


def _shown_at(prepared: Prepared) -> TuneShown:
    from launcher.gui.tune.shown import TuneShown

    return TuneShown(
        prepared.model, prepared.workload.title, prepared.goal, prepared.space.baseline, needs=prepared.needs
    )


def _shown_of(kept: KeptTune) -> TuneShown:
    from launcher.gui.tune.shown import TuneShown, forecasts_of

    verdict = kept.verdict
    return TuneShown(
        kept.model,
        kept.workload.title,
        kept.goal,
        kept.space.baseline,
        kept.state.trials,
        forecasts_of(verdict) if verdict else (),
        _others(verdict["shown"]) if verdict else {},
        verdict,
    )


def shown_of_session(session: KeptSession) -> TuneShown:
    """Return what the history has of a tune."""
    from launcher.gui.tune.shown import TuneShown, forecasts_of, trials_of
    from launcher.tuning.goal import Aim, Goal

    result = session.result
    ended = "mtp" in result
    return TuneShown(
        session.environment.model.name,
        session.workload,
        Goal(Aim(result.get("goal", "speed"))),
        session.settings,
        trials_of(session.runs),
        forecasts_of(result) if ended else (),
        _others(result.get("shown", {})),
        result if ended else None,
    )


def _others(settings: Mapping[str, Any]) -> dict[str, Any]:
    from launcher.tuning.space import DRAFT

    return {name: value for name, value in settings.items() if name != DRAFT}
