"""Tunes a model on a session's server: saves each trial to continue later, and restores the previous server."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from launcher.app.measuring.power_limits import LIMIT_KEY, read_power_limit
from launcher.app.measuring.quality import REFERENCE_KV, QualityCheck, QualityReport, prepare_check, run_check
from launcher.app.measuring.saved_tunes import SavedTune, delete_tune, hold_tune_lock, load_tune, save_tune
from launcher.app.measuring.session_bench import SessionBench, options_with_settings
from launcher.app.measuring.tuner_space import NEEDLE_S, PreparedTune
from launcher.app.serving.borrowed_session import BorrowedSession
from launcher.app.serving.serving_session import ServingSession
from launcher.base.codec import to_json
from launcher.base.errors import LauncherError, NothingMeasured, Superseded
from launcher.base.messages import join_messages, message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.models.server_settings import ROWS, Value
from launcher.tuning.goal import Aim
from launcher.tuning.history import History, SessionRecord, history_file, record_session
from launcher.tuning.history_environment import Environment, model_facts
from launcher.tuning.quality import DEFAULT_FILL, MOST_NEEDLE, describe_mtp, describe_row
from launcher.tuning.records import RunSettings
from launcher.tuning.sized_prompts import fill_prompts
from launcher.tuning.space import DRAFT, draft_length
from launcher.tuning.tune_state import TuneState
from launcher.tuning.tuned_settings import save_tune_result
from launcher.tuning.tuner import (
    AnswersCompared,
    ClientsAwaited,
    OnEvent,
    Paused,
    TrialFailed,
    TrialMeasured,
    TuneEvent,
    tune,
)
from launcher.tuning.verdict import Verdict
from launcher.tuning.workloads import Workload


class AnswersChanged(LauncherError):
    """Settings that a tune prefers change the model's answers, or whether they do cannot be judged."""

    code = "answers_changed"


PAUSED = message("Paused. You can resume it.")
"""Result of a paused tune in the history."""
_log = logging.getLogger(__name__)


async def run_tune(
    session: ServingSession,
    prepared: PreparedTune,
    on_event: OnEvent,
    *,
    resume: SavedTune | None = None,
) -> Verdict:
    """Tune a model on a session's server. At the end, also after a cancel, the previous model is served again.

    Cancelling pauses: the state is saved after each trial, and `resume` continues it. All measurements go into the
    history. Raises TuneUnderWay while another program tunes, and what `tuning.tuner.tune` raises. After Superseded the
    previous model is not served again, because another operation uses the server.
    """
    with hold_tune_lock(), session.monitor.pause_traffic_reports():
        previous = None if session.is_idle else session.supervisor.options
        try:
            verdict = await _tune_and_record(
                SessionBench(session, prepared.options, model_name=prepared.model), prepared, on_event, resume
            )
        except Superseded:
            raise
        except BaseException:
            await _restore_server(session, previous)
            raise
        await _restore_server(session, previous)
        return verdict


async def run_tune_when_idle(
    session: BorrowedSession, prepared: PreparedTune, on_event: OnEvent, *, resume: SavedTune | None = None
) -> Verdict:
    """Tune a model on the server that serves it, while no client asks. Waiting for clients takes no time of the budget.

    Otherwise as `run_tune`; the server gets its earlier settings again when the loan ends.
    """
    session.on_wait = lambda *wait: on_event(ClientsAwaited(*wait))
    with hold_tune_lock():
        bench = SessionBench(session, prepared.options, model_name=prepared.model)
        return await _tune_and_record(bench, prepared, on_event, resume)


async def serve_winner(session: ServingSession, model: str, options: ServeOptions, settings: RunSettings) -> None:
    """Serve a model with the settings that a tune recommends, and keep them for its next start.

    `options` are those of the tune.
    """
    winner = options_with_settings(options, settings)
    await session.start(StartRequest(winner, chosen=select_server_settings(settings), model_name=model))
    await asyncio.to_thread(save_winner, options, settings)


async def serve_early_answer(session: ServingSession, model: str, options: ServeOptions, settings: RunSettings) -> None:
    """Serve and keep the settings of a tune's first answer, once their quality is judged as at the end of a tune.

    `options` are those of the tune. Raises AnswersChanged if they change the answers beyond the limits, or if that
    cannot be judged; then the previous model is served again.
    """
    if _changes_kv(settings):
        previous = None if session.is_idle else session.supervisor.options
        report = await run_check(session, await _prepare_kv_check(model, options, settings))
        if report.beyond or not report.rows:
            await _restore_server(session, previous)
            raise AnswersChanged(report.sentence, message("These settings were not used. Continue the measurement."))
    await serve_winner(session, model, options, settings)


