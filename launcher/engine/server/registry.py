"""Registry of running servers: a file for each in the runtime folder, by which other commands find them."""

import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from launcher.base.background_file import BackgroundFile
from launcher.base.control import ControlAddress
from launcher.base.errors import PortBusy, ServerNotFound, SeveralServers
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.kept_files import KeptFile
from launcher.base.locks import hold_lock
from launcher.base.messages import command_name, message
from launcher.base.paths import explain_os_error, runtime_dir, state_dir
from launcher.base.validation import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from launcher.engine.server.address import parse_address
from launcher.engine.server.endpoint import ALL_ADDRESSES, HOST, OTHER_PORT, Endpoint, claim_endpoint, is_port_free
from launcher.engine.server.entry_files import entry_file, list_entry_files

# Orphaned engines: they still run because their launcher was killed together with its keeper.

_PATIENCE_S = 0.5
"""Seconds between SIGTERM and SIGKILL, and after SIGKILL."""
_log = logging.getLogger(__name__)


def hash_command(pid: int) -> str | None:
    """Return the SHA-256 of a process's command line; None if it cannot be read."""
    try:
        return hashlib.sha256("\0".join(psutil.Process(pid).cmdline()).encode("utf-8", "replace")).hexdigest()
    except (psutil.Error, OSError):
        return None


def end_orphaned_engine(engine: ProcessId, port: int, expected_hash: str | None) -> bool:
    """End an orphaned engine and its child processes; return whether there was one.

    The process is ended only if its pid, its creation time and its command line, which contains the port, match the
    registered ones. It cannot be adopted, because its input and output pipes are lost.
    """
    if not engine.is_running():
        return False
    try:
        process = psutil.Process(engine.pid)
        words = process.cmdline()
        if str(port) not in words or expected_hash not in (None, hash_command(engine.pid)):
            return False
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return False
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for each in family:
            with suppress(psutil.Error):
                end(each)
        _, family = psutil.wait_procs(family, timeout=_PATIENCE_S)
        if not family:
            break
    _log.warning(
        "An earlier run was killed and had left its engine (process %d, port %d): it was ended.", engine.pid, port
    )
    return True


_LOCK_S = 10.0
LIVE_FIELDS = {"models", "takes_models", "health", "shared", "encrypted"}
"""Fields of ServerEntry that change while a server runs. Other commands get them over the control socket, because the
file is written in the background and may be out of date."""


class ServedModel(BaseModel):
    """A model of a running server. `model` is its name in the API, `engine` that of the engine build.

    `by_request`: a request loaded it. `embeddings` means that it turns texts into vectors instead of generating text,
    `reranking` that it ranks texts. `engine_pid` and `engine_created_s` identify the engine's process, `engine_port` is
    the engine's own port behind the gateway. `formula_inputs` are the arguments of the memory estimate: see
    own_memory.py.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    model: str
    state: str = "preparing"
    by_request: bool = False
    engine: str = ""
    draft: int = 0
    embeddings: bool = False
    reranking: bool = False
    engine_pid: int | None = Field(default=None, gt=0)
    engine_created_s: float | None = None
    engine_port: int | None = None
    command_hash: str | None = None
    settings: dict[str, Any] = {}
    formula_inputs: dict[str, Any] = {}

    @property
    def engine_process(self) -> ProcessId | None:
        """The engine's process; None if none is known."""
        if self.engine_pid is None or self.engine_created_s is None:
            return None
        return ProcessId(self.engine_pid, self.engine_created_s)


class ServerEntry(BaseModel):
    """The registry entry of a running server.

    `pid` and `created_s` identify the launcher process that supervises it. `models` are its models, the one that it was
    started with first; `takes_models` is whether another start can load its model here. `shared` means that the server
    listens on all addresses, `encrypted` that other computers must use TLS. `control` and `control_token` are the
    address and secret of the launcher's control socket.

    In JSON the first model's fields are those of the entry itself, as 0.1.0 wrote and reads them.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    url: str
    port: int
    api_key: str = Field(repr=False)
    shared: bool = False
    encrypted: bool = False
    pid: int = Field(gt=0)
    created_s: float
    control: str | None = None
    control_token: str | None = Field(default=None, repr=False)
    health: tuple[dict[str, Any], ...] = ()
    models: tuple[ServedModel, ...] = Field(min_length=1)
    takes_models: bool = False

    @model_validator(mode="before")
    @classmethod
    def _gather_models(cls, data: Any) -> Any:  # noqa: ANN401 -- JSON
        if not isinstance(data, dict) or "model" not in data:
            return data
        first = {name: data[name] for name in ServedModel.model_fields if name in data}
        return {**data, "models": (first, *data.get("models", ()))}

    @model_serializer(mode="wrap")
    def _spread_first_model(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = write(self)
        if models := data.get("models"):
            first, *others = models
            del first["by_request"]
            data |= {**first, "models": others}
        return data

    @property
    def first(self) -> ServedModel:
        """The model that the server was started with."""
        return self.models[0]

    @property
    def control_address(self) -> ControlAddress | None:
        """Address of the control socket of the launcher that supervises the server; None if it has none."""
        return ControlAddress(self.control, self.control_token) if self.control and self.control_token else None

    @property
    def launcher(self) -> ProcessId:
        """The launcher process that supervises the server."""
        return ProcessId(self.pid, self.created_s)


_ENTRY_FILE: KeptFile[ServerEntry | None] = KeptFile(
    "The registry entry of a server", ServerEntry.model_validate_json, lambda: None, private=True
)


class Registration:
    """The registry entry of a server of this process.

    No other process writes its file while this process runs, so updates need no lock.
    """

    def __init__(self, entry: ServerEntry) -> None:
        self.entry = entry
        self._file = BackgroundFile(entry_file(entry.port), "The registry entry of this server")

    def update(self, **changes: object) -> None:
        """Change fields of the entry; its file is written in the background."""
        self.entry = self.entry.model_copy(update=changes)
        self._file.write(self.entry.model_dump_json().encode())

    def update_first(self, **changes: object) -> None:
        """Change fields of the first model."""
        first, *others = self.entry.models
        self.update(models=(first.model_copy(update=changes), *others))

    def was_deleted(self) -> bool:
        """Return whether somebody deleted the entry's file after it was written; False if that is unknown."""
        return self._file.was_deleted()

    def wait_written(self, limit_s: float) -> bool:
        """Wait until the file is up to date, for at most `limit_s` seconds; return whether it is."""
        return self._file.wait_written(limit_s)

    def remove(self) -> None:
        """Delete the entry's file and ignore further updates. See BackgroundFile.remove."""
        self._file.remove()


