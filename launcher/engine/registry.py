"""The servers that run now: one file each in the runtime folder, so that other commands find them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from launcher.base.errors import ServerNotFound, SeveralServers
from launcher.base.files import write_atomically
from launcher.base.identity import ProcessId
from launcher.base.paths import runtime_dir
from launcher.engine.endpoint import Endpoint, claim

_LOCK_S = 10.0


class Entry(BaseModel):
    """One running server as it is registered. `pid` is the launcher's, which looks after the engine."""

    url: str
    port: int
    api_key: str
    pid: int = Field(gt=0)
    created_s: float
    model: str
    engine: str
    draft: int
    engine_pid: int | None = Field(default=None, gt=0)
    state: str = "preparing"

    @property
    def launcher(self) -> ProcessId:
        """The process that supervises the server."""
        return ProcessId(self.pid, self.created_s)


class Registration:
    """Our own entry."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._path = _path(entry.port)

    def update(self, **changes: object) -> None:
        """Change fields of the entry; a file that cannot be written is left as it was."""
        self.entry = self.entry.model_copy(update=changes)
        try:
            with _locked():  # on Windows a file that is being read cannot be replaced
                write_atomically(self._path, self.entry.model_dump_json().encode())
        except OSError:
            return

    def remove(self) -> None:
        """Take the entry out."""
        with suppress(OSError), _locked():
            self._path.unlink(missing_ok=True)


def register(port: int | None, *, model: str, engine: str, draft: int) -> tuple[Endpoint, Registration]:
    """Claim an endpoint and register the server under it in one step, so that two starts never share a port.

    Raises PortBusy or BadOption: see endpoint.claim.
    """
    with _locked():
        endpoint = claim(port, taken=frozenset(entry.port for entry in _running()))
        us = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0.0)
        entry = Entry(
            url=endpoint.url,
            port=endpoint.port,
            api_key=endpoint.api_key,
            pid=us.pid,
            created_s=us.created_s,
            model=model,
            engine=engine,
            draft=draft,
        )
        registration = Registration(entry)
        write_atomically(_path(endpoint.port), entry.model_dump_json().encode())
    return endpoint, registration


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
    runtime_dir().mkdir(parents=True, exist_ok=True)
    with FileLock(runtime_dir() / "lock", timeout=_LOCK_S):
        yield


def _path(port: int) -> Path:
    return runtime_dir() / f"server-{port}.json"


def _running() -> tuple[Entry, ...]:
    entries = []
    for path in sorted(runtime_dir().glob("server-*.json")):
        try:
            entry = Entry.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            entry = None
        if entry is not None and entry.launcher.running():
            entries.append(entry)
        else:
            path.unlink(missing_ok=True)
    return tuple(entries)
