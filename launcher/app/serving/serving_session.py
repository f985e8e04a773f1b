"""The interface of a session for the window, the command line and measurements, in this process or another one."""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from launcher.base.action import Action
from launcher.base.codec import to_json
from launcher.base.heap import fix_mmap_threshold
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Delta
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.logs import LogBook
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Listener, ServerEvent, ServerState, ServerStatus
from launcher.gateway.exchange import HandoverOutlook
from launcher.models.server_settings import Value
from launcher.monitor.health_event import HealthEvent
from launcher.monitor.monitor import Monitor, MonitoredServer, MonitorSnapshot
from launcher.monitor.reply import OnDelta, Reply

_log = logging.getLogger(__name__)

OnSnapshot = Callable[[MonitorSnapshot], None]
OnHealth = Callable[[HealthEvent], None]
_T = TypeVar("_T")


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


class MeasuredSession(ABC):
    """A session as a measurement needs it: a ServingSession, or a BorrowedSession on a server that clients use."""

    monitor: Monitor

    @property
    @abstractmethod
    def supervisor(self) -> MeasuredServer:
        """The session's server. Raises ServerNotFound before the first start and after the last stop."""

    @property
    @abstractmethod
    def change_count(self) -> int:
        """Number of starts and stops requested so far. A measurement compares it to detect those of others."""

    @property
    def has_uncounted_changes(self) -> bool:
        """Whether starts or stops are in progress that `change_count` may not include yet."""
        return False

    @property
    def is_idle(self) -> bool:
        """True if nothing is served or starting."""
        return False

    @property
    def waited_s(self) -> float:
        """Seconds so far in which measurements stood still for clients; 0 unless the server is lent to them."""
        return 0.0

    async def measure(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `run`, a measured reply. Of a lent server it is repeated until no client comes."""
        return await run()

    @abstractmethod
    async def start(self, request: StartRequest) -> None:
        """Serve other options. See ServerSession.start."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the server. See ServerSession.stop."""

    async def send_request(
        self, request: ChatRequest, on_delta: OnDelta | None = None, *, measured: bool = False
    ) -> Reply:
        """Send a request and return the whole reply. The monitor observes it. See ChatServer.chat."""
        return await self.monitor.read_reply(self.supervisor.chat(request, measured=measured), on_delta)


class ServingSession(MeasuredSession):
    """A session: a ServerSession, or a RemoteSession that drives one in another process.

    It belongs to one asyncio loop, on which its listeners are called.
    """

    def __init__(self, on_event: Listener | None, on_snapshot: OnSnapshot | None, on_health: OnHealth | None) -> None:
        fix_mmap_threshold()
        self.monitor = Monitor(on_snapshot, on_health=self._handle_health)
        self._on_health = on_health
        self._listeners: list[Listener] = [on_event] if on_event is not None else []

    @property
    @abstractmethod
    def supervisor(self) -> SessionServer:
        """The session's server. Raises ServerNotFound before the first start and after the last stop."""

    @property
    def is_lent(self) -> bool:
        """Whether the server is lent to a measurement, as far as this process knows."""
        return False

    @property
    def chosen(self) -> Mapping[str, Value]:
        """The settings of the server that the user chose, as far as this process knows."""
        return {}

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Also call `listener` for every event within the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @abstractmethod
    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop the server. See ServerSession.stop."""

    @abstractmethod
    async def set_shared(self, shared: bool, *, encrypted: bool = True, drain_s: float = 0.0) -> None:
        """Share the server with the network, or stop sharing. See ServerSession.set_shared."""

    @abstractmethod
    async def apply_fix(self, action: Action, *, drain_s: float = 0.0) -> None:
        """Apply a fix by a start. See ServerSession.apply_fix."""

    @abstractmethod
    async def foresee_handover(self) -> HandoverOutlook | None:
        """Return what a restart of the engine would mean for clients now; None (unknown) without the gateway."""

    @abstractmethod
    def publish_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Publish health findings, as JSON, to this user's other programs."""

    def _handle_health(self, event: HealthEvent) -> None:
        self.publish_findings(to_json(self.monitor.health_watch.open_findings))
        if self._on_health is not None:
            _call_listener(self._on_health, event)

    def _notify_listeners(self, event: ServerEvent) -> None:
        for listener in tuple(self._listeners):
            _call_listener(listener, event)


def _call_listener(listener: Callable[[Any], None], event: object) -> None:
    """Call a listener. Its failure (a closed terminal, for example) must not end the supervision of the server."""
    try:
        listener(event)
    except Exception:  # noqa: BLE001 -- any error of a listener
        _log.exception("A listener failed: %s", type(event).__name__)
