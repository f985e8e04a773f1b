"""The model that was served last, as its user named it, and when each file was."""

import json
import logging
import time
from contextlib import suppress
from pathlib import Path

from launcher.base.errors import ModelMissing
from launcher.base.files import write_atomically
from launcher.base.paths import expanded, state_dir

_MOST_BYTES = 16_384
_MOST_USED = 500
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


def keep_used(model: Path) -> None:
    """Keep that a file is served now. Where it cannot be written, a warning says so."""
    key = str(model.absolute())
    used = last_used()
    used.pop(key, None)
    kept = dict(list(used.items())[1 - _MOST_USED :]) | {key: round(time.time(), 3)}
    try:
        write_atomically(_used_file(), json.dumps(kept, indent=1).encode())
    except OSError as error:
        _log.warning("When models were used cannot be kept (%s): %s.", _used_file(), error.strerror or error)


def last_used() -> dict[str, float]:
    """Return when files were served last, by their path, in seconds since the epoch; {} where nothing was kept."""
    try:
        kept = json.loads(_used_file().read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict):
        return {}
    used: dict[str, float] = {}
    for path, time_s in kept.items():
        if isinstance(time_s, int | float):
            with suppress(OverflowError):
                used[path] = float(time_s)
    return used


def _file() -> Path:
    return state_dir() / "last-model"


def _used_file() -> Path:
    return state_dir() / "last-used.json"
