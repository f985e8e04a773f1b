"""Folders and single GGUF files that the user added to the library, kept as a text file with one path per line."""

import os
from collections.abc import Callable
from pathlib import Path

from launcher.base.errors import BadOption, ModelMissing
from launcher.base.files import make_folder, write_atomically
from launcher.base.kept_files import hold_file_lock
from launcher.base.messages import message
from launcher.base.paths import config_dir, expand_user, models_dir
from launcher.models.stores import find_store_folders, recognise_store

_HEAD = "# Folders and GGUF files that MTP Launcher lists beside its own, one a line.\n"
_LOCK_S = 5.0
_MOST_BYTES = 2**20


def read_added_places() -> tuple[Path, ...]:
    """Return the added paths in the order of the list, existing or not; empty if the list cannot be read."""
    try:
        with _list_path().open("rb") as file:
            text = os.fsdecode(file.read(_MOST_BYTES))
    except OSError:
        return ()
    lines = (line.strip() for line in text.splitlines())
    return tuple(
        dict.fromkeys(expand_user(line) for line in lines if line and not line.startswith("#") and "\0" not in line)
    )


def add_place(place: Path) -> bool:
    """Add a folder or a GGUF file to the list. Return False if the library already covers it.

    Raises ModelMissing if the path does not exist, BadOption if it is neither a folder nor a .gguf file or if it cannot
    be written as one line, and OSError if the list cannot be written.
    """
    path = expand_user(place).absolute()
    if not path.exists():
        raise ModelMissing(
            message("{path} not found.", path=path), message("Check the path; is the disk connected?"), path=str(path)
        )
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise BadOption(
            message("{name} is not a GGUF file.", name=path.name),
            message("Add a folder, or a file that ends in .gguf."),
            path=str(path),
        )
    if str(path).splitlines() != [str(path).strip()]:  # the list has one path a line
        raise BadOption(
            message("The name contains a line break, or ends in a space."), message("Rename it."), path=str(path)
        )
    if _is_covered(path):
        return False
    _update_list(lambda places: (*places, path))
    return True


def remove_place(place: Path) -> bool:
    """Remove a folder or file from the list; the files stay on disk. Return False if it was not listed.

    Raises OSError if the list cannot be written.
    """
    path = expand_user(place).absolute()
    if path not in read_added_places():
        return False
    _update_list(lambda places: tuple(each for each in places if each != path))
    return True


def find_added_place(path: Path) -> Path | None:
    """Return the added path that is `path` or contains it, or None."""
    return next((each for each in read_added_places() if path.is_relative_to(each)), None)


def _is_covered(path: Path) -> bool:
    if path.is_relative_to(models_dir()) or find_added_place(path) is not None:
        return True
    return any(_contains(each.path, path) for each in find_store_folders())


def _contains(store: Path, path: Path) -> bool:
    """Return whether a store's models include those of a folder: it lies in the store, or belongs to that program."""
    own_store = recognise_store(path)
    return path.is_relative_to(store) or (own_store is not None and own_store.path == store)


def _update_list(change: Callable[[tuple[Path, ...]], tuple[Path, ...]]) -> None:
    make_folder(_list_path().parent)
    with hold_file_lock(_list_path(), _LOCK_S):
        lines = "".join(f"{each}\n" for each in change(read_added_places()))
        write_atomically(_list_path(), os.fsencode(_HEAD + lines))


def _list_path() -> Path:
    return config_dir() / "model-folders.txt"
