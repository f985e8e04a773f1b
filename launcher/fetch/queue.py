"""The download queue: its file, which all processes of the user share, and the requests on its jobs."""

import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from launcher.base.errors import LauncherError, WrittenByNewer
from launcher.base.files import make_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.base.paths import explain_os_error, state_dir
from launcher.base.progress import Progress
from launcher.base.store import KeptFile, free_bad_path, hold_file_lock
from launcher.fetch.jobs import AddedJob, Job, JobFailure, JobList, JobState, QueuePlace, RequestedState

# The queue's file in the state folder. Any process of ours may change it, one at a time.

_VERSION = 1
_LOCK_S = 10.0
_JOB = TypeAdapter(Job)
_HOLD = TypeAdapter(JobFailure | None)
_FIGURES = TypeAdapter(Progress)

Stamp = tuple[int, int, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QueueDamage:
    """Damage to the queue's file or to a job in it. The old file is kept as `kept_as`, None if it could not be
    moved."""

    kept_as: Path | None
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

    def stamp(self) -> Stamp | None:
        """Return a value that differs after each change of the file; None if there is no file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def change(self, change: Callable[[JobList], tuple[JobList, _T]]) -> tuple[JobList, _T, tuple[QueueDamage, ...]]:
        """Apply `change` to the jobs, write them if they differ, and return them, its second result, and any damage.

        The file is locked meanwhile. If `change` raises, nothing is written.
        """
        make_folder(self._folder)
        with hold_file_lock(self.path, _LOCK_S):
            before, damage = self._load()
            after, told = change(before)
            if after != before or damage:
                write_atomically(self.path, _serialize(after))
        return after, told, damage

    def show_figures(self, job_id: int, figures: Progress) -> None:
        """Publish the progress of a running job to other processes. Not flushed to disk."""
        with suppress(OSError):
            self._figures_path(job_id).write_text(json.dumps(add_message_data(asdict(figures))), "utf-8")

    def figures(self, job_id: int) -> Progress | None:
        """Return the published progress of a job; None if there is none, or if it is just being written."""
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(self._figures_path(job_id).read_bytes())
            return replace(_FIGURES.validate_python(data), note=str(restore_messages(data).get("note", "")))
        return None

    def forget_figures(self, running: Iterable[int]) -> None:
        """Delete the published progress of jobs that no longer run."""
        kept = {self._figures_path(job_id) for job_id in running}
        for path in self._folder.glob("running-*.json"):
            if path not in kept:
                with suppress(OSError):
                    path.unlink()

    def _figures_path(self, job_id: int) -> Path:
        return self._folder / f"running-{job_id}.json"

    def _load(self) -> tuple[JobList, tuple[QueueDamage, ...]]:
        read, damage = self._file.load_with_damage(self.path)
        if damage is not None:
            return JobList(), (QueueDamage(damage.kept_as, None),)
        if not read.lost:
            return read.jobs, ()
        bad = free_bad_path(self.path)
        write_atomically(bad, read.data)  # the file itself is rewritten below with the jobs that could be parsed
        return read.jobs, (QueueDamage(bad, read.lost),)

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
        with suppress(ValidationError):
            hold = _restore_failure(_HOLD.validate_python(whole.get("hold")), whole.get("hold"))
        given = whole.get("next_id")
        after = max((job.id for job in jobs), default=0) + 1
        return _ParsedQueue(
            JobList(tuple(jobs), max(given, after) if isinstance(given, int) else after, hold), lost, data
        )


def _parse_jobs(entries: Iterable[Any]) -> tuple[list[Job], int]:
    """Return the jobs that can be parsed, and the number of those that cannot."""
    jobs: list[Job] = []
    lost = 0
    for entry in entries:
        try:
            job = _JOB.validate_python(entry)
            job = replace(job, failure=_restore_failure(job.failure, entry.get("failure")))
        except ValidationError:
            lost += 1
            continue
        if any(job.id == other.id for other in jobs):
            lost += 1
        else:
            jobs.append(job)
    return jobs, lost


def _restore_failure(read: JobFailure | None, data: Any) -> JobFailure | None:  # noqa: ANN401 -- what the file has of it
    """Return a parsed failure with its texts restored to messages."""
    if read is None:
        return None
    texts = restore_messages(data)
    return replace(read, title=texts["title"], hint=texts.get("hint", ""))


def _serialize(jobs: JobList) -> bytes:
    def described(data: Any, failure: JobFailure | None) -> Any:  # noqa: ANN401 -- JSON
        return data if failure is None else add_message_data({**data, "title": failure.title, "hint": failure.hint})

    entries = []
    for job in jobs.jobs:
        entry = _JOB.dump_python(job, mode="json", exclude_defaults=True)
        entries.append(entry if job.failure is None else {**entry, "failure": described(entry["failure"], job.failure)})
    hold = described(_HOLD.dump_python(jobs.hold, mode="json"), jobs.hold)
    whole = {"version": _VERSION, "next_id": jobs.next_id, "hold": hold, "jobs": entries}
    return json.dumps(whole, indent=1).encode()


ReportProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class JobKind:
    """The implementation of one kind of job, given its arguments.

    `run` carries it out and returns its result as JSON; it may be called again after any outcome, and cancelling pauses
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
    figures: Mapping[int, Progress]
    damage: tuple[QueueDamage, ...]


class DownloadQueue:
    """The jobs of this user, shared by all processes.

    Requests take effect before a method returns, except for running jobs: their process carries them out within half a
    second. Each method may raise OSError or WrittenByNewer.
    """

    def __init__(
        self, works: Mapping[str, JobKind], store: QueueStore | None = None, clock: QueueClock | None = None
    ) -> None:
        self.works = works
        self.store = store or QueueStore()
        self.clock = clock or QueueClock()

    def read_snapshot(self) -> QueueSnapshot:
        """Return a snapshot of all jobs."""
        jobs, _, damage = self._change(lambda jobs: (jobs, None))
        shown = {job.id: self.store.figures(job.id) for job in jobs.jobs if job.state is JobState.RUNNING}
        return QueueSnapshot(
            jobs, {job_id: figures for job_id, figures in shown.items() if figures is not None}, damage
        )

    def add(self, kind: str, arguments: dict[str, Any], title: str, *, size_bytes: int | None = None) -> AddedJob:
        """Append a job to the queue, unless it is queued already. `arguments` are JSON, `title` is for users."""
        now_s = self.clock.calendar_s()
        return self._change(lambda jobs: jobs.add(kind, arguments, title, size_bytes=size_bytes, now_s=now_s))[1]

    def request_state(self, wish: RequestedState, *job_ids: int) -> tuple[Job, ...]:
        """Request a state of jobs and return them. Raises JobUnknown, and then requests none."""

        def asked(jobs: JobList) -> tuple[JobList, None]:
            for job_id in job_ids:
                jobs = jobs.request_state(job_id, wish)
            return jobs, None

        jobs = self._change(asked)[0]
        return tuple(jobs.find(job_id) for job_id in job_ids)

    def request_state_of_all(self, wish: RequestedState, states: Collection[JobState]) -> tuple[Job, ...]:
        """Request a state of all jobs in one of `states`, and return them; a request to run releases the held queue."""

        def asked(jobs: JobList) -> tuple[JobList, tuple[int, ...]]:
            meant = tuple(job.id for job in jobs.jobs if job.state in states)
            for job_id in meant:
                jobs = jobs.request_state(job_id, wish)
            return jobs.release_hold() if wish is RequestedState.RUN else jobs, meant

        jobs, meant, _ = self._change(asked)
        return tuple(jobs.find(job_id) for job_id in meant)

    def move(self, job_id: int, place: QueuePlace) -> Job:
        """Move a job in the queue (see JobList.move), and return it. Raises JobUnknown."""
        return self._change(lambda jobs: (jobs.move(job_id, place), None))[0].find(job_id)

    def clear(self, *, failed: bool = False) -> int:
        """Remove jobs that are done or cancelled, and with `failed` those that failed; return how many."""

        def cleared(jobs: JobList) -> tuple[JobList, int]:
            kept = jobs.clear(failed=failed)
            return kept, len(jobs.jobs) - len(kept.jobs)

        return self._change(cleared)[1]

    def release_hold(self) -> None:
        """Release the queue if it is held."""
        self._change(lambda jobs: (jobs.release_hold(), None))

    def settle_jobs(self, jobs: JobList) -> JobList:
        """Return the jobs after releasing those whose process is gone and deleting the data of discarded ones."""
        jobs = jobs.recover_abandoned(ProcessId.is_running, self.store.figures)
        for job in jobs.jobs:
            if job.state is JobState.CANCELLED and job.wish is RequestedState.DISCARD:
                jobs = jobs.record_discarded(job.id, self._discard(job))
        return jobs

    def _discard(self, job: Job) -> JobFailure | None:
        work = self.works.get(job.kind)
        try:
            if work is not None:
                work.discard(job.arguments)
        except LauncherError as error:
            return JobFailure.from_error(error)
        except OSError as error:
            return JobFailure.from_error(explain_os_error(error))
        except Exception as error:  # noqa: BLE001 -- otherwise every later request would fail as well
            return unexpected_failure(error)
        return None

    def _change(self, change: Callable[[JobList], tuple[JobList, _T]]) -> tuple[JobList, _T, tuple[QueueDamage, ...]]:
        def settling(jobs: JobList) -> tuple[JobList, _T]:
            after, told = change(self.settle_jobs(jobs))
            return self.settle_jobs(after), told

        return self.store.change(settling)


def unexpected_failure(error: BaseException) -> JobFailure:
    """Return the failure for an unexpected exception."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return JobFailure(
        "error",
        message("It ended unexpectedly ({what}).", what=what),
        message("This is a fault of the program: please report it."),
    )
