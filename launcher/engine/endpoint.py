"""Address and key of a server, kept between runs so that configured clients go on working."""

import random
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field

from launcher.base.errors import BadOption, PortBusy
from launcher.base.files import private_folder, read_or_copy, write_twice
from launcher.base.paths import state_dir

HOST = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 -- only where sharing was asked for
_PORTS = range(20_000, 32_768)
"""Below the ports that Linux and Windows give to outgoing connections, so that ours stays free."""
_OPEN_PORTS = 1_024
"""From here on anybody may listen, unless the system's administrator has moved the limit (ip(7))."""
_LOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and the key that opens it. Shared, it listens on every address of this computer.

    `in_place_of` is the usual port, where another program has that.
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
        """The base address on this computer, without a path."""
        return f"http://{HOST}:{self.port}"


class _Kept(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    port: int = Field(ge=1, le=65_535)
    api_key: str = Field(pattern=r"^[A-Za-z0-9_-]{16,}$", repr=False)


class _KeptEndpoints(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    endpoints: list[_Kept] = []


@contextmanager
def _kept_endpoints() -> Iterator[_KeptEndpoints]:
    """Yield the kept endpoints under a lock and write them back; a damaged file is set aside, not lost."""
    path = private_folder(state_dir()) / "endpoints.json"
    with FileLock(path.with_suffix(".lock"), timeout=_LOCK_S):
        kept = _load(path)
        before = kept.model_dump_json()
        yield kept
        if kept.model_dump_json() != before:
            write_twice(path, kept.model_dump_json(indent=1).encode())


def _load(path: Path) -> _KeptEndpoints:
    try:
        return read_or_copy(path, _KeptEndpoints.model_validate_json, "The list of ports and keys") or _KeptEndpoints()
    except FileNotFoundError:
        return _KeptEndpoints()


def claim(port: int | None, *, taken: frozenset[int] = frozenset(), shared: bool = False) -> Endpoint:
    """Return an endpoint whose port is free: the asked one, else the first kept one, else a new one.

    `taken` are ports that other servers of ours hold although they may not listen yet. The key of a port is kept with
    it: 256 random bits. `shared` is for every address of this computer. Raises PortBusy when the asked port is not
    free, BadOption when it is no port, or one that needs administrator rights.
    """
    if port is not None and not 1 <= port <= 65_535:
        raise BadOption(f"{port} is not a port.", "Ports go from 1 to 65535.", port=port)
    host = ALL_ADDRESSES if shared else HOST
    with _kept_endpoints() as kept:
        known = {entry.port: entry.api_key for entry in kept.endpoints}
        wanted = port
        if port is not None:
            if port in taken or not is_free(port, host):
                raise PortBusy(
                    f"Port {port} is in use by another program.",
                    "Choose another one with --port, or leave --port out.",
                    port=port,
                )
            chosen = port
        else:
            usual = [number for number in known if number in _PORTS]
            wanted = next((number for number in usual if number not in taken), None)
            fresh = random.sample(_PORTS, k=200)
            free = (number for number in (*usual, *fresh) if number not in taken and is_free(number, host))
            chosen = next(free)
        if chosen not in known:
            kept.endpoints.append(_Kept(port=chosen, api_key=secrets.token_urlsafe(32)))
        lost = wanted if wanted != chosen else None
        return Endpoint(chosen, known.get(chosen) or kept.endpoints[-1].api_key, shared, lost)


def all_kept() -> tuple[Endpoint, ...]:
    """Return the ports that are kept with their keys, the usual one first."""
    with _kept_endpoints() as found:
        return tuple(Endpoint(entry.port, entry.api_key) for entry in found.endpoints)


def replace_keys(port: int | None) -> tuple[Endpoint, ...]:
    """Give the kept `port`, or all of them with None, a new key each, and return them; a next start takes it.

    A server that runs goes on with the key that it was started with. Raises BadOption for a port that is not kept.
    """
    with _kept_endpoints() as found:
        chosen = [entry for entry in found.endpoints if port in (None, entry.port)]
        if port is not None and not chosen:
            ports = ", ".join(str(entry.port) for entry in found.endpoints)
            raise BadOption(f"There is no key for port {port}.", f"There are keys for {ports}." if ports else "")
        for entry in chosen:
            entry.api_key = secrets.token_urlsafe(32)
        return tuple(Endpoint(entry.port, entry.api_key) for entry in chosen)


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on `port` of `host` now.

    Raises BadOption for one that the system keeps for administrators.
    """
    with socket.socket() as probe:
        if sys.platform == "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # as the engine does, so that a closed connection's wait does not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if isinstance(error, PermissionError) and port < _OPEN_PORTS and sys.platform != "win32":
                raise BadOption(
                    f"Port {port} needs administrator rights, as ports under {_OPEN_PORTS} do.",
                    f"Choose one from {_OPEN_PORTS} on with --port, or leave --port out.",
                    port=port,
                ) from None
            return False
    return True
