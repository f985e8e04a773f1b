"""Address and API key of a server; both are saved, so that configured clients work with its next start."""

import random
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from launcher.base.errors import BadOption, PortBusy
from launcher.base.files import make_private_folder
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import message
from launcher.base.paths import state_dir

HOST = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 -- only where sharing was asked for
_PORTS = range(20_000, 32_768)
"""Ports for new endpoints: below the ephemeral range of Linux and Windows, so outgoing connections do not take them."""
_UNPRIVILEGED_PORTS = 1_024
"""Lowest port that needs no administrator rights by default (ip(7), ip_unprivileged_port_start)."""
_LOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's port and API key. If `shared`, it listens on all addresses of this computer.

    `in_place_of` is the saved port that this one replaces because another program uses it now, otherwise None.
    """

    port: int
    api_key: str = field(repr=False)
    shared: bool = False
    in_place_of: int | None = field(default=None, compare=False)

    @property
    def host(self) -> str:
        """The address to listen on."""
        return ALL_ADDRESSES if self.shared else HOST

    @property
    def url(self) -> str:
        """Base URL on this computer, without a path."""
        return f"http://{HOST}:{self.port}"


class _KeptEndpoint(BaseModel):
    """A saved port with its API key."""

    model_config = ConfigDict(hide_input_in_errors=True)

    port: int = Field(ge=1, le=65_535)
    api_key: str = Field(pattern=r"^[A-Za-z0-9_-]{16,}$", repr=False)


class _KeptEndpoints(BaseModel):
    """The content of endpoints.json; the first endpoint is the preferred one."""

    model_config = ConfigDict(hide_input_in_errors=True)

    endpoints: list[_KeptEndpoint] = []


_FILE = KeptFile(
    "The list of ports and keys", _KeptEndpoints.model_validate_json, _KeptEndpoints, private=True, has_second_copy=True
)


@contextmanager
def _locked_endpoints() -> Iterator[_KeptEndpoints]:
    """Yield the saved endpoints under a lock and write changes back; a damaged file is set aside, not lost."""
    path = make_private_folder(state_dir()) / "endpoints.json"
    with hold_file_lock(path, _LOCK_S):
        kept = _FILE.load(path)
        before = kept.model_dump_json()
        yield kept
        if kept.model_dump_json() != before:
            _FILE.save(path, kept.model_dump_json(indent=1).encode())


def claim_endpoint(port: int | None, *, taken: frozenset[int] = frozenset(), shared: bool = False) -> Endpoint:
    """Return an endpoint on a free port: `port` if given, otherwise the first free saved one, otherwise a new one.

    `taken` are ports reserved for other servers of this user that may not listen yet. The key of a port, 256 random
    bits, is saved with it. A `shared` endpoint listens on all addresses. Raises PortBusy if `port` is in use, BadOption
    if it is not a valid port or needs administrator rights.
    """
    if port is not None and not 1 <= port <= 65_535:
        raise BadOption(message("{port} is not a port.", port=port), message("Ports go from 1 to 65535."), port=port)
    host = ALL_ADDRESSES if shared else HOST
    with _locked_endpoints() as kept:
        known_keys = {entry.port: entry.api_key for entry in kept.endpoints}
        preferred = port
        if port is not None:
            if port in taken or not is_port_free(port, host):
                raise PortBusy(
                    message("Port {port} is in use by another program.", port=port),
                    message(
                        "Choose another port with --port, or omit --port.",
                        window="Close that program, or choose another port in Settings.",
                    ),
                    port=port,
                )
            chosen = port
        else:
            saved = [each for each in known_keys if each in _PORTS]
            preferred = next((each for each in saved if each not in taken), None)
            candidates = (*saved, *random.sample(_PORTS, k=200))
            chosen = next(each for each in candidates if each not in taken and is_port_free(each, host))
        if chosen not in known_keys:
            kept.endpoints.append(_KeptEndpoint(port=chosen, api_key=secrets.token_urlsafe(32)))
        in_place_of = preferred if preferred != chosen else None
        return Endpoint(chosen, known_keys.get(chosen) or kept.endpoints[-1].api_key, shared, in_place_of)


def saved_endpoints() -> tuple[Endpoint, ...]:
    """Return the saved endpoints, the preferred one first."""
    with _locked_endpoints() as kept:
        return tuple(Endpoint(entry.port, entry.api_key) for entry in kept.endpoints)


def replace_keys(port: int | None) -> tuple[Endpoint, ...]:
    """Replace the API key of a saved `port`, or of all saved ports if None, and return the new endpoints.

    A running server keeps its old key until its next start. Raises BadOption for a port that is not saved.
    """
    with _locked_endpoints() as kept:
        chosen = [entry for entry in kept.endpoints if port in (None, entry.port)]
        if port is not None and not chosen:
            ports = ", ".join(str(entry.port) for entry in kept.endpoints)
            raise BadOption(
                message("Port {port} has no API key.", port=port),
                message("Ports with an API key: {ports}.", ports=ports) if ports else "",
            )
        for entry in chosen:
            entry.api_key = secrets.token_urlsafe(32)
        return tuple(Endpoint(entry.port, entry.api_key) for entry in chosen)


def make_private_endpoint() -> Endpoint:
    """Return an endpoint with a free port and a new key, for an engine behind the gateway. It is not saved."""
    port = next(each for each in random.sample(_PORTS, k=200) if is_port_free(each))
    return Endpoint(port, secrets.token_urlsafe(32))


def is_port_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on `port` of `host` now.

    Raises BadOption for a port that needs administrator rights.
    """
    with socket.socket() as probe:
        if sys.platform == "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # as the engine does: a port with a connection in TIME_WAIT counts as free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if isinstance(error, PermissionError) and port < _UNPRIVILEGED_PORTS and sys.platform != "win32":
                raise BadOption(
                    message(
                        "Port {port} needs administrator rights, as ports under {open_ports} do.",
                        port=port,
                        open_ports=_UNPRIVILEGED_PORTS,
                    ),
                    message(
                        "Choose a port of {open_ports} or higher with --port, or omit --port.",
                        window="Choose a port of {open_ports} or higher in Settings, or leave it empty.",
                        open_ports=_UNPRIVILEGED_PORTS,
                    ),
                    port=port,
                ) from None
            return False
    return True
