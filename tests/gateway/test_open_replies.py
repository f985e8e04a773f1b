"""What the guard is told of the replies that the engine owes: never that a healthy engine is silent."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from launcher.engine.server.state import OpenReply
from tests.gateway.test_access import STREAM, Front
from tests.gateway.test_failed_requests import event
from tests.gateway.test_stream_passing import StepwiseEngine, begin_stream

PROGRESS = event({"prompt_progress": {"total": 9, "cache": 0, "processed": 4}}) + b"\n\n"
TOKENS = {
    "/completion": event({"content": "Hi", "stop": False}),
    "/infill": event({"content": "Hi", "stop": False}),
    "/v1/responses": event({"type": "response.output_text.delta", "delta": "Hi"}, "response.output_text.delta"),
    "/v1/messages": event({"type": "content_block_delta", "delta": {"text": "Hi"}}, "content_block_delta"),
    "/v1/chat/completions": event({"choices": [{"index": 0, "delta": {"content": "Hi"}}]}),
}


@asynccontextmanager
async def ask(path: str, body: bytes = STREAM) -> AsyncIterator[tuple[Front, StepwiseEngine, asyncio.StreamReader]]:
    async with begin_stream() as (front, engine):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", front.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=4_096)
        writer.write(front.request(f"POST {path}", "Connection: close", body=body))
        await reader.readuntil(b"\r\n\r\n")
        yield front, engine, reader
        writer.close()
        engine.parts.put_nowait(None)


def owed(front: Front) -> OpenReply:
    (reply,) = front.gateway.gate.open_replies
    return reply


@pytest.mark.parametrize("path", TOKENS)
async def test_each_part_of_any_stream_is_heard(path: str) -> None:
    async with ask(path) as (front, engine, reader):
        for _ in range(3):
            front.exchanges[-1].heard_s = 0.0
            engine.parts.put_nowait(TOKENS[path] + b"\n\n")
            await reader.readuntil(TOKENS[path])
            assert owed(front).heard_s > 0.0
        assert owed(front)[1:] == (True, True)
        front.exchanges[-1].heard_s = 0.0
        engine.parts.put_nowait(b":\n\n")  # of a thread that sends it whatever the engine does
        await reader.readuntil(b":\n\n")
        assert owed(front).heard_s == 0.0


@pytest.mark.parametrize("path", TOKENS)
async def test_no_report_is_due_of_a_prompt_that_is_read_without_reports(path: str) -> None:
    async with ask(path) as (front, engine, reader):
        assert owed(front)[1:] == (False, path == "/v1/chat/completions")
        engine.parts.put_nowait(TOKENS[path] + b"\n\n")
        await reader.readuntil(TOKENS[path])


async def test_a_report_on_a_prompt_is_no_part_of_the_reply() -> None:
    asks = json.dumps({**json.loads(STREAM), "return_progress": True}).encode()
    async with ask("/completion", asks) as (front, engine, reader):
        engine.parts.put_nowait(PROGRESS)
        await reader.readuntil(PROGRESS)
        assert not owed(front).writes
        engine.parts.put_nowait(TOKENS["/completion"] + b"\n\n")
        await reader.readuntil(TOKENS["/completion"])
        assert owed(front).writes


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
async def test_an_engine_owes_nothing_to_a_client_that_does_not_read(path: str) -> None:
    part = TOKENS[path].replace(b"Hi", b"Hi" * 30_000) + b"\n\n"
    async with ask(path) as (front, engine, reader):
        while front.gateway.gate.open_replies:
            engine.parts.put_nowait(part)
            await asyncio.sleep(0.001)
        engine.parts.put_nowait(b"data: [DONE]\n\n")
        reading = asyncio.create_task(reader.read(-1))
        while not front.gateway.gate.open_replies:
            await asyncio.sleep(0.001)
        engine.parts.put_nowait(None)
        await reading
