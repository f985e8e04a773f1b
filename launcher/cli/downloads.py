"""`mtp-launcher downloads`: list, run and change the download queue."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.app.models.downloads import add_engine, add_pull, download_queue
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, LauncherError
from launcher.base.text import one_line
from launcher.cli.layout import format_table, wrap_text
from launcher.cli.options.downloads import parse_positive
from launcher.cli.output import Note, Result, round_figure
from launcher.cli.progress import PROGRESS_VIEW, Reporter, format_duration, format_progress, format_size
from launcher.fetch import queue_runner as events
from launcher.fetch.jobs import QUEUED_STATES, JobState, RequestedState
from launcher.fetch.queue_runner import JobFailed, JobFinished, QueueRunner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from launcher.base.progress import Progress
    from launcher.fetch.jobs import AddedJob, Job
    from launcher.fetch.queue import DownloadQueue, QueueSnapshot
    from launcher.fetch.queue_runner import QueueEvent


_JOB = JsonView("id kind title state asked=requested")
_OUTCOME = JsonView("error=failure retry_at_s:3 result", error=LauncherError.JSON_VIEW)


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.action`. Exit code 1 if a download failed or cannot go on."""
    action, downloads = options.action, download_queue()
    if action == "run":
        return await run_queue(downloads, options)
    if action == "add":
        return await _add_downloads(options)
    if action == "list":
        return await asyncio.to_thread(_list_downloads, downloads)
    if action == "clear":
        count = await asyncio.to_thread(downloads.clear_ended, failed=options.failed)
        return Result(
            {"cleared": count}, [f"Removed {count} from the list." if count else "There was nothing to remove."]
        )
    if action == "move":
        await asyncio.to_thread(downloads.move_job, options.id, options.place)
        return await asyncio.to_thread(_list_downloads, downloads)
    return await _request_state(downloads, options)


async def _add_downloads(options: argparse.Namespace) -> Result:
    if not options.what and not options.engine:
        raise BadOption("No download was given.", "Name models as `mtp-launcher pull` takes them, or --engine.")
    if options.sha256 and len(options.what) != 1:
        raise BadOption("--sha256 is for a single file.", "Add the files one by one.")
    if options.backend and not options.engine:
        raise BadOption("--backend goes with --engine.", "Add --engine, or leave --backend out.")
    model_options = {"to": options.to, "sha256": options.sha256, "revision": options.revision, "vision": options.vision}
    model_options["drafter"] = options.drafter
    to_add: dict[str, Callable[[], Awaitable[AddedJob]]] = {
        text: partial(add_pull, text, **model_options) for text in options.what
    }
    if options.engine:
        tag = None if options.engine == "stable" else options.engine
        to_add[f"--engine {options.engine}"] = partial(add_engine, tag, options.backend)
    added: list[AddedJob] = []
    failed: dict[str, LauncherError] = {}
    for name, add_job in to_add.items():
        try:
            added.append(await add_job())
        except LauncherError as error:
            if len(to_add) == 1:
                raise
            failed[name] = error
    data: dict[str, Any] = {"added": [{"fresh": each.is_new, **job_data(each.job, None)} for each in added]}
    if failed:
        data["failed"] = [{"what": name, "error": error} for name, error in failed.items()]
    return Result(data, _describe_added(added, failed), exit_code=1 if failed else 0)


def _describe_added(added: Sequence[AddedJob], failed: Mapping[str, LauncherError]) -> Iterator[str]:
    for each in added:
        if each.is_new:
            size = f" ({format_size(each.job.bytes)})" if each.job.bytes else ""
            yield f"{each.job.title}: added as number {each.job.id}{size}."
        else:
            yield f"{each.job.title}: already in the list: {describe_state(each.job)}."
    for name, error in failed.items():
        yield Note(wrap_text(f"Not added: {error.title} {error.hint}".rstrip(), f"{one_line(name)}: "))
    if added:
        yield "Start with `mtp-launcher downloads run`."