def save_winner(options: ServeOptions, settings: RunSettings) -> None:
    """Keep the recommended settings for the model's next start.

    If they are also the result of the model's last tune, they become this machine's tuned settings.
    """
    save_model_settings(options.model, load_model_settings(options.model) | select_server_settings(settings))
    tune = load_tune(options.model)
    if tune is None or tune.verdict is None or tune.verdict["settings"] != dict(settings):
        return
    try:
        save_tune_result(tune.record_id, options.model)
    except (LauncherError, OSError) as error:
        _log.warning("The tuned settings cannot be saved: %s.", error)


def find_rate_without_mtp(launch: Launch) -> float | None:
    """Return the mean tokens/s without MTP in the last tune of this model and engine. None if there is none.

    Raises HistoryUnusable.
    """
    if not history_file().exists():
        return None
    facts = model_facts(launch.header)
    with History() as history:
        for summary in history.find_sessions(kind="tune", model=facts.name):
            tuned = history.load(summary.id)
            tuned_facts, engine = tuned.environment.model, tuned.environment.engine
            if (tuned_facts.name, tuned_facts.quant, engine) != (facts.name, facts.quant, launch.build.name):
                continue
            baseline = dict(tuned.settings)  # a tune's record has its baseline's settings, which are without MTP
            rates = [run.decode_rate for run in tuned.runs if run.is_counted and dict(run.settings) == baseline]
            if rates:
                return fmean(rate for rate in rates if rate is not None)
    return None


def recommends_settings(verdict: Mapping[str, Any]) -> bool:
    """Return whether a verdict (as JSON) recommends anything: MTP on, MTP off, or other settings."""
    return verdict["mtp"] != "undecided" or verdict["gain"] is not None


def changes_answers(verdict: Mapping[str, Any]) -> bool:
    """Return whether the settings that a verdict recommends change the model's answers beyond the limits.

    Such settings are saved only when the user asks for it once more.
    """
    return any((verdict.get(name) or {}).get("answer") == "beyond" for name in ("quality", "mtp_quality"))


def select_server_settings(settings: RunSettings) -> dict[str, Value]:
    """Return the server settings among a tune's settings; only they can be kept for a model."""
    return {name: value for name, value in settings.items() if name in ROWS}


async def _tune_and_record(
    bench: SessionBench, prepared: PreparedTune, on_event: OnEvent, resume: SavedTune | None
) -> Verdict:
    began_s = bench.now_s()
    workload = resume.workload if resume else await _fill_workload(bench, prepared)
    environment = await asyncio.to_thread(Environment.for_launch, prepared.launch)
    state = resume.state if resume else None
    baseline, reopened = prepared.space.baseline_settings(), resume.record_id if resume else None
    async with record_session("tune", environment, baseline, workload=workload.name, reopened=reopened) as record:
        recorder = _TuneRecorder(record, prepared, workload, resume)

        def record_event(event: TuneEvent) -> None:
            recorder.add_event(event)
            on_event(event)

        try:
            verdict = await tune(
                bench,
                prepared.space,
                workload,
                prepared.goal,
                prepared.budget_s,
                on_event=record_event,
                resume=state,
                host_watch=bench.host_watch,
                waited_s=lambda: bench.session.waited_s,
                began_s=began_s,
            )
        except NothingMeasured:
            with suppress(OSError):
                delete_tune(prepared.options.model)  # without a measurement there is nothing to continue
            raise
        recorder.save_verdict(verdict)
        judged = await judge_answers(bench, prepared, verdict, on_event)
        if judged is not verdict:
            recorder.save_verdict(judged)
        return judged


async def judge_answers(bench: SessionBench, prepared: PreparedTune, verdict: Verdict, on_event: OnEvent) -> Verdict:
    """Return the verdict with a judgement of how the recommended KV cache type and MTP change the answers.

    A cache type other than f16 is judged against the same file with an f16 cache, because the tune chooses no weights;
    MTP against the same settings without it. Raises Superseded.
    """
    model, options, settings = prepared.model, prepared.options, verdict.settings
    if _changes_kv(settings):
        report = await _run_quality_check(bench, await _prepare_kv_check(model, options, settings), on_event)
        sentences = [*map(describe_row, report.rows), *report.errors]
        quality = report.rows[0] if report.rows else None
        verdict = replace(verdict, quality=quality, sentence=join_messages(verdict.sentence, *sentences))
    if draft_length(settings):
        check = await _prepare_mtp_check(model, options, verdict)
        report = await _run_quality_check(bench, check, on_event)
        sentences = [*(describe_mtp(row, check.needle) for row in report.rows), *report.errors]
        quality = report.rows[0] if report.rows else None
        verdict = replace(verdict, mtp_quality=quality, because=join_messages(verdict.because, *sentences))
    return verdict


