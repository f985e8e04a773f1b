"""Files left by downloads: unfinished ones (.part), and ones that failed verification (.bad)."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.base.paths import models_dir
from launcher.fetch import journal
from launcher.fetch.partial_file import count_unfinished_bytes, journal_path
from launcher.fetch.transfer import discard_download
from launcher.models.added_places import read_added_places
from launcher.models.stores import recognise_store

_PART, _BAD = ".part", ".bad"
_MOST_REASON = 2_000
_BLOCK = 512
"""Unit of `st_blocks`, in bytes (POSIX)."""


class LeftoverKind(Enum):
    """UNFINISHED: a download can be resumed from it. BAD: it is complete, but not the requested file."""

    UNFINISHED = "unfinished"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file left by a download. `target` is the path of the model file that was downloaded.

    `bytes` is its size on the disk. Of an unfinished file, `done_bytes` have been received and `whole_bytes` is the
    final size, None where unknown. `reason` is why a bad file was rejected. `modified_s` is in seconds since the epoch.
    """

    path: Path
    kind: LeftoverKind
    target: Path
    bytes: int
    done_bytes: int | None
    whole_bytes: int | None
    reason: str | None
    modified_s: float


def find_leftovers() -> tuple[Leftover, ...]:
    """Return the leftovers in the models folder and in the folders that the user added, largest first.

    In the user's folders only files with our journal or reason file beside them count: others may be another program's.
    Folders of another program's store are left out.
    """
    found: dict[Path, Leftover] = {}
    ours = models_dir()
    for folder in (ours, *(each for each in read_added_places() if each.is_dir() and recognise_store(each) is None)):
        for path in _find_files(folder):
            leftover = _read_leftover(path, needs_note=not path.is_relative_to(ours))
            if leftover is not None:
                found[path] = leftover
    return tuple(sorted(found.values(), key=lambda each: (-each.bytes, str(each.path))))


def remove_leftover(leftover: Leftover) -> int:
    """Delete a leftover with its journal or reason file, and return the bytes freed.

    Raises DownloadBusy while a download writes it, and OSError.
    """
    if leftover.kind is LeftoverKind.UNFINISHED:
        discard_download(leftover.target)
        leftover.path.unlink(missing_ok=True)
    else:
        leftover.path.unlink(missing_ok=True)
        _reason_path(leftover.path).unlink(missing_ok=True)
    folder = leftover.path.parent
    while (
        folder.is_relative_to(models_dir()) and folder != models_dir() and folder.is_dir() and not any(folder.iterdir())
    ):
        folder.rmdir()
        folder = folder.parent
    return leftover.bytes


def select_leftovers(found: Iterable[Leftover], text: str) -> list[Leftover]:
    """Return the leftovers that `text` selects: a path, a file name, or "leftovers" for all."""
    path = Path(text).expanduser().absolute()
    return [each for each in found if text == "leftovers" or path == each.path or text == each.path.name]


def _find_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith((_PART, _BAD)):
                yield Path(place, name)


def _read_leftover(path: Path, *, needs_note: bool) -> Leftover | None:
    """Return a leftover, or None if it was deleted meanwhile.

    With `needs_note` None also if it has no journal or reason file.
    """
    kind = LeftoverKind.UNFINISHED if path.suffix == _PART else LeftoverKind.BAD
    target = path.with_suffix("")
    note = journal_path(target) if kind is LeftoverKind.UNFINISHED else _reason_path(path)
    if needs_note and not note.is_file():
        return None
    try:
        status = path.lstat()
        on_disk = min(status.st_size, getattr(status, "st_blocks", status.st_size) * _BLOCK)  # the file may be sparse
        if kind is LeftoverKind.BAD:
            return Leftover(path, kind, target, on_disk, None, None, _read_reason(path), status.st_mtime)
        record = journal.read_journal(note)
        whole = record.identity.bytes if record else None
        return Leftover(path, kind, target, on_disk, count_unfinished_bytes(target), whole, None, status.st_mtime)
    except OSError:
        return None  # deleted meanwhile


def _reason_path(bad: Path) -> Path:
    return bad.with_name(f"{bad.name}.txt")


def _read_reason(bad: Path) -> str | None:
    try:
        with _reason_path(bad).open("r", encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_REASON).strip() or None
    except OSError:
        return None
