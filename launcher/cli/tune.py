"""`mtp-launcher tune`: find the fastest draft length and server settings by measuring them."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING, Any

from launcher.app.measuring.chart_files import check_chart_files
from launcher.app.measuring.power_limits import find_limited_tunes, limit_command, limits_to_try, read_power_limit
from launcher.app.measuring.saved_tunes import check_no_tune, load_tune, load_tunes
from launcher.app.measuring.session_bench import options_with_settings
from launcher.app.measuring.tuner import changes_answers, recommends_settings, run_tune, run_tune_when_idle, save_winner
from launcher.app.measuring.tuner_space import prepare_tune
from launcher.app.planning.start_settings import make_unresolved_options, resolve_start
from launcher.app.serving.borrowed_session import borrow_server
from launcher.app.serving.session import ServerSession
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, ModelMissing
from launcher.base.text import one_line
from launcher.base.units import format_figure
from launcher.cli.given_options import make_serve_options
from launcher.cli.layout import UNKNOWN, format_table, wrap_text
from launcher.cli.measured_subject import draw_charts
from launcher.cli.options.tune import DEFAULT_BUDGET_MIN
from launcher.cli.output import Note, Result, print_result, round_figure
from launcher.cli.progress import Reporter
from launcher.cli.terminal import can_ask, confirm
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.last_start import require_last_model
from launcher.engine.server.registry import find_server
from launcher.models.drafters import MTP_OFF, choice_in, find_drafter
from launcher.monitor.meter import sum_acceptance
from launcher.tuning.agent_tasks import (
    DEFAULT_AGENT,
    describe_task,
    find_agent_workload,
    find_shape,
    task_goal,
    task_workload,
)
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.plan_of_trials import grace_s
from launcher.tuning.space import DRAFT, DRAFTER
from launcher.tuning.tuner import (
    AnswersCompared,
    ClientsAwaited,
    Predicted,
    QuietAwaited,
    TrialFailed,
    TrialMeasured,
    TrialPlanned,
)
from launcher.tuning.verdict import chance_text, tabulate_trials
from launcher.tuning.workloads import DEFAULT_WORKLOAD, load_workloads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.app.measuring.saved_tunes import SavedTune
    from launcher.app.measuring.tuner_space import PreparedTune
    from launcher.app.planning.preview import MissingDraft
    from launcher.app.serving.borrowed_session import BorrowedSession
    from launcher.tuning.records import RunSettings
    from launcher.tuning.tune_state import Trial
    from launcher.tuning.tuner import TuneEvent
    from launcher.tuning.verdict import Verdict


async def run(options: argparse.Namespace) -> Result | int:
    """Print the plan, tune, and return the verdict. Ctrl-C pauses. Exit code 1 if the user declines to begin."""
    check_chart_files(options.chart)
    saved = await asyncio.to_thread(_load_saved_tune, options) if options.resume else None
    if saved is not None and saved.verdict is not None and options.chart:
        print_result(Result(None, [Note(await draw_charts(saved.record_id, options.chart))]), as_json=False)
    if saved is not None and saved.verdict is not None and not _has_more_time(saved, options):
        return _make_ended_result(saved, options)
    await asyncio.to_thread(check_no_tune)
    if options.when_idle:
        return await _tune_when_idle(options, saved)
    prepared = await _prepare_tune(options, saved)
    if not await _announce_tune(prepared, saved, options):
        return 1
    reporter = _TrialReporter(prepared, saved, as_json=options.json)
    session = ServerSession()
    try:
        verdict = await run_tune(session, prepared, reporter.show_event, resume=saved)
    except asyncio.CancelledError:
        reporter.show_pause()
        raise
    finally:
        await session.stop()
    applied = options.apply and _is_applicable(verdict)
    if applied:
        await asyncio.to_thread(save_winner, prepared.options, verdict.settings)
    await _draw_tune(prepared, options)
    return _make_result(verdict, prepared, applied=applied)


async def _tune_when_idle(options: argparse.Namespace, saved: SavedTune | None) -> Result | int:
    """Tune on the running server while no client uses it, which then gets its earlier settings, or those of --apply."""
    async with borrow_server(await asyncio.to_thread(find_server, options.url)) as session:
        prepared = await _prepare_tune(options, saved, session)
        if not await _announce_tune(prepared, saved, options, session):
            return 1
        reporter = _TrialReporter(prepared, saved, as_json=options.json)
        try:
            verdict = await run_tune_when_idle(session, prepared, reporter.show_event, resume=saved)
        except asyncio.CancelledError:
            reporter.show_pause()
            raise
        applied = options.apply and _is_applicable(verdict)
        if applied:
            await session.keep_settings(options_with_settings(prepared.options, verdict.settings))
            await asyncio.to_thread(save_winner, prepared.options, verdict.settings)
    await _draw_tune(prepared, options)
    return _make_result(verdict, prepared, applied=applied, waited_s=session.waited_s)


async def _announce_tune(
    prepared: PreparedTune,
    saved: SavedTune | None,
    options: argparse.Namespace,
    session: BorrowedSession | None = None,
) -> bool:
    """Print the plan, and return whether the tune is to begin. Raises BadOption if the budget is too small."""
    named_settings = _parse_names(options.vary or "none")
    plan = await _make_plan(prepared, saved, named_settings=named_settings, session=session)
    print_result(plan, as_json=options.json)
    if saved is None:
        _check_budget(prepared)
    asks = not (options.yes or options.json or saved) and can_ask()
    return not asks or await confirm("Begin?", default=True)


def _is_applicable(verdict: Verdict) -> bool:
    judged = to_json(verdict)
    return recommends_settings(judged) and not changes_answers(judged)


async def _draw_tune(prepared: PreparedTune, options: argparse.Namespace) -> None:
    """Draw the charts that were asked for."""
    ended = await asyncio.to_thread(load_tune, prepared.options.model) if options.chart else None
    if ended is not None:
        print_result(Result(None, [Note(await draw_charts(ended.record_id, options.chart))]), as_json=False)


def _check_budget(prepared: PreparedTune) -> None:
    """Raise BadOption for a budget that is too short for any result."""
    if prepared.budget_s >= prepared.least_s:
        return
    raise BadOption(
        f"{format_minutes(prepared.budget_s)} are too short: the first trials alone take about "
        f"{format_minutes(prepared.plan.least_s)} ({'as measured here' if prepared.measured else 'a guess'}).",
        f"Add `--budget {ceil(prepared.plan.least_s / 6) / 10:g}` or more.",
    )


def _load_saved_tune(options: argparse.Namespace) -> SavedTune:
    """Return the tune to continue: the model's, or if no model is named the newest unfinished one, else the newest.

    With --apply and no model it is the newest tune, if that has a verdict to apply. Raises BadOption if there is
    none, or for options that a tune keeps from its beginning.
    """
    unchangeable = ("goal", "agent", "mix", "workload", "vary", "ctx", "engine")
    if given := [name for name in unchangeable if getattr(options, name) is not None]:
        raise BadOption(
            f"--continue resumes a tune as it was begun; {', '.join(given)} cannot be changed.",
            "Leave that out, or begin a new tune without --continue.",
        )
    tunes = load_tunes()
    if not tunes:
        raise BadOption(
            "There is no tune to resume.",
            f"Begin one: `mtp-launcher tune {_quote_model(options.model) if options.model else 'MODEL'}`.",
        )
    if options.model is not None:
        saved = load_tune(make_unresolved_options(options.model, ServeOptions).model)
        if saved is None:
            others = ", ".join(one_line(each.model) for each in tunes)
            raise BadOption(
                f"There is no tune of {one_line(options.model)} to resume; there is one of {others}.",
                f"Begin one: `mtp-launcher tune {_quote_model(options.model)}`.",
            )
        return saved
    if options.apply and tunes[0].verdict is not None and recommends_settings(tunes[0].verdict):
        return tunes[0]
    return next((each for each in tunes if each.verdict is None or _has_more_time(each, options)), tunes[0])


def _has_more_time(saved: SavedTune, options: argparse.Namespace) -> bool:
    """Return True if a tune that pairs have not decided is given more time than it had."""
    verdict = saved.verdict
    undecided = verdict is not None and (verdict["mtp"] == "undecided" or verdict.get("likely") is not None)
    return undecided and options.budget is not None and 60 * options.budget > saved.budget_s


def _make_ended_result(saved: SavedTune, options: argparse.Namespace) -> Result:
    """Return the verdict of a tune that has ended; with --apply save its recommended settings."""
    verdict = dict(saved.verdict or {})
    applied = options.apply and recommends_settings(verdict)
    if applied:
        save_winner(saved.options, verdict["settings"])
    trials = [_trial_json(trial, saved.goal) for trial in saved.state.trials]
    lines = [*describe_answers(verdict, saved.space.baseline), *_describe_confidence(verdict)]
    if recommends_settings(verdict):
        what = describe_settings(verdict["settings"], saved.space.baseline, off=MTP_OFF)
        lines.append(describe_saving(saved.model, what, applied=applied))
    else:
        lines.append(describe_more_time(saved.model))
    return Result({"verdict": verdict, "trials": trials, "applied": applied}, lines)


async def _prepare_tune(
    options: argparse.Namespace, saved: SavedTune | None, session: BorrowedSession | None = None
) -> PreparedTune:
    """Prepare a new tune or `saved`, on a server of its own or on that of `session`."""
    engine_pid = session.supervisor.engine_pid if session else None
    log = await asyncio.to_thread(session.read_log) if session else ()
    if saved is not None:
        if session is not None:
            session.check_model(saved.options)
        budget_s = saved.budget_s if options.budget is None else 60 * options.budget
        prepared = await prepare_tune(
            saved.model,
            saved.options,
            saved.workload,
            saved.goal,
            budget_s,
            space=saved.space,
            engine_pid=engine_pid,
            log=log,
        )
        return prepared.with_measured_times(saved.state.trials)
    goal = _make_goal(options)
    model, serve_options = await _find_model(options, session)
    vary = None if options.vary is None else _parse_names(options.vary)
    if goal.aim is Aim.TASK:
        workload = task_workload(find_shape(options.agent or DEFAULT_AGENT))
    else:
        workload = await asyncio.to_thread(load_workloads, options.workload or DEFAULT_WORKLOAD, find_agent_workload)
    budget_s = 60 * (options.budget or DEFAULT_BUDGET_MIN)
    return await prepare_tune(model, serve_options, workload, goal, budget_s, vary=vary, engine_pid=engine_pid, log=log)


async def _find_model(options: argparse.Namespace, session: BorrowedSession | None) -> tuple[str, ServeOptions]:
    """Return the model to tune, as the user names it, and its settings.

    Raises BadOption if `session` serves another, or for options that its server already has.
    """
    if session is not None:
        if options.ctx is not None or options.engine is not None:
            raise BadOption(
                "--when-idle measures with the context and the engine of the running server.",
                "Leave out --ctx and --engine.",
            )
        if options.model is not None:
            session.check_model(make_unresolved_options(options.model, ServeOptions))
        return session.model_name or str(session.options.model), session.options
    try:
        model = options.model or await asyncio.to_thread(require_last_model)
    except ModelMissing as error:
        raise ModelMissing(error.title, "Name one: `mtp-launcher tune MODEL`.") from None
    start = await resolve_start(
        model, {"ctx": options.ctx}, lambda path: make_serve_options(options, path), use_tuned=False
    )
    return model, start.options


def _make_goal(options: argparse.Namespace) -> Goal:
    aim = Aim(options.goal or "speed")
    if options.agent and aim is not Aim.TASK:
        raise BadOption("--agent is for --goal task.", "Add --goal task.")
    if options.workload and aim is Aim.TASK:
        raise BadOption("--goal task has prompts of its own.", "Leave out --workload.")
    if options.mix and aim is not Aim.ANSWER:
        raise BadOption("--mix is for --goal answer.", "Add --goal answer.")
    if aim is Aim.TASK:
        return task_goal(find_shape(options.agent or DEFAULT_AGENT))
    return Goal(aim, *(options.mix or ()))


async def _make_plan(
    prepared: PreparedTune,
    saved: SavedTune | None,
    *,
    named_settings: Sequence[str],
    session: BorrowedSession | None = None,
) -> Result:
    """Return what the tune will try and how long it takes. `named_settings` are those that --vary names.

    With `session` it is measured on that server.
    """
    servers = await asyncio.to_thread(registry.list_entries)
    old = None if saved else await asyncio.to_thread(load_tune, prepared.options.model)
    replaced = old if old is not None and old.verdict is None else None
    done = len(saved.state.trials) if saved else 0
    data = {
        **_event("plan"),
        **to_json(prepared),
        "done": done,
        "servers": [each.url for each in servers],
        "replaces": len(replaced.state.trials) if replaced else None,
        "when_idle": session is not None,
    }
    workload = prepared.workload
    reply_tokens = sum(each.tokens for each in workload.prompts)
    varied = ", ".join(
        f"{_format_name(axis.name)} {'/'.join(map(str, axis.values))}" for axis in prepared.space.other_axes
    )
    drafts = prepared.space.drafts
    kinds = [str(find_drafter(each).title) for each in prepared.drafters]
    by_kinds = f" by {', '.join(kinds)}" if len(kinds) > 1 else ""
    rows = [
        ("prompts", f"{len(workload.prompts)}, {reply_tokens:,} tokens of replies a round"),
        ("tried", f"draft 0 (MTP off), {drafts[0]} to {drafts[-1]}{by_kinds}{f'; {varied}' if varied else ''}"),
        *(("not here", describe_missing(each)) for each in prepared.missing),
    ]
    if prepared.goal.aim is Aim.TASK:
        shape = find_shape(workload.name)
        rows.append(("a task", f"{shape.turns} turns: {describe_task(shape)}"))
    if prepared.goal.aim is Aim.ENERGY and (limits := await asyncio.to_thread(_describe_power_limits, prepared)):
        rows.append(("limit", limits))
    if saved:
        rows.append(("done", f"{done} starts, {format_minutes(saved.state.used_s)}"))
    rows.append(("time", describe_duration(prepared)))
    if replaced is not None:
        lost = f"{len(replaced.state.trials)} starts, {format_minutes(replaced.state.used_s)}"
        instead = f"`mtp-launcher tune {_quote_model(prepared.model)} --continue`"
        note = f"This replaces the paused tune of this model ({lost}). To resume that instead: {instead}."
        rows.append(("note", note))
    own_url = session.supervisor.address.url if session else None
    if own_url is not None:
        rows.append(("where", f"the server at {own_url}, while no client uses it; waiting takes no time of the budget"))
    rows += [
        ("note", f"The server at {each.url} is running: it takes memory and may slow down the tune.")
        for each in servers
        if each.url != own_url
    ]
    axes = {axis.name for axis in prepared.space.axes}
    if not_varied := [_format_name(name) for name in named_settings if name not in axes]:
        note = f"{', '.join(not_varied)}: not varied, because this model, engine and computer allow only one value."
        rows.append(("note", note))
    title = f"Tune {one_line(prepared.model)} for {workload.title.lower()}, by {_AIM_LABELS[prepared.goal.aim.value]}"
    return Result(data, [title, *(wrap_text(text, f"  {label:<9} ") for label, text in rows)])


def _describe_power_limits(prepared: PreparedTune) -> str:
    """Return the GPU's power limit, results at others, and the commands that set further ones. Empty if unknown."""
    current = read_power_limit()
    if current is None:
        return ""
    gpu, now_w = current
    tunes = find_limited_tunes(prepared.launch.header.name)
    text = f"{now_w:.0f} W, as the GPU is set now."
    if tunes:
        figures = (
            f"{each.limit_w:.0f} W {UNKNOWN if each.tokens_per_joule is None else f'{each.tokens_per_joule:.2f}'}"
            for each in tunes
        )
        text += f" Tokens per joule so far: {', '.join(figures)}."
    commands = [command for watts in limits_to_try(now_w, tunes) if (command := limit_command(gpu, watts))]
    if commands:
        text += f" For another limit, set it and tune again: {' or '.join(f'`{each}`' for each in commands)}."
    return text


