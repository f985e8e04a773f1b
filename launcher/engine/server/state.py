"""States of a server and events of a supervisor.

Cheap to import, because the window and the command line need it before a server starts.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from launcher.base.errors import LauncherError


class ServerState(StrEnum):
    """State of a supervised server."""

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


SERVING = (ServerState.READY, ServerState.BUSY)
"""States in which the server answers requests."""


class ServerStatus(NamedTuple):
    """A server's state.

    `percent` (0 to 100) is the loading progress, None outside of loading or if the engine does not report it. `error`
    is the reason of a failure or a restart.
    """

    state: ServerState = ServerState.STOPPED
    percent: float | None = None
    error: LauncherError | None = None


class LogAdded(NamedTuple):
    """Event: a line was added to the engine's log."""

    text: str


class EngineStarted(NamedTuple):
    """Event: an engine's process was started. `created_s` is its creation time as in ProcessId."""

    pid: int
    created_s: float


class Notice(NamedTuple):
    """Event: a message for the user that does not change the state. `code` is stable across versions."""

    code: str
    text: str


class StreamsContinued(NamedTuple):
    """Event: the clients' streams go on after a handover; the longest pause in one was `gap_s` seconds."""

    gap_s: float


class PromptRead(NamedTuple):
    """Event: a client's request has ended. The engine read `read_tokens` of its prompt, and reused `reused_tokens`.

    `read_again` is how many of `read_tokens` had been read before. The first token came after `first_token_s` (None:
    unknown), `since_s` ago.
    """

    read_tokens: int
    reused_tokens: int
    read_again: int
    first_token_s: float | None
    since_s: float


class ReplyProgress(NamedTuple):
    """Clients' requests for replies, as the gateway forwards them: how many run, and how many have ended.

    `parts` is the number of parts that their streams have delivered in all; a part is a token, or several that make a
    character. `time_s` is the time of these figures by time.monotonic(), which is the same in all processes of a
    computer.
    """

    parts: int = 0
    running: int = 0
    ended: int = 0
    time_s: float = 0.0

    @property
    def counts(self) -> tuple[int, int, int]:
        """All but the time."""
        return self.parts, self.running, self.ended


class ModelStatus(NamedTuple):
    """A model at a server's address.

    `is_unloaded`: it is the main one, and the next request for it loads it again. `percent` is the progress while it
    loads, None if that is unknown. `path` is the model's first file.
    """

    name: str
    state: ServerState
    is_main: bool = False
    is_unloaded: bool = False
    percent: float | None = None
    path: str = ""


class ModelsChanged(NamedTuple):
    """Event: the models at the server's address are now these, the main one first. Empty after the server has ended."""

    models: tuple[ModelStatus, ...] = ()

    @property
    def is_main_unloaded(self) -> bool:
        """Whether the main model was unloaded, while the address stays open for others."""
        return any(each.is_unloaded for each in self.models)


ADDRESS_CHANGED = "address_changed"
"""Notice code: another program uses the preferred port, so the server got a different one."""
NO_HEAD, KEPT_REPLACED = "no_mtp_head", "kept_settings_replaced"
"""Notice codes of a start. NO_HEAD: MTP is off because the model has no MTP head. KEPT_REPLACED: the settings that the
user has kept for the model do not fit now and were replaced."""
MAIN_UNLOADED = "main_model_unloaded"
"""Notice code: the model that a person started was unloaded to make room for one that a request loads."""
ENGINE_SLOWER = "engine_slower"
"""Notice code: an updated engine was slower than the one before it, which is used again."""

ServerEvent = ServerStatus | LogAdded | EngineStarted | Notice | StreamsContinued | PromptRead | ModelsChanged
Listener = Callable[[ServerEvent], None]
