"""Saves the last tune of each model after each trial, with everything that is needed to continue it."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from launcher.base.codec import from_json, to_json
from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.locks import hold_lock
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.base.paths import state_dir
from launcher.engine.serve_options import ServeOptions
from launcher.tuning.goal import Goal
from launcher.tuning.space import Space
from launcher.tuning.tune_state import TuneState
from launcher.tuning.workloads import Workload

_VERSION = 1


class TuneUnderWay(LauncherError):
    """Another program of this user is tuning."""

    code = "tune_under_way"


@dataclass(frozen=True, slots=True)
class SavedTune:
    """A saved tune. `verdict` is a Verdict as JSON, None while the tune can be continued.

    `record_id` is its id in the history, and `changed_s` the time of saving in seconds since the epoch.
    """

    model: str
    options: ServeOptions
    workload: Workload
    goal: Goal
    budget_s: float
    space: Space
    state: TuneState
    record_id: str = field(metadata={"key": "session"})
    verdict: Mapping[str, Any] | None = None
    changed_s: float = 0.0
    version: int = _VERSION

    def with_state(self, state: TuneState, verdict: Mapping[str, Any] | None = None) -> Self:
        """Return the tune with a new state and verdict."""
        return replace(self, state=state, verdict=verdict)


def save_tune(tune: SavedTune) -> None:
    """Save a tune, replacing the previous one of the same model. Raises OSError."""
    kept = add_message_data(to_json(replace(tune, changed_s=time.time())))
    write_atomically(_tune_path(tune.options.model), json.dumps(kept).encode())


def load_tunes() -> list[SavedTune]:
    """Return the last tune of each model, the latest first. Unreadable files are set aside."""
    tunes = [tune for path in state_dir().glob("tune*.json") if (tune := _read_tune(path)) is not None]
    return sorted(tunes, key=lambda tune: tune.changed_s, reverse=True)


def load_tune(model: Path | None = None) -> SavedTune | None:
    """Return the last tune of a model's file, or of any model; None if there is none."""
    for tune in load_tunes():
        if model is None or _is_same_file(tune.options.model, model):
            return tune
    return None


def _read_tune(path: Path) -> SavedTune | None:
    try:
        return _KEPT_FILE.load(path)
    except OSError:
        return None


def _parse_tune(data: bytes) -> SavedTune:
    return from_json(SavedTune, restore_messages(json.loads(data)))


_KEPT_FILE: KeptFile[SavedTune | None] = KeptFile(
    "The tune that was begun", _parse_tune, lambda: None, consequence="it cannot be continued"
)


def delete_tune(model: Path) -> None:
    """Delete the last tune of a model's file."""
    for path in state_dir().glob("tune*.json"):
        tune = _read_tune(path)
        if tune is not None and _is_same_file(tune.options.model, model):
            path.unlink(missing_ok=True)


def check_no_tune() -> None:
    """Raise TuneUnderWay while a program of this user tunes, because parallel measurements would disturb each other."""
    with hold_tune_lock():
        pass


@contextmanager
def hold_tune_lock() -> Iterator[None]:
    """Hold the lock against other tunes of this user within the block. Raises TuneUnderWay."""
    busy = TuneUnderWay(
        message("Another tune is already running on this computer."), message("Wait until it finishes, or stop it.")
    )
    with hold_lock(make_private_folder(state_dir()) / "tune.lock", busy=busy):
        yield


def _is_same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _tune_path(model: Path) -> Path:
    name = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]
    return state_dir() / f"tune-{name}.json"
