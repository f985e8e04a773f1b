"""Folders and single files that the user has added to the library: one a line in a text file of theirs."""

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from launcher.base.errors import BadOption, ModelMissing
from launcher.base.files import make_folder, write_atomically
from launcher.base.paths import config_dir, expanded, models_dir
from launcher.fetch.hub_cache import is_cached

_HEAD = "# Folders and GGUF files that MTP Launcher lists beside its own, one a line.\n"
_LOCK_S = 5.0
_MOST_BYTES = 2**20


def added_places() -> tuple[Path, ...]:
    """Return what was added, in that order, whether or not it is there now; nothing where the list cannot be read."""
    try:
        with _file().open("rb") as file:
            text = os.fsdecode(file.read(_MOST_BYTES))
    except OSError:
        return ()
    lines = (line.strip() for line in text.splitlines())
    return tuple(
        dict.fromkeys(expanded(line) for line in lines if line and not line.startswith("#") and "\0" not in line)
    )


def add_place(place: Path) -> bool:
    """Add a folder or a GGUF file; return False when it was looked at already.

    Raises ModelMissing when it is not there, BadOption when it is neither, or its path cannot be a line, and OSError.
    """
    path = expanded(place).absolute()
    if not path.exists():
        raise ModelMissing(f"There is no {path}.", "Check the path; is the disk connected?", path=str(path))
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise BadOption(f"{path.name} is no GGUF file.", "Add a folder, or a file that ends in .gguf.", path=str(path))
    if len(str(path).splitlines()) != 1 or str(path) != str(path).strip() or str(path).startswith("#"):
        raise BadOption("The name of this folder cannot be kept as a line.", "Rename it.", path=str(path))
    if _is_looked_at(path):
        return False
    _change(lambda places: (*places, path))
    return True


def drop_place(place: Path) -> bool:
    """Take a folder or file out of the list; its files stay. Return False when it was not in it. Raises OSError."""
    path = expanded(place).absolute()
    if path not in added_places():
        return False
    _change(lambda places: tuple(each for each in places if each != path))
    return True


def place_of(path: Path) -> Path | None:
    """Return what was added that a file is in, or is; None when none is."""
    return next((each for each in added_places() if path.is_relative_to(each)), None)


def _is_looked_at(path: Path) -> bool:
    return path.is_relative_to(models_dir()) or is_cached(path) or place_of(path) is not None


def _change(change: Callable[[tuple[Path, ...]], tuple[Path, ...]]) -> None:
    make_folder(_file().parent)
    with FileLock(_file().with_suffix(".lock"), timeout=_LOCK_S):
        lines = "".join(f"{each}\n" for each in change(added_places()))
        write_atomically(_file(), os.fsencode(_HEAD + lines))


def _file() -> Path:
    return config_dir() / "model-folders.txt"
