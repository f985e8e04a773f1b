"""Tuning a model on this machine: kept so that it can be continued, ended as it was found or as it was won."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any

from launcher.base.errors import LauncherError, NothingMeasured, Superseded
from launcher.bench import SessionBench, options_with
from launcher.engine.launch import Launch, ServeOptions
from launcher.engine.settings import OPTIONS, remember, remembered
from launcher.engine.settings import Value as Setting
from launcher.session import Session
from launcher.tuner_kept import KeptTune, forget_tune, keep, kept_tune, only_tune
from launcher.tuner_space import Prepared
from launcher.tuning.fill import sized
from launcher.tuning.history import History, history_file
from launcher.tuning.history_environment import Environment, model_facts
from launcher.tuning.history_writer import HistoryWriter
from launcher.tuning.machine_preset import keep_tuned
from launcher.tuning.records import Settings
from launcher.tuning.tuner import tune
from launcher.tuning.tuner_events import OnEvent, Paused, TrialFailed, TrialMeasured, TuneEvent
from launcher.tuning.tuner_state import TuneState
from launcher.tuning.verdict import Verdict
from launcher.tuning.workloads import Workload

PAUSED = "Paused: it can be continued."
"""What the history says of a tune that was."""
_log = logging.getLogger(__name__)


async def tune_on(
    session: Session,
    prepared: Prepared,
    on_event: OnEvent,
    *,
    resume: KeptTune | None = None,
) -> Verdict:
    """Tune a model on a session's server; what that served before is served again at the end, and after a cancel.

    Cancelling pauses: what was measured is kept after each trial, and `resume` goes on with it. Everything goes into
    the history. Raises what `tuning.tuner.tune` raises; after Superseded the server is left to who took it. Raises
    TuneUnderWay when another program tunes.
    """
    with only_tune(), session.monitor.uncounted():
        before = None if session.rests else session.supervisor.options
        try:
            verdict = await _tuned(
                SessionBench(session, prepared.options, named=prepared.model), prepared, on_event, resume
            )
        except Superseded:
            raise
        except BaseException:
            await _serve_again(session, before)
            raise
        await _serve_again(session, before)
        return verdict


async def serve_winner(session: Session, model: str, options: ServeOptions, settings: Settings) -> None:
    """Serve what a tune recommends, and keep it for the model's next start. `options` are those of the tune."""
    await session.start(options_with(options, settings), chosen=lasting(settings), named=model)
    await asyncio.to_thread(keep_winner, options, settings)


def keep_winner(options: ServeOptions, settings: Settings) -> None:
    """Keep what a tune recommends for the model's next start; of the last tune as this machine's preset, too."""
    remember(options.model, remembered(options.model) | lasting(settings))
    tune = kept_tune(options.model)
    if tune is None or tune.verdict is None or tune.verdict["settings"] != dict(settings):
        return
    try:
        keep_tuned(tune.session, options.model)
    except (LauncherError, OSError) as error:
        _log.warning("The machine's preset cannot be kept: %s.", error)


def measured_without_mtp(launch: Launch) -> float | None:
    """Return the tokens/s without MTP that the last tune of this model and engine measured, on average; None without.

    Raises HistoryUnusable.
    """
    if not history_file().exists():
        return None
    facts = model_facts(launch.header)
    with History() as history:
        for found in history.find(kind="tune", model=facts.name):
            tuned = history.load(found.id)
            where = tuned.environment
            if (where.model.name, where.model.quant, where.engine) != (facts.name, facts.quant, launch.build.name):
                continue
            home = dict(tuned.settings)
            rates = [run.decode_rate for run in tuned.runs if run.counts and dict(run.settings) == home]
            if rates:
                return fmean(rate for rate in rates if rate is not None)
    return None


def is_decided(verdict: Mapping[str, Any]) -> bool:
    """Return whether a verdict, as Verdict.as_json has it, recommends anything: MTP on, MTP off, or other settings."""
    return verdict["mtp"] != "undecided" or verdict["gain"] is not None