def _parse_names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip().lower().replace("-", "_") for name in text.split(",")]


# Output of `mtp-launcher tune`: the plan, a line for each trial, the verdict; and the same as JSON.

_DRAFTS = JsonView(
    "draft_n=drafted draft_n_accepted=accepted acceptance=rate:4 acceptance_by_position=rates_by_position:4"
)
_STAGE_LABELS = {"probe": "first look", "explore": "explore", "verify": "compare", "confirm": "compare"}


def describe_missing(draft: MissingDraft) -> str:
    """Return what is known of a drafter without a file here, and how to get it."""
    size = f", {draft.bytes / 1e9:.2f} GB" if draft.bytes else ""
    gave = f": {draft.tokens:.1f} tokens a pass with draft {draft.length} in published runs" if draft.tokens else ""
    get = f"`mtp-launcher pull {draft.file}`, then tune again" if draft.file else "no file is listed"
    return f"{draft.row.title}{size}{gave}; {get}."


def describe_duration(prepared: PreparedTune) -> str:
    """Return the expected duration of a tune as text."""
    plan, budget_s = prepared.plan, prepared.budget_s
    source = "as measured here" if prepared.measured else "a guess"
    start = f"{prepared.restart_s:.0f}" if prepared.restart_s >= 0.95 else "less than 1"
    rate = _round_to_three_digits(prepared.rate)
    return (
        f"about {format_minutes(plan.seconds)}, {format_minutes(budget_s)} at most (a trial under way may take "
        f"{format_minutes(grace_s(budget_s))} more, and comparing the answers afterwards about "
        f"{format_minutes(prepared.answers_s)}): {plan.starts} starts of "
        f"{start} s ({source}), {plan.runs} replies, {prepared.tokens:,} tokens, at {rate} tokens/s"
    )


