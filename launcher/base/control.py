"""The private line between two programs of one user on one computer: a Unix socket, or a named pipe on Windows.

One request a connection: a line of JSON with the token and what to do; the answer is lines of JSON, as many as there
are, then `{"end": true}` or `{"error": {...}}`. Nothing is unpickled and nothing is executed that comes over it.

Who may connect: on Linux the socket's folder is 0700, the socket 0600, and the kernel must say that the other side is
the same user; on Windows the pipe's name is random and Windows gives others no right to write to it. Besides, whoever
asks must know the token, which only files of this user hold.
"""

import asyncio
import hmac
import json
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.base.errors import ControlRefused, LauncherError, Unreachable
from launcher.base.files import private_folder

Handler = Callable[[str, Mapping[str, Any]], AsyncIterator[Any]]
"""Answers a request, by its verb and its other fields, with JSON values. LauncherErrors are told to who asked."""

_LINE_BYTES = 2**20
_CONNECTIONS = 16
_REQUEST_S = 5.0
_CONNECT_S = 5.0
_PIPE = "\\\\.\\pipe\\"
_log = logging.getLogger(__name__)
_connection: ContextVar[asyncio.Task[None] | None] = ContextVar("connection", default=None)
"""The connection that the work at hand is done for; tasks that it starts inherit it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a program listens, and the token that it wants to hear."""

    place: str
    token: str = field(repr=False)


class ControlServer:
    """Listens on a private line until it is closed. Belongs to one asyncio loop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._token = secrets.token_urlsafe(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._close: Callable[[], None] = lambda: None

    async def listen(self, folder: Path, name: str) -> Address:
        """Begin to listen, on Linux at `folder`/`name`. Raises OSError."""
        if sys.platform == "win32":
            place = f"{_PIPE}mtp-launcher-{secrets.token_hex(16)}"
            loop = asyncio.get_running_loop()
            assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 -- the default there
            (pipe,) = await loop.start_serving_pipe(self._protocol, place)
            self._close = pipe.close
            return Address(place, self._token)
        path = folder / name
        server = await asyncio.start_unix_server(self._connected, sock=_bound(path), limit=_LINE_BYTES)

        def close() -> None:
            server.close()
            path.unlink(missing_ok=True)

        self._close = close
        return Address(str(path), self._token)

    async def close(self) -> None:
        """Listen no more, and end what is being answered, but for the answer that this call is part of."""
        with suppress(OSError):
            self._close()
        own = _connection.get()
        others = [task for task in self._tasks if task is not own]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=_LINE_BYTES), self._connected)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine runs in one
        if len(self._tasks) >= _CONNECTIONS or not _same_user(writer):
            writer.close()
            return
        self._tasks.add(task)
        _connection.set(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # nobody listens any more, or we are closing: this task is nobody else's
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = json.loads(await reader.readline())
            verb, token = request.pop("do"), request.pop("token")
            if not isinstance(verb, str) or not hmac.compare_digest(str(token).encode(), self._token.encode()):
                raise ControlRefused("The token is wrong.", "Use the program as the user who started the server.")
        except ControlRefused as error:
            await _send(writer, {"error": _told(error)})
            return
        except (TimeoutError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # no program of ours
        answering = asyncio.create_task(self._stream(verb, request, writer))
        leaving = asyncio.ensure_future(reader.read(1))  # it has nothing more to say: this ends when it leaves
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answering.done():
                answering.cancel()
            await asyncio.wait([answering, leaving])
        if not answering.cancelled():
            answering.result()

    async def _stream(self, verb: str, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            async for value in self._handler(verb, request):
                await _send(writer, value)
        except LauncherError as error:
            await _send(writer, {"error": _told(error)})
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 -- it is told to who asked, and the server goes on
            _log.exception("A request over the control line failed: %s", verb)
            await _send(writer, {"error": {"code": "error", "message": f"{type(error).__name__}: {error}"}})
        else:
            await _send(writer, {"end": True})


async def ask(address: Address, verb: str, **fields: object) -> AsyncIterator[Any]:
    """Send a request and yield the values of its answer.

    Raises the LauncherError that the other side tells (its code is kept), or Unreachable when nobody answers there, or
    it breaks off.
    """
    gone = Unreachable("The program that runs the server does not answer.", "Is it still running?")
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await _connect(address.place)
    except (OSError, TimeoutError) as error:
        raise gone from error
    try:
        await _send(writer, {**fields, "do": verb, "token": address.token})
        while line := await reader.readline():
            value = json.loads(line)
            if isinstance(value, dict) and value.get("end") is True:
                return
            if isinstance(value, dict) and isinstance(value.get("error"), dict):
                raise _error(value["error"])
            yield value
        raise gone
    except (ConnectionError, ValueError) as error:
        raise gone from error
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _connect(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if sys.platform == "win32":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 -- the default there
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        transport, protocol = await loop.create_pipe_connection(lambda: asyncio.StreamReaderProtocol(reader), place)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    with _short(Path(place)) as short:
        return await asyncio.open_unix_connection(short, limit=_LINE_BYTES)


async def _send(writer: asyncio.StreamWriter, value: object) -> None:
    writer.write(json.dumps(value, default=str).encode() + b"\n")
    await writer.drain()


def _told(error: LauncherError) -> dict[str, object]:
    return {"code": error.code, "message": error.title, "hint": error.hint, "facts": dict(error.facts)}


def _error(told: Mapping[str, Any]) -> LauncherError:
    facts = told.get("facts")
    error = LauncherError(
        str(told.get("message")), str(told.get("hint") or ""), **(facts if isinstance(facts, dict) else {})
    )
    error.code = str(told.get("code"))
    return error


def _bound(path: Path) -> socket.socket:
    """Return a socket that is bound to `path`, for its owner only."""
    if sys.platform == "win32":
        raise OSError("There are named pipes in their place.")
    private_folder(path.parent)
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as short:
            bound.bind(short)
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    return bound


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path to a socket that is short enough for its address (108 bytes, unix(7)), by way of its open folder."""
    if len(os.fsencode(path)) < 100 or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _same_user(writer: asyncio.StreamWriter) -> bool:
    """Whether the kernel says that the other side is this user; on Windows the pipe's own rights say so."""
    if sys.platform != "linux":
        return True
    peer: socket.socket = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())
