"""Runs the jobs of the queue: starts due jobs, stops and pauses them on request, and reports events."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from launcher.base.errors import DiskFull, LauncherError, WrittenByNewer
from launcher.base.identity import ProcessId
from launcher.base.messages import command_name, join_messages, message
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
    """A job was added to the list. A new listener first gets this event for each existing job."""

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
    """The queue is held: no job starts until the user resumes one. With `reason` None the hold has ended."""

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
    progress: Progress
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
    old_jobs = {job.id: job for job in before.jobs}
    remaining = {job.id for job in after.jobs}
    for job in before.jobs:
        if job.id not in remaining:
            yield JobRemoved(job)
    for job in after.jobs:
        old = old_jobs.get(job.id)
        if old is None:
            yield JobAdded(job)
        elif old != job:
            yield JobChanged(job)
            if job.state is not old.state and job.state is JobState.DONE:
                yield JobFinished(job)
            elif job.state is not old.state and job.state is JobState.FAILED and job.failure is not None:
                yield JobFailed(job, job.failure)
    old_order, new_order = _queued_ids(before), _queued_ids(after)
    # Jobs that were added or have ended do not count as a change of order.
    if [each for each in old_order if each in new_order] != [each for each in new_order if each in old_order]:
        yield QueueReordered(new_order)
    if before.hold != after.hold:
        yield QueueHeld(after.hold)


def _queued_ids(jobs: JobList) -> tuple[int, ...]:
    return tuple(job.id for job in jobs.jobs if job.state in QUEUED_STATES)


def sum_totals(jobs: JobList, progress_by_id: Mapping[int, Progress]) -> QueueTotals:
    """Return the sums over the waiting and running jobs; `progress_by_id` holds the progress of the running ones."""
    open_jobs = [job for job in jobs.jobs if job.state in (JobState.WAITING, JobState.RUNNING)]
    left = [_left_bytes(job, progress_by_id.get(job.id)) for job in open_jobs]
    known = [each for each in left if each is not None]
    left_bytes = sum(known) if len(known) == len(left) else None
    speeds = [each.bytes_per_second for each in progress_by_id.values() if each.bytes_per_second is not None]
    speed = sum(speeds) if speeds else None
    seconds_left = left_bytes / speed if left_bytes is not None and speed else None
    return QueueTotals(len(open_jobs), left_bytes, speed, seconds_left)


def _left_bytes(job: Job, progress: Progress | None) -> int | None:
    current = job.with_progress(progress)
    return None if current.bytes is None else max(current.bytes - (current.done_bytes or 0), 0)


_ROUND_S = 0.25
"""Seconds between two rounds while a job runs, and between two reports of progress to the listener."""
_IDLE_ROUNDS = 4
"""Without a running job, the pause between two rounds is this many times longer."""
_PUBLISH_S = 1.0
"""Seconds between two publications of progress to other processes."""

Listener = Callable[[QueueEvent], None]


@dataclass(slots=True)
class _RunningJob:
    """A job that this process runs."""

    job: Job
    resumed_bytes: int
    """The bytes that earlier attempts had received."""
    task: "asyncio.Task[None] | None" = None
    progress: Progress | None = None
    stopping: bool = False
    outcome: Outcome = field(default_factory=JobStopped)

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def has_new_bytes(self) -> bool:
        return self.progress is not None and self.progress.done_bytes > self.resumed_bytes

    def record_progress(self, progress: Progress) -> None:
        self.progress = progress

    def stop(self) -> None:
        if not self.stopping and self.task is not None:
            self.stopping = True
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class _RoundResult:
    """The jobs as stored at the end of one round, damage that was found in the file, and the file's stamp before the
    round."""

    jobs: JobList
    damage: tuple[QueueDamage, ...]
    stamp: Stamp | None


class QueueRunner:
    """Runs the jobs of a queue while `run` is awaited; use one per process. `on_event` is called on the loop.

    At most `at_once` jobs run, counted over all processes. `round_s` is the interval in seconds between rounds while a
    job runs.
    """

    def __init__(
        self, queue: DownloadQueue, on_event: Listener, *, at_once: int = 1, round_s: float = _ROUND_S
    ) -> None:
        self._queue = queue
        self._on_event = on_event
        self._at_once = at_once
        self._round_s = round_s
        self._own_id = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self._our_jobs: dict[int, _RunningJob] = {}
        self._progress_of_others: dict[int, Progress] = {}
        self._reported: dict[int, Progress] = {}
        self._last_round: _RoundResult | None = None
        self._jobs = JobList()
        self._wake = asyncio.Event()
        self._published_s = self._reported_s = float("-inf")
        self._reported_error = ""

    async def run(self, *, until_idle: bool = False) -> None:
        """Run jobs until cancelled, or with `until_idle` until no job waits or runs, or the queue is held.

        At the end its jobs are stopped, and wait for the next runner. Raises WrittenByNewer, and with `until_idle`
        OSError if the list cannot be written and no job runs.
        """
        round_: asyncio.Future[_RoundResult | OSError | None] | None = None
        try:
            while True:
                self._wake.clear()
                ended = {job_id: each for job_id, each in self._our_jobs.items() if each.ended}
                round_ = asyncio.ensure_future(asyncio.to_thread(self._do_round, ended, self._progress_of_ours()))
                result = await asyncio.shield(round_)
                if isinstance(result, OSError):
                    if until_idle and not self._our_jobs:
                        raise result
                    self._report_write_error(result)
                elif result is not None:
                    self._apply_result(result, ended)
                self._report_progress()
                if until_idle and self._last_round is not None and self._is_idle():
                    return
                with suppress(TimeoutError):
                    pause_s = self._round_s if self._our_jobs else self._round_s * _IDLE_ROUNDS
                    await asyncio.wait_for(self._wake.wait(), pause_s)
        finally:
            await self._return_jobs(round_)

    def _progress_of_ours(self) -> dict[int, Progress]:
        return {job_id: each.progress for job_id, each in self._our_jobs.items() if each.progress is not None}

    def _do_round(
        self, ended: Mapping[int, _RunningJob], progress: Mapping[int, Progress]
    ) -> _RoundResult | OSError | None:
        """Do one round, in a thread: write outcomes, read changes of other processes, claim due jobs.

        Returns None if nothing changed.
        """
        queue, now_s = self._queue, self._queue.clock.calendar_s()
        self._exchange_progress(progress)

        def claim_due(jobs: JobList) -> JobList:
            return jobs.claim_due(self._own_id, queue.job_kinds, at_once=self._at_once, now_s=now_s)

        try:
            # Read before `change_jobs`, so that a change by another process meanwhile is seen in the next round.
            stamp = queue.store.read_stamp()
            if self._last_round is not None and stamp == self._last_round.stamp and not ended:
                recovered = self._jobs.recover_abandoned(lambda owner: owner == self._own_id or owner.is_running())
                if claim_due(recovered) == self._jobs:
                    return None
            jobs, _, damage = queue.store.change_jobs(
                lambda jobs: (claim_due(queue.settle_jobs(self._record_outcomes(jobs, ended))), None)
            )
            queue.store.delete_stale_progress(job.id for job in jobs.jobs if job.state is JobState.RUNNING)
        except OSError as error:  # for example a full disk: outcomes stay in memory until they can be written
            return error
        return _RoundResult(jobs, damage, stamp)

    def _exchange_progress(self, progress: Mapping[int, Progress]) -> None:
        """Publish the progress of our jobs, and read the progress of other processes' jobs."""
        now_s = self._queue.clock.steady_s()
        if now_s - self._published_s < _PUBLISH_S:
            return
        self._published_s = now_s
        store = self._queue.store
        for job_id, each in progress.items():
            store.publish_progress(job_id, each)
        others = [job.id for job in self._jobs.jobs if job.state is JobState.RUNNING and job.owner != self._own_id]
        self._progress_of_others = {
            job_id: read for job_id in others if (read := store.read_progress(job_id)) is not None
        }

    def _record_outcomes(self, jobs: JobList, ended: Mapping[int, _RunningJob]) -> JobList:
        now_s = self._queue.clock.calendar_s()
        for job_id, each in ended.items():
            jobs = jobs.record_outcome(
                job_id, each.outcome, each.progress, has_new_bytes=each.has_new_bytes, now_s=now_s
            )
        return jobs

    def _apply_result(self, result: _RoundResult, ended: Mapping[int, _RunningJob]) -> None:
        """Start and stop jobs according to the stored state, and report events."""
        before = self._jobs
        self._last_round, self._jobs, self._reported_error = result, result.jobs, ""
        for job_id in ended:
            del self._our_jobs[job_id]
        to_run = {
            job.id: job for job in result.jobs.jobs if job.state is JobState.RUNNING and job.owner == self._own_id
        }
        for job_id, each in self._our_jobs.items():
            if job_id not in to_run or to_run[job_id].requested is not RequestedState.RUN:
                each.stop()
        for job_id in to_run.keys() - self._our_jobs.keys():
            self._start_job(to_run[job_id])
        for damage in result.damage:
            self._on_event(QueueNotice(str(damage)))
        for event in events_between(before, result.jobs):
            self._on_event(event)

    def _start_job(self, job: Job) -> None:
        running = self._our_jobs[job.id] = _RunningJob(job, job.done_bytes or 0)
        running.task = asyncio.create_task(self._run_job(running), name=f"download {job.id}")
        running.task.add_done_callback(lambda _: self._wake.set())

    async def _run_job(self, running: _RunningJob) -> None:
        kind = self._queue.job_kinds[running.job.kind]
        try:
            running.outcome = JobDone(await kind.run(running.job.arguments, running.record_progress))
        except asyncio.CancelledError as error:
            if not running.stopping:
                running.outcome = unexpected_failure(error)
        except LauncherError as error:
            running.outcome = JobFailure.from_error(error)
        except OSError as error:
            disk_full = error.errno == errno.ENOSPC
            running.outcome = JobFailure.from_error(_disk_full_error(error) if disk_full else explain_os_error(error))
        except Exception as error:  # noqa: BLE001 -- a fault in one job must not end the others
            running.outcome = unexpected_failure(error)

    def _report_progress(self) -> None:
        now_s = self._queue.clock.steady_s()
        if now_s - self._reported_s < _ROUND_S:
            return
        running = {job.id: job for job in self._jobs.jobs if job.state is JobState.RUNNING}
        known = self._progress_of_others | self._progress_of_ours()
        progress = {job_id: each for job_id, each in known.items() if job_id in running}
        reported, self._reported = self._reported, progress
        for job_id, each in progress.items():
            if reported.get(job_id) != each:
                self._reported_s = now_s
                self._on_event(JobProgressed(running[job_id], each, sum_totals(self._jobs, progress)))

    def _report_write_error(self, error: OSError) -> None:
        text = join_messages(message("Cannot write the download list."), explain_os_error(error).title)
        if text != self._reported_error:
            self._reported_error = text
            self._on_event(QueueNotice(text))

    def _is_idle(self) -> bool:
        """Return True if no job of any process runs, and none can start."""
        if self._our_jobs or any(job.state is JobState.RUNNING for job in self._jobs.jobs):
            return False
        waiting = any(job.state is JobState.WAITING and job.kind in self._queue.job_kinds for job in self._jobs.jobs)
        return self._jobs.hold is not None or not waiting

    async def _return_jobs(self, round_: "asyncio.Future[_RoundResult | OSError | None] | None") -> None:
        """Stop our jobs and return them to the queue, after the end of a round in progress."""
        pending: set[asyncio.Future[Any]] = set() if round_ is None else {round_}
        for each in self._our_jobs.values():
            each.stop()
            if each.task is not None:
                pending.add(each.task)
        if pending:
            await asyncio.wait(pending)
        ended, self._our_jobs = self._our_jobs, {}
        with suppress(OSError, WrittenByNewer):  # the next runner will find that this process is gone
            jobs, _, _ = self._queue.store.change_jobs(
                lambda jobs: (
                    self._queue.settle_jobs(self._record_outcomes(jobs, ended).release_owned_by(self._own_id)),
                    None,
                )
            )
            before, self._jobs = self._jobs, jobs
            for event in events_between(before, jobs):
                self._on_event(event)


def _disk_full_error(error: OSError) -> DiskFull:
    return DiskFull(
        message("The disk[ of {path}] is full.", path=error.filename),
        message(
            "No data is lost. Free disk space, then resume the downloads[: {command}].",
            command=command_name("downloads resume all"),
        ),
    )