def lasting(settings: Settings) -> dict[str, Setting]:
    """Return those of a tune's settings that are kept by name: the options of `serve`."""
    return {name: value for name, value in settings.items() if name in OPTIONS and not isinstance(value, float)}


async def _tuned(bench: SessionBench, prepared: Prepared, on_event: OnEvent, resume: KeptTune | None) -> Verdict:
    workload = resume.workload if resume else await _sized(bench, prepared)
    environment = await asyncio.to_thread(Environment.of_this_machine, prepared.launch)
    record = _Record(prepared, workload, environment, resume)

    def tell(event: TuneEvent) -> None:
        record.take(event)
        on_event(event)

    state = resume.state if resume else None
    try:
        verdict = await tune(
            bench, prepared.space, workload, prepared.goal, prepared.budget_s, on_event=tell, resume=state
        )
        record.end(verdict)
        return verdict
    except NothingMeasured as error:
        record.fail(error)
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(record.close))


async def _sized(bench: SessionBench, prepared: Prepared) -> Workload:
    """Return the workload with all texts as long as they are to be; only an engine that serves the model can tell."""
    workload = prepared.workload
    if workload.sized_tokens:
        await bench.become(prepared.space.off())
        prompts = await sized(workload.prompts, bench.session.supervisor.client)
        await bench.close()  # each trial is a start of its own
        workload = replace(workload, prompts=tuple(replace(prompt, size=None) for prompt in prompts))
    return workload


async def _serve_again(session: Session, before: ServeOptions | None) -> None:
    """Serve what was served before a tune, or nothing if nothing was."""
    if before is None:
        await session.stop()
    else:
        await session.start(before)


class _Record:
    """Keeps a tune while it is made: its state in a file, its runs in the history. Where that fails, it goes on."""

    def __init__(
        self, prepared: Prepared, workload: Workload, environment: Environment, resume: KeptTune | None
    ) -> None:
        self._writer = HistoryWriter()
        self._done = frozenset(map(id, resume.state.trials)) if resume else frozenset[int]()
        if resume is None:
            off = prepared.space.off()
            session = self._writer.begin("tune", environment, off, workload=workload.name)
        else:
            session = resume.session
            self._writer.go_on(session)
        self._kept = KeptTune(
            model=prepared.model,
            options=prepared.options,
            workload=workload,
            goal=prepared.goal,
            budget_s=prepared.budget_s,
            space=prepared.space,
            state=resume.state if resume else TuneState({}, 0, ()),
            session=session,
        )

    def take(self, event: TuneEvent) -> None:
        """Keep a trial that was made now, not one of those with which a tune is continued."""
        if isinstance(event, TrialMeasured | TrialFailed) and id(event.trial) not in self._done:
            for run in event.trial.runs:
                self._writer.add(self._kept.session, run)
            self._keep(event.state)
        elif isinstance(event, Paused):
            self._writer.finish(self._kept.session, {"sentence": PAUSED})

    def end(self, verdict: Verdict) -> None:
        """Keep the verdict."""
        told = verdict.as_json()
        self._writer.finish(self._kept.session, {**told, "goal": self._kept.goal.aim.value})
        self._keep(replace(self._kept.state, trials=verdict.trials), told)

    def fail(self, error: LauncherError) -> None:
        """Keep that nothing could be measured; there is nothing to continue."""
        self._writer.finish(self._kept.session, {"error": error.title, "sentence": error.title})
        with suppress(OSError):
            forget_tune(self._kept.options.model)

    def close(self) -> None:
        """Let the history be written to its end."""
        self._writer.close()

    def _keep(self, state: TuneState, verdict: Mapping[str, object] | None = None) -> None:
        self._kept = self._kept.with_state(state, verdict)
        try:
            keep(self._kept)
        except OSError as error:
            _log.warning("The tune cannot be kept, and so not be continued later: %s.", error.strerror or error)
