"""Local IPC between two processes of one user: a Unix socket, or a named pipe on Windows.

There is one request per connection: a line of JSON with the token and the verb. The reply is any number of JSON lines,
then `{"end": true}` or `{"error": {...}}`. Nothing received is unpickled or executed.

Access control: on Linux the socket's folder has mode 0700 and the socket 0600, and the kernel must confirm that the
peer is the same user (SO_PEERCRED). On Windows the pipe's name is random, and Windows denies other users write access.
In addition the client must send the token, which is stored only in files of this user.
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
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.base.action import Action
from launcher.base.codec import WrongShape, from_json, to_json
from launcher.base.errors import ControlRefused, LauncherError, Refused, Unreachable
from launcher.base.files import make_private_folder
from launcher.base.messages import add_message_data, message, restore_messages

Handler = Callable[[str, Mapping[str, Any]], AsyncGenerator[Any]]
"""Yields the JSON values of the reply to a request, given its verb and its other fields. LauncherErrors are sent to the
client. It is closed when the client disconnects."""

_LINE_BYTES = 2**20
_MAX_SILENT_CONNECTIONS = 32
"""The most connections that have not sent a request yet. One more replaces the oldest of them."""
_MAX_RUNNING_REQUESTS = 64
_REQUEST_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5.0
_PIPE = "\\\\.\\pipe\\"
"""Windows requires this beginning of the path of a pipe."""
_log = logging.getLogger(__name__)
_connection: ContextVar[asyncio.Task[None] | None] = ContextVar("connection", default=None)
"""The connection that the current task serves; tasks that it starts inherit it."""


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The path of a control server's socket, or of its pipe on Windows, and the token that it requires."""

    path: str
    token: str = field(repr=False)


class ControlLost(Unreachable):
    """A control server did not answer, or the connection broke off."""


