"""The files of a transfer: who may write them, room for them, and where they go in the end."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from launcher.base.errors import DiskFull, DownloadBroken, DownloadBusy, FileInTheWay, LauncherError, TargetUnusable
from launcher.base.files import replace
from launcher.fetch import journal
from launcher.fetch.part import journal_path, part_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def claimed(target: Path) -> Iterator[None]:
    """Keep other processes, and other transfers of this one, from fetching to `target`. Raises DownloadBusy."""
    path = target.with_name(f"{target.name}.part.lock")
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DownloadBusy(
            f"{target.name} is being downloaded already, perhaps by another window or terminal.",
            "Wait until it is finished, or end it there.",
        ) from error
    except OSError as error:
        raise writing_failed(error, target) from error
    try:
        yield
    finally:
        if sys.platform != "win32":
            path.unlink(missing_ok=True)  # while it is held: who waits for it notices and makes another
        lock.release()
        if sys.platform == "win32":
            with suppress(OSError):
                path.unlink(missing_ok=True)


def free_bytes(folder: Path) -> int:
    """Return how much may still be written there."""
    return shutil.disk_usage(folder).free


def disk_full(folder: Path, *, needed: int, free: int, reserve: int) -> DiskFull:
    """Return the error for a disk without room for `needed` bytes more, besides the `reserve` that stays free."""
    kept = f", and {_size(reserve)} stay free for the system" if reserve else ""
    missing = f"{_size(needed)} are still needed{kept}; " if needed else ""
    return DiskFull(
        f"There is no room in {folder}: {missing}{_size(free)} are free.",
        "Make room, or choose another folder. Nothing is lost: the same command goes on where it stopped.",
        folder=str(folder),
        needed_bytes=needed,
        free_bytes=free,
        reserve_bytes=reserve,
    )


def writing_failed(error: OSError, target: Path, needed: int = 0) -> LauncherError:
    """Return the error for what kept a file from being written."""
    folder = target.parent
    if error.errno in _FULL:
        free = 0
        with suppress(OSError):
            free = free_bytes(folder)
        if error.errno != errno.ENOSPC and free > needed:
            return DiskFull(
                f"The system lets no more be written to {folder}: {error.strerror}.",
                "A quota may be used up. Nothing is lost: the same command goes on where it stopped.",
                folder=str(folder),
                needed_bytes=needed,
            )
        return disk_full(folder, needed=needed, free=free, reserve=0)
    return TargetUnusable(
        f"{target.name} cannot be written to {folder}: {error.strerror or error}.", "Choose another folder."
    )


def keep_aside(target: Path, reason: str, **facts: object) -> DownloadBroken:
    """Rename the unfinished file to .bad, beside it the reason, and return the error. An older one is replaced."""
    bad = target.with_name(f"{target.name}.bad")
    replace(part_path(target), bad)
    journal.remove(journal_path(target))
    with suppress(OSError):
        bad.with_name(f"{bad.name}.txt").write_text(f"{reason}\n", "utf-8")
    return DownloadBroken(
        reason, f"It is kept as {bad.name} and never used. Try again: the download begins anew.", path=str(bad), **facts
    )


def put_in_place(target: Path) -> None:
    """Give the finished file, which is on the disk already, its name, so that a power cut does not undo it.

    Raises FileInTheWay when something got that name meanwhile, and OSError.
    """
    if os.path.lexists(target):
        raise FileInTheWay(
            f"{target} was not there when the download began, and now is.",
            "Move or rename it, and try again: what has arrived is kept.",
            path=str(target),
        )
    replace(part_path(target), target)
    journal.remove(journal_path(target))
    if sys.platform != "win32":  # there the file system does it
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _size(n_bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"
