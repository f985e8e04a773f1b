"""Messages of the server process for its owner: what changes of the session's state, log lines, and events."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from launcher.base.codec import from_json, to_json
from launcher.base.control import error_from_json, error_to_json
from launcher.base.errors import LauncherError
from launcher.base.messages import add_message_data
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, check_model
from launcher.engine.server.logs import LogLine
from launcher.engine.server.state import (
    EngineStarted,
    FailedReplies,
    ModelStatus,
    Notice,
    PromptRead,
    ReplyProgress,
    ServerEvent,
    ServerState,
    ServerStatus,
    StreamsContinued,
)

if TYPE_CHECKING:
    from launcher.app.serving.session import ServerSession
    from launcher.engine.server.supervisor import Supervisor
    from launcher.gateway.request_log import RequestRecord

_PERIOD_S = 0.02
"""The fewest seconds between two messages to the owner."""
_PROGRESS_S = 0.2
"""Seconds between two reports of how far the replies are."""
_SEND_S = 1.0
"""Seconds that the end of the process waits for its owner to get the last messages."""
_MOST_EVENTS = 1_000
"""Events that wait for an owner who does not read."""
_CHARACTERS_AT_ONCE = 60_000
r"""Characters of log lines in one message: less than the 1 MiB that base/control.py allows, even written as \uXXXX."""
_Event = Notice | EngineStarted | StreamsContinued | PromptRead
_EVENTS: Mapping[str, type[_Event]] = {
    each.__name__: each for each in (Notice, EngineStarted, StreamsContinued, PromptRead)
}


@dataclass(frozen=True, slots=True)
class SessionState:
    """What an owner knows of the session in the server process, and of its supervisor.

    `server` counts the supervisors; it is None while there is none. `status` is as `event_to_json` returns it. `launch`
    crosses without the header, which is in the model's file.
    """

    change_count: int = 0
    shared: bool = False
    encrypted: bool = False
    model_name: str = ""
    models: tuple[ModelStatus, ...] = ()
    server: int | None = None
    status: Mapping[str, Any] | None = None
    options: ServeOptions | None = None
    endpoint: Endpoint | None = None
    engine_endpoint: Endpoint | None = None
    engine_pid: int | None = None
    held_requests: int = 0
    reply_progress: ReplyProgress | None = None
    failed_replies: FailedReplies | None = None
    kept_problem: str = ""
    log: Path | None = None
    launch: Launch | None = None

    def changes_since(self, before: "SessionState") -> dict[str, Any]:
        """Return the fields that have changed, as JSON data; of another server all but the defaults."""
        if self.server != before.server:
            before = SessionState(server=before.server)
        pairs = {each.name: (getattr(before, each.name), getattr(self, each.name)) for each in fields(self)}
        return {name: to_json(new) for name, (old, new) in pairs.items() if new is not old and new != old}

    def with_changes(self, changes: Mapping[str, Any]) -> "SessionState":
        """Return the state after the changes that `changes_since` returned. Blocks: it reads the model's header."""
        before = SessionState() if "server" in changes else self
        values = {name: from_json(kind, changes[name]) for name, kind in _FIELDS.items() if name in changes}
        if changes.get("launch"):
            values["launch"] = None
            with suppress(LauncherError):  # its model file is gone, of which the supervisor gives notice
                options = from_json(ServeOptions, changes["launch"]["options"])
                header = check_model(replace(options, draft=0))  # a draft's file may be deleted once it is loaded
                values["launch"] = from_json(Launch, {**changes["launch"], "header": header})
        return replace(before, **values)


_FIELDS = {**get_type_hints(SessionState), "launch": object}


