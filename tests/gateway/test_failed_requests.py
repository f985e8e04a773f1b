"""Requests that the engine fails or refuses: what is kept of its error, and which failures count against the engine."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from launcher.base.codec import to_json
from launcher.engine.server.state import FailedReplies
from launcher.gateway import gateway
from launcher.gateway.engine_error import find_error, read_error, shorten_error
from launcher.gateway.exchange import RequestFailure
from launcher.gateway.request_log import RequestLog
from tests.gateway.test_access import CHAT, KEY, STREAM, Front, open_gateway
from tests.gateway.test_gateway_load import CHAT_LINE, engine_link

LOST = "decode() failed: vk::Queue::submit: ErrorDeviceLost"
NO_IMAGES = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
SECRET = "the plan of the bank robbery"


def error(message: str, code: int = 500, kind: str = "server_error") -> dict[str, Any]:
    return {"code": code, "message": message, "type": kind}


def whole(status: int, body: object) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(data),
        data,
    )


def stream(*frames: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(frame + b"\n\n" for frame in frames)


def event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode()


TOKEN = event({"choices": [{"index": 0, "delta": {"content": "Hi"}}]})
GOOD = whole(200, {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})
FAILED, REFUSED = whole(500, {"error": error(LOST)}), whole(500, {"error": error(NO_IMAGES)})
CLOSED = b""


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request whole, because a connection that is closed before that is reset; return its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)
    return head


async def ask(front: Front, line: str = CHAT_LINE, body: bytes = CHAT, key: str = KEY) -> bytes:
    """Send a request over a connection of its own; return all of the answer, once its exchange has ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(front.request(line, "Connection: close", body=body, key=key))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


