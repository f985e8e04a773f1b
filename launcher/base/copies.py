"""Copies of files of ours as they were before another version of this program changed them: one of each file, and after
going back to an older version two, for then the one from before the update stays.

A copy lies beside its file, as NAME.old-VERSION: the version of the file where it counts its own, such as v2, else that
of the program that wrote it last.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launcher.base.files import read_private, write_atomically

_COPY = re.compile(r"(?P<name>.+)\.old-(?P<version>v?\d+(?:\.\d+)*)")


def copy_of(path: Path, version: str) -> Path:
    """Return where the copy of a file lies that a version has written."""
    return path.with_name(f"{path.name}.old-{version}")


def keep(path: Path, version: str, *, beside: bool = False) -> None:
    """Copy a file that a version has written, if it is there, in place of other copies or `beside` them.

    Raises OSError.
    """
    with suppress(FileNotFoundError):
        write_atomically(copy_of(path, version), read_private(path))
        if not beside:
            keep_only(copy_of(path, version), path)


def keep_only(copy: Path, path: Path) -> None:
    """Delete all other copies of a file."""
    for each in copies([path.parent]):
        if each != copy and original(each) == path:
            with suppress(OSError):
                each.unlink()


def copies(folders: Iterable[Path]) -> list[Path]:
    """Return the copies in some folders, without those below, by their names."""
    found = (each for folder in folders for each in folder.glob("*.old-*"))
    return sorted(each for each in found if _COPY.fullmatch(each.name))


def original(copy: Path) -> Path:
    """Return the file that a copy is of."""
    found = _COPY.fullmatch(copy.name)
    return copy.with_name(found["name"]) if found else copy


def latest(path: Path, *, up_to: int) -> Path | None:
    """Return the copy of a file that counts its versions which a program can read that knows so many of them."""
    for each in copies([path.parent]):
        number = each.name.removeprefix(f"{path.name}.old-v")
        if original(each) == path and number.isdecimal() and int(number) <= up_to:
            return each
    return None


def how_to_restore(copy: Path) -> str:
    """Return what a user does to have a file as it was."""
    copied, file = copy.name, original(copy).name
    moved = f"{file}, {file}-wal and {file}-shm" if file.endswith(".db") else file
    return f"Close this program, move {moved} away, and rename {copied} to {file}."
