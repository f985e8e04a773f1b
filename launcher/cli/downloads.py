"""`mtp-launcher downloads`: list, run and change the download queue."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.errors import BadOption, LauncherError
from launcher.base.text import one_line
from launcher.cli.actions import add_actions
from launcher.cli.bar import ProgressBar, format_duration, format_progress, format_size
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.output import print_json, round_figure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from launcher.fetch.jobs import AddedJob, Job, JobFailure, JobProgress, JobState, QueuePlace, RequestedState
    from launcher.fetch.queue import DownloadQueue, QueueSnapshot
    from launcher.fetch.queue_runner import QueueEvent

# A download as text and as JSON.


def state_word(job: Job) -> str:
    """Return a download's state in one word."""
    from launcher.fetch.jobs import RequestedState

    if job.is_changing:
        return "pausing" if job.wish is RequestedState.PAUSE else "cancelling"
    return job.state.value


def describe_state(job: Job) -> str:
    """Return a download's state as text, with the error or the kept bytes."""
    resting = job.state.value in ("paused", "cancelled")
    kept = f", {format_size(job.done_bytes)} are kept" if job.done_bytes and resting else ""
    if job.failure is not None:
        return f"{state_word(job)}: {job.failure.title.rstrip('.')}"
    return f"{state_word(job)}{kept}"


def describe_progress(job: Job, now: JobProgress | None) -> str:
    """Return a download's progress; `now` is that of a running one."""
    from launcher.fetch.jobs import JobState

    if now is not None:
        return format_progress(
            now.done_bytes, now.bytes, speed=now.bytes_per_second, left_s=now.seconds_left, note=now.note
        )
    if job.state is JobState.DONE or not job.done_bytes:
        return format_size(job.bytes) if job.bytes else ""
    return format_progress(job.done_bytes, job.bytes)


def failure_reason(job: Job) -> str:
    """Return the reason why a download failed or waits, and the time until its retry."""
    if job.failure is None:
        return ""
    if job.retry_at_s is None:
        return job.failure.title
    return f"{job.failure.title} Trying again in {format_duration(max(job.retry_at_s - time.time(), 0))}."


def failure_json(failure: JobFailure | None) -> dict[str, str] | None:
    """Return a failure as JSON in the common form of errors."""
    return None if failure is None else {"code": failure.code, "message": failure.title, "hint": failure.hint}


def job_json(job: Job, now: JobProgress | None) -> dict[str, Any]:
    """Return a download as JSON; `now` is the progress of a running one."""
    return {
        "id": job.id,
        "kind": job.kind,
        "title": job.title,
        "state": job.state.value,
        "asked": job.wish.value,
        "done_bytes": now.done_bytes if now else job.done_bytes,
        "bytes": now.bytes if now and now.bytes is not None else job.bytes,
        "bytes_per_second": round_figure(now.bytes_per_second) if now else None,
        "seconds_left": round_figure(now.seconds_left) if now else None,
        "note": (now.note or None) if now else None,
        "error": failure_json(job.failure),
        "retry_at_s": round_figure(job.retry_at_s, 3),
        "result": job.result,
    }


# `mtp-launcher downloads run`: run the queue to its end and print its events.

_EVENT_S = 0.5


async def run_queue(downloads: DownloadQueue, options: argparse.Namespace) -> int:
    """Run the queue to its end."""
    from launcher.fetch.queue_runner import QueueRunner

    show = _JsonOutput() if options.json else _TextOutput()
    await asyncio.to_thread(downloads.release_hold)
    try:
        await QueueRunner(downloads, show.event, at_once=options.at_once).run(until_idle=True)
    except asyncio.CancelledError:
        show.close()
        if not options.json:
            print("Stopped: what arrived is kept. `mtp-launcher downloads run` goes on from there.", file=sys.stderr)
        raise
    finally:
        show.close()
    look = await asyncio.to_thread(downloads.read_snapshot)
    if look.jobs.hold is not None:
        held = LauncherError(
            look.jobs.hold.title, f"{look.jobs.hold.hint} `mtp-launcher downloads run` goes on.".strip()
        )
        held.code = look.jobs.hold.code
        raise held
    show.end()
    return 1 if show.failed else 0


class _JobCounts:
    """Counts finished and failed jobs, for text and JSON output."""

    def __init__(self) -> None:
        self.done = self.failed = 0
        self._begun = False

    def count(self, event: QueueEvent) -> None:
        from launcher.fetch.queue_runner import JobFailed, JobFinished

        self.done += isinstance(event, JobFinished)
        self.failed += isinstance(event, JobFailed)


