"""`mtp-launcher downloads run`: the queue worked to its end, and what is seen of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError
from launcher.cli.bar import Bar
from launcher.cli.downloads_words import failure_json, job_json, told, why
from launcher.cli.output import print_json, rounded

if TYPE_CHECKING:
    from launcher.fetch.queue import Queue
    from launcher.fetch.queue_events import Event

_EVENT_S = 0.5


async def work(downloads: Queue, options: argparse.Namespace) -> int:
    """Work the queue to its end."""
    from launcher.fetch.queue_runner import Runner

    show = _JsonLines() if options.json else _Lines()
    await asyncio.to_thread(downloads.lift)
    try:
        await Runner(downloads, show.event, at_once=options.at_once).run(until_idle=True)
    except asyncio.CancelledError:
        show.close()
        if not options.json:
            print("Stopped: what arrived is kept. `mtp-launcher downloads run` goes on from there.", file=sys.stderr)
        raise
    finally:
        show.close()
    look = await asyncio.to_thread(downloads.look)
    if look.jobs.hold is not None:
        held = LauncherError(
            look.jobs.hold.title, f"{look.jobs.hold.hint} `mtp-launcher downloads run` goes on.".strip()
        )
        held.code = look.jobs.hold.code
        raise held
    show.end()
    return 1 if show.failed else 0


class _Shown:
    """What both ways to show the work count."""

    def __init__(self) -> None:
        self.done = self.failed = 0
        self._begun = False

    def count(self, event: Event) -> None:
        from launcher.fetch.queue_events import JobFailed, JobFinished

        self.done += isinstance(event, JobFinished)
        self.failed += isinstance(event, JobFailed)


class _Lines(_Shown):
    """What a person sees."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = Bar()

    def event(self, event: Event) -> None:
        from launcher.fetch.jobs import State
        from launcher.fetch.queue_events import JobChanged, JobFailed, JobFinished, JobProgressed, Notice

        self.count(event)
        if isinstance(event, JobProgressed):
            now, more = event.figures, event.totals.jobs - 1
            what = event.job.title + (f" (and {more} more)" if more else "")
            self._bar.show(
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
            if job.state is State.WAITING and job.retry_at_s is not None:
                self._say(f"{job.title}: {why(job)}")
            elif job.state in (State.PAUSED, State.CANCELLED):
                self._say(f"{job.title}: {told(job)}.")
        elif isinstance(event, Notice):
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


class _JsonLines(_Shown):
    """What a program sees: one object a line."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s = float("-inf")
        self._notes: dict[int, str] = {}

    def event(self, event: Event) -> None:
        from launcher.fetch import queue_events as events

        self.count(event)
        if isinstance(event, events.JobProgressed):
            now_s, note = time.monotonic(), event.figures.note
            news = note and not self._notes.get(event.job.id)  # why it stands still; what is counted in it can wait
            self._notes[event.job.id] = note
            if news or now_s - self._told_s >= _EVENT_S:
                self._told_s = now_s
                left = {"left_bytes": event.totals.left_bytes, "seconds_left": rounded(event.totals.seconds_left)}
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
        elif isinstance(event, events.Reordered):
            print_json({"event": "reordered", "ids": event.ids})
        elif isinstance(event, events.Held):
            print_json({"event": "held", "error": failure_json(event.reason)})
        else:
            print_json({"event": "notice", "text": event.text})

    def close(self) -> None:
        """Nothing is left open."""

    def end(self) -> None:
        print_json({"event": "end", "done": self.done, "failed": self.failed})
