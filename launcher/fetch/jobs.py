"""The jobs of a queue, and what may become of them. Everything here is a value: nothing runs, nothing is written.

A job has a state, which is what it is, and a wish, which is what it was last asked to become. Whoever runs it turns
the one into the other; for a job that nobody runs that happens at once.

    waiting -> running -> done
       ^          |-----> failed (kept: why)
       |          |-----> waiting (its process ended, or what it needs is away: it is tried again)
       '- paused <'-----> cancelled
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt

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
    Untrusted,
)
from launcher.base.identity import ProcessId

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 600.0
_LATER = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP's answers to a request that is in order (RFC 9110, section 15; RFC 6585, section 4)."""
_HOLDING = frozenset({DiskFull.code, Offline.code})
"""Codes of errors that every job would meet."""

Place = int | Literal["first", "up", "down", "last"]


class State(StrEnum):
    """What a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"


class Wish(StrEnum):
    """What a job can be asked to become."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    DISCARD = "discard"
    """Cancelled, and what arrived of it is removed."""


LINE = frozenset({State.WAITING, State.RUNNING, State.PAUSED})
"""The states in which a job still has a place in the line."""
_AT_REST = {
    Wish.RUN: State.WAITING,
    Wish.PAUSE: State.PAUSED,
    Wish.CANCEL: State.CANCELLED,
    Wish.DISCARD: State.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is kept: see LauncherError. `temporary`: trying again later may help, not before `until_s`."""

    code: str
    title: str
    hint: str = ""
    temporary: bool = False
    until_s: float | None = None

    @classmethod
    def of(cls, error: LauncherError) -> Self:
        """Keep an error."""
        later = isinstance(error, Unreachable | DownloadBusy | EngineBusy | RateLimited) or (
            isinstance(error, Refused) and error.status in _LATER
        )
        until_s = error.facts.get("until_s")
        return cls(
            error.code,
            error.title,
            error.hint,
            later and not isinstance(error, Untrusted),
            until_s if isinstance(until_s, float) else None,
        )

    @property
    def holds(self) -> bool:
        """Whether every other job would meet it too."""
        return self.code in _HOLDING


@dataclass(frozen=True, slots=True)
class Figures:
    """How far a job is. Bytes count what was there before; a note says why it does not move."""

    done_bytes: int
    bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A job came to its end, with what it tells of it (as JSON)."""

    result: dict[str, Any]


class Stopped:
    """A job was stopped before its end, as its wish says or because its process ends."""


Outcome = Done | Failure | Stopped


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `kind` and `arguments` (as JSON) say what it does, `title` says it to people. Times are Unix times."""

    id: Annotated[int, Gt(0)]
    kind: str
    arguments: dict[str, Any]
    title: str
    added_s: float
    state: State = State.WAITING
    wish: Wish = Wish.RUN
    owner: ProcessId | None = None
    """The process that runs it."""
    bytes: Annotated[int, Ge(0)] | None = None
    done_bytes: Annotated[int, Ge(0)] | None = None
    failure: Failure | None = None
    """Why it failed, or why it waits to be tried again."""
    tries: Annotated[int, Ge(0)] = 0
    """How often in a row it was in vain."""
    retry_at_s: float | None = None
    ended_s: float | None = None
    result: dict[str, Any] | None = None

    @property
    def obeying(self) -> bool:
        """Whether it is still on its way to what it was asked to become."""
        return self.state is State.RUNNING and self.wish is not Wish.RUN

    def due(self, now_s: float) -> bool:
        """Whether it may be started now. A time further off than any we set comes from a clock that was wrong."""
        return self.state is State.WAITING and (
            self.retry_at_s is None or not 0 < self.retry_at_s - now_s <= _LONGEST_PAUSE_S
        )

    def measured(self, figures: Figures | None) -> "Job":
        """Return it with the last that was known of its bytes."""
        if figures is None:
            return self
        return replace(
            self, done_bytes=figures.done_bytes, bytes=self.bytes if figures.bytes is None else figures.bytes
        )

    def asked(self, wish: Wish) -> "Job":
        """Return it with a wish; what nobody runs becomes it at once, and what is done stays done."""
        if self.state is State.RUNNING:
            return replace(self, wish=wish)
        if self.state is State.DONE or (self.state in (State.FAILED, State.CANCELLED) and wish is Wish.PAUSE):
            return self
        if wish is Wish.RUN:
            return replace(
                self, state=State.WAITING, wish=wish, failure=None, tries=0, retry_at_s=None, ended_s=None, result=None
            )
        return replace(self, state=_AT_REST[wish], wish=wish, retry_at_s=None)

    def released(self) -> "Job":
        """Return it as it is when nobody runs it any more."""
        return replace(self, state=_AT_REST[self.wish], owner=None)


@dataclass(frozen=True, slots=True)
class Added:
    """What came of adding a job. `fresh` is False when it was in the line already."""

    job: Job
    fresh: bool


@dataclass(frozen=True, slots=True)
class Jobs:
    """All jobs in their order, and what holds them all up, if anything."""

    jobs: tuple[Job, ...] = ()
    next_id: int = 1
    hold: Failure | None = None

    def find(self, job_id: int) -> Job:
        """Return one job. Raises JobUnknown."""
        for job in self.jobs:
            if job.id == job_id:
                return job
        raise JobUnknown(f"There is no download {job_id}.", "`mtp-launcher downloads` lists them.")

    def add(
        self, kind: str, arguments: dict[str, Any], title: str, *, size_bytes: int | None, now_s: float
    ) -> tuple["Jobs", Added]:
        """Put a job at the end of the line. One that is in the line stays as it is; one that has ended starts anew.

        One that is being cancelled goes on in its place.
        """
        same = next((job for job in self.jobs if (job.kind, job.arguments) == (kind, arguments)), None)
        if same is not None and same.obeying and same.wish is not Wish.PAUSE:
            again = same.asked(Wish.RUN)
            return self._with(again), Added(again, fresh=True)
        if same is not None and same.state in LINE:
            return self, Added(same, fresh=False)
        if same is None:
            job = Job(self.next_id, kind, arguments, title, now_s, bytes=size_bytes)
        else:
            again = Job(same.id, kind, arguments, title, now_s, bytes=size_bytes)
            job = again if same.state is State.DONE else replace(again, done_bytes=same.done_bytes)
        rest = tuple(each for each in self.jobs if each is not same)
        return replace(self, jobs=(*rest, job), next_id=max(self.next_id, job.id + 1)), Added(job, fresh=True)

    def become(self, job_id: int, wish: Wish) -> "Jobs":
        """Ask a job to become something; a job that is to run lets the line go on. Raises JobUnknown."""
        jobs = self._with(self.find(job_id).asked(wish))
        return replace(jobs, hold=None) if wish is Wish.RUN else jobs

    def move(self, job_id: int, place: Place) -> "Jobs":
        """Move a job in the line, which counts from 1; what has ended has no place there. Raises JobUnknown."""
        job = self.find(job_id)
        line = [each for each in self.jobs if each.state in LINE]
        if job not in line:
            return self
        at = line.index(job)
        line.remove(job)
        if isinstance(place, int):
            index = place - 1
        else:
            index = {"first": 0, "up": at - 1, "down": at + 1, "last": len(line)}[place]
        line.insert(min(max(index, 0), len(line)), job)
        dealt = iter(line)
        return replace(self, jobs=tuple(next(dealt) if each.state in LINE else each for each in self.jobs))

    def clear(self, *, failed: bool = False) -> "Jobs":
        """Take out what is done or cancelled, and with `failed` what failed."""
        ended = {State.DONE, State.CANCELLED} | ({State.FAILED} if failed else set())
        kept = tuple(job for job in self.jobs if job.state not in ended)
        return replace(self, jobs=kept)

    def lifted(self) -> "Jobs":
        """Let the line go on, and what waits to be tried again be tried at once."""
        jobs = tuple(replace(job, retry_at_s=None) if job.state is State.WAITING else job for job in self.jobs)
        return replace(self, jobs=jobs, hold=None)

    def recovered(
        self, lives: Callable[[ProcessId], bool], last: Callable[[int], Figures | None] = lambda _id: None
    ) -> "Jobs":
        """Take the jobs back whose process is gone; `last` tells how far they were."""

        def taken_back(job: Job) -> Job:
            if job.state is not State.RUNNING or (job.owner is not None and lives(job.owner)):
                return job
            return job.measured(last(job.id)).released()

        return replace(self, jobs=tuple(map(taken_back, self.jobs)))

    def claimed(self, owner: ProcessId, kinds: Collection[str], *, at_once: int, now_s: float) -> "Jobs":
        """Give `owner` the first jobs that are due, as long as fewer than `at_once` run, whoever runs them."""
        if self.hold is not None:
            return self
        free = at_once - sum(job.state is State.RUNNING for job in self.jobs)
        jobs = list(self.jobs)
        for index, job in enumerate(jobs):
            if free > 0 and job.kind in kinds and job.due(now_s):
                jobs[index] = replace(job, state=State.RUNNING, owner=owner, retry_at_s=None, failure=None)
                free -= 1
        return replace(self, jobs=tuple(jobs))

    def ended(self, job_id: int, outcome: Outcome, figures: Figures | None, *, moved: bool, now_s: float) -> "Jobs":
        """Take in what came of a running job; `moved` says that it got further than it was before.

        What was asked of it meanwhile counts more than how it failed. Nothing happens when nobody knows it any more.
        """
        job = next((each for each in self.jobs if each.id == job_id and each.state is State.RUNNING), None)
        if job is None:
            return self
        job = job.measured(figures)
        if isinstance(outcome, Done):
            job = replace(job.released(), state=State.DONE, result=outcome.result, ended_s=now_s, tries=0, failure=None)
            return self._with(job if job.bytes is None else replace(job, done_bytes=job.bytes))
        if isinstance(outcome, Stopped) or job.wish is not Wish.RUN:
            return self._with(job.released())
        if outcome.holds:
            return replace(self._with(replace(job.released(), failure=outcome)), hold=outcome)
        if outcome.temporary:
            tries = 1 if moved else job.tries + 1
            pause_s = max(_FIRST_PAUSE_S * 2 ** min(tries - 1, 16), (outcome.until_s or now_s) - now_s)
            pause_s = min(pause_s, _LONGEST_PAUSE_S)  # before its time, a refusal that is kept costs no request
            job = replace(job.released(), failure=outcome, tries=tries, retry_at_s=now_s + pause_s)
            return self._with(job)
        return self._with(replace(job.released(), state=State.FAILED, failure=outcome, ended_s=now_s))

    def discarded(self, job_id: int, failure: Failure | None) -> "Jobs":
        """Note that what arrived of a cancelled job is removed, or why it could not be."""
        job = replace(self.find(job_id), wish=Wish.CANCEL, failure=failure)
        return self._with(job if failure else replace(job, done_bytes=None))

    def left_by(self, owner: ProcessId) -> "Jobs":
        """Take all jobs back that `owner` runs: it stops."""
        jobs = tuple(job.released() if job.state is State.RUNNING and job.owner == owner else job for job in self.jobs)
        return replace(self, jobs=jobs)

    def _with(self, job: Job) -> "Jobs":
        return replace(self, jobs=tuple(job if each.id == job.id else each for each in self.jobs))