class _TextOutput(_JobCounts):
    """Text output."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = ProgressBar()

    def event(self, event: QueueEvent) -> None:
        from launcher.fetch.jobs import JobState
        from launcher.fetch.queue_runner import JobChanged, JobFailed, JobFinished, JobProgressed, QueueNotice

        self.count(event)
        if isinstance(event, JobProgressed):
            now, more = event.figures, event.totals.jobs - 1
            what = event.job.title + (f" (and {more} more)" if more else "")
            self._bar.show_progress(
                what, now.done_bytes, now.bytes, speed=now.bytes_per_second, left_s=now.seconds_left, note=now.note
            )
        elif isinstance(event, JobFinished):
            where = (event.job.result or {}).get("path")
            self._say(f"{event.job.title}: done, and verified.")
            for note in (event.job.result or {}).get("notes", ()):
                self._say(f"Note: {note}")
            if where:
                print(where, flush=True)
        elif isinstance(event, JobFailed):
            self._say(f"{event.job.title}: failed. {event.failure.title} {event.failure.hint}".rstrip())
        elif isinstance(event, JobChanged):
            job = event.job
            if job.state is JobState.WAITING and job.retry_at_s is not None:
                self._say(f"{job.title}: {failure_reason(job)}")
            elif job.state in (JobState.PAUSED, JobState.CANCELLED):
                self._say(f"{job.title}: {describe_state(job)}.")
        elif isinstance(event, QueueNotice):
            self._say(f"Note: {event.text}")

    def _say(self, line: str) -> None:
        self._bar.close()
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()

    def end(self) -> None:
        if not self.done and not self.failed:
            print("Nothing waits to be downloaded.", file=sys.stderr)
        elif self.failed:
            print(f"{self.done} done, {self.failed} failed: `mtp-launcher downloads` tells more.", file=sys.stderr)


class _JsonOutput(_JobCounts):
    """JSON output: one object per line."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s = float("-inf")
        self._notes: dict[int, str] = {}

    def event(self, event: QueueEvent) -> None:
        from launcher.fetch import queue_runner as events

        self.count(event)
        if isinstance(event, events.JobProgressed):
            now_s, note = time.monotonic(), event.figures.note
            # A new standstill is reported at once; a change of its text can wait.
            news = note and not self._notes.get(event.job.id)
            self._notes[event.job.id] = note
            if news or now_s - self._told_s >= _EVENT_S:
                self._told_s = now_s
                left = {"left_bytes": event.totals.left_bytes, "seconds_left": round_figure(event.totals.seconds_left)}
                print_json({"event": "progress", **job_json(event.job, event.figures), "queue": left})
        elif isinstance(event, events.JobFinished):
            print_json({"event": "done", **job_json(event.job, None)})
        elif isinstance(event, events.JobFailed):
            print_json({"event": "failed", **job_json(event.job, None)})
        elif isinstance(event, events.JobAdded):
            print_json({"event": "added", **job_json(event.job, None)})
        elif isinstance(event, events.JobChanged):
            print_json({"event": "changed", **job_json(event.job, None)})
        elif isinstance(event, events.JobRemoved):
            print_json({"event": "removed", "id": event.job.id})
        elif isinstance(event, events.QueueReordered):
            print_json({"event": "reordered", "ids": event.ids})
        elif isinstance(event, events.QueueHeld):
            print_json({"event": "held", "error": failure_json(event.reason)})
        else:
            print_json({"event": "notice", "text": event.text})

    def close(self) -> None:
        """Do nothing: no line is open."""

    def end(self) -> None:
        print_json({"event": "end", "done": self.done, "failed": self.failed})


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


def _place(text: str) -> QueuePlace:
    words: dict[str, QueuePlace] = {"first": "first", "up": "up", "down": "down", "last": "last"}
    if text in words:
        return words[text]
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text} is no place: write first, up, down, last or a number") from None