def _round_to_three_digits(value: float) -> str:
    """Return a number with three significant digits, written in full: 1,200, not 1.2e+03."""
    return f"{float(f'{value:.3g}'):,g}" if value < 1e6 else f"{value:,.0f}"


class _TrialReporter:
    """Prints a line or a JSON object for each finished trial."""

    def __init__(self, prepared: PreparedTune, saved: SavedTune | None, *, as_json: bool) -> None:
        self._reporter = Reporter(as_json=as_json)
        self._prepared = prepared
        self._left_s = prepared.budget_s
        self._trials = self._answered = 0
        self._likely: RunSettings | None = None
        """The settings of the last answer, if it recommends others than the baseline."""
        self._is_timed = saved is not None and bool(saved.state.trials)

    def show_event(self, event: TuneEvent) -> None:
        """Print a finished trial; after the first one also the expected duration of the tune, now as measured."""
        if isinstance(event, ClientsAwaited) and not event.is_over:
            waits = f"Clients use the server: waited {format_minutes(event.waited_s)} for them so far."
            data = {**_event("waiting_for_clients"), "waited_s": round_figure(event.waited_s, 1)}
            self._reporter.show_event(data, [wrap_text(waits, "  waiting   ")])
        if isinstance(event, QuietAwaited):
            waits = f"{event.reason} Waiting up to {event.most_s:.0f} s for quiet."
            data = {**_event("waiting"), "most_s": event.most_s, "reason": event.reason}
            self._reporter.show_event(data, [wrap_text(waits, "  waiting   ")])
        if isinstance(event, TrialPlanned):
            self._left_s = event.left_s
            view = JsonView("number stage settings expected_s:1 left_s:1")
            self._reporter.show_event({**_event("trial_begins"), **to_json(event, view)})
        if isinstance(event, AnswersCompared):
            data = {**_event("quality"), "settings": event.settings}
            compares = f"Comparing the answers: {one_line(event.settings)}"
            self._reporter.show_event(data, [wrap_text(compares, "  quality   ")])
        if isinstance(event, Predicted):
            data = {**_event("answer"), **to_json(event.answer), "sentence": event.sentence}
            self._likely = event.answer.settings if event.answer.gain is not None else None
            is_news = self._answered != self._trials  # several forecasts come between two stages; the first is news
            self._answered = self._trials
            self._reporter.show_event(data, [wrap_text(event.sentence, "  so far    ")] if is_news else [])
        if not isinstance(event, TrialMeasured | TrialFailed):
            return
        self._trials = len(event.state.trials)
        data = _trial_json(event.trial, self._prepared.goal)
        lines = [self._describe_trial(event.trial, data)]
        if not self._is_timed and event.trial.error is None:
            self._is_timed = True
            measured = self._prepared.with_measured_times([event.trial])
            lines.append(wrap_text(describe_duration(measured), "  time      "))
        self._reporter.show_event({**_event("trial"), **data}, lines)

    def _describe_trial(self, trial: Trial, data: Mapping[str, Any]) -> str:
        figure = trial.error or f"{format_figure(data['value'])} {self._prepared.goal.unit}"
        acceptance = "" if data["acceptance"] is None else f", {100 * data['acceptance']:.0f} % accepted"
        left_s = max(0.0, self._left_s - trial.seconds)
        settings = describe_settings(trial.settings, self._prepared.space.baseline)
        stage = _STAGE_LABELS[trial.stage.value]
        line = f"{self._trials:>3}  {stage:<10}  {settings:<24}  {one_line(figure, 300)}{acceptance}"
        return f"{line}  ({format_minutes(left_s)} left)"

    def show_pause(self) -> None:
        """Print that the tune is paused."""
        kept = f"{self._trials} trials are kept" if self._trials else "nothing was measured yet"
        resume = " Resume with `mtp-launcher tune --continue`." if self._trials else ""
        lines = [Note(f"Paused: {kept}.{resume}")]
        if self._likely is not None:
            prepared = self._prepared
            lines.append(Note(describe_early_use(prepared.model, self._likely, prepared.space.baseline)))
        self._reporter.show_event({**_event("paused"), "trials": self._trials}, lines)


