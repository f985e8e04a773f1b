"""Jobs of the download queue and their state transitions, as immutable values. Nothing here runs or writes.

A job has a state, and the state that was requested last. A job that does not run takes the requested state at once; a
running one is stopped first by the process that runs it.

    waiting -> running -> done
       ^          |-----> failed (kept, with the error)
       |          |-----> waiting (its process ended, or a temporary error: it is retried)
       '- paused <'-----> cancelled
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, Self

from launcher.base.errors import (
    DiskFull,
    DownloadBusy,
    EngineBusy,
    JobUnknown,
    LauncherError,
    Offline,
    RateLimited,
    Refused,
    Unreachable,
)
from launcher.base.identity import ProcessId
from launcher.base.messages import command_name, mark, message
from launcher.base.progress import Progress

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 600.0
_TEMPORARY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of errors that can be temporary (RFC 9110, section 15; RFC 6585, section 4)."""
_HOLDING_CODES = frozenset({DiskFull.code, Offline.code})
"""Codes of errors that hold the whole queue, because every other job would get them as well."""

QueuePlace = int | Literal["first", "up", "down", "last"]


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"


class RequestedState(StrEnum):
    """The states that can be requested of a job."""

    RUN = "run"
    """Also resumes, retries or repeats a job."""
    PAUSE = "pause"
    CANCEL = "cancel"
    DISCARD = "discard"
    """Cancel the job and delete the data that has arrived."""