async def run(options: argparse.Namespace) -> int:
    """Run the action `options.action`. Exit code 1 if a download failed or cannot go on."""
    from launcher.app.downloads import download_queue

    action, downloads = options.action, download_queue()
    if action == "run":
        return await run_queue(downloads, options)
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
    from launcher.app.downloads import add_engine, add_pull
    from launcher.fetch.jobs import JobFailure

    if not options.what and not options.engine:
        raise BadOption("What is to be downloaded?", "Name models as `mtp-launcher pull` takes them, or --engine.")
    if options.sha256 and len(options.what) != 1:
        raise BadOption("--sha256 is one file's.", "Add the files one by one.")
    if options.backend and not options.engine:
        raise BadOption("--backend goes with --engine.", "Add --engine, or leave --backend out.")
    about = {"to": options.to, "sha256": options.sha256, "revision": options.revision, "vision": options.vision}
    asked: dict[str, Callable[[], Awaitable[AddedJob]]] = {
        text: partial(add_pull, text, **about) for text in options.what
    }
    if options.engine:
        tag = None if options.engine == "stable" else options.engine
        asked[f"--engine {options.engine}"] = partial(add_engine, tag, options.backend)
    added: list[AddedJob] = []
    failed: dict[str, LauncherError] = {}
    for what, add in asked.items():
        try:
            added.append(await add())
        except LauncherError as error:
            if len(asked) == 1:
                raise
            failed[what] = error
    if options.json:
        refused = [{"what": what, "error": failure_json(JobFailure.from_error(each))} for what, each in failed.items()]
        fresh = [{"fresh": each.fresh, **job_json(each.job, None)} for each in added]
        print_json({"added": fresh, **({"failed": refused} if refused else {})})
        return 1 if failed else 0
    for each in added:
        sized = f" ({format_size(each.job.bytes)})" if each.job.bytes else ""
        place = f"added as number {each.job.id}{sized}" if each.fresh else f"there already: {describe_state(each.job)}"
        print(f"{each.job.title}: {place}.")
    for what, wrong in failed.items():
        print(wrap_text(f"Not added: {wrong.title} {wrong.hint}".rstrip(), f"{one_line(what)}: "), file=sys.stderr)
    if added:
        print("`mtp-launcher downloads run` downloads what waits.")
    return 1 if failed else 0


async def _ask(downloads: DownloadQueue, options: argparse.Namespace) -> int:
    """Request a state of downloads; for a running one its process carries it out within half a second."""
    from launcher.fetch.jobs import QUEUED_STATES, JobState, RequestedState

    wishes: dict[str, tuple[RequestedState, Collection[JobState]]] = {
        "pause": (RequestedState.PAUSE, QUEUED_STATES),
        "resume": (RequestedState.RUN, (JobState.PAUSED, JobState.WAITING, JobState.RUNNING)),
        "cancel": (
            RequestedState.DISCARD if options.action == "cancel" and options.discard else RequestedState.CANCEL,
            (*QUEUED_STATES, JobState.FAILED),
        ),
        "retry": (RequestedState.RUN, (JobState.FAILED,)),
    }
    wish, states = wishes[options.action]
    if "all" in options.which:
        jobs = await asyncio.to_thread(downloads.request_state_of_all, wish, states)
    else:
        jobs = await asyncio.to_thread(downloads.request_state, wish, *map(_number, options.which))
    if options.json:
        print_json({"jobs": [job_json(job, None) for job in jobs]})
    elif not jobs:
        print(f"There is nothing to {options.action}.")
    for job in () if options.json else jobs:
        print(f"{job.id}  {job.title}: {describe_state(job)}.")
    if jobs and wish is RequestedState.RUN and not options.json:
        _tell_what_next(await asyncio.to_thread(downloads.read_snapshot))
    return 0


def _number(text: str) -> int:
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise BadOption(
            f"{text} is no download's number.", '`mtp-launcher downloads` shows them, or write "all".'
        ) from None


def _list(downloads: DownloadQueue, *, as_json: bool) -> int:
    look = downloads.read_snapshot()
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
        [
            (f"{job.id}", state_word(job), job.title, describe_progress(job, look.figures.get(job.id)))
            for job in look.jobs.jobs
        ],
        right=(0,),
    )
    for job in look.jobs.jobs:
        if job.failure is not None:
            print(wrap_text(f"{failure_reason(job)} {job.failure.hint}", f"  {job.id}: "))
    _tell_what_next(look)
    return 0


def _tell_what_next(look: QueueSnapshot) -> None:
    from launcher.fetch.jobs import JobState

    states = {job.state for job in look.jobs.jobs}
    if look.jobs.hold is not None:
        print(f"No download begins: {look.jobs.hold.title} `mtp-launcher downloads run` or `resume all` goes on.")
    elif JobState.WAITING in states and JobState.RUNNING not in states:
        print("Nothing downloads now. `mtp-launcher downloads run` does.")