def _event(name: str) -> dict[str, Any]:
    """Return the first keys of an event as JSON: its name, and now in seconds since 1970."""
    return {"event": name, "at_s": round(time.time(), 3)}


def _make_result(verdict: Verdict, prepared: PreparedTune, *, applied: bool, waited_s: float | None = None) -> Result:
    """Return the verdict with all trials. `waited_s` are the seconds for which it waited for clients of the server."""
    trials = [_trial_json(trial, prepared.goal) for trial in verdict.trials]
    lines = list(_format_verdict(verdict, prepared, applied=applied))
    if waited_s is not None:
        served = "these settings" if applied else "its earlier settings"
        lines.append(f"Waited {format_minutes(waited_s)} for clients. The server has {served} now.")
    waited = round_figure(waited_s, 1)
    data = {"verdict": to_json(verdict), "trials": trials, "applied": applied, "waited_s": waited}
    return Result(data, lines)


def _format_verdict(verdict: Verdict, prepared: PreparedTune, *, applied: bool) -> Iterator[str]:
    goal = prepared.goal
    rows = [("setting", goal.unit, "95 %", "starts", "replies", "")]
    for each in tabulate_trials(verdict.trials, goal):
        half_width = UNKNOWN
        if each.low is not None and each.high is not None and each.starts > 2:  # two starts are too few for an interval
            half_width = f"± {format_figure((each.high - each.low) / 2)}"
        settings = describe_settings(each.settings, prepared.space.baseline)
        figure = format_figure(each.value)
        rows.append((settings, figure, half_width, str(each.starts), str(each.runs), one_line(each.error or "", 200)))
    yield ""
    yield from format_table(rows, right={1, 2, 3, 4})
    yield ""
    judged = to_json(verdict)
    yield from describe_answers(judged, prepared.space.baseline)
    yield from _describe_confidence(judged)
    if verdict.because:
        yield wrap_text(f"Why: {verdict.because}")
    if changes_answers(judged):
        yield wrap_text("The answers change, so --apply alone does not save these settings.")
    if recommends_settings(judged):
        what = describe_settings(verdict.settings, prepared.space.baseline, off=MTP_OFF)
        yield describe_saving(prepared.model, what, applied=applied)
    if verdict.likely is not None or not recommends_settings(judged):
        yield describe_more_time(prepared.model)


