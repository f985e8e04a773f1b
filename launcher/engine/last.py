"""The model that was served last, as its user named it."""

import logging
from pathlib import Path

from launcher.base.errors import ModelMissing
from launcher.base.files import write_atomically
from launcher.base.paths import expanded, state_dir

_MOST_BYTES = 16_384
_log = logging.getLogger(__name__)


def keep_last(model: str) -> None:
    """Keep the name of a model that is served, a path made absolute. Where it cannot be written, a warning says so."""
    path = expanded(model)
    name = str(path.absolute()) if path.exists() else model
    try:
        if last_model() != name:
            write_atomically(_file(), name.encode("utf-8", "surrogateescape"))
    except OSError as error:
        _log.warning("The last model cannot be kept (%s): %s.", _file(), error.strerror or error)


def last_model() -> str | None:
    """Return the name of the model that was served last, None when none was or it cannot be read."""
    try:
        with _file().open("rb") as file:
            name = file.read(_MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    return name if name and "\0" not in name else None


def last() -> str:
    """Return the name of the model that was served last. Raises ModelMissing when none was."""
    name = last_model()
    if name is None:
        raise ModelMissing("No model was served before.", "Name one: `mtp-launcher serve --model FILE`.")
    return name


def _file() -> Path:
    return state_dir() / "last-model"
