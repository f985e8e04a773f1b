"""Atomic writes, private files and folders, bounded reads."""

import errno
import glob
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import FolderNotOurs
from launcher.base.messages import message

Outcome = TypeVar("Outcome")

MAX_FILE_BYTES = 64 * 2**20
"""Upper limit for files that this program keeps, in bytes."""
_TEMPORARY_SUFFIX = ".draft"
_ABANDONED_S = 3600.0
"""Age in seconds at which a temporary file counts as left over from a killed process."""
_OPEN_RETRY_S = 1.0
"""Seconds to retry while another process holds a file open (Windows)."""
_log = logging.getLogger(__name__)
_warned_paths: set[Path] = set()
"""Paths whose permissions could not be fixed and were warned about, so that each warning appears once."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file so that readers see either the old or the new content.

    The data goes to a temporary file in the same folder, which is flushed to disk and renamed to `path`. Raises
    OSError, and then leaves `path` unchanged and no temporary file. If the process is killed, a temporary file may
    stay; a later write deletes it.
    """
    make_folder(path.parent)
    with suppress(OSError):
        for abandoned in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY_SUFFIX}"):
            if time.time() - abandoned.stat().st_mtime > _ABANDONED_S:
                abandoned.unlink()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY_SUFFIX)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        replace_file(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # the error of a full disk names no file
            error.filename = str(path)
        raise


def replace_file(source: Path, path: Path) -> None:
    """Rename `source` to `path`, replacing an existing file. Raises OSError."""
    retry_while_open(lambda: source.replace(path))


def retry_while_open(work: Callable[[], Outcome]) -> Outcome:
    """Call `work`, and retry it on Windows while another process has the file open, for up to 1 s.

    Windows refuses to replace a file that is open, and to open one that is being replaced.
    """
    deadline_s = time.monotonic() + _OPEN_RETRY_S
    while sys.platform == "win32":
        try:
            return work()
        except PermissionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)
    return work()


def open_private_file(path: Path, flags: int) -> int:
    """Open a file with mode 0600, new or not, and return its descriptor. Raises OSError."""
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)
    return descriptor


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700, regardless of the umask. Raises OSError.

    `Path.mkdir(mode, parents=True)` applies the mode to the last folder only.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def make_private_folder(path: Path) -> Path:
    """Create a folder with mode 0700, or restrict an existing one with a warning, and return it.

    Raises FolderNotOurs if it belongs to another user, who could place files in it, and OSError.
    """
    make_folder(path)
    if sys.platform == "win32":  # the user's profile is private already
        return path
    status = path.stat()
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise FolderNotOurs(
            message(
                "The folder {path} belongs to another user, who could read or replace the API keys in it.", path=path
            ),
            message("Set MTP_LAUNCHER_HOME to a folder of your own."),
            folder=str(path),
        )
    _restrict_permissions(path, status.st_mode, 0o700, "enter")
    return path


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return a file's content. Raises OSError, also for a folder or a pipe, and ValueError beyond `most_bytes`."""

    def read() -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        if path.is_dir():  # Windows reports "access denied" for a folder
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        with os.fdopen(os.open(path, flags), "rb") as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):  # reading a pipe could block for ever
                raise OSError(errno.EINVAL, "it is a pipe", str(path))
            return file.read(most_bytes + 1)

    data = retry_while_open(read)
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes")
    return data


def read_private_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a private file. If others can read it, restrict it and log a warning. See `read_file`."""
    # Read first: this raises if `path` is a folder, whose permissions then stay as they are.
    data = read_file(path, most_bytes)
    if sys.platform != "win32":
        _restrict_permissions(path, path.stat().st_mode, 0o600, "read")
    return data


def _restrict_permissions(path: Path, mode: int, private_mode: int, verb: str) -> None:
    """Set `private_mode` if other users have access, and log a warning that they could `verb` the path."""
    if not mode & 0o077 or path in _warned_paths:
        return
    with suppress(OSError):
        path.chmod(private_mode)
    if path.stat().st_mode & 0o077:  # a file system without owners, such as a Windows drive in WSL, or a read-only one
        _warned_paths.add(path)
        _log.warning("Other users can %s %s, and its file system does not keep them out.", verb, path)
    else:
        _log.warning("Other users could %s %s. Now they cannot.", verb, path)