def _trial_json(trial: Trial, goal: Goal) -> dict[str, Any]:
    """Return a trial as JSON. `value` is the goal's mean over the replies that count; drafts are summed over all
    replies.
    """
    scores = [score for run in trial.runs if (score := goal.run_score(run)) is not None]
    drafts = sum_acceptance([run.acceptance for run in trial.runs if run.acceptance is not None])
    figures = {
        "value": round_figure(goal.value_from_score(fmean(scores)), 3) if scores else None,
        "unit": goal.unit,
        **to_json(trial, JsonView("seconds:2 start_s:2 runs=runs.__len__")),
        "counted": len(scores),
        **to_json(drafts, _DRAFTS),
    }
    return {**to_json(trial, JsonView("number stage settings")), **figures, "error": trial.error}


def describe_settings(settings: RunSettings, baseline: Mapping[str, object], off: str = "off") -> str:
    """Return settings as short text: how they draft, and what differs from the baseline."""
    drafts = (DRAFT, DRAFTER)
    changed = {name: value for name, value in settings.items() if name not in drafts and value != baseline.get(name)}
    others = [f"{_format_name(name)} {value}" for name, value in changed.items()]
    return ", ".join([choice_in(settings).label(off=off), *others])


def format_minutes(seconds: float) -> str:
    """Return a time as text: 40 s, 3 min, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3_600} h" + (f" {whole % 3_600 // 60} min" if whole % 3_600 // 60 else "")


def describe_answers(verdict: Mapping[str, Any], baseline: Mapping[str, object]) -> Iterator[str]:
    """Yield a verdict's sentence, and a table of the answers for each of several workloads."""
    parts = verdict.get("workloads") or ()
    yield wrap_text(str(verdict["overall"] if parts and "overall" in verdict else verdict["sentence"]))
    if not parts or "overall" not in verdict:  # the sentence above is the whole answer
        return
    rows = [("workload", "recommended", "gain with MTP", "likely")]
    for part in parts:
        settings = describe_settings(part["settings"], baseline) if part["mtp"] != "undecided" else "not clear"
        known = part["ci_low"] is not None
        ends = [f"{100 * (part[end] - 1):+.0f}" for end in ("ci_low", "ci_high")] if known else []
        change = f"{' to '.join(ends)} %" if known else UNKNOWN
        likely = UNKNOWN if part["likely"] is None else chance_text(part["likely"])
        rows.append((part["workload"], settings, change, likely))
    yield ""
    yield from format_table(rows, right={2, 3})
    yield ""


