"""Files written whole or not at all."""

import glob
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from launcher.base.errors import FolderNotOurs

Parsed = TypeVar("Parsed")

_DRAFT = ".draft"
_ABANDONED_S = 3600.0
"""How old a draft is that nobody writes any more: the program was killed over it."""
_HELD_S = 1.0
"""How long a file of ours may be held by who reads or replaces it (Windows)."""
_log = logging.getLogger(__name__)
_told: set[Path] = set()
"""What could not be mended and was said: once is enough."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` beside `path`, flush it to disk and rename it over `path`; readers see the old or the new.

    Raises OSError, and then leaves `path` as it was and nothing beside it. Being killed leaves the draft, which a later
    write deletes.
    """
    make_folder(path.parent)
    with suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*{_DRAFT}"):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                left.unlink()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_DRAFT)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(mode)
        replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace(draft: Path, path: Path) -> None:
    """Rename `draft` to `path`, over what is there. Raises OSError."""
    _unless_held(lambda: draft.replace(path))


def _unless_held(work: Callable[[], Parsed]) -> Parsed:
    """Do what Windows refuses for a moment: a file that is open there cannot be replaced, nor opened meanwhile."""
    deadline_s = time.monotonic() + _HELD_S
    while sys.platform == "win32":
        try:
            return work()
        except PermissionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)
    return work()


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read, also where it is new, and return its descriptor. Raises OSError."""
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)
    return descriptor


def write_twice(path: Path, data: bytes) -> None:
    """Write a file as `write_atomically` does, and then a copy beside it, from which `read_or_copy` restores it.

    Raises OSError when the file cannot be written.
    """
    write_atomically(path, data)
    with suppress(OSError):  # the file itself is whole
        write_atomically(_copy_of(path), data)


def read_or_copy(path: Path, parse: Callable[[bytes], Parsed], what: str) -> Parsed | None:
    """Return what `parse` makes of a file, or of its copy where the file is damaged; None when neither can be used.

    A damaged file, at which `parse` raises ValueError, is set aside: see `set_aside`, also for `what`; its copy takes
    its place. Raises OSError when there is no file, or it cannot be read.
    """
    data = read_private(path)
    try:
        return parse(data)
    except ValueError:
        pass
    try:
        copied = read_private(_copy_of(path))
        found = parse(copied)
    except (OSError, ValueError):
        set_aside(path, what)
        return None
    set_aside(path, what, "its copy takes its place")
    with suppress(OSError):
        write_atomically(path, copied)
    return found


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def set_aside(path: Path, what: str, then: str = "it is begun anew") -> Path | None:
    """Keep a file that cannot be understood under another name, .bad, and say so in a warning.

    `what` begins the sentence, such as "The list of settings", and `then` says what comes in its place. Returns the new
    path, None when it cannot be renamed.
    """
    number, bad = 1, path.with_name(f"{path.name}.bad")
    while bad.exists():
        number += 1
        bad = path.with_name(f"{path.name}.bad{number}")
    try:
        replace(path, bad)
    except OSError as error:
        _log.warning("%s (%s) is damaged, and cannot be set aside: %s.", what, path, error.strerror or error)
        return None
    _log.warning("%s was damaged: %s, and the damaged file is kept as %s.", what, then, bad)
    return bad


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only, whatever the umask is. Raises OSError.

    `Path.mkdir(mode, parents=True)` gives that mode to the last of them alone.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may enter, or make one that is there so, with a warning; return it.

    Raises FolderNotOurs when it belongs to another user, who could put files of theirs into it, and OSError.
    """
    make_folder(path)
    if sys.platform == "win32":  # the user's profile is the user's own
        return path
    found = path.stat()
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise FolderNotOurs(
            f"The folder {path} belongs to another user, who could read the keys in it, or exchange them.",
            "Name a folder of your own by MTP_LAUNCHER_HOME.",
            folder=str(path),
        )
    _narrow(path, found.st_mode, 0o700, "enter")
    return path


def read_private(path: Path) -> bytes:
    """Read a file that is its owner's alone; one that others can read is mended, with a warning. Raises OSError."""
    data = _unless_held(path.read_bytes)  # first: a folder in its place keeps its rights
    if sys.platform != "win32":
        _narrow(path, path.stat().st_mode, 0o600, "read")
    return data


def _narrow(path: Path, mode: int, wanted: int, verb: str) -> None:
    if not mode & 0o077 or path in _told:
        return
    with suppress(OSError):
        path.chmod(wanted)
    if path.stat().st_mode & 0o077:  # a file system without owners, as a Windows drive in WSL, or one to read only
        _told.add(path)
        _log.warning("Other users can %s %s, and its file system does not keep them out.", verb, path)
    else:
        _log.warning("Other users could %s %s. Now they cannot.", verb, path)