async def _request_state(downloads: DownloadQueue, options: argparse.Namespace) -> Result:
    """Pause, resume, cancel or retry downloads. The process that runs a download obeys within half a second."""
    cancelled = RequestedState.DISCARD if getattr(options, "discard", False) else RequestedState.CANCEL
    # For each action the requested state, and the states of the downloads that "all" means.
    requests: dict[str, tuple[RequestedState, Collection[JobState]]] = {
        "pause": (RequestedState.PAUSE, QUEUED_STATES),
        "resume": (RequestedState.RUN, (JobState.PAUSED, JobState.WAITING, JobState.RUNNING)),
        "cancel": (cancelled, (*QUEUED_STATES, JobState.FAILED)),
        "retry": (RequestedState.RUN, (JobState.FAILED,)),
    }
    requested, states = requests[options.action]
    if "all" in options.which:
        jobs = await asyncio.to_thread(downloads.request_state_of_all, requested, states)
    else:
        jobs = await asyncio.to_thread(downloads.request_state, requested, *map(_parse_id, options.which))
    lines = [f"{job.id}  {job.title}: {describe_state(job)}." for job in jobs]
    if jobs and requested is RequestedState.RUN:
        lines += _describe_next_step(await asyncio.to_thread(downloads.read_snapshot))
    return Result({"jobs": [job_data(job, None) for job in jobs]}, lines or [f"There is nothing to {options.action}."])


def _parse_id(text: str) -> int:
    try:
        return parse_positive(text)
    except argparse.ArgumentTypeError:
        raise BadOption(
            f"{text} is not the number of a download.", '`mtp-launcher downloads` shows them, or write "all".'
        ) from None


def _list_downloads(downloads: DownloadQueue) -> Result:
    queue = downloads.read_snapshot()
    data = {
        "jobs": [job_data(job, queue.progress_by_id.get(job.id)) for job in queue.jobs.jobs],
        "held": to_json(queue.jobs.hold, LauncherError.JSON_VIEW),
        "notices": [str(damage) for damage in queue.damage],
    }
    return Result(data, _describe_queue(queue))


def _describe_queue(queue: QueueSnapshot) -> Iterator[str]:
    for damage in queue.damage:
        yield Note(f"Note: {damage}")
    jobs = queue.jobs.jobs
    if not jobs:
        yield "There are no downloads. Add one with `mtp-launcher downloads add MODEL`."
        return
    rows = [
        (f"{job.id}", state_word(job), job.title, describe_progress(job, queue.progress_by_id.get(job.id)))
        for job in jobs
    ]
    yield from format_table(rows, right=(0,))
    for job in jobs:
        if job.failure is not None:
            yield wrap_text(f"{failure_reason(job)} {job.failure.hint}", f"  {job.id}: ")
    yield from _describe_next_step(queue)


def _describe_next_step(queue: QueueSnapshot) -> Iterator[str]:
    """Yield the command that starts the queue, if downloads wait and none is running."""
    states = {job.state for job in queue.jobs.jobs}
    if queue.jobs.hold is not None:
        title = queue.jobs.hold.title
        yield f"Downloads are on hold: {title} Resume with `mtp-launcher downloads run` or `resume all`."
    elif JobState.WAITING in states and JobState.RUNNING not in states:
        yield "No download is running. Start with `mtp-launcher downloads run`."


# `mtp-launcher downloads run`: run the queue to its end and print its events.


async def run_queue(downloads: DownloadQueue, options: argparse.Namespace) -> int:
    """Download everything that waits. Exit code 1 if a download failed.

    Raises the reason as a LauncherError if the queue was put on hold.
    """
    reporter = Reporter(as_json=options.json)
    done = failed = 0

    def show_event(event: QueueEvent) -> None:
        nonlocal done, failed
        done += isinstance(event, JobFinished)
        failed += isinstance(event, JobFailed)
        _show_event(reporter, event)

    await asyncio.to_thread(downloads.release_hold)
    try:
        await QueueRunner(downloads, show_event, at_once=options.at_once).run(until_idle=True)
    except asyncio.CancelledError:
        reporter.show_event(None, [Note("Stopped. Received data is kept; `mtp-launcher downloads run` resumes.")])
        raise
    finally:
        reporter.close()
    hold = (await asyncio.to_thread(downloads.read_snapshot)).jobs.hold
    if hold is not None:
        error = LauncherError(hold.title, f"{hold.hint} `mtp-launcher downloads run` resumes.".strip())
        error.code = hold.code
        raise error
    lines = []
    if failed:
        lines = [Note(f"{done} done, {failed} failed: `mtp-launcher downloads` shows why.")]
    elif not done:
        lines = [Note("The queue is empty.")]
    reporter.show_event({"event": "end", "done": done, "failed": failed}, lines)
    return 1 if failed else 0