class ControlServer:
    """A server on a local socket or pipe, until it is closed. Belongs to one asyncio loop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._token = secrets.token_urlsafe(32)
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}
        """The tasks whose request has not arrived yet, oldest first."""
        self._stop_listening: Callable[[], None] = lambda: None

    async def listen(self, folder: Path, name: str) -> ControlAddress:
        """Listen at a new address, on Linux `folder`/`name`, instead of the previous one. Raises OSError."""
        with suppress(OSError):
            self._stop_listening()
        if sys.platform == "win32":
            pipe_path = f"{_PIPE}mtp-launcher-{secrets.token_hex(16)}"
            loop = asyncio.get_running_loop()
            assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 -- asyncio's default loop on Windows
            (pipe,) = await loop.start_serving_pipe(self._make_protocol, pipe_path)
            self._stop_listening = pipe.close
            return ControlAddress(pipe_path, self._token)
        path = folder / name
        server = await asyncio.start_unix_server(self._serve_connection, sock=_bind_socket(path), limit=_LINE_BYTES)

        def stop_listening() -> None:
            server.close()
            path.unlink(missing_ok=True)

        self._stop_listening = stop_listening
        return ControlAddress(str(path), self._token)

    async def close(self) -> None:
        """Stop listening and cancel all running requests, except the one that this call is part of."""
        with suppress(OSError):
            self._stop_listening()
        own = _connection.get()
        others = [task for task in self._tasks if task is not own]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def _make_protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=_LINE_BYTES), self._serve_connection)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = _current_task()
        if not _is_same_user(writer):
            writer.close()
            return
        # A real client sends its request at once, so the oldest silent one is dropped.
        if len(self._silent) >= _MAX_SILENT_CONNECTIONS:
            next(iter(self._silent)).cancel()
        self._tasks.add(task)
        self._silent[task] = None
        _connection.set(task)
        try:
            await self._handle_request(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or we are closing; nobody else awaits this task
        finally:
            self._tasks.discard(task)
            self._silent.pop(task, None)
            writer.close()

    async def _handle_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = json.loads(await reader.readline())
            if len(self._tasks) - len(self._silent) >= _MAX_RUNNING_REQUESTS:
                return
            self._silent.pop(_current_task(), None)
            verb, token = request.pop("do"), request.pop("token")
            if not isinstance(verb, str) or not hmac.compare_digest(str(token).encode(), self._token.encode()):
                raise ControlRefused(
                    message("The token is wrong."), message("Run the program as the user who started the server.")
                )
        except ControlRefused as error:
            await _send_line(writer, {"error": add_message_data(error_to_json(error))})
            return
        except (TimeoutError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # the peer is no client of this program
        answer = asyncio.create_task(self._stream_values(verb, request, writer))
        # A client sends nothing more, so this read returns when it disconnects.
        disconnection = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([answer, disconnection], return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnection.cancel()
            if not answer.done():
                answer.cancel()
            await asyncio.wait([answer, disconnection])
        if not answer.cancelled():
            answer.result()

    async def _stream_values(self, verb: str, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            async with aclosing(self._handler(verb, request)) as values:
                async for value in values:
                    await _send_line(writer, value)
        except LauncherError as error:
            await _send_line(writer, {"error": add_message_data(error_to_json(error))})
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 -- sent to the client; the server goes on
            _log.exception("A control request failed: %s", verb)
            await _send_line(writer, {"error": {"code": "error", "message": f"{type(error).__name__}: {error}"}})
        else:
            await _send_line(writer, {"end": True})


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- a coroutine always runs in a task
    return task


async def send_request(address: ControlAddress, verb: str, **fields: object) -> AsyncGenerator[Any]:
    """Send a request and yield the values of its reply.

    Raises the LauncherError that the server sent, or ControlLost if nobody answers or the connection breaks off.
    """
    unreachable = ControlLost(message("The launcher of the server does not respond."), message("Is it still running?"))
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await _open_connection(address.path)
    except (OSError, TimeoutError) as error:
        raise unreachable from error
    try:
        await _send_line(writer, {**fields, "do": verb, "token": address.token})
        while line := await reader.readline():
            value = json.loads(line)
            if isinstance(value, dict) and value.get("end") is True:
                return
            if isinstance(value, dict) and isinstance(value.get("error"), dict):
                raise error_from_json(restore_messages(value["error"]))
            yield value
        raise unreachable
    except (ConnectionError, ValueError, RecursionError) as error:
        raise unreachable from error
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _open_connection(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if sys.platform == "win32":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.ProactorEventLoop)  # noqa: S101 -- asyncio's default loop on Windows
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        transport, protocol = await loop.create_pipe_connection(lambda: asyncio.StreamReaderProtocol(reader), path)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    with _short_socket_path(Path(path)) as short:
        return await asyncio.open_unix_connection(short, limit=_LINE_BYTES)


async def _send_line(writer: asyncio.StreamWriter, value: object) -> None:
    writer.write(json.dumps(value, default=str).encode() + b"\n")
    await writer.drain()


def error_to_json(error: LauncherError) -> dict[str, Any]:
    """Return an error as a JSON object."""
    reason = getattr(error, "reason", None)
    return {
        "code": error.code,
        "message": error.title,
        "hint": error.hint,
        "facts": dict(error.facts),
        "actions": to_json(error.actions),
        "reason": error_to_json(reason) if isinstance(reason, LauncherError) else None,
    }


def error_from_json(data: Mapping[str, Any]) -> LauncherError:
    """Return the error that `error_to_json` described, of its own class if this process knows that."""
    code = str(data.get("code"))
    class_ = _find_class(LauncherError, code) or LauncherError
    error = class_.__new__(class_)
    facts = data.get("facts")
    # The constructors of some classes make title and facts of other arguments.
    LauncherError.__init__(error, str(data.get("message")), str(data.get("hint") or ""))
    error.facts, error.code = dict(facts) if isinstance(facts, dict) else {}, code
    with suppress(WrongShape):  # a newer version may have other kinds of fixes
        error.actions = from_json(tuple[Action, ...], data.get("actions") or ())
    if data.get("reason") is not None:
        vars(error)["reason"] = error_from_json(data["reason"])
    if isinstance(error, Refused):
        status = error.facts.get("status")
        error.status, error.wait_s = status if isinstance(status, int) else None, None
    return error


def _find_class(base: type[LauncherError], code: str) -> type[LauncherError] | None:
    """Return the class of errors with a code. Some classes share their parent's code; the parent is returned then."""
    if base.code == code:
        return base
    return next((found for each in base.__subclasses__() if (found := _find_class(each, code))), None)


def _bind_socket(path: Path) -> socket.socket:
    """Return a socket bound to `path` that only its owner may connect to."""
    if sys.platform == "win32":
        raise OSError("Windows uses named pipes instead.")
    make_private_folder(path.parent)
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with _short_socket_path(path) as short:
            bound.bind(short)
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    return bound


@contextmanager
def _short_socket_path(path: Path) -> Iterator[str]:
    """Yield a short path to a socket, through its folder's file descriptor.

    A socket address holds only 108 bytes (unix(7)).
    """
    if len(os.fsencode(path)) < 100 or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    """Return True if the kernel confirms that the peer is this user. On Windows the pipe's permissions ensure that."""
    if sys.platform != "linux":
        return True
    peer: socket.socket = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())
