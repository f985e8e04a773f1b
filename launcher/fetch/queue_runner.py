"""Runs the jobs of the queue: starts due jobs, carries out requests and reports events to a listener."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.base.errors import DiskFull, LauncherError, WrittenByNewer
from launcher.base.identity import ProcessId
from launcher.base.messages import join_messages, message
from launcher.base.paths import explain_os_error
from launcher.base.progress import Progress
from launcher.fetch.jobs import (
    QUEUED_STATES,
    Job,
    JobDone,
    JobFailure,
    JobList,
    JobState,
    JobStopped,
    Outcome,
    RequestedState,
)
from launcher.fetch.queue import DownloadQueue, QueueDamage, Stamp, unexpected_failure

# Events for the listener, derived from the jobs before and after a change.


@dataclass(frozen=True, slots=True)
class JobAdded:
    """A job is in the list. A new listener first gets one for each existing job."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job has a new state, or a new state was requested."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job is done."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed for good; the next one starts."""

    job: Job
    failure: JobFailure


@dataclass(frozen=True, slots=True)
class JobRemoved:
    """A job was removed from the list."""

    job: Job


@dataclass(frozen=True, slots=True)
class QueueReordered:
    """The order of the queue has changed."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueHeld:
    """The queue is held: no job starts until one is resumed. None as `reason`: it is released."""

    reason: JobFailure | None


@dataclass(frozen=True, slots=True)
class QueueNotice:
    """A message for users about the list itself."""

    text: str


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Sums over the waiting and running jobs; `left_bytes` is None if a size is unknown."""

    jobs: int
    left_bytes: int | None
    bytes_per_second: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A running job made progress or changed its speed. Sent four times a second at most."""

    job: Job
    figures: Progress
    totals: QueueTotals


QueueEvent = (
    JobAdded
    | JobChanged
    | JobFinished
    | JobFailed
    | JobRemoved
    | QueueReordered
    | QueueHeld
    | QueueNotice
    | JobProgressed
)


def events_between(before: JobList, after: JobList) -> Iterator[QueueEvent]:
    """Yield the events that lead from `before` to `after`."""
    was = {job.id: job for job in before.jobs}
    now = {job.id: job for job in after.jobs}
    for job in before.jobs:
        if job.id not in now:
            yield JobRemoved(job)
    for job in after.jobs:
        old = was.get(job.id)
        if old is None:
            yield JobAdded(job)
        elif old != job:
            yield JobChanged(job)
            if job.state is not old.state and job.state is JobState.DONE:
                yield JobFinished(job)
            elif job.state is not old.state and job.state is JobState.FAILED and job.failure is not None:
                yield JobFailed(job, job.failure)
    lines = [tuple(job.id for job in jobs.jobs if job.state in QUEUED_STATES) for jobs in (before, after)]
    stayed = [tuple(job_id for job_id in line if job_id in lines[0] and job_id in lines[1]) for line in lines]
    if stayed[0] != stayed[1]:
        yield QueueReordered(lines[1])
    if before.hold != after.hold:
        yield QueueHeld(after.hold)


def sum_totals(jobs: JobList, figures: Mapping[int, Progress]) -> QueueTotals:
    """Return the sums over the waiting and running jobs; `figures` holds the progress of the running ones."""
    open_jobs = [job for job in jobs.jobs if job.state in (JobState.WAITING, JobState.RUNNING)]
    left = [_left_bytes(job, figures.get(job.id)) for job in open_jobs]
    known = [each for each in left if each is not None]
    left_bytes = sum(known) if len(known) == len(left) else None
    speeds = [each.bytes_per_second for each in figures.values() if each.bytes_per_second is not None]
    speed = sum(speeds) if speeds else None
    return QueueTotals(
        len(open_jobs), left_bytes, speed, left_bytes / speed if left_bytes is not None and speed else None
    )


def _left_bytes(job: Job, figures: Progress | None) -> int | None:
    size = job.bytes if figures is None or figures.bytes is None else figures.bytes
    done = job.done_bytes if figures is None else figures.done_bytes
    return None if size is None else max(size - (done or 0), 0)


_TICK_S = 0.25
_IDLE_TICKS = 4
_SHOWN_S = 1.0
"""Interval in seconds at which progress is published to other processes."""

Listener = Callable[[QueueEvent], None]


@dataclass(slots=True)
class _RunningJob:
    """A job that this process runs."""

    job: Job
    began_bytes: int
    task: "asyncio.Task[None] | None" = None
    figures: Progress | None = None
    stopping: bool = False
    outcome: Outcome = field(default_factory=JobStopped)

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def moved(self) -> bool:
        return self.figures is not None and self.figures.done_bytes > self.began_bytes

    def report(self, figures: Progress) -> None:
        self.figures = figures

    def stop(self) -> None:
        if not self.stopping and self.task is not None:
            self.stopping = True
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class _Round:
    """The jobs as read from the store in one round."""

    jobs: JobList
    damage: tuple[QueueDamage, ...]
    stamp: Stamp | None


class QueueRunner:
    """Runs the jobs of a queue for as long as `run` lasts; use one per process. `listen` is called on the loop.

    At most `at_once` jobs run, counted over all processes. `tick_s` is the interval in seconds between rounds while a
    job runs.
    """

    def __init__(self, queue: DownloadQueue, listen: Listener, *, at_once: int = 1, tick_s: float = _TICK_S) -> None:
        self._queue = queue
        self._listen = listen
        self._at_once = at_once
        self._tick_s = tick_s
        self._us = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self._ours: dict[int, _RunningJob] = {}
        self._theirs: dict[int, Progress] = {}
        self._told: dict[int, Progress] = {}
        self._last: _Round | None = None
        self._jobs = JobList()
        self._wake = asyncio.Event()
        self._shown_s = self._told_s = float("-inf")
        self._trouble = ""

    async def run(self, *, until_idle: bool = False) -> None:
        """Run jobs until cancelled, or with `until_idle` until no job waits or runs, or the queue is held.

        However it ends, its jobs are stopped and wait for the next runner. Raises WrittenByNewer, and with `until_idle`
        OSError if the list cannot be written and no job runs.
        """
        turning: asyncio.Future[_Round | OSError | None] | None = None
        try:
            while True:
                self._wake.clear()
                ended = {job_id: each for job_id, each in self._ours.items() if each.ended}
                turning = asyncio.ensure_future(asyncio.to_thread(self._turn, ended, self._figures()))
                turn = await asyncio.shield(turning)
                if isinstance(turn, OSError):
                    if until_idle and not self._ours:
                        raise turn
                    self._complain(turn)
                elif turn is not None:
                    self._apply(turn, ended)
                self._tell_progress()
                if until_idle and self._last is not None and self._idle():
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._tick_s * (1 if self._ours else _IDLE_TICKS))
        finally:
            await self._leave(turning)

    def _figures(self) -> dict[int, Progress]:
        return {job_id: each.figures for job_id, each in self._ours.items() if each.figures is not None}

    def _turn(self, ended: Mapping[int, _RunningJob], figures: Mapping[int, Progress]) -> _Round | OSError | None:
        """Do one round in a thread: write outcomes, read changes of others, claim due jobs. Returns None if nothing
        changed.
        """
        queue, now_s = self._queue, self._queue.clock.calendar_s()
        self._share(figures)

        def claimed(jobs: JobList) -> JobList:
            return jobs.claim_due(self._us, queue.works, at_once=self._at_once, now_s=now_s)

        try:
            stamp = queue.store.stamp()
            if self._last is not None and stamp == self._last.stamp and not ended:
                lively = self._jobs.recover_abandoned(lambda owner: owner == self._us or owner.is_running())
                if claimed(lively) == self._jobs:
                    return None
            jobs, _, damage = queue.store.change(
                lambda jobs: (claimed(queue.settle_jobs(self._with_ends(jobs, ended))), None)
            )
            queue.store.forget_figures(job.id for job in jobs.jobs if job.state is JobState.RUNNING)
        except OSError as error:  # for example a full disk: outcomes stay in memory until they can be written
            return error
        return _Round(jobs, damage, stamp)

    def _share(self, figures: Mapping[int, Progress]) -> None:
        """Publish the progress of our jobs, and read that of other processes' jobs."""
        now_s = self._queue.clock.steady_s()
        if now_s - self._shown_s < _SHOWN_S:
            return
        self._shown_s = now_s
        store = self._queue.store
        for job_id, own in figures.items():
            store.show_figures(job_id, own)
        others = [job.id for job in self._jobs.jobs if job.state is JobState.RUNNING and job.owner != self._us]
        self._theirs = {job_id: theirs for job_id in others if (theirs := store.figures(job_id)) is not None}

    def _with_ends(self, jobs: JobList, ended: Mapping[int, _RunningJob]) -> JobList:
        now_s = self._queue.clock.calendar_s()
        for job_id, each in ended.items():
            jobs = jobs.record_outcome(job_id, each.outcome, each.figures, moved=each.moved, now_s=now_s)
        return jobs

    def _apply(self, turn: _Round, ended: Mapping[int, _RunningJob]) -> None:
        """Start and stop jobs according to the stored state, and report events."""
        before, self._last, self._jobs, self._trouble = self._jobs, turn, turn.jobs, ""
        for job_id in ended:
            del self._ours[job_id]
        mine = {job.id: job for job in turn.jobs.jobs if job.state is JobState.RUNNING and job.owner == self._us}
        for job_id, each in self._ours.items():
            if job_id not in mine or mine[job_id].wish is not RequestedState.RUN:
                each.stop()
        for job_id in mine.keys() - self._ours.keys():
            self._start(mine[job_id])
        for damage in turn.damage:
            self._listen(QueueNotice(str(damage)))
        for event in events_between(before, turn.jobs):
            self._listen(event)

    def _start(self, job: Job) -> None:
        ours = self._ours[job.id] = _RunningJob(job, job.done_bytes or 0)
        ours.task = asyncio.create_task(self._work(ours), name=f"download {job.id}")
        ours.task.add_done_callback(lambda _: self._wake.set())

    async def _work(self, ours: _RunningJob) -> None:
        job = ours.job
        try:
            ours.outcome = JobDone(await self._queue.works[job.kind].run(job.arguments, ours.report))
        except asyncio.CancelledError as error:
            if not ours.stopping:
                ours.outcome = unexpected_failure(error)
        except LauncherError as error:
            ours.outcome = JobFailure.from_error(error)
        except OSError as error:
            ours.outcome = (
                _disk_full_failure(error)
                if error.errno == errno.ENOSPC
                else JobFailure.from_error(explain_os_error(error))
            )
        except Exception as error:  # noqa: BLE001 -- a fault in one job must not end the others
            ours.outcome = unexpected_failure(error)

    def _tell_progress(self) -> None:
        now_s = self._queue.clock.steady_s()
        if now_s - self._told_s < _TICK_S:
            return
        running = {job.id: job for job in self._jobs.jobs if job.state is JobState.RUNNING}
        figures = {job_id: theirs for job_id, theirs in self._theirs.items() if job_id in running}
        figures |= {job_id: ours for job_id, ours in self._figures().items() if job_id in running}
        told, self._told = self._told, figures
        for job_id, each in figures.items():
            if told.get(job_id) != each:
                self._told_s = now_s
                self._listen(JobProgressed(running[job_id], each, sum_totals(self._jobs, figures)))

    def _complain(self, error: OSError) -> None:
        text = join_messages(message("Cannot write the download list."), explain_os_error(error).title)
        if text != self._trouble:
            self._trouble = text
            self._listen(QueueNotice(text))

    def _idle(self) -> bool:
        """Return True if no job runs and none can start."""
        if self._ours or any(job.state is JobState.RUNNING for job in self._jobs.jobs):
            return False
        waiting = any(job.state is JobState.WAITING and job.kind in self._queue.works for job in self._jobs.jobs)
        return self._jobs.hold is not None or not waiting

    async def _leave(self, turning: "asyncio.Future[_Round | OSError | None] | None") -> None:
        """Stop our jobs and return them to the queue."""
        for each in self._ours.values():
            each.stop()
        waits = [each.task for each in self._ours.values() if each.task is not None]
        if pending := {*waits, *((turning,) if turning is not None else ())}:
            await asyncio.wait(pending)
        ours, self._ours = self._ours, {}
        with suppress(OSError, WrittenByNewer):  # the next runner will find that this process is gone
            jobs, _, _ = self._queue.store.change(
                lambda jobs: (self._queue.settle_jobs(self._with_ends(jobs, ours).release_owned_by(self._us)), None)
            )
            before, self._jobs = self._jobs, jobs
            for event in events_between(before, jobs):
                self._listen(event)


def _disk_full_failure(error: OSError) -> JobFailure:
    where = f" of {error.filename}" if error.filename else ""
    return JobFailure.from_error(
        DiskFull(
            message("The disk{where} is full.", where=where),
            message(
                "No data is lost. Free disk space, then run `mtp-launcher downloads resume all`.",
                window="No data is lost. Free disk space, then resume the downloads on Models.",
            ),
        )
    )
