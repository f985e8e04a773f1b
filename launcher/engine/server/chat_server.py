"""What a server that runs here and the image of one in another process have in common: their replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from launcher.base.errors import ServerNotFound, Unreachable
from launcher.base.messages import join_messages, message
from launcher.engine.server.client import ChatRequest, Delta, EngineClient
from launcher.engine.server.state import SERVING, ServerState, ServerStatus

# Explanation of interrupted replies.

_STOPPING = (ServerState.DRAINING, ServerState.STOPPING, ServerState.STOPPED)
_REASON_LIMIT_S = 3.0
"""Seconds to wait until the supervisor knows why the engine ended; that takes it less than a second."""


def stopped_during_reply() -> Unreachable:
    """Return the error of a reply that a stop has ended."""
    return Unreachable(message("The server was stopped during the reply."))


class _StatusSource(Protocol):
    """A server whose status changes."""

    @property
    def status(self) -> ServerStatus:
        """The current status."""

    async def wait_for_change(self) -> ServerStatus:
        """Wait for the next change of status and return it."""


async def explain_interruption(server: _StatusSource, error: Unreachable) -> Unreachable:
    """Return an error with the reason why the engine ended; `error` itself if the engine runs or was stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REASON_LIMIT_S):
            while server.status.state in SERVING:
                await server.wait_for_change()
    status = server.status
    if status.state in _STOPPING:
        return stopped_during_reply()
    if status.state in SERVING or status.error is None:
        return error
    hint = (
        message("The server is restarting. Try again when it is ready.")
        if status.state is ServerState.RESTARTING
        else status.error.hint
    )
    return Unreachable(join_messages(message("The engine ended in the middle of the reply."), status.error.title), hint)


def require_client(client: EngineClient | None, state: ServerState) -> EngineClient:
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
            raise stopped_during_reply() from None
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
