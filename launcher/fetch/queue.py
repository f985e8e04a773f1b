"""The queue: what any process of ours may ask of its jobs, and what a kind of job is."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.base.errors import LauncherError
from launcher.base.identity import ProcessId
from launcher.base.paths import refusal
from launcher.fetch.jobs import Added, Failure, Figures, Job, Jobs, Place, State, Wish
from launcher.fetch.queue_store import Damage, QueueStore

_T = TypeVar("_T")


Report = Callable[[Figures], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What a kind of job does, given its arguments.

    `run` does it to its end and returns what it tells of it, as JSON; it may be begun again after an end of any kind,
    and being cancelled pauses it. `discard` removes what an unfinished one has left on the disk. Both raise
    LauncherError or OSError.
    """

    run: Callable[[dict[str, Any], Report], Awaitable[dict[str, Any]]]
    discard: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is: of the calendar, and of a clock that is never set."""

    calendar_s: Callable[[], float] = time.time
    steady_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Look:
    """The jobs as they are now, how far the running ones are, and what was wrong with their file."""

    jobs: Jobs
    figures: Mapping[int, Figures]
    damage: tuple[Damage, ...]


class Queue:
    """The jobs of this user, shared by all processes. Its verbs take effect before they return, but for running jobs:

    their process is asked, and does it within half a second. Each verb may raise OSError or WrittenByNewer.
    """

    def __init__(self, works: Mapping[str, Work], store: QueueStore | None = None, clock: Clock | None = None) -> None:
        self.works = works
        self.store = store or QueueStore()
        self.clock = clock or Clock()

    def look(self) -> Look:
        """Return all jobs."""
        jobs, _, damage = self._change(lambda jobs: (jobs, None))
        shown = {job.id: self.store.figures(job.id) for job in jobs.jobs if job.state is State.RUNNING}
        return Look(jobs, {job_id: figures for job_id, figures in shown.items() if figures is not None}, damage)

    def add(self, kind: str, arguments: dict[str, Any], title: str, *, size_bytes: int | None = None) -> Added:
        """Put a job at the end of the line, unless it is in the line. `arguments` are JSON, `title` is for people."""
        now_s = self.clock.calendar_s()
        return self._change(lambda jobs: jobs.add(kind, arguments, title, size_bytes=size_bytes, now_s=now_s))[1]

    def become(self, wish: Wish, *job_ids: int) -> tuple[Job, ...]:
        """Ask jobs to become something, and return them. Raises JobUnknown, and then asks none."""

        def asked(jobs: Jobs) -> tuple[Jobs, None]:
            for job_id in job_ids:
                jobs = jobs.become(job_id, wish)
            return jobs, None

        jobs = self._change(asked)[0]
        return tuple(jobs.find(job_id) for job_id in job_ids)

    def become_all(self, wish: Wish, states: Collection[State]) -> tuple[Job, ...]:
        """Ask all jobs in one of `states` to become something, and return them; running lets the line go on."""

        def asked(jobs: Jobs) -> tuple[Jobs, tuple[int, ...]]:
            meant = tuple(job.id for job in jobs.jobs if job.state in states)
            for job_id in meant:
                jobs = jobs.become(job_id, wish)
            return jobs.lifted() if wish is Wish.RUN else jobs, meant

        jobs, meant, _ = self._change(asked)
        return tuple(jobs.find(job_id) for job_id in meant)

    def move(self, job_id: int, place: Place) -> Job:
        """Move a job in the line (see Jobs.move), and return it. Raises JobUnknown."""
        return self._change(lambda jobs: (jobs.move(job_id, place), None))[0].find(job_id)

    def clear(self, *, failed: bool = False) -> int:
        """Take out what is done or cancelled, and with `failed` what failed; return how many."""

        def cleared(jobs: Jobs) -> tuple[Jobs, int]:
            kept = jobs.clear(failed=failed)
            return kept, len(jobs.jobs) - len(kept.jobs)

        return self._change(cleared)[1]

    def lift(self) -> None:
        """Let the line go on where something held it up."""
        self._change(lambda jobs: (jobs.lifted(), None))

    def settled(self, jobs: Jobs) -> Jobs:
        """Return the jobs with those taken back whose process is gone, and remove what is to be discarded."""
        jobs = jobs.recovered(ProcessId.running, self.store.figures)
        for job in jobs.jobs:
            if job.state is State.CANCELLED and job.wish is Wish.DISCARD:
                jobs = jobs.discarded(job.id, self._discard(job))
        return jobs

    def _discard(self, job: Job) -> Failure | None:
        work = self.works.get(job.kind)
        try:
            if work is not None:
                work.discard(job.arguments)
        except LauncherError as error:
            return Failure.of(error)
        except OSError as error:
            return Failure.of(refusal(error))
        except Exception as error:  # noqa: BLE001 -- else no verb would work any more
            return unexpected(error)
        return None

    def _change(self, change: Callable[[Jobs], tuple[Jobs, _T]]) -> tuple[Jobs, _T, tuple[Damage, ...]]:
        def settling(jobs: Jobs) -> tuple[Jobs, _T]:
            after, told = change(self.settled(jobs))
            return self.settled(after), told

        return self.store.change(settling)


def unexpected(error: BaseException) -> Failure:
    """Keep an error that nobody foresaw."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return Failure("error", f"It ended unexpectedly ({what}).", "This is a fault of the program: please report it.")
