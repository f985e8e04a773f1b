"""Requests to an engine, each over its own connection: replies in all forms and pieces, and engines that end or lie."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from launcher.gateway.engine_connection import EngineLost, EngineReply, EngineUnreached, open_reply

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def run_engine(serve: Serve) -> AsyncIterator[tuple[str, int]]:
    """Run an engine; yield its address."""
    open_count, all_closed = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_count
        open_count += 1
        all_closed.clear()
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        open_count -= 1
        if not open_count:
            all_closed.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(60):
            try:
                yield server.sockets[0].getsockname()
            finally:
                await all_closed.wait()
    finally:
        server.close()


def answer_in_packets(*parts: bytes) -> Serve:
    """Return an engine that reads the head of a request and answers with these parts, one packet each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)

    return serve


async def get_whole(*parts: bytes) -> bytes:
    async with run_engine(answer_in_packets(*parts)) as address:
        with closing(await open_reply(address, "GET", "/", {})) as reply:
            return await reply.read_whole()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
async def test_chunks_are_decoded_from_any_pieces(step: int) -> None:
    data = CHUNKED + b"5\r\nhello\r\nb;of=note\r\n, you there\r\n0\r\n\r\n"
    pieces = [data[begin : begin + step] for begin in range(0, len(data), step)]
    assert await get_whole(*pieces) == b"hello, you there"


async def test_bodies_with_a_length_or_up_to_the_end_of_the_connection_are_read() -> None:
    assert await get_whole(HEAD + b"Content-Length: 5\r\n\r\nhel", b"lo, and more") == b"hello"
    assert await get_whole(HEAD + b"\r\n", b"hello") == b"hello"
    assert await get_whole(HEAD + b"Content-Length: 0\r\n\r\n") == b""
    assert await get_whole(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD, b"Content-Length: 2\r\n\r\nok") == b"ok"


async def test_a_large_chunk_is_decoded() -> None:
    text = b"0123456789abcdef" * (1 << 18)
    assert await get_whole(CHUNKED + b"%x\r\n" % len(text) + text + b"\r\n0\r\n\r\n") == text


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"HTTP/1.1 200",),
        (HEAD + b"Content-Length: 5\r\n\r\nhel",),
        (CHUNKED + b"5\r\nhello\r\n",),
        (CHUNKED + b"five\r\nhello\r\n",),
        (CHUNKED + b"-5\r\nhello\r\n",),
        (b"+OK ready\r\n\r\n",),
        (b"x" * 70_000,),
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "no last chunk",
        "no number",
        "a negative size",
        "no HTTP",
        "endless head",
    ],
)
async def test_a_reply_that_breaks_off_is_an_error(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(EngineLost):
        await get_whole(*parts)


async def test_an_address_without_an_engine_is_an_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(EngineUnreached):
            await open_reply(probe.getsockname(), "GET", "/", {})


async def test_a_large_request_reaches_the_engine_completely() -> None:
    heads: list[bytes] = []
    bodies: list[bytes] = []
    sent = b"{" + b" " * 3_000_000 + b"}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(0.1)  # time in which all buffers fill
        bodies.append(await reader.readexactly(len(sent)))
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nok")

    async with run_engine(serve) as address:
        with closing(await open_reply(address, "POST", "/v1/x?y=1", {"User-Agent": "a\udcffb"}, sent)) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            assert await reply.read_whole() == b"ok"
    assert bodies == [sent]
    lines = heads[0].decode("latin-1").split("\r\n")
    assert lines[0] == "POST /v1/x?y=1 HTTP/1.1"
    assert {"Connection: close", f"Content-Length: {len(sent)}", "User-Agent: a\xffb"} <= set(lines)


async def test_a_request_refused_before_it_is_read_gets_its_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        while await reader.read(1 << 16):
            pass

    async with run_engine(serve) as address:
        with closing(await open_reply(address, "POST", "/", {}, bytes(3_000_000))) as reply:
            assert (reply.status, await reply.read_whole()) == (413, b"no")


async def test_parts_are_taken_as_they_arrive_until_one_is_refused() -> None:
    parts = [b"1\r\n%d\r\n" % number for number in range(6)]
    async with run_engine(answer_in_packets(CHUNKED, *parts, b"0\r\n\r\n")) as address:
        with closing(await open_reply(address, "GET", "/", {})) as reply:
            taken: list[bytes] = []

            def take_part(part: bytes) -> bool:
                if part != b"3":
                    taken.append(part)
                return part != b"3"

            assert await reply.read_part(take_part) == b"3"
            assert taken == [b"0", b"1", b"2"]
            assert await reply.read_part() == b"4"
            assert await reply.read_whole() == b"5"


async def test_an_exception_of_the_taker_is_raised_for_the_reader() -> None:
    async with run_engine(answer_in_packets(CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n")) as address:
        with closing(await open_reply(address, "GET", "/", {})) as reply:

            def take_part(part: bytes) -> bool:
                if part == b"b":
                    raise LookupError
                return True

            with pytest.raises(LookupError):
                await reply.read_part(take_part)


async def test_an_engine_waits_for_a_slow_reader() -> None:
    written = 0
    chunk = b"%x\r\n" % (1 << 16) + bytes(1 << 16) + b"\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(1_000):
            writer.write(chunk)
            await writer.drain()
            written += 1
        writer.write(b"0\r\n\r\n")

    async with run_engine(serve) as address:
        with closing(await open_reply(address, "GET", "/", {})) as reply:
            assert await reply.read_part()
            before, until_s = -1, time.monotonic() + 10
            while written != before and time.monotonic() < until_s:  # until the buffers of the system are full
                before = written
                await asyncio.sleep(0.2)
            assert 0 < written < 1_000
            assert len(await reply.read_whole()) >= 999 << 16


async def test_closing_ends_the_connection_at_once() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"1\r\na\r\n")
        with suppress(ConnectionError):
            await reader.read()
        ended.set()

    async with run_engine(serve) as address:
        reply: EngineReply = await open_reply(address, "GET", "/", {})
        assert await reply.read_part() == b"a"
        reply.close()
        await ended.wait()
        with pytest.raises(EngineLost):
            await reply.read_part()
