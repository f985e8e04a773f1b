"""A session in the server process, as the window drives it: see session_host.py for the other end."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import psutil

from launcher import __version__
from launcher.app.serving import verbs
from launcher.app.serving.owner_stream import SessionState, event_from_json
from launcher.app.serving.server_process import ProcessEntry, find_process, open_process
from launcher.app.serving.serving_session import OnHealth, OnSnapshot, ServingSession
from launcher.app.serving.verbs import send_verb
from launcher.base.action import Action
from launcher.base.codec import from_json
from launcher.base.control import ControlLost
from launcher.base.errors import EngineFailed, LauncherError, ServerNotFound, Superseded
from launcher.base.identity import ProcessId
from launcher.base.messages import command_name, message, restore_messages
from launcher.engine.diagnosis.log_reading import STARTED
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.chat_server import ChatServer
from launcher.engine.server.client import EngineClient
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.logs import LogBook
from launcher.engine.server.reread import Reread
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import (
    SERVING,
    FailedReplies,
    Listener,
    LogAdded,
    ModelsChanged,
    ReplyProgress,
    ServerEvent,
    ServerState,
    ServerStatus,
)
from launcher.gateway.exchange import HandoverOutlook

_END_LIMIT_S = 15.0
"""Seconds that the process has for its end."""
_ANSWER_LIMIT_S = 30.0
"""Seconds within which a process must answer a new owner; else it is killed, and another one started."""
_REAP_LIMIT_S = 5.0
_POLL_S = 0.05
_REPORT_S = 5.0
"""Seconds between two reports of open replies: as often as the watchdog checks them."""
_MOST_TRIES = 100
_log = logging.getLogger(__name__)


def _lost_error() -> EngineFailed:
    return EngineFailed(
        message("The server process ended unexpectedly, and its engine with it."),
        message("Start the model again[ with {command}].", command=command_name("serve")),
    )


def _taken_error() -> EngineFailed:
    return EngineFailed(
        message("Another window has taken over the server."), message("Use that window, or stop the server first.")
    )


class RemoteServer(ChatServer):
    """Local copy of the server process's supervisor. Requests go to the gateway, measured ones to the engine itself.

    The server is busy while it processes requests, as far as this process knows.
    """

    def __init__(self, log: LogBook, send_note: Callable[[object], None]) -> None:
        """`send_note(verb)` sends facts that only this process knows to the server process."""
        super().__init__(Endpoint(0, ""), time.monotonic, has_gateway=True)
        self.log = log
        self.options: ServeOptions | None = None
        self.engine_pid: int | None = None
        self.held_requests = 0
        self.reply_progress: ReplyProgress | None = None
        self.failed_replies: FailedReplies | None = None
        self.kept_problem = ""
        self._engine_endpoint: Endpoint | None = None
        self._send_note = send_note
        self._reporting: asyncio.Task[None] | None = None
        self._reported = ServerStatus()
        self._processing = 0
        self.on_status: Callable[[ServerStatus], None] = lambda _status: None

    @property
    def client(self) -> EngineClient:
        """The engine's HTTP client. Raises ServerNotFound unless the server is ready or busy."""
        if self._client is None and self._engine_endpoint is not None and self._status.state in SERVING:
            self._client = EngineClient(self._engine_endpoint.url, self._engine_endpoint.api_key)
        return super().client

    def note_requests(self, processing: int) -> None:
        """See ChatServer. The server process gets the number, too, because `status` reads it there."""
        super().note_requests(processing)
        if processing != self._processing:
            self._processing = processing
            self._send_note(verbs.NoteRequests(processing))

    async def apply_state(self, state: SessionState) -> None:
        """Apply the state of the supervisor, except for its status, whose changes are events."""
        self.options, self.launch, self.engine_pid = state.options, state.launch, state.engine_pid
        self.held_requests, self.failed_replies = state.held_requests, state.failed_replies
        self.reply_progress, self.kept_problem = state.reply_progress, state.kept_problem
        if state.endpoint is not None and state.endpoint != self.endpoint:
            self.change_keys(state.endpoint)
        if state.engine_endpoint != self._engine_endpoint:
            self._engine_endpoint = state.engine_endpoint
            await self._close_client()

    def apply_status(self, status: ServerStatus) -> None:
        """Apply the supervisor's status."""
        if status.error is not None and str(status.error) == str(self._reported.error):
            status = ServerStatus(status.state, status.percent, self._reported.error)
        if status.state in SERVING and self._reported.state not in SERVING:
            self._set_status(ServerStatus(ServerState.READY))  # like a supervisor, it reports READY before BUSY
        self._reported = status
        if status.state in (ServerState.STOPPING, ServerState.STOPPED, ServerState.FAILED):
            self._replies.end_all()
        if status.state not in SERVING:
            self._other_requests = 0
        self._update_busy_state()

    async def close(self) -> None:
        """Close all connections."""
        self._replies.end_all()
        await self._close_client()
        await self._close_chat_client()

    def _update_busy_state(self) -> None:
        """See ChatServer. The process reports the state; only whether it is busy is also known here."""
        if self._reported.state in SERVING:
            super()._update_busy_state()
        else:
            self._set_status(self._reported)
        if self._replies and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.create_task(self._report_replies())

    async def _report_replies(self) -> None:
        """Report the time of our replies' last token, so that the process's watchdog can recognise a hung engine."""
        while self._replies:
            self._send_note(verbs.NoteReplies(self._replies.quiet_since))
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_S):
                    await self._replies.none_open.wait()
        self._send_note(verbs.NoteReplies(None))

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _announce_status(self, status: ServerStatus) -> None:
        self.on_status(status)