class OwnerStream:
    """Messages for the owner: changed parts of the session's state, new log lines, events, and the prompts of requests
    that ended."""

    def __init__(self, session: "ServerSession") -> None:
        self._session = session
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._prompts: deque[dict[str, Any] | None] = deque(maxlen=_MOST_EVENTS)
        self._wake = asyncio.Event()
        self._wake.set()
        self._all_sent = asyncio.Event()
        self._ended = False
        self._number = 0
        self._sent = SessionState()
        self._supervisor: Supervisor | None = None
        self._server_number = 0
        self._seen_lines = 0
        self._progress: ReplyProgress | None = None

    def add_event(self, event: ServerEvent) -> None:
        """Pass an event on. Log lines are read from the log, so that a flood of them does not wait here."""
        data = event_to_json(event)
        if data is not None:
            self._events.append(data)
        self._wake.set()

    def add_request(self, record: "RequestRecord") -> None:
        """Pass on how much of an ended request's prompt was read again, for the owner's health checks."""
        if record.has_ended and record.reused_tokens is not None:
            self._prompts.append(to_json(record.reread))
        self._wake.set()

    def mark(self) -> int:
        """Return a number that the owner gets once all that has happened until now has been sent."""
        self._number += 1
        self._wake.set()
        return self._number

    async def wait_until_sent(self) -> None:
        """Wait until the owner was sent all that has happened until now, unless it does not read."""
        self._all_sent.clear()
        self.mark()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEND_S):
                await self._all_sent.wait()

    def end(self) -> None:
        """End the stream, because another owner took its place."""
        self._ended = True
        self._wake.set()

    async def send_messages(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield messages until the stream is ended."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_S if self._is_replying else None):
                    await self._wake.wait()
            self._wake.clear()
            if self._ended:
                yield {"taken": True}
                return
            number, events, prompts = self._number, list(self._events), list(self._prompts)
            self._events.clear()
            self._prompts.clear()
            for lines in self._take_lines():  # also the last ones of a server that is no more
                yield {"lines": lines}
            state = self._read_state()
            changes = add_message_data(state.changes_since(self._sent))
            self._sent = state
            for lines in self._take_lines():
                yield {"state": changes, "lines": lines}
                changes = {}
            yield {"state": changes, "events": add_message_data(events), "prompts": prompts, "number": number}
            if number == self._number and not self._wake.is_set():
                self._all_sent.set()
            await asyncio.sleep(_PERIOD_S)

    @property
    def _is_replying(self) -> bool:
        progress = self._supervisor.reply_progress if self._supervisor is not None else None
        return progress is not None and progress.running > 0

    def _read_state(self) -> SessionState:
        session = self._session
        supervisor = None if session.is_idle else session.supervisor
        if supervisor is not self._supervisor:
            self._supervisor, self._seen_lines = supervisor, 0
            self._server_number += 1
        state = SessionState(
            session.change_count, session.shared, session.encrypted, session.model_name, session.model_statuses
        )
        if supervisor is None:
            return state
        progress = supervisor.reply_progress
        if progress is None or self._progress is None or progress.counts != self._progress.counts:
            self._progress = progress
        return replace(
            state,
            server=self._server_number,
            status=event_to_json(supervisor.status),
            options=supervisor.options,
            endpoint=supervisor.endpoint,
            engine_endpoint=supervisor.engine_endpoint,
            engine_pid=supervisor.engine_pid,
            held_requests=supervisor.held_requests,
            reply_progress=self._progress,
            failed_replies=supervisor.failed_replies,
            kept_problem=supervisor.kept_problem,
            log=supervisor.log.path,
            launch=supervisor.launch,
        )

    def _take_lines(self) -> Iterator[list[LogLine]]:
        if self._supervisor is None:
            return
        log = self._supervisor.log
        waiting = log.lines_since(self._seen_lines)
        self._seen_lines = log.line_count
        batch: list[LogLine] = []
        characters = 0
        for line in waiting:
            batch.append(line)
            characters += len(line.text)
            if characters >= _CHARACTERS_AT_ONCE:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


def event_to_json(event: ServerEvent) -> dict[str, Any] | None:
    """Return an event as a JSON object; None for a log line and for models, which cross by themselves."""
    if isinstance(event, ServerStatus):
        error = None if event.error is None else error_to_json(event.error)
        return {"event": "ServerStatus", "state": event.state.value, "percent": event.percent, "why": error}
    name = type(event).__name__
    return {"event": name, **to_json(event)} if name in _EVENTS else None


def event_from_json(data: Mapping[str, Any]) -> ServerEvent:
    """Return the event that `event_to_json` described."""
    if (kind := _EVENTS.get(data["event"])) is not None:
        return from_json(kind, data)
    why = data["why"]
    return ServerStatus(ServerState(data["state"]), data["percent"], None if why is None else error_from_json(why))