def _show_event(reporter: Reporter, event: QueueEvent) -> None:
    if isinstance(event, events.JobProgressed):
        others = event.totals.jobs - 1
        title = event.job.title + (f" (and {others} more)" if others else "")
        left = {"left_bytes": event.totals.left_bytes, "seconds_left": round_figure(event.totals.seconds_left)}
        total = event.job.bytes if event.progress.bytes is None else event.progress.bytes
        data = {"event": "progress", **job_data(event.job, event.progress), "queue": left}
        reporter.show_progress(title, replace(event.progress, bytes=total), data)
    else:
        reporter.show_event(_event_json(event), _describe_event(event))


def _event_json(event: QueueEvent) -> dict[str, Any]:
    match event:
        case events.JobRemoved():
            return {"event": "removed", "id": event.job.id}
        case events.QueueReordered():
            return {"event": "reordered", "ids": event.ids}
        case events.QueueHeld():
            return {"event": "held", "error": to_json(event.reason, LauncherError.JSON_VIEW)}
        case events.QueueNotice():
            return {"event": "notice", "text": event.text}
    names = {events.JobAdded: "added", events.JobFinished: "done", events.JobFailed: "failed"}
    return {"event": names.get(type(event), "changed"), **job_data(event.job, None)}


def _describe_event(event: QueueEvent) -> Iterator[str]:
    match event:
        case events.JobFinished(job):
            result = job.result or {}
            yield Note(f"{job.title}: done, and verified.")
            yield from (Note(f"Note: {note}") for note in result.get("notes", ()))
            if path := result.get("path"):
                yield str(path)
        case events.JobFailed(job, failure):
            yield Note(f"{job.title}: failed. {failure.title} {failure.hint}".rstrip())
        case events.JobChanged(job) if job.state is JobState.WAITING and job.retry_at_s is not None:
            yield Note(f"{job.title}: {failure_reason(job)}")
        case events.JobChanged(job) if job.state in (JobState.PAUSED, JobState.CANCELLED):
            yield Note(f"{job.title}: {describe_state(job)}.")
        case events.QueueNotice(text):
            yield Note(f"Note: {text}")


# One download as text and as JSON.


def state_word(job: Job) -> str:
    """Return a download's state in one word."""
    if job.is_changing:
        return "pausing" if job.requested is RequestedState.PAUSE else "cancelling"
    return job.state.value


def describe_state(job: Job) -> str:
    """Return a download's state as text, with the error, or the bytes that a paused or cancelled one keeps."""
    if job.failure is not None:
        return f"{state_word(job)}: {job.failure.title.rstrip('.')}"
    if job.done_bytes and job.state in (JobState.PAUSED, JobState.CANCELLED):
        return f"{state_word(job)}, {format_size(job.done_bytes)} are kept"
    return state_word(job)


def describe_progress(job: Job, progress: Progress | None) -> str:
    """Return a download's progress as text. `progress` is None unless the download runs."""
    if progress is not None:
        return format_progress(
            progress.done_bytes,
            progress.bytes,
            speed=progress.bytes_per_second,
            left_s=progress.seconds_left,
            note=progress.note,
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


def job_data(job: Job, progress: Progress | None) -> dict[str, Any]:
    """Return a download as JSON; `progress` is that of a running one."""
    figures = PROGRESS_VIEW.write(progress)
    if figures["bytes"] is None:
        figures["bytes"] = job.bytes
    if progress is None:
        figures["done_bytes"] = job.done_bytes
    return {**to_json(job, _JOB), **figures, **to_json(job, _OUTCOME)}
