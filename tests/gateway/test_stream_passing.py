"""Streams through the gateway: the time and form in which parts are passed on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from launcher.gateway.exchange import DeliveredText
from launcher.gateway.frames import ReplyPart
from tests.gateway.test_access import STREAM, Front, open_gateway
from tests.gateway.test_gateway_load import CHAT_LINE, engine_link


def encode_event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


@dataclass
class StepwiseEngine:
    """An engine whose stream has the bytes that a test puts into `parts`, and ends with None."""

    parts: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while part := await self.parts.get():
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.ended.set()


@asynccontextmanager
async def begin_stream() -> AsyncIterator[tuple[Front, StepwiseEngine]]:
    engine = StepwiseEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    async with open_gateway() as front, asyncio.timeout(60):
        await front.gateway.gate.pause_requests(0.0)
        await front.gateway.gate.resume_requests(engine_link(front, server.sockets[0].getsockname()[1]))
        yield front, engine
        await engine.ended.wait()
    server.close()


async def test_headers_are_sent_before_the_first_token() -> None:
    async with begin_stream() as (front, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM))
        head = await reader.readuntil(b"\r\n\r\n")  # comes while the engine still reads the prompt
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"text/event-stream" in head
        progress = {"choices": [], "prompt_progress": {"total": 9, "cache": 0, "processed": 9, "time_ms": 1}}
        engine.parts.put_nowait(b"data: " + json.dumps(progress).encode() + b"\n\n")
        engine.parts.put_nowait(encode_event("Hi") + encode_event(" there")[:20])
        assert await reader.readuntil(b"\n\n\r\n") == b"%x\r\n%b\r\n" % (len(encode_event("Hi")), encode_event("Hi"))
        engine.parts.put_nowait(encode_event(" there")[20:] + b"data: [DONE]\n\n")
        assert await reader.readuntil(b"[DONE]\n\n\r\n")
        engine.parts.put_nowait(None)
        assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.write(front.request(CHAT_LINE, body=b"{"))  # the same connection takes further requests
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_text_of_a_progress_report_comes_first_and_repeats_no_figures() -> None:
    """The chat template began the reply with a text that a report has, as before the first token of a thought."""
    about = {"id": "chatcmpl-1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    report = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "<think>"}}], "prompt_progress": {}}
    token = {"choices": [{"index": 0, "delta": {"reasoning_content": "I"}}]}
    figures = {"timings": {"predicted_n": 1}, "usage": {"completion_tokens": 1}}
    async with begin_stream() as (front, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM))
        for each in (about | report, about | token | figures):
            engine.parts.put_nowait(b"data: " + json.dumps(each).encode() + b"\n\n")
        engine.parts.put_nowait(None)
        sent = (await reader.readuntil(b"\r\n0\r\n\r\n")).partition(b"\r\n\r\n")[2]
        events = [json.loads(line.removeprefix(b"data: ")) for line in sent.splitlines() if line.startswith(b"data: ")]
        begun = {"finish_reason": None, "index": 0, "delta": {"content": "<think>"}}
        assert events == [about | {"choices": [begun]}, about | token | figures]
        writer.close()


@pytest.mark.parametrize(("last", "end"), [(b"data: [DONE]\n\n", "complete"), (encode_event(" word"), "client left")])
async def test_a_client_that_leaves_after_the_last_event_has_the_whole_reply(last: bytes, end: str) -> None:
    async with begin_stream() as (front, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM))
        engine.parts.put_nowait(last)
        await reader.readuntil(last)
        writer.close()
        while front.exchanges[-1].end is None:  # the engine has not ended its stream yet
            await asyncio.sleep(0.01)
        assert front.exchanges[-1].end == end
        engine.parts.put_nowait(None)


async def test_an_http_1_0_client_gets_the_stream_without_chunks() -> None:
    async with begin_stream() as (front, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        for text in ("One", " two", " three"):
            engine.parts.put_nowait(encode_event(text))
            assert (await reader.readuntil(b"\n\n")).endswith(encode_event(text))
        engine.parts.put_nowait(None)
        assert await reader.read() == b""
        writer.close()


def test_the_time_per_token_does_not_grow_with_the_reply() -> None:
    text, seconds = DeliveredText(), []
    for _ in range(40):
        began_s = time.thread_time()
        for _ in range(5_000):
            text.add_part(ReplyPart(content=" expectation"))
        seconds.append(time.thread_time() - began_s)
    assert text.piece_count == 200_000
    assert len(text.content) == 200_000 * len(" expectation")
    assert min(seconds[-5:]) < 5 * min(seconds[:5])