def register_server(port: int | None, model: ServedModel, *, shared: bool = False) -> tuple[Endpoint, Registration]:
    """Claim an endpoint and register the server under one lock, so that two starts never get the same port.

    A `shared` server listens on all addresses of this computer. If the state folder cannot be written, the server gets
    a temporary port and key, and a warning is logged. Raises PortBusy and BadOption like endpoint.claim_endpoint, and
    HomeUnusable if another program locks the registry for 10 s.
    """
    try:
        with _registry_lock():
            endpoint = claim_endpoint(port, taken=frozenset(entry.port for entry in _read_entries()), shared=shared)
            entry = _make_entry(endpoint, model)
            registration = Registration(entry)
            write_atomically(entry_file(endpoint.port), entry.model_dump_json().encode())
    except TimeoutError as error:
        raise explain_os_error(error) from error
    except OSError as error:
        _log.warning(
            "%s cannot be written: %s. The server runs, but other commands cannot find it, and each start makes a new"
            " API key.",
            state_dir(),
            error.strerror or error,
        )
    else:
        return endpoint, registration
    endpoint = _temporary_endpoint(port, shared=shared)
    return endpoint, Registration(_make_entry(endpoint, model))


def _make_entry(endpoint: Endpoint, model: ServedModel) -> ServerEntry:
    launcher = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), 0.0)
    return ServerEntry(
        url=endpoint.url,
        port=endpoint.port,
        api_key=endpoint.api_key,
        shared=endpoint.shared,
        pid=launcher.pid,
        created_s=launcher.created_s,
        models=(model,),
    )


def _temporary_endpoint(port: int | None, *, shared: bool) -> Endpoint:
    """Return a temporary endpoint that is not saved, on `port` or a free one. Raises PortBusy if `port` is in use."""
    host = ALL_ADDRESSES if shared else HOST
    if port is not None and not is_port_free(port, host):
        raise PortBusy(
            message("Port {port} is in use by another program.", port=port),
            OTHER_PORT,
            port=port,
        )
    with socket.create_server((host, 0)) as probe:
        free: int = probe.getsockname()[1]
    return Endpoint(port or free, secrets.token_urlsafe(32), shared)


def list_entries() -> tuple[ServerEntry, ...]:
    """Return the entries of the running servers. Other entries are removed, and the engines they name are ended."""
    if not runtime_dir().is_dir():
        return ()
    with _registry_lock():
        return _read_entries()


def find_server(url: str | None) -> ServerEntry:
    """Return the entry of the only running server, or of the one at `url`.

    Raises BadOption for an invalid address, ServerNotFound and SeveralServers.
    """
    entries = list_entries()
    names = ", ".join(entry.url for entry in entries)
    if url is not None:
        wanted = parse_address(url).registry_url
        for entry in entries:
            if entry.url == wanted:
                return entry
        raise ServerNotFound(
            message("No server of this program runs at {url}.", url=wanted),
            message("Running: {names}.", names=names)
            if names
            else message("Start one[ with {command}].", command=command_name("serve --model FILE")),
        )
    if not entries:
        raise ServerNotFound(
            message("No server is running."),
            message("Start one[ with {command}].", command=command_name("serve --model FILE")),
        )
    if len(entries) > 1:
        raise SeveralServers(
            message("{entries} servers are running: {names}.", entries=len(entries), names=names),
            message("Choose one with --url."),
        )
    return entries[0]


@contextmanager
def _registry_lock() -> Iterator[None]:
    make_private_folder(state_dir())
    make_private_folder(runtime_dir())
    with hold_lock(runtime_dir() / "lock", _LOCK_S):
        yield


def _read_entries() -> tuple[ServerEntry, ...]:
    entries = []
    for path in list_entry_files():
        try:
            entry = _ENTRY_FILE.load(path)
        except OSError:  # its writer may have it open (Windows), so do not treat it as a leftover
            continue
        if entry is None:
            continue
        if entry.launcher.is_running():
            entries.append(entry)
        else:
            for each in entry.models:
                if each.engine_process is not None:
                    end_orphaned_engine(each.engine_process, each.engine_port or entry.port, each.command_hash)
            path.unlink(missing_ok=True)
    return tuple(entries)
