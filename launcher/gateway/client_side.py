"""The gateway as a supervisor sees it: it holds the address, and loads the HTTP server while an engine starts."""

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from launcher.base.errors import PortBusy
from launcher.base.messages import message
from launcher.base.paths import cache_dir, explain_os_error
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch
from launcher.gateway.exchange import HandoverOutlook
from launcher.gateway.request_log import RequestLog
from launcher.gateway.request_metrics import RequestMetrics
from launcher.gateway.slot_folder import clear_slot_folder
from launcher.machine.addresses import list_lan_addresses, list_own_names

if TYPE_CHECKING:
    from launcher.gateway.encrypted_listener import ContextFor
    from launcher.gateway.gate import HandoverReport
    from launcher.gateway.gateway import Gateway

_BACKLOG = 256
"""Connections that the system accepts for us while the HTTP server is not loaded yet."""
_STOPPED = "The server is being stopped"


class GatewayClientSide:
    """The gateway at one endpoint. Implements ClientSide of the supervisor."""

    def __init__(self, endpoint: Endpoint, request_log: RequestLog, *, encrypted: bool = False) -> None:
        """Claim the address; `request_log` gets all requests. If `encrypted`, other computers must use TLS.

        Raises PortBusy, or what explain_os_error returns for a folder that cannot be made.
        """
        self.slot_folder = cache_dir() / "slots" / str(endpoint.port)
        try:
            clear_slot_folder(self.slot_folder)
        except OSError as error:
            raise explain_os_error(error) from error
        self._endpoint = endpoint
        self._request_log = request_log
        self._encrypted = encrypted
        self._socket = _listen(endpoint)
        self._metrics = RequestMetrics(request_log)
        self._gateway: Gateway | None = None
        self._opening: asyncio.Task[Gateway] | None = None

    @property
    def last_handover(self) -> "HandoverReport | None":
        """What the last handover meant for the clients."""
        return self._gateway.gate.report if self._gateway else None

    @property
    def waiting_requests(self) -> int:
        """See ClientSide."""
        return self._gateway.gate.waiting_requests if self._gateway else 0

    def foresee_handover(self) -> HandoverOutlook:
        """Return what a handover would mean now. It changes nothing."""
        return self._gateway.gate.foresee_handover() if self._gateway else HandoverOutlook()

    def engine_starts(self) -> None:
        """Load the HTTP server, which takes as long as a small model, while the engine loads its model."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> "Gateway":
        await asyncio.to_thread(_load_modules)
        from launcher.gateway.access import Access
        from launcher.gateway.gateway import Gateway

        endpoint = self._endpoint
        names = list_own_names() if endpoint.shared else frozenset()
        access = Access(endpoint.keys, endpoint.port, endpoint.shared, names)
        self._gateway = Gateway(access, self._request_log.note_exchange, self._metrics.format_text)
        await self._gateway.listen([self._socket], await self._read_certificate(names) if self._encrypted else None)
        return self._gateway

    async def _read_certificate(self, names: frozenset[str]) -> "ContextFor":
        """Return what makes the TLS contexts. Raises what explain_os_error returns if no certificate can be kept."""
        from launcher.gateway.certificate import load_authority

        try:
            authority = await asyncio.to_thread(load_authority, names, list_lan_addresses())
        except OSError as error:
            raise explain_os_error(error) from error
        return lambda address: asyncio.to_thread(authority.make_context, address, names)

    def change_keys(self, endpoint: Endpoint) -> None:
        """Let clients in with the keys of `endpoint`, which has the same address, and with no others."""
        self._endpoint = endpoint
        if self._gateway is not None:
            self._gateway.set_keys(endpoint.keys)

    async def pause_requests(self, drain_s: float, *, same_model: bool = True) -> None:
        """See ClientSide."""
        if self._gateway is not None:
            await self._gateway.gate.pause_requests(drain_s, same_model=same_model)

    async def resume_requests(self, endpoint: Endpoint, launch: Launch) -> None:
        """See ClientSide."""
        self.engine_starts()
        assert self._opening is not None  # noqa: S101 -- just set
        gateway = await asyncio.shield(self._opening)
        saves = "--slot-save-path" in launch.build.flags
        link = gateway.gate.make_link(
            endpoint.url,
            endpoint.api_key,
            slots=max(1, launch.resolved.slots),
            slot_folder=self.slot_folder if saves else None,
            state_key=await asyncio.to_thread(lambda: launch.state_key),
        )
        await gateway.gate.resume_requests(link)

    def lose_engine(self) -> None:
        """See ClientSide."""
        if self._gateway is not None:
            self._gateway.gate.lose_engine()

    async def end_requests(self, drain_s: float) -> None:
        """See ClientSide."""
        if self._gateway is not None:
            await self._gateway.gate.end_requests(_STOPPED, drain_s)

    async def close(self) -> None:
        """Give the address up."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._gateway is not None:
            await self._gateway.gate.end_requests(_STOPPED, 0.0)
            await self._gateway.close()
        self._socket.close()
        self._metrics.close()


def _load_modules() -> None:
    import launcher.gateway.gateway  # noqa: F401 -- loaded in a thread, for it takes some tenths of a second


def _listen(endpoint: Endpoint) -> socket.socket:
    """Return a socket that listens at an endpoint. Raises PortBusy."""
    bound = socket.socket()
    try:
        if sys.platform == "win32":  # SO_REUSEADDR would let another program take the port over
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((endpoint.host, endpoint.port))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise PortBusy(
            message("Port {port} is in use by another program.", port=endpoint.port),
            message(
                "Choose another port with --port, or omit --port.",
                window="Close that program, or choose another port in Settings.",
            ),
            port=endpoint.port,
        ) from error
    return bound
