"""What a queue tells its listener, and how it follows from how the jobs were and are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.fetch.jobs import LINE, Failure, Figures, Job, Jobs, State


@dataclass(frozen=True, slots=True)
class JobAdded:
    """A job is in the list. The first that a listener hears are those that were there before."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job is something else, or is asked to become something else."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job is done."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed for good; the next one begins."""

    job: Job
    failure: Failure


@dataclass(frozen=True, slots=True)
class JobRemoved:
    """A job is no longer in the list."""

    job: Job


@dataclass(frozen=True, slots=True)
class Reordered:
    """The line has another order."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """No job is started until someone resumes one, or (None) it goes on."""

    reason: Failure | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the list itself that people should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Totals:
    """What waits or runs, in sum; bytes are None when the size of one is unknown."""

    jobs: int
    left_bytes: int | None
    bytes_per_second: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A running job moved, or its speed changed: four times a second at most."""

    job: Job
    figures: Figures
    totals: Totals


Event = JobAdded | JobChanged | JobFinished | JobFailed | JobRemoved | Reordered | Held | Notice | JobProgressed


def changes(before: Jobs, after: Jobs) -> Iterator[Event]:
    """Yield what makes `after` of `before`."""
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
            if job.state is not old.state and job.state is State.DONE:
                yield JobFinished(job)
            elif job.state is not old.state and job.state is State.FAILED and job.failure is not None:
                yield JobFailed(job, job.failure)
    lines = [tuple(job.id for job in jobs.jobs if job.state in LINE) for jobs in (before, after)]
    stayed = [tuple(job_id for job_id in line if job_id in lines[0] and job_id in lines[1]) for line in lines]
    if stayed[0] != stayed[1]:
        yield Reordered(lines[1])
    if before.hold != after.hold:
        yield Held(after.hold)


def totals(jobs: Jobs, figures: Mapping[int, Figures]) -> Totals:
    """Add up what waits or runs; `figures` are those of the running jobs."""
    open_jobs = [job for job in jobs.jobs if job.state in (State.WAITING, State.RUNNING)]
    left = [_left(job, figures.get(job.id)) for job in open_jobs]
    known = [each for each in left if each is not None]
    left_bytes = sum(known) if len(known) == len(left) else None
    speeds = [each.bytes_per_second for each in figures.values() if each.bytes_per_second is not None]
    speed = sum(speeds) if speeds else None
    return Totals(len(open_jobs), left_bytes, speed, left_bytes / speed if left_bytes is not None and speed else None)


def _left(job: Job, figures: Figures | None) -> int | None:
    size = job.bytes if figures is None or figures.bytes is None else figures.bytes
    done = job.done_bytes if figures is None else figures.done_bytes
    return None if size is None else max(size - (done or 0), 0)