class _Link:
    """The connection to a server process. `ended` gets the error once it is lost."""

    def __init__(self, entry: ProcessEntry, process: Popen[bytes] | None) -> None:
        self.entry, self.process = entry, process
        self.ended: asyncio.Future[LauncherError] = asyncio.get_running_loop().create_future()
        self.owned = asyncio.Event()
        self.number = 0
        self.progressed = asyncio.Event()
        self.following: asyncio.Task[None] | None = None

    async def wait_for_number(self, number: int) -> None:
        """Wait until all events that were sent before an answer with `number` have come, or the connection is lost."""
        while self.number < number and not self.ended.done():
            await self.progressed.wait()

    def progress(self, number: int) -> None:
        """Record that all events before `number` have come."""
        self.number = number
        progressed, self.progressed = self.progressed, asyncio.Event()
        progressed.set()

    def kill(self) -> None:
        """Kill the process."""
        if self.entry.is_running:
            with suppress(psutil.Error):
                psutil.Process(self.entry.pid).kill()

    def reap(self, limit_s: float) -> None:
        """Wait for the end of the process, if it is a child of this one. Blocks."""
        if self.process is not None:
            with suppress(TimeoutExpired):
                self.process.wait(limit_s)


class RemoteSession(ServingSession):
    """A session in the server process of this user, which is started when it is needed.

    If this process ends without `close`, the server goes on, and `attach` of the next session finds it. The machine and
    the engine are sampled here. It belongs to one asyncio loop, on which listeners are called.
    """

    def __init__(
        self,
        *,
        on_event: Listener | None = None,
        on_snapshot: OnSnapshot | None = None,
        on_health: OnHealth | None = None,
        idle_limit_s: float | None = None,
    ) -> None:
        """A process that is started outlives its last owner and request by `idle_limit_s`: None is IDLE_LIMIT_S."""
        super().__init__(on_event, on_snapshot, on_health)
        self._state = SessionState()
        self._idle_limit_s = idle_limit_s
        self._link: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None
        self._closing = False
        self._last_error: LauncherError | None = None
        self._server: RemoteServer | None = None
        self._request_number = 0
        self._uncounted_changes = 0
        self._earlier_changes = 0
        """Number of changes that were made before the process's session."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def supervisor(self) -> RemoteServer:
        """The session's server. Raises ServerNotFound before the first start and after the last stop."""
        if self._server is None:
            raise ServerNotFound(message("The server is not running."), message("Start it first."))
        return self._server

    @property
    def process(self) -> ProcessId | None:
        """The server process; None while there is none."""
        return None if self._link is None else ProcessId(self._link.entry.pid, self._link.entry.created_s)

    @property
    def shared(self) -> bool:
        """See ServerSession."""
        return self._state.shared

    @property
    def encrypted(self) -> bool:
        """See ServerSession."""
        return self._state.encrypted

    @property
    def model_name(self) -> str:
        """The served model as the user named it; empty before the first start."""
        return self._state.model_name

    @property
    def models(self) -> ModelsChanged:
        """The models at the server's address."""
        return ModelsChanged(self._state.models)

    @property
    def change_count(self) -> int:
        """See ServerSession."""
        return self._earlier_changes + self._state.change_count

    @property
    def has_uncounted_changes(self) -> bool:
        """See ServingSession. The process counts a change when it gets to know it, and reports that later."""
        return self._uncounted_changes > 0

    @property
    def is_idle(self) -> bool:
        """True if nothing is served or starting."""
        return self._server is None

    def list_yielding_engines(self) -> frozenset[int]:
        """Return the pids of the engines that end when a person starts a model, those that requests loaded included.

        It reads the registry, so call it in a worker thread.
        """
        process, server = self.process, self._server
        loaded = (each for entry in registry.list_entries() if entry.launcher == process for each in entry.models)
        pids = {each.engine_pid for each in loaded if each.by_request} | {server.engine_pid if server else None}
        return frozenset(each for each in pids if each is not None)

    async def attach(self) -> bool:
        """Become the owner of a server process that runs without one; return whether there is one.

        Listeners get the lines of its log and its status. A process of another version is ended.
        """
        entry = await asyncio.to_thread(find_process)
        return entry is not None and (await self._connect()).process is None

    def prepare(self) -> None:
        """Begin to find or start the server process, so that a start need not wait for all of it."""
        if self._link is None:
            self._begin_connecting()

    async def start(self, request: StartRequest) -> None:
        """See ServerSession. Raises EngineFailed if the server process ends."""
        await self._change(replace(request, options=request.options.with_absolute_paths()))

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """See ServerSession."""
        if self._link is None and self._connecting is None:
            self._request_number += 1
            self._earlier_changes += 1
            return
        with suppress(EngineFailed):  # the process has ended, and the server with it
            await self._change(verbs.Stop(drain_s=drain_s))

    async def set_shared(self, shared: bool, *, encrypted: bool = True, drain_s: float = 0.0) -> None:
        """See ServerSession."""
        if shared != self.shared or (shared and encrypted != self.encrypted):
            await self._change(verbs.Share(shared, encrypted, drain_s))

    async def apply_fix(self, action: Action, *, drain_s: float = 0.0) -> None:
        """See ServerSession."""
        await self._change(verbs.ApplyFix(action, drain_s))

    async def stop_model(self, name: str) -> None:
        """Unload one of the models at the address. The server ends with its last one. Raises ModelMissing."""
        if self._link is not None:
            await self._ask(self._link, verbs.Stop(name))

    async def foresee_handover(self) -> HandoverOutlook | None:
        """See ServerSession."""
        if self._link is None or self._server is None:
            return None
        outlook = await self._ask(self._link, verbs.ForeseeHandover())
        return from_json(HandoverOutlook, outlook) if outlook else None

    async def close(self) -> None:
        """Stop the server, and end its process. One that does not answer is killed, which ends its engine, too."""
        self._request_number += 1
        if self._connecting is not None:
            await asyncio.wait([self._connecting], timeout=_END_LIMIT_S)
        link = self._link
        if link is None:
            return
        self._closing = True
        try:
            with suppress(LauncherError):
                async with asyncio.timeout(_END_LIMIT_S):
                    await self._ask(link, verbs.Quit())
                    await asyncio.shield(link.ended)
        except TimeoutError:
            link.kill()
            await asyncio.wait([link.ended], timeout=_END_LIMIT_S)
        self._closing = False
        await asyncio.to_thread(link.reap, _END_LIMIT_S)

    async def _change(self, verb: object) -> None:
        """Have the process make a change. Cancelling the call cancels the change there."""
        self._uncounted_changes += 1
        try:
            await self._send_change(verb)
        finally:
            self._uncounted_changes -= 1

    async def _send_change(self, verb: object) -> None:
        self._request_number += 1
        number = self._request_number
        link = await self._connect()
        if number != self._request_number:
            raise Superseded(message("A newer request replaced this one."))
        try:
            await self._ask(link, verb, number)
        except asyncio.CancelledError:
            if number == self._request_number:
                with suppress(LauncherError):
                    await self._ask(link, verbs.CancelStarts())
            raise
        except LauncherError as error:
            # Listeners have got the same error with the status, and compare the two.
            reported = self._last_error
            raise reported if reported is not None and str(reported) == str(error) else error from None

    async def _ask(self, link: _Link, verb: object, number: int = 0) -> Mapping[str, Any]:
        """Return the process's answer, once all events that came before have come. Raises EngineFailed if it ends."""
        answer: Mapping[str, Any] = {}
        seen = 0
        try:
            async for answer in send_verb(link.entry.address, verb, number=number):
                seen = answer.get("number", seen)
        except ControlLost:
            raise await asyncio.shield(link.ended) from None
        finally:
            await link.wait_for_number(seen)
        return answer

    async def _connect(self) -> _Link:
        """Return the connection to the process, which is found or started if there is none."""
        if self._link is not None:
            return self._link
        # Shielded, so that a cancelled caller does not lose the process.
        return await asyncio.shield(self._begin_connecting())

    def _begin_connecting(self) -> "asyncio.Task[_Link]":
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open_link())
            self._connecting.add_done_callback(self._end_connecting)
        return self._connecting

    def _end_connecting(self, connecting: "asyncio.Task[_Link]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # retrieved, because otherwise asyncio logs that it never was

    async def _open_link(self) -> _Link:
        for _ in range(_MOST_TRIES):
            link = await self._try_link()
            if link.owned.is_set() and not link.ended.done():
                self._link = link
                return link
            if link.process is not None:
                break
            await asyncio.sleep(_POLL_S)  # the process that was found is about to end
        raise link.ended.result() if link.ended.done() else _lost_error()

    async def _try_link(self) -> _Link:
        entry, process = await asyncio.to_thread(open_process, self._idle_limit_s)
        if entry.version != __version__:
            await self._end_other_version(entry)
            entry, process = await asyncio.to_thread(open_process, self._idle_limit_s)
        link = _Link(entry, process)
        link.following = asyncio.create_task(self._follow(link))
        owned = asyncio.ensure_future(link.owned.wait())
        waited_for: set[asyncio.Future[Any]] = {owned, link.ended}
        done, _ = await asyncio.wait(waited_for, timeout=_ANSWER_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        owned.cancel()
        if not done:  # suspended, for example
            link.kill()
            await asyncio.wait([link.ended], timeout=_END_LIMIT_S)
        return link

    async def _end_other_version(self, entry: ProcessEntry) -> None:
        with suppress(LauncherError, TimeoutError):
            async with asyncio.timeout(_END_LIMIT_S):
                await verbs.ask(entry.address, verbs.Quit())
                while await asyncio.to_thread(find_process) == entry:  # noqa: ASYNC110 -- another process gives no event
                    await asyncio.sleep(_POLL_S)

    async def _follow(self, link: _Link) -> None:
        """Apply the messages of the process until the connection is lost."""
        error = _lost_error()
        self._state = SessionState()
        try:
            async for each in send_verb(link.entry.address, verbs.Own()):
                if each.get("taken"):
                    error = _taken_error()
                    break
                await self._apply_message(link, each)
                link.owned.set()
        except LauncherError:
            pass
        except Exception:  # noqa: BLE001 -- whatever it is, the server is lost for this window
            _log.exception("The messages of the server process cannot be read")
        await self._lose_link(link, error)

    async def _lose_link(self, link: _Link, error: LauncherError) -> None:
        if self._link is link:
            self._link = None
        self._earlier_changes += self._state.change_count + 1
        models, self._state = self.models, replace(self._state, change_count=0, models=())
        self._announce_models(models)
        if self._server is not None:
            # A process that ends as it was asked to may be gone before it has sent its last status.
            failed = ServerStatus(ServerState.FAILED, error=error)
            self._server.apply_status(ServerStatus() if self._closing else failed)
            await self._set_server(None)
        await asyncio.to_thread(link.reap, _REAP_LIMIT_S)
        link.ended.set_result(error)
        link.progress(link.number)

    async def _apply_message(self, link: _Link, sent: Mapping[str, Any]) -> None:
        changes = restore_messages(sent.get("state", {}))
        models = self.models
        if "launch" in changes:  # then the model's header is read
            state = await asyncio.to_thread(self._state.with_changes, changes)
        else:
            state = self._state.with_changes(changes)
        self._state = state
        if state.server is not None and "server" in changes:
            server = RemoteServer(LogBook(state.log or Path(), is_copy=True), self._send_note)
            server.on_status = self._handle_status
            await server.apply_state(state)
            await self._set_server(server)
        elif self._server is not None and state.server is not None:
            await self._server.apply_state(state)
        if "reply_progress" in changes:
            self.monitor.note_requests()
        self._announce_models(models)
        for time_s, text in sent.get("lines", ()):
            if self._server is not None:
                self._server.log.add(text, time_s)
            if not text.startswith(STARTED):
                self._notify_listeners(LogAdded(text))
        for each in sent.get("events", ()):
            self._handle_event(event_from_json(restore_messages(each)))
        for each in sent.get("prompts", ()):
            self.monitor.health_watch.note_prompt(from_json(Reread, each) if each else None)
        if changes.get("status"):
            self._handle_event(event_from_json(changes["status"]))
        if state.server is None and "server" in changes:
            await self._set_server(None)
        link.progress(sent.get("number", link.number))

    def _announce_models(self, before: ModelsChanged) -> None:
        if self.models != before:
            self._notify_listeners(self.models)

    async def _set_server(self, server: RemoteServer | None) -> None:
        """Watch another server, or none."""
        before, self._server = self._server, server
        await self.monitor.end()
        if before is not None:
            await before.close()
        if server is not None:
            self.monitor.watch_server(server)

    def _handle_event(self, event: ServerEvent) -> None:
        if isinstance(event, ServerStatus) and self._server is not None:
            self._server.apply_status(event)
        else:
            self._notify_listeners(event)

    def _handle_status(self, status: ServerStatus) -> None:
        self._last_error = status.error
        self._notify_listeners(status)

    def publish_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """See ServingSession."""
        self._send_note(verbs.NoteFindings(tuple(findings)))

    def _send_note(self, verb: object) -> None:
        """Send facts to the process, such as the monitor's findings, for this user's other programs."""

        async def send(link: _Link) -> None:
            with suppress(LauncherError):
                await self._ask(link, verb)

        if self._link is not None:
            task = asyncio.create_task(send(self._link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
