"""What a server is doing, and what a supervisor tells. Light to import: faces need it before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from launcher.base.errors import LauncherError


class State(StrEnum):
    """What a server is doing."""

    STOPPED = "stopped"
    PREPARING = "preparing"
    LOADING = "loading"
    WARMING_UP = "warming up"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    FAILED = "failed"


SERVING = (State.READY, State.BUSY)
"""The states in which requests are answered."""


@dataclass(frozen=True, slots=True)
class Status:
    """A server's state; `percent` (0 to 100) only while it loads and says so.

    `error` is why it failed, or, while it is being restarted, why that is.
    """

    state: State = State.STOPPED
    percent: float | None = None
    error: LauncherError | None = None


@dataclass(frozen=True, slots=True)
class LogAdded:
    """A line was added to the engine's log."""

    text: str


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """An engine's process runs. `created_s` is when it was created, as ProcessId has it."""

    pid: int
    created_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a user should know and that changes no state; `code` is stable."""

    code: str
    text: str


ADDRESS_CHANGED = "address_changed"
"""The code of the notice that another program has the usual port."""

Event = Status | LogAdded | EngineStarted | Notice
Listener = Callable[[Event], None]
