"""`mtp-launcher tune`: which draft length and settings are fastest on this machine, measured."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import filled, print_table
from launcher.cli.output import finite, print_json, rounded
from launcher.cli.quantities import tokens
from launcher.cli.typed import can_ask, typed_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.tuner_kept import KeptTune
    from launcher.tuner_space import Prepared
    from launcher.tuning.goal import Goal
    from launcher.tuning.records import Settings
    from launcher.tuning.tuner_events import TuneEvent
    from launcher.tuning.tuner_state import Trial
    from launcher.tuning.verdict import Verdict

USUAL_MIN = 10.0
AIMS = ("speed", "answer", "energy")
"""The names of Aim, held equal by a test: importing it would slow every --help."""
_STAGES = {"probe": "first look", "explore": "explore", "verify": "compare", "confirm": "compare"}
_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a model that is here, or "demo" (default: the last one)'
    )
    parser.add_argument(
        "--goal", choices=AIMS, help="tokens/s, time to the whole answer, or tokens per joule (default: speed)"
    )
    parser.add_argument(
        "--mix", type=_mix, metavar="PROMPT:REPLY", help="with --goal answer: the tokens of your own requests: 4K:300"
    )
    parser.add_argument("--budget", type=_minutes, metavar="MIN", help=f"the most minutes (default {USUAL_MIN:.0f})")
    parser.add_argument(
        "--workload", metavar="W", help="code, prose, reasoning, ..., or a file of prompts (default: code)"
    )
    parser.add_argument(
        "--vary",
        metavar="NAME,...",
        help="what may change beside the draft length: kv, ubatch, n_cpu_moe, threads, p_min, draft_sampling, ngram, "
        "or none (default: what is likely to matter here)",
    )
    parser.add_argument("--ctx", type=tokens, metavar="N", help="context in tokens (default: as it was served last)")
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="a llama-server, an installed engine, or built-in (default: in use)"
    )
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="go on with the tune that was interrupted"
    )
    parser.add_argument("--apply", action="store_true", help="keep what is recommended for the model's next start")
    parser.add_argument("--yes", action="store_true", help="begin without asking")
    parser.epilog = (
        "It starts the model again and again, with MTP and without. Ctrl-C pauses it; --continue goes on. With "
        "--continue --apply what the last tune recommended is kept."
    )


def _minutes(text: str) -> float:
    value = finite(text)
    if not 0 < value <= 24 * 60:
        raise argparse.ArgumentTypeError("it is a number of minutes, up to a day")
    return value


def _mix(text: str) -> tuple[int, int]:
    prompt, colon, reply = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("write tokens of the prompt and of the reply, such as 4K:300")
    mix = tokens(prompt), tokens(reply)
    if min(mix) < 1:
        raise argparse.ArgumentTypeError("both have at least one token")
    return mix


async def run(options: argparse.Namespace) -> int:
    """Show the plan, tune, and tell the verdict. Ctrl-C pauses."""
    from launcher import app
    from launcher.tuner import is_decided, keep_winner, tune_on

    kept = _kept(options) if options.go_on else None
    if kept is not None and kept.verdict is not None and not _has_more_time(kept, options):
        return _ended(kept, options)
    prepared = await _prepared(options, kept)
    await _show_plan(prepared, kept, as_json=options.json)
    if not (options.yes or options.json or kept) and can_ask() and not await _agreed():
        return 1
    show = _Lines(prepared) if not options.json else _JsonLines(prepared)
    session = app.Session()
    try:
        verdict = await tune_on(session, prepared, show.take, resume=kept)
    except asyncio.CancelledError:
        show.paused()
        raise
    finally:
        await session.stop()
    applied = options.apply and is_decided(verdict.as_json())
    if applied:
        await asyncio.to_thread(keep_winner, prepared.options, verdict.settings)
    show.end(verdict, applied=applied)
    return 0


def _kept(options: argparse.Namespace) -> KeptTune:
    """Return the tune to go on with. Raises BadOption when there is none, or another one is asked for beside it."""
    from launcher.base.errors import BadOption
    from launcher.tuner_kept import kept_tune

    given = ("model", "goal", "mix", "workload", "vary", "ctx", "engine")
    if named := [name for name in given if getattr(options, name) is not None]:
        raise BadOption(
            f"--continue goes on with the same model and the same questions; {', '.join(named)} cannot be changed.",
            "Leave that out, or begin a new tune without --continue.",
        )
    kept = kept_tune()
    if kept is None:
        raise BadOption("There is no tune to go on with.", "Begin one: `mtp-launcher tune`.")
    return kept


def _has_more_time(kept: KeptTune, options: argparse.Namespace) -> bool:
    """Return whether a tune that came to no decision is given more time than it had."""
    undecided = kept.verdict is not None and kept.verdict["mtp"] == "undecided"
    return undecided and options.budget is not None and 60 * options.budget > kept.budget_s


def _ended(kept: KeptTune, options: argparse.Namespace) -> int:
    """Tell what the last tune said; with --apply keep what it recommended."""
    from launcher.tuner import is_decided, keep_winner

    verdict = dict(kept.verdict or {})
    applied = options.apply and is_decided(verdict)
    if applied:
        keep_winner(kept.options, verdict["settings"])
    if options.json:
        trials = [trial_json(trial, kept.goal) for trial in kept.state.trials]
        print_json({"verdict": verdict, "trials": trials, "applied": applied})
        return 0
    print(filled(str(verdict["sentence"])))
    if is_decided(verdict):
        print(_next(kept.model, applied=applied))
    else:
        print(_MORE)
    return 0


async def _prepared(options: argparse.Namespace, kept: KeptTune | None) -> Prepared:
    from launcher.engine.build import BUILT_IN
    from launcher.engine.last import last
    from launcher.engine.launch import ServeOptions
    from launcher.tuner import usual_options
    from launcher.tuner_space import prepare
    from launcher.tuning.workloads import USUAL, workload

    if kept is not None:
        budget_s = kept.budget_s if options.budget is None else 60 * options.budget
        return await prepare(kept.model, kept.options, kept.workload, kept.goal, budget_s, space=kept.space)
    model = options.model or await asyncio.to_thread(last)
    built_in = str(options.engine) == BUILT_IN
    engine = None if built_in else options.engine
    found = await asyncio.to_thread(
        usual_options,
        model,
        lambda path: ServeOptions(model=path, engine=engine, built_in=built_in, context=options.ctx),
    )
    vary = None if options.vary is None else [] if options.vary == "none" else options.vary.split(",")
    asked = await asyncio.to_thread(workload, options.workload or USUAL)
    return await prepare(model, found, asked, _goal(options), 60 * (options.budget or USUAL_MIN), vary=vary)


def _goal(options: argparse.Namespace) -> Goal:
    from launcher.base.errors import BadOption
    from launcher.tuning.goal import Aim, Goal

    aim = Aim(options.goal or "speed")
    if options.mix and aim is not Aim.ANSWER:
        raise BadOption("--mix says what an answer is made of.", "Add --goal answer.")
    return Goal(aim, *(options.mix or ()))


async def _show_plan(prepared: Prepared, kept: KeptTune | None, *, as_json: bool) -> None:
    """Say what will be done and how long it takes, before anything is started."""
    from launcher.engine import registry

    others = await asyncio.to_thread(registry.running)
    done = len(kept.state.trials) if kept else 0
    if as_json:
        print_json({"event": "plan", **prepared.as_json(), "done": done, "servers": [each.url for each in others]})
        return
    plan, work = prepared.plan, prepared.workload
    print(f"Tune {one_line(prepared.model)} for {work.title.lower()}, by {_AIM_WORDS[prepared.goal.aim.value]}")
    print(f"  prompts   {len(work.prompts)}, {sum(each.tokens for each in work.prompts):,} tokens of replies a round")
    varied = ", ".join(f"{_name(axis.name)} {_listed(axis.values)}" for axis in prepared.space.axes)
    drafts = prepared.space.drafts
    print(filled(f"draft 0 (MTP off), {drafts[0]} to {drafts[-1]}{f'; {varied}' if varied else ''}", "  tried     "))
    how = "as measured here" if prepared.measured else "a guess"
    if kept:
        print(f"  done      {done} starts, {minutes(kept.state.used_s)}")
    print(
        filled(
            f"about {minutes(plan.seconds)}, {minutes(prepared.budget_s)} at most: {plan.starts} starts of "
            f"{prepared.restart_s:.0f} s ({how}), {plan.runs} replies, {prepared.tokens:,} tokens",
            "  time      ",
        )
    )
    for each in others:
        print(filled(f"The server at {each.url} runs meanwhile, takes memory and may slow this down.", "  note      "))
    sys.stdout.flush()


async def _agreed() -> bool:
    print("Begin? [Y/n] ", end="", file=sys.stderr, flush=True)
    return (await typed_line()).strip().lower() in (b"", b"y", b"yes")


class _Lines:
    """What a person sees: a line for each trial, then the verdict."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._left_s = prepared.budget_s
        self._trials = 0

    def take(self, event: TuneEvent) -> None:
        from launcher.tuning.tuner_events import TrialFailed, TrialMeasured, TrialPlanned

        if isinstance(event, TrialPlanned):
            self._left_s = event.left_s
        if isinstance(event, TrialMeasured | TrialFailed):
            self._trials = len(event.state.trials)
            trial, goal = event.trial, self._prepared.goal
            told = trial_json(trial, goal)
            figure = trial.error or f"{_figure(told['value'])} {goal.unit}"
            share = "" if told["acceptance"] is None else f", {100 * told['acceptance']:.0f} % accepted"
            left_s = max(0.0, self._left_s - trial.seconds)
            words = settings_words(trial.settings, self._prepared.space.baseline)
            line = f"{self._trials:>3}  {_STAGES[trial.stage.value]:<10}  {words:<24}  {one_line(figure, 300)}{share}"
            print(f"{line}  ({minutes(left_s)} left)", flush=True)

    def paused(self) -> None:
        kept = f"{self._trials} trials are kept" if self._trials else "nothing was measured yet"
        go_on = " Go on with `mtp-launcher tune --continue`." if self._trials else ""
        print(f"Paused: {kept}.{go_on}", file=sys.stderr, flush=True)

    def end(self, verdict: Verdict, *, applied: bool) -> None:
        from launcher.tuner import is_decided
        from launcher.tuning.verdict import tried

        goal, home = self._prepared.goal, self._prepared.space.baseline
        rows = [("setting", goal.unit, "95 %", "starts", "replies", "")]
        for each in tried(verdict.trials, goal):
            known = (
                each.low is not None and each.high is not None and each.starts > 2
            )  # two starts tell hardly anything
            reach = f"± {_figure(((each.high or 0) - (each.low or 0)) / 2)}" if known else _UNKNOWN
            words = settings_words(each.settings, home)
            figure = _figure(each.value)
            rows.append((words, figure, reach, str(each.starts), str(each.runs), one_line(each.error or "", 200)))
        print()
        print_table(rows, right={1, 2, 3, 4})
        print()
        print(filled(verdict.sentence))
        if verdict.because:
            print(filled(f"Why: {verdict.because}."))
        print(_next(self._prepared.model, applied=applied) if is_decided(verdict.as_json()) else _MORE)


