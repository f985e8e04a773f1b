"""States of a server and events of a supervisor.

Cheap to import, because the window and the command line need it before a server starts.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from launcher.base.errors import LauncherError
from launcher.base.messages import message


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


class OpenReply(NamedTuple):
    """A reply that the engine owes: when it last sent a part of it, or a report on its prompt, in monotonic seconds.

    `writes` is whether its text has begun, None if unknown. Of one that `reports`, something is due after each batch;
    others may be silent for as long as they take: they come whole, or their prompt is read without reports.
    """

    heard_s: float
    writes: bool | None = None
    reports: bool = True


class FailedReplies(NamedTuple):
    """Clients' requests for replies that failed one after another: since the last reply, or since the engine started.

    `total` is how many. Of these the engine `refused` those that ask for what it cannot do, and `broken` are those
    whose fault ends an engine, or would have to: only a restart helps. `message` is the engine's sentence for the last
    one, `status` its HTTP status, None if it named none. `has_replied` is whether this engine has answered any request
    of a client.
    """

    total: int = 0
    refused: int = 0
    broken: int = 0
    status: int | None = None
    message: str = ""
    has_replied: bool = False

    @property
    def sentence(self) -> str:
        """What happened to them, with the engine's sentence."""
        reason = self.message.rstrip(" .:…")
        if not reason:
            status = self.status
            reason = message("no message") if status is None else message("HTTP status {status}", status=status)
        if self.refused == self.total:
            return message("The engine refused the last {count} requests: {reason}.", count=self.total, reason=reason)
        return message("The last {count} requests all failed: {reason}.", count=self.total, reason=reason)


MOST_FAILED_REPLIES = 3
"""Requests that may fail one after another before that counts as a fault of the server."""


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
