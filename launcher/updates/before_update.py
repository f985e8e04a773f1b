"""Copies small user files when a version of this program starts for the first time after another one.

SQLite files are copied later, before they are migrated (base/database.py).
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher import __version__
from launcher.base.files import write_atomically
from launcher.base.kept_files import find_version_copies, save_version_copy
from launcher.base.paths import config_dir, data_dir, state_dir

_log = logging.getLogger(__name__)


def list_copied_files() -> tuple[Path, ...]:
    """Return the files that are copied: app settings, settings by model, tuned settings, and the list of models."""
    return (
        config_dir() / "settings.toml",
        config_dir() / "model-folders.txt",
        state_dir() / "model-settings.json",
        data_dir() / "history" / "tuned-settings.json",
        data_dir() / "library.json",
        data_dir() / "engines" / "engines.json",
    )


def save_version_copies() -> None:
    """Copy the files of `list_copied_files` if another version of this program ran last, and record this version.

    Never raises. After a downgrade the older copies stay, because they hold what this version wrote.
    """
    version_file = state_dir() / "version"
    previous = ""
    with suppress(OSError):
        previous = version_file.read_text("ascii", "replace").strip()
    try:
        if previous == __version__ or not state_dir().is_dir():  # a first start: there are no files yet
            return
        if _is_version(previous):
            is_downgrade = version_numbers(previous) > version_numbers(__version__)
            for path in list_copied_files():
                save_version_copy(path, previous, keep_others=is_downgrade)
        write_atomically(version_file, f"{__version__}\n".encode())
    except OSError as error:
        if previous:  # otherwise there was nothing to copy
            _log.warning("The files of version %s cannot be copied: %s.", previous, error.strerror or error)


def list_version_copies() -> list[Path]:
    """Return all version copies, including those of the history and of conversations."""
    with suppress(OSError):
        return find_version_copies(dict.fromkeys(_folders_of_copies()))
    return []


def _folders_of_copies() -> Iterator[Path]:
    yield from (path.parent for path in list_copied_files())
    yield data_dir() / "conversations"


def _is_version(text: str) -> bool:
    return bool(text) and all(part.isdecimal() for part in text.split("."))


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version of this program as numbers to compare, without trailing zeros: 1.0 equals 1.0.0."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