class _JsonLines:
    """What programs get: an object for the plan, for each trial, and one with all at the end."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._trials = 0

    def take(self, event: TuneEvent) -> None:
        from launcher.tuning.tuner_events import TrialFailed, TrialMeasured

        if isinstance(event, TrialMeasured | TrialFailed):
            self._trials = len(event.state.trials)
            print_json({"event": "trial", **trial_json(event.trial, self._prepared.goal)})

    def paused(self) -> None:
        print_json({"event": "paused", "trials": self._trials})

    def end(self, verdict: Verdict, *, applied: bool) -> None:
        trials = [trial_json(trial, self._prepared.goal) for trial in verdict.trials]
        print_json({"verdict": verdict.as_json(), "trials": trials, "applied": applied})


def trial_json(trial: Trial, goal: Goal) -> dict[str, Any]:
    """Return a trial for programs. `value` is the goal's mean over replies that count; drafts are of all."""
    from statistics import fmean

    from launcher.monitor.meter import total

    scores = [score for run in trial.runs if (score := goal.score(run)) is not None]
    drafts = total([run.acceptance for run in trial.runs if run.acceptance is not None])
    return {
        "number": trial.number,
        "stage": trial.stage.value,
        "settings": dict(trial.settings),
        "value": rounded(goal.value_of(fmean(scores)), 3) if scores else None,
        "unit": goal.unit,
        "seconds": rounded(trial.seconds, 2),
        "start_s": rounded(trial.start_s, 2),
        "runs": len(trial.runs),
        "counted": len(scores),
        "draft_n": drafts.drafted,
        "draft_n_accepted": drafts.accepted,
        "acceptance": rounded(drafts.rate, 4),
        "acceptance_by_position": [rounded(share, 4) for share in drafts.rates_by_position],
        "error": trial.error,
    }


def settings_words(settings: Settings, home: Mapping[str, object]) -> str:
    """Return settings in a few words: the draft length, and what else differs from the baseline."""
    from launcher.tuning.space import DRAFT, draft_of

    draft = draft_of(settings)
    others = [f"{_name(name)} {value}" for name, value in settings.items() if name != DRAFT and value != home.get(name)]
    return ", ".join([f"draft {draft}" if draft else "off", *others])


def minutes(seconds: float) -> str:
    """Return a time in words: 40 s, 3 min, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3_600} h" + (f" {whole % 3_600 // 60} min" if whole % 3_600 // 60 else "")


_AIM_WORDS = {"speed": "tokens/s", "answer": "time to the whole answer", "energy": "tokens per joule"}


_MORE = "Give it more time: `mtp-launcher tune --continue --budget MIN`, counted from its beginning."


def _next(model: str, *, applied: bool) -> str:
    if applied:
        return f"It is kept: `mtp-launcher serve {model}` starts the model so."
    return "Keep it for the model's next start: `mtp-launcher tune --continue --apply`."


def _name(name: str) -> str:
    return name.replace("_", "-")


def _listed(values: tuple[object, ...]) -> str:
    return "/".join(map(str, values))


def _figure(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
