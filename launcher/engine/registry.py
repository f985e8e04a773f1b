"""The servers that run now: one file each in the runtime folder, so that other commands find them."""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.base.background_file import BackgroundFile
from launcher.base.control import Address
from launcher.base.errors import PortBusy, ServerNotFound, SeveralServers
from launcher.base.files import private_folder, read_private, set_aside, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.paths import refusal, runtime_dir, state_dir
from launcher.engine.endpoint import ALL_ADDRESSES, HOST, Endpoint, claim, is_free
from launcher.engine.left_over import end_left_over

_LOCK_S = 10.0
_log = logging.getLogger(__name__)


class Entry(BaseModel):
    """One running server as it is registered. `pid` is the launcher's, which looks after the engine."""

    model_config = ConfigDict(hide_input_in_errors=True)

    url: str
    port: int
    api_key: str = Field(repr=False)
    shared: bool = False
    pid: int = Field(gt=0)
    created_s: float
    model: str
    engine: str
    draft: int
    engine_pid: int | None = Field(default=None, gt=0)
    engine_created_s: float | None = None
    command_hash: str | None = None
    state: str = "preparing"
    settings: dict[str, Any] = {}
    control: str | None = None
    control_token: str | None = Field(default=None, repr=False)
    health: tuple[dict[str, Any], ...] = ()

    @property
    def line(self) -> Address | None:
        """The private line to the program that supervises the server."""
        return Address(self.control, self.control_token) if self.control and self.control_token else None

    @property
    def launcher(self) -> ProcessId:
        """The process that supervises the server."""
        return ProcessId(self.pid, self.created_s)


class Registration:
    """Our own entry. Nobody else writes its file while our process runs, so that no lock is needed."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._file = BackgroundFile(_path(entry.port))

    def update(self, **changes: object) -> None:
        """Change fields of the entry; its file follows in the background."""
        self.entry = self.entry.model_copy(update=changes)
        self._file.write(self.entry.model_dump_json().encode())

    def settle(self, limit_s: float) -> bool:
        """Wait for up to `limit_s` seconds until others see the entry as it is; return whether they do."""
        return self._file.settle(limit_s)

    def remove(self) -> None:
        """Take the entry out, for good; return once it is out: see BackgroundFile.remove."""
        self._file.remove()


def register(
    port: int | None, *, model: str, engine: str, draft: int, shared: bool = False
) -> tuple[Endpoint, Registration]:
    """Claim an endpoint and register the server under it in one step, so that two starts never share a port.

    A `shared` one is for every address of this computer.

    Where the state folder cannot be written, the server gets a new port and key, and a warning says so. Raises PortBusy
    or BadOption: see endpoint.claim; HomeUnusable when another program holds the list of servers for 10 s.
    """
    try:
        return _register(port, model=model, engine=engine, draft=draft, shared=shared)
    except Timeout as error:
        raise refusal(error) from error
    except OSError as error:
        _log.warning(
            "%s cannot be written: %s. The server runs all the same, but other commands do not see it, and its key is"
            " a new one each time.",
            state_dir(),
            error.strerror or error,
        )
    endpoint = _unkept(port, shared=shared)
    return endpoint, Registration(_entry(endpoint, model=model, engine=engine, draft=draft))


def _register(port: int | None, *, model: str, engine: str, draft: int, shared: bool) -> tuple[Endpoint, Registration]:
    with _locked():
        endpoint = claim(port, taken=frozenset(entry.port for entry in _running()), shared=shared)
        entry = _entry(endpoint, model=model, engine=engine, draft=draft)
        registration = Registration(entry)
        write_atomically(_path(endpoint.port), entry.model_dump_json().encode())
    return endpoint, registration


def _entry(endpoint: Endpoint, *, model: str, engine: str, draft: int) -> Entry:
    us = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0.0)
    return Entry(
        url=endpoint.url,
        port=endpoint.port,
        api_key=endpoint.api_key,
        shared=endpoint.shared,
        pid=us.pid,
        created_s=us.created_s,
        model=model,
        engine=engine,
        draft=draft,
    )


def _unkept(port: int | None, *, shared: bool) -> Endpoint:
    """Return an endpoint that nothing keeps, at a port that is free now. Raises PortBusy when the asked one is not."""
    host = ALL_ADDRESSES if shared else HOST
    if port is not None and not is_free(port, host):
        raise PortBusy(f"Port {port} is in use by another program.", "Choose another one with --port.", port=port)
    with socket.create_server((host, 0)) as probe:
        free: int = probe.getsockname()[1]
    return Endpoint(port or free, secrets.token_urlsafe(32), shared)


def running() -> tuple[Entry, ...]:
    """Return the servers that run now. Entries whose launcher is gone are removed."""
    if not runtime_dir().is_dir():
        return ()
    with _locked():
        return _running()


def find(url: str | None) -> Entry:
    """Return the only running server, or the one at `url`. Raises ServerNotFound or SeveralServers."""
    entries = running()
    names = ", ".join(entry.url for entry in entries)
    if url is not None:
        wanted = url.rstrip("/").removesuffix("/v1").replace("localhost", "127.0.0.1")
        for entry in entries:
            if entry.url == wanted:
                return entry
        raise ServerNotFound(
            f"No server of this program runs at {url}.",
            f"Running: {names}." if names else "Start one with `mtp-launcher serve --model FILE`.",
        )
    if not entries:
        raise ServerNotFound("No server is running.", "Start one with `mtp-launcher serve --model FILE`.")
    if len(entries) > 1:
        raise SeveralServers(f"{len(entries)} servers are running: {names}.", "Name one with --url.")
    return entries[0]


@contextmanager
def _locked() -> Iterator[None]:
    private_folder(state_dir())
    private_folder(runtime_dir())
    with FileLock(runtime_dir() / "lock", timeout=_LOCK_S):
        yield


def _path(port: int) -> Path:
    return runtime_dir() / f"server-{port}.json"


def _running() -> tuple[Entry, ...]:
    entries = []
    for path in sorted(runtime_dir().glob("server-*.json")):
        try:
            entry = Entry.model_validate_json(read_private(path))
        except OSError:  # gone, or held by its writer for a moment: not known to be anybody's leavings
            continue
        except ValidationError:
            set_aside(path, "The note on a running server")
            continue
        if entry.launcher.running():
            entries.append(entry)
        else:
            if entry.engine_pid and entry.engine_created_s:
                end_left_over(ProcessId(entry.engine_pid, entry.engine_created_s), entry.port, entry.command_hash)
            path.unlink(missing_ok=True)
    return tuple(entries)
