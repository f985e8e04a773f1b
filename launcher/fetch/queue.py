"""The download queue: its file, which all processes of the user share, and requests to change its jobs."""

import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launcher.base.codec import WrongShape, from_json, to_json
from launcher.base.errors import LauncherError, WrittenByNewer
from launcher.base.files import make_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.kept_files import KeptFile, free_bad_path, hold_file_lock
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.base.paths import explain_os_error, state_dir
from launcher.base.progress import Progress
from launcher.fetch.jobs import AddedJob, Job, JobFailure, JobList, JobState, QueuePlace, RequestedState

# The queue's file in the state folder. Any process of this program may change it, one at a time.

_VERSION = 1
_LOCK_S = 10.0

Stamp = tuple[int, int, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QueueDamage:
    """Damage to the queue's file or to a job in it."""

    kept_as: Path | None
    """The new path of the damaged file; None if it could not be moved."""
    lost: int | None
    """The number of jobs that were lost from the queue; None if that is unknown."""

    def __str__(self) -> str:
        """Return the damage as a sentence."""
        if self.kept_as is None:
            return message("Cannot read the download list.")
        if self.lost is None:
            return message("The download list was unreadable and was renamed to {kept_as}.", kept_as=self.kept_as)
        return message(
            "{lost} of the listed downloads could not be read. The list was renamed to {kept_as}.",
            lost=self.lost,
            kept_as=self.kept_as,
        )


@dataclass(frozen=True, slots=True)
class _ParsedQueue:
    """The jobs that could be parsed, the number that could not, and the file's content."""

    jobs: JobList
    lost: int = 0
    data: bytes = b""


class QueueStore:
    """The jobs on disk, in `folder`. Each method may raise OSError, and WrittenByNewer when it reads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_dir() / "downloads"
        self.path = self._folder / "queue.json"
        self._file = KeptFile("The list of downloads", self._parse, lambda: _ParsedQueue(JobList()), quiet=True)

    def read_stamp(self) -> Stamp | None:
        """Return a value that changes with the file; None if there is no file."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def change_jobs(
        self, change: Callable[[JobList], tuple[JobList, _T]]
    ) -> tuple[JobList, _T, tuple[QueueDamage, ...]]:
        """Apply `change` to the jobs, write them if they differ, and return them, its second result, and any damage.

        The file is locked meanwhile. If `change` raises, nothing is written.
        """
        make_folder(self._folder)
        with hold_file_lock(self.path, _LOCK_S):
            before, damage = self._load()
            after, result = change(before)
            if after != before or damage:
                write_atomically(self.path, _serialize(after))
        return after, result, damage

    def publish_progress(self, job_id: int, progress: Progress) -> None:
        """Publish the progress of a running job to other processes. Not flushed to disk."""
        with suppress(OSError):
            self._progress_path(job_id).write_text(json.dumps(add_message_data(to_json(progress))), "utf-8")

    def read_progress(self, job_id: int) -> Progress | None:
        """Return the published progress of a job; None if there is none, or if it is just being written."""
        with suppress(OSError, ValueError, RecursionError):
            return from_json(Progress, restore_messages(json.loads(self._progress_path(job_id).read_bytes())))
        return None

    def delete_stale_progress(self, running: Iterable[int]) -> None:
        """Delete the published progress of all jobs except `running`, which are IDs."""
        running_paths = {self._progress_path(job_id) for job_id in running}
        for path in self._folder.glob("running-*.json"):
            if path not in running_paths:
                with suppress(OSError):
                    path.unlink()

    def _progress_path(self, job_id: int) -> Path:
        return self._folder / f"running-{job_id}.json"

    def _load(self) -> tuple[JobList, tuple[QueueDamage, ...]]:
        queue, damage = self._file.load_with_damage(self.path)
        if damage is not None:
            return JobList(), (QueueDamage(damage.kept_as, None),)
        if not queue.lost:
            return queue.jobs, ()
        bad = free_bad_path(self.path)
        write_atomically(bad, queue.data)  # change_jobs() then rewrites the file with the jobs that could be parsed
        return queue.jobs, (QueueDamage(bad, queue.lost),)

    def _parse(self, data: bytes) -> _ParsedQueue:
        whole = json.loads(data)
        version, entries = int(whole["version"]), list(whole["jobs"])
        if version > _VERSION:
            raise WrittenByNewer(
                message("The download list was written by a newer version of this program."),
                message("Use that version, or move {path} away to start a new list.", path=self.path),
            )
        jobs, lost = _parse_jobs(entries)
        hold: JobFailure | None = None
        with suppress(WrongShape):
            hold = from_json(JobFailure, restore_messages(whole.get("hold")))
        next_id = max((job.id for job in jobs), default=0) + 1
        if isinstance(stored_id := whole.get("next_id"), int):
            next_id = max(next_id, stored_id)
        return _ParsedQueue(JobList(tuple(jobs), next_id, hold), lost, data)


def _parse_jobs(entries: Iterable[Any]) -> tuple[list[Job], int]:
    """Return the jobs that can be parsed, and the number of those that cannot."""
    jobs: list[Job] = []
    lost = 0
    for entry in entries:
        try:
            job = from_json(Job, restore_messages(entry))
        except WrongShape:
            lost += 1
            continue
        if any(job.id == other.id for other in jobs):
            lost += 1
        else:
            jobs.append(job)
    return jobs, lost


def _serialize(jobs: JobList) -> bytes:
    whole = {"version": _VERSION, "next_id": jobs.next_id, "hold": jobs.hold, "jobs": to_json(jobs.jobs, sparse=True)}
    return json.dumps(add_message_data(to_json(whole)), indent=1).encode()


ReportProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class JobKind:
    """The implementation of one kind of job. Both functions take the job's arguments.

    `run` does the work and returns its result as JSON; it may be called again after any outcome, and cancelling pauses
    it. `discard` deletes what an unfinished job has left on disk. Both raise LauncherError or OSError.
    """

    run: Callable[[dict[str, Any], ReportProgress], Awaitable[dict[str, Any]]]
    discard: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class QueueClock:
    """Two clocks: calendar time (Unix time in seconds) and monotonic time in seconds."""

    calendar_s: Callable[[], float] = time.time
    steady_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A snapshot of the queue: all jobs, the progress of the running ones by job ID, and damage to the file."""

    jobs: JobList
    progress_by_id: Mapping[int, Progress]
    damage: tuple[QueueDamage, ...]


class DownloadQueue:
    """The jobs of this user, shared by all processes.

    Requests take effect before a method returns, except for running jobs: the process that runs them reacts within
    half a second. `job_kinds` are the implementations by name. Each method may raise OSError or WrittenByNewer.
    """

    def __init__(
        self, job_kinds: Mapping[str, JobKind], store: QueueStore | None = None, clock: QueueClock | None = None
    ) -> None:
        self.job_kinds = job_kinds
        self.store = store or QueueStore()
        self.clock = clock or QueueClock()

    def read_snapshot(self) -> QueueSnapshot:
        """Return a snapshot of all jobs."""
        jobs, _, damage = self._change_jobs(lambda jobs: (jobs, None))
        running = [job.id for job in jobs.jobs if job.state is JobState.RUNNING]
        progress = {job_id: read for job_id in running if (read := self.store.read_progress(job_id)) is not None}
        return QueueSnapshot(jobs, progress, damage)

    def add_job(self, kind: str, arguments: dict[str, Any], title: str, *, size_bytes: int | None = None) -> AddedJob:
        """Append a job to the queue, unless it is queued already. `arguments` are JSON, `title` is for users."""
        now_s = self.clock.calendar_s()
        return self._change_jobs(lambda jobs: jobs.add_job(kind, arguments, title, size_bytes=size_bytes, now_s=now_s))[
            1
        ]

    def request_state(self, requested: RequestedState, *job_ids: int) -> tuple[Job, ...]:
        """Request a state of jobs and return them. Raises JobUnknown, and then requests none."""

        def apply_requests(jobs: JobList) -> tuple[JobList, None]:
            for job_id in job_ids:
                jobs = jobs.request_state(job_id, requested)
            return jobs, None

        jobs = self._change_jobs(apply_requests)[0]
        return tuple(jobs.find_job(job_id) for job_id in job_ids)

    def request_state_of_all(self, requested: RequestedState, states: Collection[JobState]) -> tuple[Job, ...]:
        """Request a state of all jobs in one of `states`, and return them; a request to run releases the held queue."""

        def apply_requests(jobs: JobList) -> tuple[JobList, tuple[int, ...]]:
            job_ids = tuple(job.id for job in jobs.jobs if job.state in states)
            for job_id in job_ids:
                jobs = jobs.request_state(job_id, requested)
            return jobs.release_hold() if requested is RequestedState.RUN else jobs, job_ids

        jobs, job_ids, _ = self._change_jobs(apply_requests)
        return tuple(jobs.find_job(job_id) for job_id in job_ids)

    def move_job(self, job_id: int, place: QueuePlace) -> Job:
        """Move a job in the queue (see JobList.move_job), and return it. Raises JobUnknown."""
        return self._change_jobs(lambda jobs: (jobs.move_job(job_id, place), None))[0].find_job(job_id)

    def clear_ended(self, *, failed: bool = False) -> int:
        """Remove jobs that are done or cancelled, and with `failed` those that failed; return how many."""

        def clear_and_count(jobs: JobList) -> tuple[JobList, int]:
            remaining = jobs.clear_ended(failed=failed)
            return remaining, len(jobs.jobs) - len(remaining.jobs)

        return self._change_jobs(clear_and_count)[1]

    def release_hold(self) -> None:
        """Release the queue if it is held."""
        self._change_jobs(lambda jobs: (jobs.release_hold(), None))

    def settle_jobs(self, jobs: JobList) -> JobList:
        """Release the jobs whose process has ended, delete the data of discarded jobs, and return the new list."""
        jobs = jobs.recover_abandoned(ProcessId.is_running, self.store.read_progress)
        for job in jobs.jobs:
            if job.state is JobState.CANCELLED and job.requested is RequestedState.DISCARD:
                jobs = jobs.record_discarded(job.id, self._discard_data(job))
        return jobs

    def _discard_data(self, job: Job) -> JobFailure | None:
        kind = self.job_kinds.get(job.kind)
        try:
            if kind is not None:
                kind.discard(job.arguments)
        except LauncherError as error:
            return JobFailure.from_error(error)
        except OSError as error:
            return JobFailure.from_error(explain_os_error(error))
        except Exception as error:  # noqa: BLE001 -- otherwise every later request would fail as well
            return unexpected_failure(error)
        return None

    def _change_jobs(
        self, change: Callable[[JobList], tuple[JobList, _T]]
    ) -> tuple[JobList, _T, tuple[QueueDamage, ...]]:
        def change_and_settle(jobs: JobList) -> tuple[JobList, _T]:
            after, result = change(self.settle_jobs(jobs))
            return self.settle_jobs(after), result

        return self.store.change_jobs(change_and_settle)


def unexpected_failure(error: BaseException) -> JobFailure:
    """Return the failure for an unexpected exception."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return JobFailure(
        "error",
        message("It ended unexpectedly ({what}).", what=what),
        message("This is a fault of the program: please report it."),
    )
