"""A server as requests see it: its status and open replies, whether it runs in this process or in another one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from launcher.base.errors import ServerNotFound, Unreachable
from launcher.base.messages import join_messages, message
from launcher.engine.server.client import ChatRequest, Delta, EngineClient
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch
from launcher.engine.server.state import SERVING, ServerState, ServerStatus
from launcher.models.limits import no_text_error

# Explanation of interrupted replies.

_STOPPING = (ServerState.DRAINING, ServerState.STOPPING, ServerState.STOPPED)
_RESTARTING = (ServerState.DRAINING, ServerState.RESTARTING, ServerState.LOADING, ServerState.WARMING_UP)
"""States in which a gateway keeps new requests until the engine is ready."""
_REASON_LIMIT_S = 3.0
"""Seconds to wait until the supervisor knows why the engine ended; that takes it less than a second."""


def _stopped_during_reply() -> Unreachable:
    """Return the error of a reply that a stop has ended."""
    return Unreachable(message("The server was stopped during the reply."))


async def _explain_interruption(server: ChatServer, error: Unreachable) -> Unreachable:
    """Return an error with the reason why the engine ended; `error` itself if the engine runs or was stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REASON_LIMIT_S):
            while server.status.state in SERVING:
                await server.wait_for_change()
    status = server.status
    if status.state in _STOPPING:
        return _stopped_during_reply()
    if status.state in SERVING or status.error is None:
        return error
    hint = (
        message("The server is restarting. Try again when it is ready.")
        if status.state is ServerState.RESTARTING
        else status.error.hint
    )
    return Unreachable(join_messages(message("The engine ended in the middle of the reply."), status.error.title), hint)


def _require_client(client: EngineClient | None, state: ServerState) -> EngineClient:
    """Return `client` if the server is in a state in which it takes requests. Raises ServerNotFound."""
    if state is ServerState.DRAINING:
        raise ServerNotFound(
            message("The server is finishing its replies and accepts no new requests."),
            message("Try again in a moment."),
        )
    if client is None or state not in SERVING:
        raise ServerNotFound(message("The server is not ready."), message("Start it first."))
    return client


# Open replies of a server.