async def _run_quality_check(bench: SessionBench, check: QualityCheck, on_event: OnEvent) -> QualityReport:
    """Return the report of a check on a bench's session. Each of its starts is an event."""
    await bench.close()
    named: set[str] = set()

    def report_start(name: str, *_: int) -> None:
        if name not in named:
            named.add(name)
            on_event(AnswersCompared(name))

    return await run_check(bench.session, check, report_start)


def _changes_kv(settings: RunSettings) -> bool:
    """Return whether settings have another KV cache type than the reference."""
    return settings.get("kv") not in (None, REFERENCE_KV)


async def _prepare_kv_check(model: str, options: ServeOptions, settings: RunSettings) -> QualityCheck:
    """Return the check of the KV cache type in a tune's settings, against the same file with an f16 cache."""
    options = options_with_settings(options, {**settings, DRAFT: 0})
    return await prepare_check(options, model, kv_types=(str(settings["kv"]),), draft=0, against=options.model)


async def _prepare_mtp_check(model: str, options: ServeOptions, verdict: Verdict) -> QualityCheck:
    """Return the check of MTP with a verdict's settings, against the same settings without it.

    Drafts change no probability, so no positions of the text are compared. The prompt around the hidden fact is only as
    long as can be read in NEEDLE_S at the tune's speed.
    """
    settings = verdict.settings
    options = options_with_settings(options, settings)
    kv = str(settings.get("kv") or options.kv or REFERENCE_KV)
    rates = [run.prefill_rate for trial in verdict.trials for run in trial.runs if run.prefill_rate]
    needle = min(MOST_NEEDLE, round(NEEDLE_S * median(rates))) if rates else DEFAULT_FILL
    check = await prepare_check(options, model, kv_types=(kv,), against=options.model, tokens=0, fill=0, needle=needle)
    with_mtp = tuple(each for each in check.candidates if each.drafter.drafts)
    return replace(check, reference=replace(check.reference, kv=kv), candidates=with_mtp)


async def _fill_workload(bench: SessionBench, prepared: PreparedTune) -> Workload:
    """Return the workload with its prompts filled to their sizes. An engine with the model counts their tokens."""
    workload = prepared.workload
    if workload.sized_tokens:
        await bench.become(prepared.space.baseline_settings())
        prompts = await fill_prompts(workload.prompts, bench.session.supervisor.client)
        workload = replace(workload, prompts=tuple(replace(prompt, size=None) for prompt in prompts))
    return workload


async def _restore_server(session: ServingSession, previous: ServeOptions | None) -> None:
    """Serve what was served before a tune, or nothing."""
    if previous is None:
        await session.stop()
    else:
        await session.start(StartRequest(previous))


class _TuneRecorder:
    """Saves a tune while it runs: its state in a file, its runs in the history.

    If the state cannot be written, a warning is logged, and the tune goes on.
    """

    def __init__(
        self, record: SessionRecord, prepared: PreparedTune, workload: Workload, resume: SavedTune | None
    ) -> None:
        self._record = record
        limit = read_power_limit() if prepared.goal.aim is Aim.ENERGY else None
        self._limit_w = None if limit is None else limit[1]
        self._saved_before = frozenset(map(id, resume.state.trials)) if resume else frozenset[int]()
        self._saved = SavedTune(
            model=prepared.model,
            options=prepared.options,
            workload=workload,
            goal=prepared.goal,
            budget_s=prepared.budget_s,
            space=prepared.space,
            state=resume.state if resume else TuneState({}, 0, ()),
            record_id=record.id,
        )

    def add_event(self, event: TuneEvent) -> None:
        """Save a new trial. Trials that a continued tune reports again are skipped."""
        if isinstance(event, TrialMeasured | TrialFailed) and id(event.trial) not in self._saved_before:
            for run in event.trial.runs:
                self._record.add_run(run)
            self._save_tune(event.state)
        elif isinstance(event, Paused):
            self._record.finish({"sentence": PAUSED})

    def save_verdict(self, verdict: Verdict) -> None:
        """Save the verdict."""
        result = to_json(verdict)
        self._record.finish({**result, "goal": self._saved.goal.aim.value, LIMIT_KEY: self._read_limit()})
        self._save_tune(replace(self._saved.state, trials=verdict.trials), result)

    def _read_limit(self) -> float | None:
        """Return the GPU's power limit for a tune for energy, None if it has changed meanwhile."""
        if self._saved.goal.aim is not Aim.ENERGY:
            return None
        limit = read_power_limit()
        return limit[1] if limit is not None and limit[1] == self._limit_w else None

    def _save_tune(self, state: TuneState, verdict: Mapping[str, object] | None = None) -> None:
        self._saved = self._saved.with_state(state, verdict)
        try:
            save_tune(self._saved)
        except OSError as error:
            _log.warning("The tune cannot be saved, so it cannot be continued later: %s.", error.strerror or error)
