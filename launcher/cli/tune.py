"""`mtp-launcher tune`: which draft length and settings are fastest on this machine, measured."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.base.text import one_line
from launcher.cli.layout import filled
from launcher.cli.output import print_json
from launcher.cli.quantities import minutes as budget
from launcher.cli.quantities import tokens
from launcher.cli.subject_options import add_engine, add_model, with_engine
from launcher.cli.tune_lines import (
    AIM_WORDS,
    JsonLines,
    Lines,
    listed,
    minutes,
    more_words,
    name_words,
    next_words,
    print_level,
    shell_word,
    time_words,
    trial_json,
)
from launcher.cli.typed import agreed, can_ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.tuner_kept import KeptTune
    from launcher.tuner_space import Prepared
    from launcher.tuning.goal import Goal

USUAL_MIN = 10.0
AIMS = ("speed", "answer", "energy")
"""The names of Aim, held equal by a test: importing it would slow every --help."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_model(parser)
    parser.add_argument(
        "--goal", choices=AIMS, help="tokens/s, time to the whole answer, or tokens per joule (default: speed)"
    )
    parser.add_argument(
        "--mix", type=_mix, metavar="PROMPT:REPLY", help="with --goal answer: the tokens of your own requests: 4K:300"
    )
    parser.add_argument("--budget", type=budget, metavar="MIN", help=f"the most minutes (default {USUAL_MIN:.0f})")
    parser.add_argument(
        "--workload", metavar="W", help="code, prose, reasoning, ..., or a file of prompts (default: code)"
    )
    parser.add_argument(
        "--vary",
        metavar="NAME,...",
        help="what may change beside the draft length: kv, ubatch, n-cpu-moe, threads, p-min, draft-sampling, ngram, "
        "or none (default: what is likely to matter here)",
    )
    parser.add_argument("--ctx", type=tokens, metavar="N", help="context in tokens (default: as it was served last)")
    add_engine(parser)
    parser.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with the model's tune, or the newest that was interrupted",
    )
    parser.add_argument("--apply", action="store_true", help="keep what is recommended for the model's next start")
    parser.add_argument("--yes", action="store_true", help="begin without asking")
    parser.epilog = (
        "It starts the model again and again, with MTP and without. Ctrl-C pauses it; --continue goes on. With "
        "--continue --apply what the last tune recommended is kept."
    )


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
    from launcher.tuner_kept import check_no_tune

    kept = await asyncio.to_thread(_kept, options) if options.go_on else None
    if kept is not None and kept.verdict is not None and not _has_more_time(kept, options):
        return _ended(kept, options)
    await asyncio.to_thread(check_no_tune)
    prepared = await _prepared(options, kept)
    await _show_plan(prepared, kept, as_json=options.json)
    if options.vary and not options.json:
        _show_unvaried(prepared, _names(options.vary))
    if not (options.yes or options.json or kept) and can_ask() and not await agreed("Begin?", usual=True):
        return 1
    done = len(kept.state.trials) if kept else 0
    show = Lines(prepared, done) if not options.json else JsonLines(prepared)
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
    """Return the tune to go on with: the model's, else the newest that is open, else, for its verdict, the newest.

    With --apply that is the newest with a verdict to keep. Raises BadOption when there is none, or other questions
    are asked.
    """
    from launcher.app import usual_options
    from launcher.base.errors import BadOption
    from launcher.tuner import is_decided
    from launcher.tuner_kept import kept_tune, kept_tunes

    given = ("goal", "mix", "workload", "vary", "ctx", "engine")
    if named := [name for name in given if getattr(options, name) is not None]:
        raise BadOption(
            f"--continue goes on with the same questions; {', '.join(named)} cannot be changed.",
            "Leave that out, or begin a new tune without --continue.",
        )
    tunes = kept_tunes()
    if not tunes:
        raise BadOption(
            "There is no tune to go on with.",
            f"Begin one: `mtp-launcher tune {shell_word(options.model) if options.model else 'MODEL'}`.",
        )
    if options.model is not None:
        kept = kept_tune(usual_options(options.model).model)
        if kept is None:
            others = ", ".join(one_line(each.model) for each in tunes)
            raise BadOption(
                f"There is no tune of {one_line(options.model)} to go on with; there is one of {others}.",
                f"Begin one: `mtp-launcher tune {shell_word(options.model)}`.",
            )
        return kept
    if options.apply and tunes[0].verdict is not None and is_decided(tunes[0].verdict):
        return tunes[0]
    return next((each for each in tunes if each.verdict is None or _has_more_time(each, options)), tunes[0])


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
    print_level(verdict)
    if is_decided(verdict):
        print(next_words(kept.model, applied=applied))
    else:
        print(more_words(kept.model))
    return 0