class OpenReplies:
    """The open replies that this program reads from one server, with the time of each one's last token.

    `now_s` returns monotonic seconds, `on_change` is called when a reply begins or ends. The event `none_open` is set
    while no reply is open.
    """

    def __init__(self, now_s: Callable[[], float], on_change: Callable[[], None]) -> None:
        self._now_s = now_s
        self._on_change = on_change
        self._last_token_s: dict[asyncio.Timeout, float] = {}
        self.none_open = asyncio.Event()
        self.none_open.set()

    def __len__(self) -> int:
        return len(self._last_token_s)

    @property
    def quiet_since(self) -> float | None:
        """The earliest last-token time of all open replies, in monotonic seconds; None if none is open."""
        return min(self._last_token_s.values(), default=None)

    @asynccontextmanager
    async def stream_reply(self, client: EngineClient, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Stream a reply: see EngineClient.chat. `end_all` ends the stream with Unreachable."""
        scope = asyncio.timeout(None)
        self._last_token_s[scope] = self._now_s()
        self.none_open.clear()
        self._on_change()
        try:
            async with scope, client.chat(request) as deltas:
                yield self._track_tokens(scope, deltas)
        except TimeoutError:
            if not scope.expired():  # a timeout of the caller, not one from end_all()
                raise
            raise _stopped_during_reply() from None
        finally:
            del self._last_token_s[scope]
            if not self._last_token_s:
                self.none_open.set()
            self._on_change()

    def end_all(self) -> None:
        """End all open replies; their readers get Unreachable."""
        for scope in self._last_token_s:
            with suppress(RuntimeError):  # the reply is ending already
                scope.reschedule(0)

    async def _track_tokens(self, scope: asyncio.Timeout, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if scope in self._last_token_s:
                self._last_token_s[scope] = self._now_s()
            yield delta


class ChatServer(ABC):
    """A server that this program sends requests to: its status, and the replies that are being read from it.

    A Supervisor runs one in this process, a RemoteServer stands for one in another process. Belongs to one asyncio
    loop. `now_s` returns monotonic seconds; with `has_gateway`, requests go to `endpoint` rather than to the engine.
    """

    def __init__(self, endpoint: Endpoint, now_s: Callable[[], float], *, has_gateway: bool) -> None:
        self.endpoint = endpoint
        self.launch: Launch | None = None
        self._has_gateway = has_gateway
        self._status = ServerStatus()
        self._status_changed = asyncio.Event()
        self._client: EngineClient | None = None
        self._chat_client: EngineClient | None = None
        self._replies = OpenReplies(now_s, self._update_busy_state)
        self._other_requests = 0

    @property
    def status(self) -> ServerStatus:
        """The server's current state."""
        return self._status

    @property
    def client(self) -> EngineClient:
        """The engine's HTTP client. Raises ServerNotFound unless the server is ready or busy."""
        return _require_client(self._client, self._status.state)

    async def wait_for_state(self, *states: ServerState) -> ServerStatus:
        """Wait until the state is one of `states` and return the status."""
        while self._status.state not in states:
            await self.wait_for_change()
        return self._status

    async def wait_for_change(self) -> ServerStatus:
        """Wait for the next change of status and return it."""
        await self._status_changed.wait()
        return self._status

    @asynccontextmanager
    async def chat(self, request: ChatRequest, *, measured: bool = False) -> AsyncIterator[AsyncIterator[Delta]]:
        """Stream a reply: see EngineClient.chat. Stopping the server ends the stream with Unreachable.

        With a gateway a request waits while the server restarts, and its reply continues across a restart, unless it is
        `measured`: then it goes to the engine itself, past the gateway, and a restart ends it with an error. Raises
        ServerNotFound if the server takes no requests, and ModelWritesNoText for an embedding model.
        """
        if self.launch is not None and self.launch.options.embeddings:
            raise no_text_error(self.launch.header.name, is_reranker=self.launch.options.reranking)
        client = self._choose_client(measured=measured)
        try:
            async with self._replies.stream_reply(client, request) as deltas:
                yield deltas
        except Unreachable as error:
            raise await _explain_interruption(self, error) from error

    def _choose_client(self, *, measured: bool) -> EngineClient:
        """Return the client that sends a request: the gateway's, or the engine's own. Raises ServerNotFound."""
        if not self._has_gateway or measured:
            return self.client
        if self._status.state not in _RESTARTING:
            _ = self.client  # raises ServerNotFound unless the server takes requests
        if self._chat_client is None:
            self._chat_client = EngineClient(self.endpoint.url, self.endpoint.api_key)
        return self._chat_client

    def change_keys(self, endpoint: Endpoint) -> None:
        """Use the API keys of `endpoint`, which has the same address. A gateway there must accept them."""
        self.endpoint = endpoint
        if self._chat_client is not None:
            self._chat_client.set_api_key(endpoint.api_key)

    def note_requests(self, processing: int) -> None:
        """Record how many requests the engine is processing, including those of other clients."""
        self._other_requests = max(0, processing - len(self._replies))
        self._update_busy_state()

    def _update_busy_state(self) -> None:
        """Called when a reply or another request has begun or ended: the server is busy or ready now."""
        if self._status.state in SERVING:
            busy = self._replies or self._other_requests
            self._set_status(ServerStatus(ServerState.BUSY if busy else ServerState.READY))

    def _set_status(self, status: ServerStatus) -> None:
        if status != self._status:
            self._status = status
            changed, self._status_changed = self._status_changed, asyncio.Event()
            changed.set()
            self._announce_status(status)

    @abstractmethod
    def _announce_status(self, status: ServerStatus) -> None:
        """Tell the listener of a new status."""

    async def _close_chat_client(self) -> None:
        client, self._chat_client = self._chat_client, None
        if client is not None:
            await client.close()
