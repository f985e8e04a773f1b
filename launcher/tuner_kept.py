"""The last tune of each model, kept after each trial: what it needs to be continued, and its end."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from launcher.base.errors import LauncherError, TuneMismatch
from launcher.base.files import private_folder, set_aside, write_atomically
from launcher.base.paths import state_dir
from launcher.engine.launch import ServeOptions
from launcher.tuning.goal import Goal
from launcher.tuning.space import Axis, Space
from launcher.tuning.tuner_state import TuneState
from launcher.tuning.workloads import Workload

_VERSION = 1


class TuneUnderWay(LauncherError):
    """Another program of this user is tuning."""

    code = "tune_under_way"


@dataclass(frozen=True, slots=True)
class KeptTune:
    """What is kept. `verdict` is as Verdict.as_json has it, None while the tune can be continued.

    `session` is its place in the history, and `changed_s` when it was kept, in seconds since the epoch.
    """

    model: str
    options: ServeOptions
    workload: Workload
    goal: Goal
    budget_s: float
    space: Space
    state: TuneState
    session: str
    verdict: Mapping[str, Any] | None = None
    changed_s: float = 0.0

    def with_state(self, state: TuneState, verdict: Mapping[str, Any] | None = None) -> Self:
        """Return it with what is known now."""
        return replace(self, state=state, verdict=verdict)


class _File(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    version: int
    model: str
    options: ServeOptions
    workload: Workload
    goal: Goal
    budget_s: float
    space: dict[str, Any]
    state: dict[str, Any]
    session: str
    verdict: dict[str, Any] | None
    changed_s: float


def keep(tune: KeptTune) -> None:
    """Keep a tune in place of the one before of the same model. Raises OSError."""
    file = _File(
        version=_VERSION,
        model=tune.model,
        options=tune.options,
        workload=tune.workload,
        goal=tune.goal,
        budget_s=tune.budget_s,
        space=tune.space.as_json(),
        state=tune.state.as_json(),
        session=tune.session,
        verdict=None if tune.verdict is None else dict(tune.verdict),
        changed_s=time.time(),
    )
    write_atomically(_path(tune.options.model), file.model_dump_json().encode())


def kept_tunes() -> list[KeptTune]:
    """Return the last tune of each model, the one that was worked at last first; what cannot be read is set aside."""
    found = [tune for path in state_dir().glob("tune*.json") if (tune := _read(path)) is not None]
    return sorted(found, key=lambda tune: tune.changed_s, reverse=True)


def kept_tune(model: Path | None = None) -> KeptTune | None:
    """Return the last tune of a model's file, or of all; None when there is none."""
    return next((tune for tune in kept_tunes() if model is None or _same(tune.options.model, model)), None)


def _read(path: Path) -> KeptTune | None:
    try:
        file = _File.model_validate_json(path.read_bytes())
        state = TuneState.from_json(file.state)
        space = _space(file.space)
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, TuneMismatch):
        set_aside(path, "The tune that was begun", "it cannot be continued")
        return None
    return KeptTune(
        file.model,
        file.options,
        file.workload,
        file.goal,
        file.budget_s,
        space,
        state,
        file.session,
        file.verdict,
        file.changed_s,
    )


def forget_tune(model: Path) -> None:
    """Let the last tune of a model's file be none."""
    for path in state_dir().glob("tune*.json"):
        found = _read(path)
        if found is not None and _same(found.options.model, model):
            path.unlink(missing_ok=True)


def check_no_tune() -> None:
    """Raise TuneUnderWay when a program of this user tunes: what is measured beside it would spoil both."""
    with only_tune():
        pass


@contextmanager
def only_tune() -> Iterator[None]:
    """See that no other program of this user tunes meanwhile. Raises TuneUnderWay."""
    lock = FileLock(private_folder(state_dir()) / "tune.lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise TuneUnderWay(
            "Another program of yours is tuning on this computer.", "Wait until it has ended, or end it."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _space(data: Mapping[str, Any]) -> Space:
    axes = [Axis(name, tuple(values), memory, drafting) for name, values, memory, drafting in data["axes"]]
    return Space(data["baseline"], tuple(data["drafts"]), tuple(axes))


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _path(model: Path) -> Path:
    name = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]
    return state_dir() / f"tune-{name}.json"
