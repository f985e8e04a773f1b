"""Address and API key of a server; both are saved, so that configured clients work with its next start."""

import random
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from launcher.base.errors import BadOption, PortBusy
from launcher.base.files import make_private_folder
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.base.paths import state_dir
from launcher.base.validation import BaseModel, ConfigDict, Field, StringConstraints

HOST = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 -- only where sharing was asked for
_PORTS = range(20_000, 32_768)
"""Ports for new endpoints: below the ephemeral range of Linux and Windows, so outgoing connections do not take them."""
_UNPRIVILEGED_PORTS = 1_024
"""Lowest port that needs no administrator rights by default (ip(7), ip_unprivileged_port_start)."""
_LOCK_S = 10.0
OTHER_PORT = message(
    "[Choose another port with {port_option}, or omit {port_option}.][{close_program}]",
    port_option=FaceName("--port"),
    close_program=FaceName(None, mark("Close that program, then start the model again.")),
)
"""The hint where another program uses a port."""
DEFAULT_KEY = "default"
"""The name of a port's own key, which it has from its first server on. This program uses it, too."""
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's port and API keys. If `shared`, it listens on all addresses of this computer.

    `api_key` is the key named "default", `named_keys` are the names and keys that the user added.
    `in_place_of` is the saved port that this one replaces because another program uses it now, otherwise None.
    """

    port: int
    api_key: str = field(repr=False)
    shared: bool = False
    named_keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    in_place_of: int | None = field(default=None, compare=False)

    @property
    def keys(self) -> Mapping[str, str]:
        """All keys by name."""
        return {DEFAULT_KEY: self.api_key, **dict(self.named_keys)}

    @property
    def host(self) -> str:
        """The address to listen on."""
        return ALL_ADDRESSES if self.shared else HOST

    @property
    def url(self) -> str:
        """Base URL on this computer, without a path."""
        return f"http://{HOST}:{self.port}"


_KeyName = Annotated[str, StringConstraints(pattern=f"^{_KEY_NAME.pattern}$")]
_ApiKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{16,}$")]


class _KeptEndpoint(BaseModel):
    """A saved port with its API key, and further keys by name."""

    model_config = ConfigDict(hide_input_in_errors=True)

    port: int = Field(ge=1, le=65_535)
    api_key: _ApiKey = Field(repr=False)
    named_keys: dict[_KeyName, _ApiKey] = Field(default={}, repr=False)

    def to_endpoint(self, *, shared: bool = False, in_place_of: int | None = None) -> Endpoint:
        """Return the endpoint that is saved here."""
        return Endpoint(self.port, self.api_key, shared, tuple(self.named_keys.items()), in_place_of)


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
        known = {entry.port: entry for entry in kept.endpoints}
        preferred = port
        if port is not None:
            if port in taken:
                raise PortBusy(
                    message("Port {port} is in use by another server of yours.", port=port),
                    message(
                        "{command} shows it. Without {option}, the model is loaded at its address.",
                        command=command_name("status", mark("Cockpit")),
                        option=FaceName("--port", mark("a port of its own")),
                    ),
                    port=port,
                )
            if not is_port_free(port, host):
                raise PortBusy(
                    message("Port {port} is in use by another program.", port=port),
                    OTHER_PORT,
                    port=port,
                )
            chosen = port
        else:
            saved = [each for each in known if each in _PORTS]
            preferred = next((each for each in saved if each not in taken), None)
            candidates = (*saved, *random.sample(_PORTS, k=200))
            chosen = next(each for each in candidates if each not in taken and is_port_free(each, host))
        if chosen not in known:
            known[chosen] = _KeptEndpoint(port=chosen, api_key=_make_key())
            kept.endpoints.append(known[chosen])
        return known[chosen].to_endpoint(shared=shared, in_place_of=preferred if preferred != chosen else None)


def preferred_port() -> int | None:
    """Return the saved port that a server gets, unless the port is in use or the user chose another; None if none is
    saved."""
    with _locked_endpoints() as kept:
        return next((entry.port for entry in kept.endpoints if entry.port in _PORTS), None)


def saved_endpoints() -> tuple[Endpoint, ...]:
    """Return the saved endpoints, the preferred one first."""
    with _locked_endpoints() as kept:
        return tuple(entry.to_endpoint() for entry in kept.endpoints)


def replace_keys(port: int | None) -> tuple[Endpoint, ...]:
    """Replace the default key of a saved `port`, or of all saved ports if None, and return the new endpoints.

    Raises BadOption for a port that is not saved.
    """
    with _locked_endpoints() as kept:
        chosen = kept.endpoints if port is None else [_find_entry(kept, port)]
        for entry in chosen:
            entry.api_key = _make_key()
        return tuple(entry.to_endpoint() for entry in chosen)


def add_key(port: int | None, name: str) -> Endpoint:
    """Make a new key of a saved port and return the endpoint.

    `port` may be None if only one is saved. Raises BadOption, also for a name that is taken or not allowed.
    """
    if not _KEY_NAME.fullmatch(name):
        raise BadOption(
            message("{name} cannot be the name of a key.", name=name),
            message("Use up to 64 letters, digits, dots, hyphens and underscores."),
        )
    with _locked_endpoints() as kept:
        entry = _find_entry(kept, port)
        if name in entry.to_endpoint().keys:
            raise BadOption(
                message("Port {port} already has a key named {name}.", port=entry.port, name=name),
                message("{command} replaces it.", command=command_name(f"keys rotate {name}", mark("Settings"))),
            )
        entry.named_keys[name] = _make_key()
        return entry.to_endpoint()


def rotate_key(port: int | None, name: str) -> Endpoint:
    """Replace a key of a saved port and return the endpoint. Raises BadOption. See `add_key`."""
    with _locked_endpoints() as kept:
        entry = _find_entry(kept, port, name)
        if name == DEFAULT_KEY:
            entry.api_key = _make_key()
        else:
            entry.named_keys[name] = _make_key()
        return entry.to_endpoint()


def revoke_key(port: int | None, name: str) -> Endpoint:
    """Delete a key of a saved port and return the endpoint. Raises BadOption, also for the default key."""
    with _locked_endpoints() as kept:
        entry = _find_entry(kept, port, name)
        if name == DEFAULT_KEY:
            raise BadOption(
                message("The key {name} cannot be revoked, because this program uses it.", name=name),
                message("{command} replaces it.", command=command_name(f"keys rotate {name}", mark("Settings"))),
            )
        del entry.named_keys[name]
        return entry.to_endpoint()


def _find_entry(kept: _KeptEndpoints, port: int | None, name: str = DEFAULT_KEY) -> _KeptEndpoint:
    """Return the entry of `port`, or if None the only entry. Raises BadOption, also if it has no key of this name."""
    ports = ", ".join(str(entry.port) for entry in kept.endpoints)
    if port is None and len(kept.endpoints) != 1:
        if not ports:
            raise BadOption(
                message("There are no keys yet: a port gets one with its first server."),
                message("Start a server first."),
            )
        raise BadOption(
            message("There are keys for the ports {ports}.", ports=ports), message("Choose one with --port P.")
        )
    entry = next((each for each in kept.endpoints if port in (None, each.port)), None)
    if entry is None:
        raise BadOption(
            message("Port {port} has no API key.", port=port),
            message("Ports with an API key: {ports}.", ports=ports) if ports else "",
        )
    if name not in (keys := entry.to_endpoint().keys):
        raise BadOption(
            message("Port {port} has no key named {name}.", port=entry.port, name=name),
            message("Its keys: {names}.", names=", ".join(keys)),
        )
    return entry


def _make_key() -> str:
    return secrets.token_urlsafe(32)


def make_private_endpoint() -> Endpoint:
    """Return an endpoint with a free port and a new key, for an engine behind the gateway. It is not saved."""
    port = next(each for each in random.sample(_PORTS, k=200) if is_port_free(each))
    return Endpoint(port, _make_key())


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
                        open_ports=_UNPRIVILEGED_PORTS,
                    ),
                    port=port,
                ) from None
            return False
    return True
