"""Connects supervisors with the gateway: a gate for each model, and the address that all of them share."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError, PortBusy
from launcher.base.messages import message
from launcher.base.paths import cache_dir, explain_os_error
from launcher.engine.builds.flags import Flag
from launcher.engine.server.endpoint import OTHER_PORT, Endpoint
from launcher.engine.server.launch import Launch
from launcher.engine.server.state import FailedReplies, OpenReply, ReplyProgress
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import HandoverOutlook
from launcher.gateway.request_log import RequestLog
from launcher.gateway.request_metrics import RequestMetrics
from launcher.gateway.slot_folder import clear_slot_folder
from launcher.machine.addresses import list_lan_addresses, list_own_names

if TYPE_CHECKING:
    from launcher.gateway.encrypted_listener import ContextFor
    from launcher.gateway.gate import Gate, HandoverReport
    from launcher.gateway.gateway import Gateway
    from launcher.gateway.model_router import ModelRouter
    from launcher.gateway.vault import StateVault

_log = logging.getLogger(__name__)
_BACKLOG = 256
"""Connections that the system accepts for us while the HTTP server is not loaded yet."""
_REPLY_LIMIT = Flag(("--n-predict", "--predict", "-n"), "N")
_ADAPTERS = ("--lora", "--control-vector")
_STOPPED = "The server is being stopped"


class GateClientSide:
    """The gate of one model at an address. Implements ClientSide of the model's supervisor.

    `gate` is None until the gateway is open. `on_use` is called whenever a request begins or ends there.
    """

    def __init__(self, address: "GatewayAddress", slot_folder: Path, on_use: Callable[[], None]) -> None:
        """Make `slot_folder`, and clear it. Without it slots are not saved: prompts and replies are read again."""
        self.slot_folder = slot_folder if _clear_folder(slot_folder) else None
        self.gate: Gate | None = None
        self._address = address
        self._on_use = on_use

    def take_gate(self, gate: "Gate") -> None:
        """Use a gate of the gateway, which has been opened."""
        gate.on_use = self._on_use
        self.gate = gate

    @property
    def last_handover(self) -> "HandoverReport | None":
        """Report of the last handover; None before the first."""
        return self.gate.report if self.gate else None

    @property
    def waiting_requests(self) -> int:
        """See ClientSide."""
        return self.gate.waiting_requests if self.gate else 0

    @property
    def reply_progress(self) -> ReplyProgress:
        """See ClientSide."""
        return self.gate.reply_progress if self.gate else ReplyProgress()

    @property
    def open_replies(self) -> list[OpenReply]:
        """See ClientSide."""
        return self.gate.open_replies if self.gate else []

    @property
    def failed_replies(self) -> FailedReplies:
        """See ClientSide."""
        return self.gate.failed_replies if self.gate else FailedReplies()

    @property
    def kept_problem(self) -> str:
        """See ClientSide."""
        return self.gate.kept_problem if self.gate else ""

    async def foresee_handover(self) -> HandoverOutlook:
        """Return what a handover would mean now. It changes nothing."""
        return await self.gate.foresee_handover() if self.gate else HandoverOutlook()

    def engine_starts(self) -> None:
        """See ClientSide. The HTTP server takes as long to load as a small model, and so is loaded with the first."""
        self._address.begin_opening()

    async def pause_requests(self, drain_s: float, *, same_model: bool = True) -> None:
        """See ClientSide."""
        if self.gate is not None:
            await self.gate.pause_requests(drain_s, same_model=same_model)

    async def resume_requests(self, endpoint: Endpoint, launch: Launch) -> None:
        """See ClientSide."""
        await self._address.open()
        assert self.gate is not None  # noqa: S101 -- the open gateway has given one
        saves = "--slot-save-path" in launch.build.flags
        link = EngineLink(
            endpoint.url,
            endpoint.api_key,
            slots=max(1, launch.resolved.slots),
            slot_folder=self.slot_folder if saves else None,
            state_key=await asyncio.to_thread(lambda: launch.state_key),
            reply_limit=_find_reply_limit(launch.options.extra),
            model=launch.options.model,
            keeps_states=not any(each.replace("_", "-").startswith(_ADAPTERS) for each in launch.options.extra),
        )
        await self.gate.resume_requests(link)

    def lose_engine(self, reason: str) -> None:
        """See ClientSide."""
        if self.gate is not None:
            self.gate.lose_engine(reason)

    async def end_requests(self, drain_s: float, reason: str = "") -> None:
        """See ClientSide."""
        if self.gate is not None:
            await self.gate.end_requests(reason or _STOPPED, drain_s)


def _find_reply_limit(arguments: Sequence[str]) -> int | None:
    """Return the user's limit for replies whose requests name none. It is read from the command line, because GET
    /props lacks it (b11669).
    """
    limit = _REPLY_LIMIT.value_in(arguments) or ""
    return int(limit) or None if limit.isdecimal() else None


class GatewayAddress:
    """The address at which clients reach the models of a server, and the gateway behind it, once it is open."""

    def __init__(
        self,
        endpoint: Endpoint,
        request_log: RequestLog,
        *,
        encrypted: bool = False,
        read_allowed: Callable[[], Collection[str]] = tuple,
        open_vault: "Callable[[], StateVault | None]" = lambda: None,
        read_left_out: Callable[[], Collection[str] | None] = tuple,
    ) -> None:
        """Claim the address; `request_log` gets all requests. If `encrypted`, other computers must use TLS.

        `read_allowed` returns the further names and origins that the user allows, `open_vault` the vault of
        conversations on disk, `read_left_out` the names, in lower case, of keys and models whose conversations must not
        be kept there. Raises PortBusy.
        """
        self._open_vault = open_vault
        self._read_left_out = read_left_out
        self._own_slots = cache_dir() / "slots" / str(endpoint.port)
        for other in self._own_slots.parent.glob(f"{endpoint.port}-*"):  # slots of other models, which a crash has left
            _clear_folder(other)
        self._endpoint = endpoint
        self._request_log = request_log
        self._encrypted = encrypted
        self._read_allowed = read_allowed
        self._context_for: ContextFor | None = None
        self._socket = _listen(endpoint)
        self._metrics = RequestMetrics(request_log)
        self._gateway: Gateway | None = None
        self._opening: asyncio.Task[Gateway] | None = None
        self._first: GateClientSide | None = None
        """The side that was made before the gateway is open, which gets the gateway's first gate."""
        self.router: ModelRouter | None = None
        """Finds the gate of a request; None if there is only one gate. Set it before the gateway opens."""

    def open_side(self, on_use: Callable[[], None], suffix: str = "") -> GateClientSide:
        """Return the side of a model. The name of its slot folder ends with `suffix`.

        Only the first one may be made before the gateway is open.
        """
        folder = self._own_slots.with_name(f"{self._own_slots.name}{suffix}")
        side = GateClientSide(self, folder, on_use)
        if self._gateway is None:
            self._first = side
        else:
            side.take_gate(self._gateway.open_gate())
        return side

    def begin_opening(self) -> None:
        """Begin to open the gateway, unless that was done."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def open(self) -> "Gateway":
        """Return the gateway, once it listens."""
        self.begin_opening()
        assert self._opening is not None  # noqa: S101 -- `begin_opening` has set it
        return await asyncio.shield(self._opening)

    async def _open(self) -> "Gateway":
        await asyncio.to_thread(_load_modules)
        from launcher.gateway.access import Access
        from launcher.gateway.gateway import Gateway
        from launcher.gateway.state_keeper import StateKeeper

        endpoint = self._endpoint
        names = list_own_names() if endpoint.shared else frozenset()
        access = Access(endpoint.keys, names, read_allowed=self._read_allowed)
        self._gateway = gateway = Gateway(
            access,
            self._request_log.note_exchange,
            self._metrics.format_text,
            lambda: StateKeeper(self._open_vault(), self._read_left_out),
        )
        if self._first is not None:
            self._first.take_gate(gateway.gate)
        gateway.router = self.router or gateway.router
        self._context_for = await self._read_certificate(names) if self._encrypted else None
        await gateway.listen([self._socket], self._context_for)
        return gateway

    async def _read_certificate(self, names: Collection[str]) -> "ContextFor":
        """Return the maker of TLS contexts. Raises what explain_os_error returns if no certificate can be kept."""
        from launcher.gateway.authority import load_authority

        try:
            authority = await asyncio.to_thread(load_authority, names, list_lan_addresses())
        except OSError as error:
            raise explain_os_error(error) from error
        return lambda address: asyncio.to_thread(authority.make_context, address, names)

    async def change_address(self, endpoint: Endpoint, *, encrypted: bool) -> None:
        """Listen at the address of `endpoint`, which has the same port, while this computer's own requests go on.

        Raises PortBusy if another program has the port there, and what explain_os_error returns if no certificate can
        be kept. The address is then the one before.
        """
        names: Collection[str] = list_own_names() if endpoint.shared else frozenset()
        context_for = await self._read_certificate(names) if encrypted else None  # may fail, so before anything changes
        gateway = await asyncio.shield(self._opening) if self._opening is not None else None
        if gateway is not None:
            await gateway.stop_listening()
        self._socket.close()
        failure: LauncherError | None = None
        try:
            self._socket = _listen(endpoint)
        except PortBusy as error:
            failure, endpoint, names = error, self._endpoint, gateway.access.own_names if gateway else names
            context_for, encrypted = self._context_for, self._encrypted
            self._socket = _listen(endpoint)
        self._endpoint, self._encrypted, self._context_for = endpoint, encrypted, context_for
        if gateway is not None:
            gateway.access.own_names = names
            await gateway.listen([self._socket], context_for)
        if failure is not None:
            raise failure

    def count_restored(self) -> dict[str, float]:
        """Return the prompt tokens that came from disk, and the seconds that reading them would have taken."""
        tokens, seconds = map(self._metrics.sum_counter, ("restored_tokens", "spared_seconds"))
        return {"restored_tokens": int(tokens), "spared_s": round(seconds, 1)}

    def set_measurement_key(self, key: str | None) -> None:
        """Accept a measurement's requests with a key of their own. See Gateway.set_measurement_key."""
        if self._gateway is not None:
            self._gateway.set_measurement_key(key)

    def change_keys(self, endpoint: Endpoint) -> None:
        """Accept the keys of `endpoint`, which has the same address, and no others."""
        self._endpoint = endpoint
        if self._gateway is not None:
            self._gateway.set_keys(endpoint.keys)

    async def close(self) -> None:
        """Close the gateway and free its address."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._gateway is not None:
            await self._gateway.gate.end_requests(_STOPPED, 0.0)
            await self._gateway.close()
        self._socket.close()
        self._metrics.close()


def _clear_folder(folder: Path) -> bool:
    """Make and clear a folder for slots; return whether that was possible."""
    try:
        clear_slot_folder(folder)
    except OSError as error:
        _log.warning("Cannot write %s: %s. Restarts will read conversations again.", folder.parent, error.strerror)
        return False
    return True


def _load_modules() -> None:
    import launcher.gateway.gateway  # noqa: F401 -- in a thread, because it takes some tenths of a second


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
            OTHER_PORT,
            port=endpoint.port,
        ) from error
    return bound