class ScriptedEngine:
    """An engine that gives each request for a reply the next of `answers`, and closes the connection."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_request(reader)
        writer.write(whole(200, {"status": "ok"}) if head.startswith(b"GET") else self.answers.pop(0))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Front, ScriptedEngine]]:
    engine = ScriptedEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    async with open_gateway() as front, asyncio.timeout(60):
        await front.gateway.gate.pause_requests(0.0)
        await front.gateway.gate.resume_requests(engine_link(front, server.sockets[0].getsockname()[1]))
        yield front, engine
    server.close()


async def count_failures(*answers: bytes) -> FailedReplies:
    async with scripted() as (front, engine):
        engine.answers = list(answers)
        while engine.answers:
            await ask(front)
        return front.gateway.gate.failed_replies


PATHS = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses", "/v1/messages", "/v1/embeddings")


@pytest.mark.parametrize("path", PATHS)
async def test_an_error_of_each_api_is_counted_and_kept(path: str) -> None:
    async with scripted() as (front, engine):
        engine.answers = [FAILED]
        answer = await ask(front, f"POST {path}")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert LOST.encode() in answer
        exchange = front.exchanges[-1]
        assert (exchange.end, exchange.failure) == ("error", RequestFailure(500, LOST))
        assert front.gateway.gate.failed_replies == FailedReplies(1, 0, 1, 500, LOST)


STREAMS: Mapping[str, bytes] = {
    "/v1/chat/completions": event({"error": error(LOST)}),
    "/v1/completions": event({"error": error(LOST)}),
    "/completion": event({"error": error(LOST)}),
    "/v1/responses": event({"error": error(LOST)}),
    "/v1/messages": event(error(LOST), "error"),
}


@pytest.mark.parametrize("path", STREAMS)
async def test_an_error_within_a_stream_is_one(path: str) -> None:
    async with scripted() as (front, engine):
        engine.answers = [stream(TOKEN, STREAMS[path])]
        assert LOST.encode() in await ask(front, f"POST {path}", STREAM)
        assert (front.exchanges[-1].end, front.exchanges[-1].failure) == ("error", RequestFailure(500, LOST))
        assert front.gateway.gate.failed_replies.broken == 1


def test_a_response_that_failed_names_its_error() -> None:
    assert find_error({"type": "response.failed", "response": {"error": error(LOST)}}) == error(LOST)
    assert find_error({"type": "response.created", "response": {"error": None, "usage": None}}) is None
    assert find_error({"type": "message_start", "message": {"usage": {}}}) is None


async def test_failures_count_until_a_reply_and_do_not_say_that_none_ever_came() -> None:
    assert await count_failures(FAILED, FAILED, FAILED) == FailedReplies(3, 0, 3, 500, LOST)
    assert await count_failures(FAILED, FAILED, GOOD) == FailedReplies(has_replied=True)
    assert await count_failures(GOOD, FAILED, FAILED) == FailedReplies(2, 0, 2, 500, LOST, has_replied=True)
    assert (await count_failures(FAILED, GOOD, FAILED, GOOD, FAILED)).total == 1  # alternately


async def test_requests_that_ask_for_too_much_are_refused_and_not_the_engines_failure() -> None:
    too_long = error("request (9 tokens) exceeds the available context size (8 tokens), try increasing it", 400)
    for answer in (
        REFUSED,
        whole(400, {"error": too_long}),
        whole(400, {"error": error("'messages' is required", 400)}),
    ):
        failed = await count_failures(answer, answer, answer, answer)
        assert (failed.total, failed.refused, failed.broken) == (4, 4, 0)
    not_started = error(
        "This server does not support embeddings. Start it with `--embeddings`", 501, "not_supported_error"
    )
    assert (await count_failures(whole(501, {"error": not_started}))).refused == 1
    assert (await count_failures(REFUSED, FAILED, REFUSED, FAILED)).broken == 2


async def test_an_error_that_no_signature_knows_is_a_failure_but_no_lost_engine() -> None:
    assert await count_failures(whole(500, {"error": error("odd")})) == FailedReplies(1, 0, 0, 500, "odd")
    assert await count_failures(whole(500, {"error": "odd"})) == FailedReplies(1, 0, 0, 500, "odd")
    assert await count_failures(whole(500, b"Internal Server Error")) == FailedReplies(1, 0, 0, 500, "")


async def test_an_engine_that_is_still_loading_has_not_failed() -> None:
    loading = whole(503, {"error": error("Loading model", 503, "unavailable_error")})
    assert await count_failures(loading, loading, loading) == FailedReplies()


async def test_an_engine_that_closes_the_connection_has_failed() -> None:
    async with scripted() as (front, engine):
        engine.answers = [CLOSED, CLOSED]  # a request is sent twice
        answer = await ask(front)
        assert answer.startswith(b"HTTP/1.1 502 ")
        failed = front.gateway.gate.failed_replies
        assert (failed.total, failed.refused, failed.broken) == (1, 0, 0)
        assert failed.message == "The engine closed the connection before the reply was complete"
        assert failed.message.encode() in answer


async def test_a_client_that_leaves_is_no_failure() -> None:
    async with scripted() as (front, engine):
        engine.answers = [stream(TOKEN, *[event({"choices": []})] * 200_000)]
        _, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM))
        await writer.drain()
        while not front.exchanges:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while front.exchanges[-1].end is None:
            await asyncio.sleep(0.01)
        assert front.exchanges[-1].failure is None
        assert not front.gateway.gate.failed_replies.total


async def test_a_new_engine_begins_without_failures() -> None:
    async with scripted() as (front, engine):
        engine.answers = [FAILED]
        await ask(front)
        link = front.gateway.gate._link
        front.gateway.gate.lose_engine("The GPU was lost.")
        assert front.gateway.gate.failed_replies.total == 1
        assert link is not None
        await front.gateway.gate.resume_requests(link)
        assert front.gateway.gate.failed_replies == FailedReplies()


async def test_the_reason_of_a_lost_engine_reaches_the_client() -> None:
    async with scripted() as (front, _):
        gate = front.gateway.gate
        hung = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            gate.lose_engine("The GPU was lost.")
            hung.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        await gate.resume_requests(engine_link(front, server.sockets[0].getsockname()[1]))
        answer = await ask(front)
        server.close()
        assert hung.is_set()
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"The engine ended before the reply was complete: The GPU was lost." in answer
        assert gate.failed_replies.total == 0


async def test_the_guard_is_told_what_the_engine_owes() -> None:
    async with scripted() as (front, _):
        gate, reports, writes, ended = front.gateway.gate, *(asyncio.Event() for _ in range(3))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            await reports.wait()
            writer.write(stream(event({"prompt_progress": {"total": 9, "cache": 0, "processed": 4}, "choices": []})))
            await writes.wait()
            writer.write(TOKEN + b"\n\n")
            await ended.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        await gate.resume_requests(engine_link(front, server.sockets[0].getsockname()[1]))
        began_s = time.monotonic()
        asking = asyncio.create_task(ask(front, body=STREAM))
        while not gate.open_replies:
            await asyncio.sleep(0.001)
        (reading,) = gate.open_replies
        assert (reading.writes, reading.reports) == (False, True)
        assert began_s <= reading.heard_s <= time.monotonic()
        reports.set()
        while gate.open_replies == [reading]:
            await asyncio.sleep(0.001)
        assert gate.open_replies[0].writes is False
        writes.set()
        while not gate.open_replies[0].writes:
            await asyncio.sleep(0.001)
        ended.set()
        await asking
        assert gate.open_replies == []
        server.close()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (LOST, LOST),
        (NO_IMAGES, NO_IMAGES),
        (f'Missing \'role\' in message: {{"content": "{SECRET}"}}', "Missing 'role' in message: …"),
        (
            f'Failed to parse tools: Missing tool type; tools = [\n {{"{SECRET}"',
            "Failed to parse tools: Missing tool type…",
        ),
        (f"[json.exception.parse_error.101] parse error at line 1; last read: '\"{SECRET}'", None),
        (f"Invalid diff: '{SECRET} isn't' not found at start of '{SECRET}'", "Invalid diff: …"),
        (f"Failed to parse input at pos 17: {SECRET}\n{SECRET}", "Failed to parse input at pos …"),
        (f"Expected 'messages' to be an array, got \"{SECRET}\"", "Expected 'messages' to be an array, got …"),
        (f"bad value '{SECRET} and much more of it'", "bad value …"),
        ("cannot load https://pictures.example/1.png?signature=4711", "cannot load https://…"),
        ("cannot load data:image/png;base64,iVBORw0KGgo=", "cannot load data:image/png;base64,…"),
        (
            f"\n----\nWhile executing X at line 8:\n...{SECRET}...\nError: Jinja Exception: No user query found.",
            "Jinja Exception: No user query found.",
        ),
        ('JSON schema conversion failed:\nUnrecognized schema: {"a": 1}', None),
        ("word " * 100_000, None),
        ("", ""),
    ],
)
def test_what_is_kept_of_an_error_quotes_neither_request_nor_reply(text: str, kept: str | None) -> None:
    short = shorten_error(text)
    assert kept is None or short == kept
    assert "robbery" not in short
    assert len(short) <= 300
    assert "\n" not in short


def test_the_status_of_a_whole_reply_is_the_one_that_was_sent() -> None:
    assert read_error(502, b'{"error": {"code": "bad_gateway", "message": "x"}}') == {"code": 502, "message": "x"}
    assert read_error(500, b"<html>") == {"code": 500}
    assert read_error(500, b'{"error": "x"}')["message"] == "x"


async def test_requests_that_the_gateway_itself_refuses_are_noted() -> None:
    async with scripted() as (front, _):
        assert (await ask(front, body=b"{")).startswith(b"HTTP/1.1 400 ")
        assert (await ask(front, key="wrong")).startswith(b"HTTP/1.1 401 ")
        ends = [(each.key_name, each.end, each.failure) for each in front.exchanges]
        assert ends == [
            ("default", "refused", RequestFailure(400, "The request's body is not valid JSON")),
            ("", "refused", RequestFailure(401, "Invalid API key")),
        ]
        assert front.gateway.gate.failed_replies == FailedReplies()


async def test_strangers_cannot_push_the_requests_of_others_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as (front, _):
        for _ in range(5):
            await ask(front, key="wrong")
        await ask(front, "POST /tokenize", key="wrong")
        assert len(front.exchanges) == 1
        monkeypatch.setattr(gateway, "_UNKNOWN_CLIENT_S", 0.0)
        await ask(front, key="wrong")
        assert len(front.exchanges) == 2


async def test_the_record_of_a_request_has_status_and_message() -> None:
    async with scripted() as (front, engine):
        engine.answers = [REFUSED, GOOD]
        await ask(front)
        await ask(front)
        log = RequestLog(lambda: "demo")
        for exchange in dict.fromkeys(front.exchanges):
            log.note_exchange(exchange)
        refused, good = to_json(log.records)
        assert (refused["status"], refused["message"]) == (500, NO_IMAGES)
        assert (good["status"], good["message"]) == (None, None)
