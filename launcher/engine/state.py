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
    RESTARTING = "restarting"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A server's state; `percent` (0 to 100) only while it loads and says so, `error` only when it failed."""

    state: State = State.STOPPED
    percent: float | None = None
    error: LauncherError | None = None


@dataclass(frozen=True, slots=True)
class LogAdded:
    """A line was added to the engine's log."""

    text: str


Event = Status | LogAdded
Listener = Callable[[Event], None]
