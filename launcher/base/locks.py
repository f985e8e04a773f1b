"""Locks between processes, also on file systems that have none."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError
from launcher.base.late import LateModule
from launcher.base.messages import message

if sys.platform != "win32":
    import fcntl
if TYPE_CHECKING:
    import filelock
else:
    filelock = LateModule("filelock")

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What a file system answers that has no locks: NFS without lockd, some SMB, 9p and FUSE mounts."""

_SUFFIX = ".held"
"""The end of the name of a file that is a lock by being there."""


@contextmanager
def hold_lock(
    path: Path, limit_s: float = 0.0, *, busy: LauncherError | None = None, remove: bool = False
) -> Iterator[None]:
    """Hold the lock at `path` within the block. Its folder must exist. `remove` deletes its file at the end.

    Where the file system has no locks, a file beside it is the lock, which names the computer and process that hold it;
    one of a process of this computer that has ended is ignored. If another process holds the lock for longer than
    `limit_s` seconds, raises `busy`, by default filelock.Timeout, a TimeoutError. Also raises OSError.
    """
    try:
        lock = _acquire_lock(path, limit_s)
    except TimeoutError as timeout:
        if busy is None:
            raise
        busy.hint = holder_hint(timeout) or busy.hint
        raise busy from timeout
    try:
        yield
    finally:
        if remove and sys.platform != "win32":
            # Delete the lock file while it is locked: a process that has just opened the file notices the deletion
            # and creates a new one.
            path.unlink(missing_ok=True)
        try:
            lock.release()
        except OSError:
            if not remove:  # some SMB mounts refuse to unlock a deleted file (huggingface_hub #2038)
                raise
        if remove and sys.platform == "win32":
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _acquire_lock(path: Path, limit_s: float) -> "filelock.BaseFileLock":
    try:
        lock: filelock.BaseFileLock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
        lock.acquire(timeout=limit_s)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        lock = filelock.SoftFileLock(path.with_name(path.name + _SUFFIX), thread_local=False)
        lock.acquire(timeout=limit_s)
    return lock


def holder_hint(error: BaseException) -> str:
    """Return the next step after a TimeoutError of `hold_lock` where a file is the lock, "" where it is a real one."""
    path = str(getattr(error, "lock_file", ""))
    if not path.endswith(_SUFFIX):
        return ""
    return message("{path} names the process and computer that hold it. Delete it if that has ended.", path=path)


def has_locks(folder: Path) -> bool:
    """Return whether the file system of a folder has the locks of POSIX, which SQLite uses. True if unknown."""
    if sys.platform != "win32":
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _NO_LOCKS
    return True


def read_clock(folder: Path) -> float:
    """Return the time in seconds since 1970 by the clock that dates the files of a folder; of a share, its server's."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