async def _prepared(options: argparse.Namespace, kept: KeptTune | None) -> Prepared:
    from launcher.app import usual_options
    from launcher.base.errors import ModelMissing
    from launcher.engine.last import last
    from launcher.tuner_space import prepare
    from launcher.tuning.workloads import USUAL, workload

    if kept is not None:
        budget_s = kept.budget_s if options.budget is None else 60 * options.budget
        found = await prepare(kept.model, kept.options, kept.workload, kept.goal, budget_s, space=kept.space)
        return found.measured_by(kept.state.trials)
    goal = _goal(options)
    try:
        model = options.model or await asyncio.to_thread(last)
    except ModelMissing as error:
        raise ModelMissing(error.title, "Name one: `mtp-launcher tune MODEL`.") from None
    usual = await asyncio.to_thread(
        usual_options,
        model,
        lambda path: replace(with_engine(options, path), context=options.ctx),
    )
    vary = None if options.vary is None else _names(options.vary)
    asked = await asyncio.to_thread(workload, options.workload or USUAL)
    return await prepare(model, usual, asked, goal, 60 * (options.budget or USUAL_MIN), vary=vary)


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
    from launcher.tuner_kept import kept_tune

    others = await asyncio.to_thread(registry.running)
    old = None if kept else await asyncio.to_thread(kept_tune, prepared.options.model)
    replaced = old if old is not None and old.verdict is None else None
    done = len(kept.state.trials) if kept else 0
    if as_json:
        told = {"event": "plan", **prepared.as_json(), "done": done, "servers": [each.url for each in others]}
        print_json({**told, "replaces": len(replaced.state.trials) if replaced else None})
        return
    work = prepared.workload
    print(f"Tune {one_line(prepared.model)} for {work.title.lower()}, by {AIM_WORDS[prepared.goal.aim.value]}")
    print(f"  prompts   {len(work.prompts)}, {sum(each.tokens for each in work.prompts):,} tokens of replies a round")
    varied = ", ".join(f"{name_words(axis.name)} {listed(axis.values)}" for axis in prepared.space.axes)
    drafts = prepared.space.drafts
    print(filled(f"draft 0 (MTP off), {drafts[0]} to {drafts[-1]}{f'; {varied}' if varied else ''}", "  tried     "))
    if kept:
        print(f"  done      {done} starts, {minutes(kept.state.used_s)}")
    print(filled(time_words(prepared), "  time      "))
    if replaced is not None:
        lost = f"{len(replaced.state.trials)} starts, {minutes(replaced.state.used_s)}"
        print(
            filled(
                f"This replaces the paused tune of this model ({lost}). To go on with that instead: "
                f"`mtp-launcher tune {shell_word(prepared.model)} --continue`.",
                "  note      ",
            )
        )
    for each in others:
        print(filled(f"The server at {each.url} runs meanwhile, takes memory and may slow this down.", "  note      "))
    sys.stdout.flush()


def _names(text: str) -> list[str]:
    return [] if text == "none" else [name.strip().lower().replace("-", "_") for name in text.split(",")]


def _show_unvaried(prepared: Prepared, names: Sequence[str]) -> None:
    """Say which of the settings that are to vary have but one value."""
    varied = {axis.name for axis in prepared.space.axes}
    if lone := [name_words(name) for name in names if name not in varied]:
        said = f"{', '.join(lone)}: this model, engine and computer leave nothing to choose, so it is not varied."
        print(filled(said, "  note      "), flush=True)
