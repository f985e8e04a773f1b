"""The queue's file in the state folder. Any process of ours may change it, one at a time."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from launcher.base.errors import WrittenByNewer
from launcher.base.files import make_folder, write_atomically
from launcher.base.paths import state_dir
from launcher.fetch.jobs import Failure, Figures, Job, Jobs

_VERSION = 1
_LOCK_S = 10.0
_JOB = TypeAdapter(Job)
_HOLD = TypeAdapter(Failure | None)
_FIGURES = TypeAdapter(Figures)

Stamp = tuple[int, int, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Damage:
    """The file, or a job in it, could not be read. It was kept beside it as `kept_as`."""

    kept_as: Path
    lost: int | None
    """How many jobs are only there; None when that cannot be told."""

    def __str__(self) -> str:
        """Say it in words."""
        jobs = "The list of downloads" if self.lost is None else f"{self.lost} of the downloads listed"
        return f"{jobs} could not be read and was set aside as {self.kept_as}."


class QueueStore:
    """The jobs on the disk, in `folder`. Each method may raise OSError, and WrittenByNewer when it reads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_dir() / "downloads"
        self._path = self._folder / "queue.json"

    def stamp(self) -> Stamp | None:
        """Return what differs after each change; None while there is no file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def change(self, change: Callable[[Jobs], tuple[Jobs, _T]]) -> tuple[Jobs, _T, tuple[Damage, ...]]:
        """Apply `change` to the jobs, write them if they differ, and return them with what else it returned.

        Nobody else changes them meanwhile. What `change` raises leaves them as they were.
        """
        make_folder(self._folder)
        with FileLock(self._folder / "queue.lock", timeout=_LOCK_S):
            before, damage = self._load()
            after, told = change(before)
            if after != before or damage:
                write_atomically(self._path, _written(after))
        return after, told, damage

    def show_figures(self, job_id: int, figures: Figures) -> None:
        """Let other processes see how far a running job is. It is not worth waiting for the disk."""
        with suppress(OSError):
            self._figures_path(job_id).write_bytes(_FIGURES.dump_json(figures))

    def figures(self, job_id: int) -> Figures | None:
        """Return the last that was shown of a job; None when there is nothing, or it is being written."""
        with suppress(OSError, ValidationError):
            return _FIGURES.validate_json(self._figures_path(job_id).read_bytes())
        return None

    def forget_figures(self, running: Iterable[int]) -> None:
        """Remove what was shown of jobs that do not run."""
        kept = {self._figures_path(job_id) for job_id in running}
        for path in self._folder.glob("running-*.json"):
            if path not in kept:
                with suppress(OSError):
                    path.unlink()

    def _figures_path(self, job_id: int) -> Path:
        return self._folder / f"running-{job_id}.json"

    def _load(self) -> tuple[Jobs, tuple[Damage, ...]]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Jobs(), ()
        try:
            whole = json.loads(data)
            version, entries = int(whole["version"]), list(whole["jobs"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return Jobs(), (Damage(self._set_aside(data), None),)
        if version > _VERSION:
            raise WrittenByNewer(
                "The list of downloads was written by a newer version of this program.",
                f"Use that version, or move {self._path} away to begin a new list.",
            )
        jobs, lost = _read(entries)
        hold: Failure | None = None
        with suppress(ValidationError):
            hold = _HOLD.validate_python(whole.get("hold"))
        given = whole.get("next_id")
        after = max((job.id for job in jobs), default=0) + 1
        known = Jobs(tuple(jobs), max(given, after) if isinstance(given, int) else after, hold)
        return known, (Damage(self._set_aside(data), lost),) if lost else ()

    def _set_aside(self, data: bytes) -> Path:
        """Keep a damaged file under the first name that is free or holds the same."""
        number = 1
        while (path := self._folder / f"queue.damaged-{number}.json").exists() and path.read_bytes() != data:
            number += 1
        write_atomically(path, data)
        return path


def _read(entries: Iterable[Any]) -> tuple[list[Job], int]:
    """Return the jobs that can be read, and how many cannot."""
    jobs: list[Job] = []
    lost = 0
    for entry in entries:
        try:
            job = _JOB.validate_python(entry)
        except ValidationError:
            lost += 1
            continue
        if any(job.id == other.id for other in jobs):
            lost += 1
        else:
            jobs.append(job)
    return jobs, lost


def _written(jobs: Jobs) -> bytes:
    whole = {
        "version": _VERSION,
        "next_id": jobs.next_id,
        "hold": _HOLD.dump_python(jobs.hold, mode="json"),
        "jobs": [_JOB.dump_python(job, mode="json", exclude_defaults=True) for job in jobs.jobs],
    }
    return json.dumps(whole, indent=1).encode()
