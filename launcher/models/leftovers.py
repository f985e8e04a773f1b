"""What downloads have left beside the models: unfinished files, and those that were not what they should be."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.base.paths import models_dir
from launcher.fetch import journal
from launcher.fetch.part import journal_path, unfinished
from launcher.fetch.transfer import discard
from launcher.models.added_places import added_places

_PART, _BAD = ".part", ".bad"
_MOST_REASON = 2_000
_BLOCK = 512
"""What st_blocks counts in (POSIX)."""


class LeftoverKind(Enum):
    """UNFINISHED: the download goes on from it. BAD: it arrived whole, but is not the file that was wanted."""

    UNFINISHED = "unfinished"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that no engine is given. `target` is what it was to become.

    `bytes` is what it takes on the disk, `done_bytes` how much of an unfinished one has arrived and `whole_bytes` what
    it will be, both None where that is not known; `reason` says what is wrong with a bad one. `modified_s` counts from
    the epoch.
    """

    path: Path
    kind: LeftoverKind
    target: Path
    bytes: int
    done_bytes: int | None
    whole_bytes: int | None
    reason: str | None
    modified_s: float


def leftovers() -> tuple[Leftover, ...]:
    """Return what lies in our folder and in those that the user has added, largest first.

    Outside our folder only what a download of ours has surely left: with its journal, or with its reason beside it.
    """
    found: dict[Path, Leftover] = {}
    ours = models_dir()
    for folder in (ours, *(each for each in added_places() if each.is_dir())):
        for path in _files(folder):
            left = _leftover(path, surely=not path.is_relative_to(ours))
            if left is not None:
                found[path] = left
    return tuple(sorted(found.values(), key=lambda each: (-each.bytes, str(each.path))))


def remove_leftover(left: Leftover) -> int:
    """Delete it and what lies beside it for its sake, and return the bytes that are free now.

    Raises DownloadBusy while a download writes it, and OSError.
    """
    if left.kind is LeftoverKind.UNFINISHED:
        discard(left.target)
        left.path.unlink(missing_ok=True)
    else:
        left.path.unlink(missing_ok=True)
        _reason_path(left.path).unlink(missing_ok=True)
    folder = left.path.parent
    while (
        folder.is_relative_to(models_dir()) and folder != models_dir() and folder.is_dir() and not any(folder.iterdir())
    ):
        folder.rmdir()
        folder = folder.parent
    return left.bytes


def named_leftovers(found: Iterable[Leftover], text: str) -> list[Leftover]:
    """Return the leftovers that `text` means: a path, a file's name, or "leftovers" for all."""
    path = Path(text).expanduser().absolute()
    return [each for each in found if text == "leftovers" or path == each.path or text == each.path.name]


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith((_PART, _BAD)):
                yield Path(place, name)


def _leftover(path: Path, *, surely: bool) -> Leftover | None:
    kind = LeftoverKind.UNFINISHED if path.suffix == _PART else LeftoverKind.BAD
    target = path.with_suffix("")
    beside = journal_path(target) if kind is LeftoverKind.UNFINISHED else _reason_path(path)
    if surely and not beside.is_file():
        return None
    try:
        status = path.lstat()
        on_disk = min(status.st_size, getattr(status, "st_blocks", status.st_size) * _BLOCK)  # it may have holes
        if kind is LeftoverKind.BAD:
            return Leftover(path, kind, target, on_disk, None, None, _reason(path), status.st_mtime)
        record = journal.read(beside)
        whole = record.identity.bytes if record else None
        return Leftover(path, kind, target, on_disk, unfinished(target), whole, None, status.st_mtime)
    except OSError:
        return None  # it is gone by now


def _reason_path(bad: Path) -> Path:
    return bad.with_name(f"{bad.name}.txt")


def _reason(bad: Path) -> str | None:
    try:
        with _reason_path(bad).open("r", encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_REASON).strip() or None
    except OSError:
        return None
