"""`mtp-launcher downloads`: the queue of downloads."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, LauncherError
from launcher.base.text import one_line
from launcher.cli.actions import add_actions
from launcher.cli.bar import size
from launcher.cli.downloads_words import failure_json, how_far, job_json, told, why, word
from launcher.cli.downloads_work import work
from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from launcher.fetch.jobs import Added, Place, State, Wish
    from launcher.fetch.queue import Look, Queue

_ACTIONS = {
    "list": "show all downloads, and how far they are",
    "run": "download what waits, one after the other, until nothing waits",
    "add": "put models or an engine at the end of the queue",
    "pause": "stop downloads for now; what arrived is kept",
    "resume": "let paused downloads go on",
    "cancel": "give downloads up",
    "retry": "try failed or cancelled downloads again",
    "move": "change the order",
    "clear": "take out what is done or cancelled",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = add_actions(parser, _ACTIONS)
    for name in ("pause", "resume", "cancel", "retry"):
        actions[name].add_argument("which", nargs="+", metavar="ID", help='numbers as `downloads` shows them, or "all"')
    _configure_add(actions["add"])
    actions["run"].add_argument(
        "--at-once", type=_positive, default=1, metavar="N", help="downloads that run at the same time (default 1)"
    )
    actions["cancel"].add_argument("--discard", action="store_true", help="remove what arrived of them, too")
    actions["move"].add_argument("id", type=_positive, metavar="ID")
    actions["move"].add_argument(
        "place", metavar="PLACE", type=_place, help="first, up, down, last, or the number of the place"
    )
    actions["clear"].add_argument("--failed", action="store_true", help="take out what failed, too")


def _configure_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="a model as `pull` takes it: ID[:QUANT], REPO:FILE, URL"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder for them (default: the one for models)")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit, in place of the catalogue's")
    parser.add_argument("--sha256", metavar="HEX", help="what the file's SHA-256 must be")
    parser.add_argument("--vision", action="store_true", help="with the models' vision projectors")
    parser.add_argument(
        "--engine", nargs="?", const="stable", metavar="TAG", help="a build of llama.cpp (without TAG the stable one)"
    )
    parser.add_argument("--backend", metavar="B", help="the engine's backend (default: what suits this computer)")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def _place(text: str) -> Place:
    words: dict[str, Place] = {"first": "first", "up": "up", "down": "down", "last": "last"}
    if text in words:
        return words[text]
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text} is no place: write first, up, down, last or a number") from None


async def run(options: argparse.Namespace) -> int:
    """Do what `options.action` names. Exit code 1 when a download failed or cannot go on."""
    from launcher.downloads import queue

    action, downloads = options.action, queue()
    if action == "run":
        return await work(downloads, options)
    if action == "add":
        return await _add(options)
    if action == "list":
        return await asyncio.to_thread(_list, downloads, as_json=options.json)
    if action == "clear":
        count = await asyncio.to_thread(downloads.clear, failed=options.failed)
        if options.json:
            print_json({"cleared": count})
        else:
            print(f"Took {count} out of the list." if count else "There was nothing to take out.")
        return 0
    if action == "move":
        await asyncio.to_thread(downloads.move, options.id, options.place)
        return await asyncio.to_thread(_list, downloads, as_json=options.json)
    return await _ask(downloads, options)


async def _add(options: argparse.Namespace) -> int:
    from launcher.downloads import add_engine, add_pull
    from launcher.fetch.jobs import Failure

    if not options.what and not options.engine:
        raise BadOption("What is to be downloaded?", "Name models as `mtp-launcher pull` takes them, or --engine.")
    if options.sha256 and len(options.what) != 1:
        raise BadOption("--sha256 is one file's.", "Add the files one by one.")
    if options.backend and not options.engine:
        raise BadOption("--backend goes with --engine.", "Add --engine, or leave --backend out.")
    about = {"to": options.to, "sha256": options.sha256, "revision": options.revision, "vision": options.vision}
    asked: dict[str, Callable[[], Awaitable[Added]]] = {text: partial(add_pull, text, **about) for text in options.what}
    if options.engine:
        tag = None if options.engine == "stable" else options.engine
        asked[f"--engine {options.engine}"] = partial(add_engine, tag, options.backend)
    added: list[Added] = []
    failed: dict[str, LauncherError] = {}
    for what, add in asked.items():
        try:
            added.append(await add())
        except LauncherError as error:
            if len(asked) == 1:
                raise
            failed[what] = error
    if options.json:
        refused = [{"what": what, "error": failure_json(Failure.of(each))} for what, each in failed.items()]
        fresh = [{"fresh": each.fresh, **job_json(each.job, None)} for each in added]
        print_json({"added": fresh, **({"failed": refused} if refused else {})})
        return 1 if failed else 0
    for each in added:
        sized = f" ({size(each.job.bytes)})" if each.job.bytes else ""
        place = f"added as number {each.job.id}{sized}" if each.fresh else f"there already: {told(each.job)}"
        print(f"{each.job.title}: {place}.")
    for what, wrong in failed.items():
        print(filled(f"Not added: {wrong.title} {wrong.hint}".rstrip(), f"{one_line(what)}: "), file=sys.stderr)
    if added:
        print("`mtp-launcher downloads run` downloads what waits.")
    return 1 if failed else 0


async def _ask(downloads: Queue, options: argparse.Namespace) -> int:
    """Ask downloads to become something; what a running one is asked, its process does within half a second."""
    from launcher.fetch.jobs import LINE, State, Wish

    wishes: dict[str, tuple[Wish, Collection[State]]] = {
        "pause": (Wish.PAUSE, LINE),
        "resume": (Wish.RUN, (State.PAUSED, State.WAITING, State.RUNNING)),
        "cancel": (
            Wish.DISCARD if options.action == "cancel" and options.discard else Wish.CANCEL,
            (*LINE, State.FAILED),
        ),
        "retry": (Wish.RUN, (State.FAILED,)),
    }
    wish, states = wishes[options.action]
    if "all" in options.which:
        jobs = await asyncio.to_thread(downloads.become_all, wish, states)
    else:
        jobs = await asyncio.to_thread(downloads.become, wish, *map(_number, options.which))
    if options.json:
        print_json({"jobs": [job_json(job, None) for job in jobs]})
    elif not jobs:
        print(f"There is nothing to {options.action}.")
    for job in () if options.json else jobs:
        print(f"{job.id}  {job.title}: {told(job)}.")
    if jobs and wish is Wish.RUN and not options.json:
        _tell_what_next(await asyncio.to_thread(downloads.look))
    return 0


def _number(text: str) -> int:
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise BadOption(
            f"{text} is no download's number.", '`mtp-launcher downloads` shows them, or write "all".'
        ) from None


def _list(downloads: Queue, *, as_json: bool) -> int:
    look = downloads.look()
    if as_json:
        jobs = [job_json(job, look.figures.get(job.id)) for job in look.jobs.jobs]
        notices = [str(damage) for damage in look.damage]
        print_json({"jobs": jobs, "held": failure_json(look.jobs.hold), "notices": notices})
        return 0
    for damage in look.damage:
        print(f"Note: {damage}", file=sys.stderr)
    if not look.jobs.jobs:
        print("There are no downloads. Add one with `mtp-launcher downloads add MODEL`.")
        return 0
    print_table(
        [(f"{job.id}", word(job), job.title, how_far(job, look.figures.get(job.id))) for job in look.jobs.jobs],
        right=(0,),
    )
    for job in look.jobs.jobs:
        if job.failure is not None:
            print(filled(f"{why(job)} {job.failure.hint}", f"  {job.id}: "))
    _tell_what_next(look)
    return 0


def _tell_what_next(look: Look) -> None:
    from launcher.fetch.jobs import State

    states = {job.state for job in look.jobs.jobs}
    if look.jobs.hold is not None:
        print(f"No download begins: {look.jobs.hold.title} `mtp-launcher downloads run` or `resume all` goes on.")
    elif State.WAITING in states and State.RUNNING not in states:
        print("Nothing downloads now. `mtp-launcher downloads run` does.")
