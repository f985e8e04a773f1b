"""Files that this program keeps: load, save, lock, and recover from damage.

Each kind of file is declared once as a `KeptFile`, by the module that owns it. Whatever is wrong with a file when it is
loaded, the program goes on: with the second copy if the kind has one, else with the default. The damaged file is kept
as .bad and a warning is logged.
"""

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from launcher.base.files import MAX_FILE_BYTES, read_file, read_private_file, replace_file, write_atomically
from launcher.base.messages import enumerate_texts, message

Value = TypeVar("Value")

PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that parsing raises for damaged content, including too deep nesting."""
_TRANSIENT_ERRORS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE)
)
"""Errors that are not the file's fault: it may be readable later, so it stays in place."""
_TRIES = 3
_log = logging.getLogger(__name__)
_warned_paths: set[Path] = set()
"""Damaged files that could not be set aside and were warned about, so that each warning appears once."""


class FileDamage(NamedTuple):
    """Damage to a kept file. `reason` says what is wrong, `kept_as` is its new path, None if it was not moved."""

    path: Path
    reason: str
    kept_as: Path | None


class KeptFile(NamedTuple, Generic[Value]):
    """A kind of file that this program keeps.

    A warning about damage is the sentence "`label` was damaged: `consequence`", such as "The list of settings was
    damaged: a new one was created". `parse` may raise anything in `PARSE_ERRORS`; a LauncherError, as for a file of a
    newer version, reaches the caller. A `private` file is restricted to its owner. If a file is `recreatable`, only the
    last damaged one is kept. With `quiet` no warning is logged, because the caller reports the damage. `former_name`
    is the file's name in earlier versions: if there is no file with the new name, the former one is copied, and stays
    for those versions.
    """

    label: str
    parse: Callable[[bytes], Value]
    default: Callable[[], Value]
    private: bool = False
    has_second_copy: bool = False
    recreatable: bool = False
    quiet: bool = False
    consequence: str = "a new one was created"
    former_name: str = ""
    most_bytes: int = MAX_FILE_BYTES

    def load(self, path: Path) -> Value:
        """Return the file's content, the default if there is no file. Raises OSError: see `load_with_damage`."""
        return self.load_with_damage(path)[0]

    def load_with_damage(self, path: Path) -> tuple[Value, FileDamage | None]:
        """Return the file's content and the damage, if any.

        Raises OSError only for causes outside the file, such as too many open files; the file then stays in place.
        """
        self._copy_former(path)
        for _ in range(_TRIES):
            before = _file_identity(path)
            try:
                return self.parse(self._read(path)), None
            except (FileNotFoundError, NotADirectoryError):
                return self.default(), None
            except OSError as error:
                if error.errno in _TRANSIENT_ERRORS or (sys.platform == "win32" and isinstance(error, PermissionError)):
                    raise
                reason = error.strerror or str(error)
            except PARSE_ERRORS as error:
                reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if before == _file_identity(path):  # otherwise another process has repaired it meanwhile, so read again
                break
        return self._recover(path, reason)

    def _copy_former(self, path: Path) -> None:
        """Copy the file of an earlier version, if there is one that can be read."""
        if not self.former_name or os.path.lexists(path):
            return
        with suppress(OSError):
            write_atomically(path, self._read(path.with_name(self.former_name)))

    def save(self, path: Path, data: bytes) -> None:
        """Write the file atomically, and its second copy if the kind has one. Raises OSError."""
        write_atomically(path, data)
        if self.has_second_copy:
            with suppress(OSError):  # the file itself is complete, so a failed copy is no error
                write_atomically(_second_copy_path(path), data)

    def _read(self, path: Path) -> bytes:
        return (read_private_file if self.private else read_file)(path, self.most_bytes)

    def _recover(self, path: Path, reason: str) -> tuple[Value, FileDamage]:
        """Set a damaged file aside, and return the content of its second copy, else the default."""
        if self.has_second_copy:
            try:
                data = self._read(_second_copy_path(path))
                value = self.parse(data)
            except (OSError, *PARSE_ERRORS):
                pass
            else:
                bad = set_aside(path, self.label, "its copy takes its place")
                with suppress(OSError):
                    write_atomically(path, data)
                return value, FileDamage(path, reason, bad)
        bad = set_aside(path, self.label, self.consequence, keep_earlier=not self.recreatable, quiet=self.quiet)
        return self.default(), FileDamage(path, reason, bad)


