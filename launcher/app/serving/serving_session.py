"""The interface of a session for the window, the command line and measurements, in this process or another one."""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from launcher.base.action import Action
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Delta
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.logs import LogBook
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Listener, ServerState, ServerStatus
from launcher.gateway.exchange import HandoverOutlook
from launcher.monitor.monitor import Monitor, MonitoredServer
from launcher.monitor.reply import OnDelta, Reply, read_reply


class MeasuredServer(MonitoredServer, Protocol):
    """The server of a session as a measurement needs it."""

    def chat(
        self, request: ChatRequest, *, measured: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Stream a reply. See ChatServer.chat."""


class SessionServer(MeasuredServer, Protocol):
    """The server of a session: a Supervisor, or a RemoteServer, which stands for one in another process."""

    @property
    def endpoint(self) -> Endpoint:
        """The clients' address, and its keys."""

    @property
    def options(self) -> ServeOptions | None:
        """The requested options of the last start; None before the first one."""

    @property
    def log(self) -> LogBook:
        """The engine's log."""

    async def wait_for_state(self, *states: ServerState) -> ServerStatus:
        """Wait until the state is one of `states` and return the status."""

    async def wait_for_change(self) -> ServerStatus:
        """Wait for the next change of status and return it."""


class MeasuredSession(Protocol):
    """A session as a measurement needs it: a ServingSession, or a BorrowedSession on a server that clients use."""

    monitor: Monitor

    @property
    def supervisor(self) -> MeasuredServer:
        """The session's server. Raises ServerNotFound before the first start and after the last stop."""

    @property
    def change_count(self) -> int:
        """Number of starts and stops requested so far. See ServerSession.change_count."""

    @property
    def has_uncounted_changes(self) -> bool:
        """Whether starts or stops are in progress that `change_count` may not include yet."""

    @property
    def is_idle(self) -> bool:
        """True if nothing is served or starting."""

    async def start(self, request: StartRequest) -> None:
        """Serve other options. See ServerSession.start."""

    async def stop(self) -> None:
        """Stop the server. See ServerSession.stop."""

    async def send_request(
        self, request: ChatRequest, on_delta: OnDelta | None = None, *, measured: bool = False
    ) -> Reply:
        """Send a request and return the whole reply. See ServerSession.send_request."""


class ServingSession(MeasuredSession, Protocol):
    """A session: a ServerSession, or a RemoteSession that drives one in another process.

    It belongs to one asyncio loop, on which its listeners are called.
    """

    @property
    def shared(self) -> bool:
        """Whether the server listens on every address of this computer."""

    @property
    def encrypted(self) -> bool:
        """Whether other computers must use TLS while it is shared."""

    @property
    def supervisor(self) -> SessionServer:
        """The session's server. Raises ServerNotFound before the first start and after the last stop."""

    def listening(self, listener: Listener) -> AbstractContextManager[None]:
        """Also call `listener` for every event within the block."""

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop the server. See ServerSession.stop."""

    async def set_shared(self, shared: bool, *, encrypted: bool = True, drain_s: float = 0.0) -> None:
        """Share the server with the network, or stop sharing. See ServerSession.set_shared."""

    async def apply_fix(self, action: Action, *, drain_s: float = 0.0) -> None:
        """Apply a fix by a start. See ServerSession.apply_fix."""

    async def foresee_handover(self) -> HandoverOutlook | None:
        """Return what a restart of the engine would mean for clients now. See ServerSession.foresee_handover."""


async def send_metered_request(
    server: MeasuredServer, monitor: Monitor, request: ChatRequest, on_delta: OnDelta | None, *, measured: bool
) -> Reply:
    """Send a request to `server` and return the whole reply, which `monitor` observes."""
    meter = monitor.start_reply_meter()
    began_s = time.monotonic()
    try:
        async with server.chat(request, measured=measured) as deltas:
            return await read_reply(deltas, began_s, meter, on_delta)
    finally:
        monitor.end_reply_meter(meter)
