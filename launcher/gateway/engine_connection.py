"""A connection to an engine for one request, and its reply as it arrives.

The parts of a stream are passed on within the call in which they arrive. A general HTTP client (aiohttp's) wakes a task
for each of them, which takes as much processor time again, and twice as much for a request. An engine is a known
program at an address of this computer, so it needs neither redirects nor cookies, proxies, TLS or compression.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

_AT_ONCE_S, _CONNECT_S = 0.001, 5.0
"""Seconds that the event loop itself waits for a connection, and seconds after which the engine is unreachable."""
_READ_BYTES = 32 << 10
_WRITE_BYTES = 256 << 10
"""Bytes of a request that are written at once. A large body in one piece would hold up the loop."""
_MOST_HEAD_BYTES = 64 << 10
_MOST_KEPT_BYTES = 256 << 10
"""Bytes of a reply that are kept for a slow client before the engine has to wait, too."""
_HEAD_END, _LINE_END = b"\r\n\r\n", b"\r\n"
_CONTINUE = 100
_WITHOUT_BODY = frozenset({204, 304})


class EngineLost(Exception):
    """The engine did not answer, or the connection to it broke."""


class EngineUnreached(EngineLost):
    """The engine took no connection, so it has seen nothing of the request."""


async def open_reply(
    address: tuple[str, int], method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> "EngineReply":
    """Send a request over a new connection and return the reply once its headers have come. Raises EngineLost.

    On reused connections llama-server dropped 2 of 30 streamed requests without an answer (tried with b11669).
    """
    host, port = address
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode("utf-8", "surrogateescape") + _HEAD_END
    connection = await _connect(address)
    try:
        sent = _send_at_once(connection, head + body[:_WRITE_BYTES])
        _, reply = await asyncio.get_running_loop().create_connection(EngineReply, sock=connection)
    except BaseException:
        connection.close()
        raise
    try:
        await reply.send_rest(head, body, sent)
        await reply.wait_for_head()
    except BaseException:
        reply.close()
        raise
    return reply


async def _connect(address: tuple[str, int]) -> socket.socket:
    """Return a socket that is connected. Raises EngineUnreached.

    Connecting to a program on this computer takes some microseconds, waiting for that in the loop ten times as long.
    """
    connection = socket.socket()
    try:
        connection.settimeout(_AT_ONCE_S)
        try:
            connection.connect(address)
        except TimeoutError:
            connection.close()
            connection = socket.socket()
            connection.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, address)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):  # TimeoutError is one, too
            raise EngineUnreached from error
        raise
    return connection


def _send_at_once(connection: socket.socket, data: bytes) -> int:
    """Send as much as fits into the buffers, so that the engine begins while we prepare for its reply; return how many
    bytes."""
    try:
        return connection.send(data)
    except OSError:  # the buffers are full, or the connection has ended, which the next write reports
        return 0


class EngineReply(asyncio.BufferedProtocol):
    """The reply to one request; also the protocol of its connection. `headers` have lower-case names."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._buffer = bytearray(_READ_BYTES)
        self._rest = bytearray()
        """Bytes that are not decoded yet: half a head or half a chunk."""
        self._left: int | None = None
        """Bytes of the body that are still to come; None if its length is not known."""
        self._is_chunked = False
        self._is_complete = False
        self._is_lost = False
        self._parts: deque[bytes] = deque()
        self._kept_bytes = 0
        self._take: Callable[[bytes], bool] | None = None
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._transport: Any = None

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def has_parts(self) -> bool:
        """Whether a part of the body has arrived and was not read yet."""
        return bool(self._parts)

    def close(self) -> None:
        """Close the connection, whether or not the reply has ended. The engine then stops generating."""
        self._transport.abort()

    async def send_rest(self, head: bytes, body: bytes, sent: int) -> None:
        """Write the rest of a request. An engine that refuses the request may end the connection before it has read all
        of it."""
        begin = sent - len(head)
        if begin < 0:
            self._transport.write(head[begin:])
            begin = 0
        while begin < len(body) and not self._is_lost:
            self._transport.write(body[begin : begin + _WRITE_BYTES])
            begin += _WRITE_BYTES
            if self._writable is not None:
                await self._writable

    async def wait_for_head(self) -> None:
        """Wait until status and headers are known. Raises EngineLost."""
        while not self.status:
            await self._wait_for_more()

    async def read_whole(self) -> bytes:
        """Return the whole body. Raises EngineLost."""
        parts = []
        while part := await self.read_part():
            parts.append(part)
        return b"".join(parts)

    async def read_part(self, take: Callable[[bytes], bool] | None = None) -> bytes:
        """Return the next part of the body, b"" at its end. Raises EngineLost, and what `take` raises.

        `take` is called with each part as soon as it arrives. If it returns True, it has taken the part, and the next
        one follows. Otherwise it is called once more with the part before that is returned.
        """
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._kept_bytes -= len(part)
                if self._kept_bytes <= _MOST_KEPT_BYTES:
                    self._transport.resume_reading()
                if take is None or not take(part):
                    return part
            if self._is_complete:
                return b""
            self._take = take
            try:
                await self._wait_for_more()
            finally:
                self._take = None
            if self._failure is not None:
                raise self._failure

    async def _wait_for_more(self) -> None:
        if self._is_lost:
            raise EngineLost
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The protocol: asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = transport

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol. A body of unknown length ends with the connection, and is then complete."""
        until_end = self.status and not self._is_chunked and self._left is None
        self._is_complete = self._is_complete or bool(until_end and exc is None)
        self._is_lost = not self._is_complete
        self.resume_writing()
        self._wake()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 -- the signature is asyncio's
        """See asyncio.BufferedProtocol. Its own buffer would be 256 KiB, mapped anew for each part."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        try:
            self._take_bytes(bytes(memoryview(self._buffer)[:nbytes]))
        except ValueError:  # the peer does not speak HTTP
            self._is_lost = True
            self._wake()
            self._transport.abort()

    def _take_bytes(self, data: bytes) -> None:
        """Process bytes that have arrived. Raises ValueError."""
        if not self.status:
            self._rest += data
            if not self._read_head():
                return
            data, self._rest = bytes(self._rest), bytearray()
            self._wake()
        if self._is_complete:
            return
        part = self._decode_chunks(data) if self._is_chunked else self._count_bytes(data)
        if part:
            self._deliver(part)
        if self._is_complete:
            self._wake()

    def _read_head(self) -> bool:
        """Read the head of the reply if it is there, and return whether it was. Raises ValueError."""
        while (end := self._rest.find(_HEAD_END)) >= 0:
            first, *lines = self._rest[:end].decode("latin-1").split("\r\n")
            del self._rest[: end + len(_HEAD_END)]
            version, status = first.split(maxsplit=2)[:2]
            if not version.startswith("HTTP/1."):
                raise ValueError(first)
            if int(status) == _CONTINUE:
                continue
            for line in lines:
                name, _, value = line.partition(":")
                self.headers[name.strip().lower()] = value.strip()
            self._is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
            length = self.headers.get("content-length")
            self._left = None if self._is_chunked or length is None else int(length)
            self.status = int(status)
            self._is_complete = self._left == 0 or self.status in _WITHOUT_BODY
            return True
        if len(self._rest) > _MOST_HEAD_BYTES:
            raise ValueError(len(self._rest))
        return False

    def _count_bytes(self, data: bytes) -> bytes:
        """Return the bytes of `data` that belong to a body that is not sent in chunks."""
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self._is_complete = self._left == 0
        return data

    def _decode_chunks(self, data: bytes | bytearray) -> bytes:
        """Return the contents of the chunks that have arrived completely. Raises ValueError."""
        if self._rest:  # a large chunk comes in many pieces
            self._rest += data
            data = self._rest
        parts = []
        begin = 0
        while (line_end := data.find(_LINE_END, begin)) >= 0:
            size = int(data[begin:line_end].partition(b";")[0], 16)
            if size < 0:
                raise ValueError("negative size of a chunk")
            if not size:
                self._is_complete = True
                break
            end = line_end + 2 + size
            if len(data) < end + 2:
                break
            parts.append(data[line_end + 2 : end])
            begin = end + 2
        if data is self._rest:
            del self._rest[:begin]
        else:
            self._rest += data[begin:]
        return b"".join(parts)

    def _deliver(self, part: bytes) -> None:
        if self._take is not None and not self._parts:
            try:
                if self._take(part):
                    return
            except Exception as error:  # noqa: BLE001 -- raised again where the reply is awaited
                self._take, self._failure = None, error
                self._wake()
                return
        self._parts.append(part)
        self._kept_bytes += len(part)
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._transport.pause_reading()
        self._wake()