def _describe_confidence(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the confidence of the intervals in a verdict's sentence. It is a joint one, unlike that of the table."""
    if verdict.get("likely") is not None:
        yield wrap_text("(These ranges are forecasts, each with a probability of 95 %.)")
    elif verdict["speedup"] is not None or verdict["gain"] is not None:
        yield wrap_text("(These ranges hold with 95 % confidence, all of them together.)")


_AIM_LABELS = {
    "speed": "tokens/s",
    "answer": "time to the whole answer",
    "task": "seconds per task",
    "energy": "tokens per joule",
}


def describe_more_time(model: str) -> str:
    """Return a sentence on giving an undecided tune more time."""
    return f"To give it more time in total: `mtp-launcher tune {_quote_model(model)} --continue --budget MIN`."


def describe_early_use(model: str, settings: RunSettings, baseline: Mapping[str, object]) -> str:
    """Return a sentence on how to use the settings of a likely answer before the tune has ended."""
    changed = {name: value for name, value in settings.items() if name == DRAFT or value != baseline.get(name)}
    flags = " ".join(f"--{_format_name(name)} {value}" for name, value in changed.items())
    return f"To use what is likely the best now: `mtp-launcher serve {_quote_model(model)} {flags}`."


def describe_saving(model: str, what: str, *, applied: bool) -> str:
    """Return a sentence on the recommended settings, `what`: how to save them, or that they were saved."""
    name = _quote_model(model)
    if applied:
        return f"Saved: `mtp-launcher serve {name}` uses these settings ({what})."
    return f"Save these settings ({what}) for the next start: `mtp-launcher tune {name} --continue --apply`."


def _quote_model(model: str) -> str:
    """Return a model's name or path quoted for a shell."""
    return shlex.quote(one_line(model))


def _format_name(name: str) -> str:
    """Return a setting's name as the command line spells it."""
    return name.replace("_", "-")