def add_checksum(body: bytes) -> bytes:
    """Return `body` after a line with its SHA-256."""
    import hashlib  # imported here, because it loads OpenSSL, which would delay the window's first paint

    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def remove_checksum(text: bytes) -> bytes:
    """Return the body that follows the line with its SHA-256. Raises ValueError if the SHA-256 does not match."""
    body = text.partition(b"\n")[2]
    if text != add_checksum(body):
        raise ValueError("its checksum does not match")
    return body


@contextmanager
def hold_file_lock(path: Path, limit_s: float) -> Iterator[None]:
    """Hold the lock of a kept file, so that no other process changes it. Its folder must exist.

    Raises OSError; TimeoutError if another process holds the lock for longer than `limit_s` seconds.
    """
    from launcher.base.locks import hold_lock  # imported late: most who read a kept file write none

    with hold_lock(path.with_suffix(".lock"), limit_s):
        yield


def set_aside(
    path: Path,
    label: str,
    consequence: str = "a new one was created",
    *,
    keep_earlier: bool = True,
    quiet: bool = False,
) -> Path | None:
    """Rename a damaged file to .bad and log a warning.

    `label` and `consequence` are as in `KeptFile`. With `keep_earlier`, earlier .bad files stay; with `quiet` no
    warning is logged. Returns the new path, None if the file cannot be renamed.
    """
    bad = path.with_name(f"{path.name}.bad")
    if keep_earlier or bad.is_dir() or path.is_dir():
        bad = free_bad_path(path)
    try:
        replace_file(path, bad)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and bad.exists():  # another reader was quicker
            return bad
        if path not in _warned_paths:
            _warned_paths.add(path)
            _log.warning("%s (%s) is damaged, and cannot be set aside: %s.", label, path, error.strerror or error)
        return None
    if not quiet:
        _log.warning("%s was damaged: %s, and the damaged file is kept as %s.", label, consequence, bad)
    return bad


def free_bad_path(path: Path) -> Path:
    """Return the first unused .bad name for a file, in its folder."""
    number, bad = 1, path.with_name(f"{path.name}.bad")
    while os.path.lexists(bad):
        number += 1
        bad = path.with_name(f"{path.name}.bad{number}")
    return bad


def _second_copy_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def _file_identity(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# Version copies: files as they were before another version of this program changed them. A file has one version copy,
# made by the last update. After a downgrade there is a second one, of the file as the newer version has left it. A
# version copy is in the folder of its file and is named NAME.old-VERSION: the schema version if the file has one, such
# as v2, else the version of the program that wrote it.

_VERSION_COPY = re.compile(r"(?P<name>.+)\.old-(?P<version>v?\d+(?:\.\d+)*)")


def version_copy_path(path: Path, version: str) -> Path:
    """Return the path of the copy of a file as `version` has written it."""
    return path.with_name(f"{path.name}.old-{version}")


def save_version_copy(path: Path, version: str, *, keep_others: bool = False) -> None:
    """Copy a file that `version` has written, if it exists. Deletes its other version copies unless `keep_others`.

    Raises OSError.
    """
    with suppress(FileNotFoundError):
        write_atomically(version_copy_path(path, version), read_private_file(path))
        if not keep_others:
            delete_other_version_copies(version_copy_path(path, version), path)


def delete_other_version_copies(copy: Path, path: Path) -> None:
    """Delete the version copies of the file `path`, except `copy`."""
    for each in find_version_copies([path.parent]):
        if each != copy and original_path(each) == path:
            with suppress(OSError):
                each.unlink()


def find_version_copies(folders: Iterable[Path]) -> list[Path]:
    """Return the version copies directly in `folders`, sorted by path."""
    candidates = (each for folder in folders for each in folder.glob("*.old-*"))
    return sorted(each for each in candidates if _VERSION_COPY.fullmatch(each.name))


def original_path(copy: Path) -> Path:
    """Return the path of the file that a version copy was made of."""
    found = _VERSION_COPY.fullmatch(copy.name)
    return copy.with_name(found["name"]) if found else copy


def find_readable_version_copy(path: Path, *, up_to: int) -> Path | None:
    """Return a version copy of a file whose schema version is at most `up_to`; None if there is none."""
    for each in find_version_copies([path.parent]):
        number = each.name.removeprefix(f"{path.name}.old-v")
        if original_path(each) == path and number.isdecimal() and int(number) <= up_to:
            return each
    return None


def restore_instructions(copy: Path) -> str:
    """Return the instructions for restoring a file from a version copy."""
    file = original_path(copy).name
    moved = enumerate_texts([file, f"{file}-wal", f"{file}-shm"] if file.endswith(".db") else [file])
    return message(
        "Close this program, move {moved} away, and rename {copied} to {file}.",
        moved=moved,
        copied=copy.name,
        file=file,
    )