QUEUED_STATES = frozenset({JobState.WAITING, JobState.RUNNING, JobState.PAUSED})
"""The states in which a job has a place in the queue."""
_RESTING_STATES = {
    RequestedState.RUN: JobState.WAITING,
    RequestedState.PAUSE: JobState.PAUSED,
    RequestedState.CANCEL: JobState.CANCELLED,
    RequestedState.DISCARD: JobState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A stored error: see LauncherError. `temporary`: a retry may help, but not before the Unix time `until_s`."""

    code: str
    title: str
    hint: str = ""
    temporary: bool = False
    until_s: float | None = None

    @classmethod
    def from_error(cls, error: LauncherError) -> Self:
        """Return the failure for an error."""
        temporary = (
            isinstance(error, DownloadBusy | EngineBusy | RateLimited)
            or (isinstance(error, Unreachable) and error.retry_helps)
            or (isinstance(error, Refused) and error.status in _TEMPORARY_STATUSES)
        )
        until_s = error.facts.get("until_s")
        return cls(
            error.code,
            error.title,
            error.hint,
            temporary,
            until_s if isinstance(until_s, float) else None,
        )

    @property
    def holds_queue(self) -> bool:
        """True if every other job would get this error too, so that the whole queue stops."""
        return self.code in _HOLDING_CODES


@dataclass(frozen=True, slots=True)
class JobDone:
    """The outcome of a completed job, with its result as JSON."""

    result: dict[str, Any]


class JobStopped:
    """The outcome of a job that was stopped early, on request or because its process ends."""


Outcome = JobDone | JobFailure | JobStopped


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `kind` and `arguments` (JSON) define the work, `title` names it for users. Times are Unix times in
    seconds.
    """

    id: int
    kind: str
    arguments: dict[str, Any]
    title: str
    added_s: float
    state: JobState = JobState.WAITING
    requested: RequestedState = field(default=RequestedState.RUN, metadata={"key": "wish"})  # the name of version 0.1.0
    owner: ProcessId | None = None
    """The process that runs it."""
    bytes: int | None = None
    done_bytes: int | None = None
    failure: JobFailure | None = None
    """The error for which it failed or waits for a retry."""
    tries: int = 0
    """The number of failed attempts in a row."""
    retry_at_s: float | None = None
    ended_s: float | None = None
    result: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for impossible numbers, as a damaged file may hold."""
        if self.id < 1 or min(self.bytes or 0, self.done_bytes or 0, self.tries) < 0:
            raise ValueError("it has impossible numbers")

    @property
    def is_changing(self) -> bool:
        """True while the running job has not yet reached the requested state."""
        return self.state is JobState.RUNNING and self.requested is not RequestedState.RUN

    def is_due(self, now_s: float) -> bool:
        """Return True if the job may start now.

        A retry time beyond our longest pause was computed with a wrong clock and is ignored.
        """
        if self.state is not JobState.WAITING:
            return False
        return self.retry_at_s is None or not 0 < self.retry_at_s - now_s <= _LONGEST_PAUSE_S

    def with_progress(self, progress: Progress | None) -> "Job":
        """Return the job with the byte counts of `progress`, if any."""
        if progress is None:
            return self
        size = self.bytes if progress.bytes is None else progress.bytes
        return replace(self, done_bytes=progress.done_bytes, bytes=size)

    def with_request(self, requested: RequestedState) -> "Job":
        """Return the job after a request. A job that is not running changes at once; a done job stays done."""
        if self.state is JobState.RUNNING:
            return replace(self, requested=requested)
        if self.state is JobState.DONE or (
            self.state in (JobState.FAILED, JobState.CANCELLED) and requested is RequestedState.PAUSE
        ):
            return self
        if requested is RequestedState.RUN:
            return replace(
                self,
                state=JobState.WAITING,
                requested=requested,
                failure=None,
                tries=0,
                retry_at_s=None,
                ended_s=None,
                result=None,
            )
        return replace(self, state=_RESTING_STATES[requested], requested=requested, retry_at_s=None)

    def without_owner(self) -> "Job":
        """Return the job without its owner, in the state that was requested last."""
        return replace(self, state=_RESTING_STATES[self.requested], owner=None)


@dataclass(frozen=True, slots=True)
class AddedJob:
    """The result of adding a job. `is_new` is False if it was queued already."""

    job: Job
    is_new: bool


@dataclass(frozen=True, slots=True)
class JobList:
    """All jobs in order. While the queue is held, no job starts; `hold` is the failure that is the reason, None if the
    queue is not held.
    """

    jobs: tuple[Job, ...] = ()
    next_id: int = 1
    hold: JobFailure | None = None

    def find_job(self, job_id: int) -> Job:
        """Return a job by ID. Raises JobUnknown."""
        for job in self.jobs:
            if job.id == job_id:
                return job
        raise JobUnknown(
            message("Download {job_id} not found.", job_id=job_id),
            message("See {command}.", command=command_name("downloads", mark("Models"))),
        )

    def add_job(
        self, kind: str, arguments: dict[str, Any], title: str, *, size_bytes: int | None, now_s: float
    ) -> tuple["JobList", AddedJob]:
        """Append a job to the queue. If there is the same job already, no second one is added.

        Then a job that is queued or runs stays unchanged, a job that is just being cancelled goes on, and a job that
        has ended starts again.
        """
        same = next((job for job in self.jobs if (job.kind, job.arguments) == (kind, arguments)), None)
        if same is not None and same.is_changing and same.requested is not RequestedState.PAUSE:
            again = same.with_request(RequestedState.RUN)
            return self._replace_job(again), AddedJob(again, is_new=True)
        if same is not None and same.state in QUEUED_STATES:
            return self, AddedJob(same, is_new=False)
        job = Job(self.next_id if same is None else same.id, kind, arguments, title, now_s, bytes=size_bytes)
        if same is not None and same.state is not JobState.DONE:
            job = replace(job, done_bytes=same.done_bytes)
        rest = tuple(each for each in self.jobs if each is not same)
        return replace(self, jobs=(*rest, job), next_id=max(self.next_id, job.id + 1)), AddedJob(job, is_new=True)

    def request_state(self, job_id: int, requested: RequestedState) -> "JobList":
        """Request a state of a job; a request to run also releases the held queue. Raises JobUnknown."""
        jobs = self._replace_job(self.find_job(job_id).with_request(requested))
        return replace(jobs, hold=None) if requested is RequestedState.RUN else jobs

    def move_job(self, job_id: int, place: QueuePlace) -> "JobList":
        """Move a job to a place in the queue, counted from 1. Ended jobs have no place. Raises JobUnknown."""
        job = self.find_job(job_id)
        queued = [each for each in self.jobs if each.state in QUEUED_STATES]
        if job not in queued:
            return self
        old_index = queued.index(job)
        queued.remove(job)
        if isinstance(place, int):
            index = place - 1
        else:
            index = {"first": 0, "up": old_index - 1, "down": old_index + 1, "last": len(queued)}[place]
        queued.insert(min(max(index, 0), len(queued)), job)
        new_order = iter(queued)  # ended jobs stay where they are in the list
        return replace(self, jobs=tuple(next(new_order) if each.state in QUEUED_STATES else each for each in self.jobs))

    def clear_ended(self, *, failed: bool = False) -> "JobList":
        """Remove jobs that are done or cancelled, and with `failed` those that failed."""
        ended = {JobState.DONE, JobState.CANCELLED} | ({JobState.FAILED} if failed else set())
        return replace(self, jobs=tuple(job for job in self.jobs if job.state not in ended))

    def release_hold(self) -> "JobList":
        """Release the held queue and make all pending retries due at once."""
        jobs = tuple(replace(job, retry_at_s=None) if job.state is JobState.WAITING else job for job in self.jobs)
        return replace(self, jobs=jobs, hold=None)

    def recover_abandoned(
        self,
        is_running: Callable[[ProcessId], bool],
        last_progress: Callable[[int], Progress | None] = lambda _job_id: None,
    ) -> "JobList":
        """Release the jobs whose process, their owner, has ended. `last_progress` is the progress of a job by ID."""

        def recover_job(job: Job) -> Job:
            if job.state is not JobState.RUNNING or (job.owner is not None and is_running(job.owner)):
                return job
            return job.with_progress(last_progress(job.id)).without_owner()

        return replace(self, jobs=tuple(map(recover_job, self.jobs)))

    def claim_due(self, owner: ProcessId, kinds: Collection[str], *, at_once: int, now_s: float) -> "JobList":
        """Assign due jobs to `owner` until `at_once` jobs of all processes run."""
        if self.hold is not None:
            return self
        startable = at_once - sum(job.state is JobState.RUNNING for job in self.jobs)
        jobs = list(self.jobs)
        for index, job in enumerate(jobs):
            if startable > 0 and job.kind in kinds and job.is_due(now_s):
                jobs[index] = replace(job, state=JobState.RUNNING, owner=owner, retry_at_s=None, failure=None)
                startable -= 1
        return replace(self, jobs=tuple(jobs))

    def record_outcome(
        self, job_id: int, outcome: Outcome, progress: Progress | None, *, has_new_bytes: bool, now_s: float
    ) -> "JobList":
        """Record the outcome of a running job; `has_new_bytes` is True if it received data since it was started.

        A request made meanwhile takes precedence over a failure. Nothing happens if the job was removed.
        """
        job = next((each for each in self.jobs if each.id == job_id and each.state is JobState.RUNNING), None)
        if job is None:
            return self
        job = job.with_progress(progress)
        if isinstance(outcome, JobDone):
            job = replace(
                job.without_owner(), state=JobState.DONE, result=outcome.result, ended_s=now_s, tries=0, failure=None
            )
            return self._replace_job(job if job.bytes is None else replace(job, done_bytes=job.bytes))
        if isinstance(outcome, JobStopped) or job.requested is not RequestedState.RUN:
            return self._replace_job(job.without_owner())
        if outcome.holds_queue:
            return replace(self._replace_job(replace(job.without_owner(), failure=outcome)), hold=outcome)
        if outcome.temporary:
            tries = 1 if has_new_bytes else job.tries + 1
            pause_s = max(_FIRST_PAUSE_S * 2 ** min(tries - 1, 16), (outcome.until_s or now_s) - now_s)
            # If `until_s` is later than that, the retry fails without sending a request, because the rate limit is
            # saved.
            pause_s = min(pause_s, _LONGEST_PAUSE_S)
            job = replace(job.without_owner(), failure=outcome, tries=tries, retry_at_s=now_s + pause_s)
            return self._replace_job(job)
        return self._replace_job(replace(job.without_owner(), state=JobState.FAILED, failure=outcome, ended_s=now_s))

    def record_discarded(self, job_id: int, failure: JobFailure | None) -> "JobList":
        """Record that the data of a cancelled job was deleted, or the failure to delete it."""
        job = replace(self.find_job(job_id), requested=RequestedState.CANCEL, failure=failure)
        return self._replace_job(job if failure else replace(job, done_bytes=None))

    def release_owned_by(self, owner: ProcessId) -> "JobList":
        """Release all jobs that the process `owner` runs."""
        jobs = tuple(
            job.without_owner() if job.state is JobState.RUNNING and job.owner == owner else job for job in self.jobs
        )
        return replace(self, jobs=jobs)

    def _replace_job(self, job: Job) -> "JobList":
        return replace(self, jobs=tuple(job if each.id == job.id else each for each in self.jobs))
