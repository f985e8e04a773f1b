"""What a user would miss, copied when another version of this program starts for the first time.

The files that SQLite keeps are copied before they are changed (base/database.py); these are small, and copied at once.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher import __version__
from launcher.base.copies import copies, keep
from launcher.base.files import write_atomically
from launcher.base.paths import config_dir, data_dir, state_dir

_log = logging.getLogger(__name__)


def files() -> tuple[Path, ...]:
    """Return the files that are copied: settings, those of each model, what tunes found best, where models are."""
    return (
        config_dir() / "settings.toml",
        config_dir() / "model-folders.txt",
        state_dir() / "settings.json",
        data_dir() / "history" / "presets.json",
        data_dir() / "library.json",
        data_dir() / "engines" / "engines.json",
    )


def keep_copies() -> None:
    """Copy these files if another version of this program wrote them, and note that this one does now. Never raises.

    After a newer version, the copies from before that stay: they are what this one wrote.
    """
    noted = state_dir() / "version"
    before = ""
    with suppress(OSError):
        before = noted.read_text("ascii", "replace").strip()
    try:
        if before == __version__ or not state_dir().is_dir():  # there is nothing of ours yet
            return
        if _is_version(before):
            back = _numbers(before) > _numbers(__version__)
            for path in files():
                keep(path, before, beside=back)
        write_atomically(noted, f"{__version__}\n".encode())
    except OSError as error:
        if before:  # else there was nothing to copy
            _log.warning("What version %s wrote cannot be copied: %s.", before, error.strerror or error)


def kept_copies() -> list[Path]:
    """Return all copies that are here, those of the history and of conversations, too."""
    with suppress(OSError):
        return copies(dict.fromkeys(_folders()))
    return []


def _folders() -> Iterator[Path]:
    yield from (path.parent for path in files())
    yield data_dir() / "conversations"


def _is_version(text: str) -> bool:
    return bool(text) and all(part.isdecimal() for part in text.split("."))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
