"""The client for loopback servers, against small servers on real sockets."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from launcher.base.errors import Refused, Unreachable
from launcher.base.http import ServerClient

PATIENCE_S = 5.0
DONE = b"data: [DONE]\n\n"
CONTEXT_EXCEEDED = {
    "error": {
        "code": 400,
        "message": "request (9017 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 9017,
        "n_ctx": 4096,
    }
}


class Server:
    """Answers every request with the same bytes; then closes, or with `stays` waits until the client has left."""

    def __init__(self, answer: tuple[bytes, ...], *, stays: bool) -> None:
        self.url = ""
        self.head = ""
        self.body = b""
        self.client_gone = asyncio.Event()
        self.connections: set[asyncio.Task[None] | None] = set()
        self._answer = answer
        self._stays = stays

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            self.head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: (\d+)", self.head)
            self.body = await reader.readexactly(int(length[1])) if length else b""
            for part in self._answer:
                writer.write(part)
                await writer.drain()
            if self._stays:
                await reader.read()
                self.client_gone.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serve_answers(*answer: bytes, stays: bool = False) -> AsyncIterator[Server]:
    server = Server(answer, stays=stays)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        server.url = f"http://127.0.0.1:{port}"
        yield server
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*filter(None, server.connections))


@asynccontextmanager
async def connect_client(*answer: bytes, stays: bool = False) -> AsyncIterator[tuple[Server, ServerClient]]:
    async with serve_answers(*answer, stays=stays) as server, ServerClient(server.url) as client:
        yield server, client


def reply(body: str, status: str = "200 OK", kind: str = "application/json; charset=utf-8") -> bytes:
    head = f"HTTP/1.1 {status}\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(data: object) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = chunk(b"")


def whole_stream(*parts: bytes) -> tuple[bytes, ...]:
    return (STREAM_HEAD, *map(chunk, parts), STREAM_END)


async def receive_events(client: ServerClient, seen: list[Any] | None = None) -> list[Any]:
    seen = [] if seen is None else seen
    async with client.stream_events("/v1/chat/completions", {}) as events:
        async for data in events:
            seen.append(data)
    return seen


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address on whose port nothing listens, and which no other program can take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class TestAnswers:
    async def test_a_json_body_is_parsed(self) -> None:
        async with connect_client(reply('[{"id":0,"speculative":true}]')) as (server, client):
            assert await client.get_json("/slots") == [{"id": 0, "speculative": True}]
            assert server.head.startswith("GET /slots HTTP/1.1\r\n")

    async def test_a_text_body_is_returned_unchanged(self) -> None:
        text = "# HELP llamacpp:tokens_predicted_total Füße\n"
        async with connect_client(reply(text, kind="text/plain; version=0.0.4")) as (_, client):
            assert await client.get_text("/metrics") == text

    async def test_the_key_is_sent_with_every_request(self) -> None:
        async with serve_answers(reply("{}")) as server, ServerClient(server.url, api_key="s3cret") as client:
            await client.get_json("/props")
            assert "authorization: bearer s3cret\r\n" in server.head.lower()

    async def test_without_a_key_no_authorization_header_is_sent(self) -> None:
        async with connect_client(reply("{}")) as (server, client):
            await client.get_json("/props")
            assert "authorization" not in server.head.lower()

    async def test_the_key_is_not_sent_with_status_requests(self) -> None:
        async with serve_answers(reply("{}")) as server, ServerClient(server.url, api_key="s3cret") as client:
            assert await client.get_status("/health", timeout_s=PATIENCE_S) == 200
            assert "s3cret" not in server.head

    @pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable", "401 Unauthorized"])
    async def test_every_http_status_is_returned(self, status: str) -> None:
        async with connect_client(reply("{}", status)) as (_, client):
            assert await client.get_status("/health", timeout_s=PATIENCE_S) == int(status[:3])

    async def test_proxies_in_the_environment_are_ignored(self, dead_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, dead_url)
            monkeypatch.setenv(name.lower(), dead_url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with connect_client(reply('{"status":"ok"}')) as (_, client):
            assert await client.get_json("/health") == {"status": "ok"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "message", "hint"),
        [
            ("404 Not Found", "File Not Found", ""),
            ("401 Unauthorized", "Invalid API Key", "mtp-launcher status --json"),
            ("503 Service Unavailable", "Loading model", "still loading"),
        ],
    )
    async def test_an_error_text_of_the_server_is_passed_on_with_a_hint(
        self, status: str, message: str, hint: str
    ) -> None:
        error = {"error": {"message": message, "type": "some_error", "code": int(status[:3])}}
        async with connect_client(reply(json.dumps(error), status)) as (server, client):
            with pytest.raises(Refused) as refused:
                await client.get_json("/v1/models")
            assert refused.value.title == f"The server refused the request: {message}."
            assert hint in refused.value.hint
            assert bool(hint) == bool(refused.value.hint)
            assert refused.value.status == refused.value.facts["status"] == int(status[:3])
            assert refused.value.facts["where"] == f"{server.url}/v1/models"

    @pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", "", '"oops"', '{"error":{}}'])
    async def test_an_error_without_a_text_is_named_by_its_status(self, body: str) -> None:
        async with connect_client(reply(body, "502 Bad Gateway")) as (_, client):
            with pytest.raises(Refused, match="HTTP status 502") as refused:
                await client.get_text("/metrics")
            assert refused.value.status == 502

    async def test_a_plain_text_error_is_reported(self) -> None:
        async with connect_client(reply('{"error":"oops"}', "502 Bad Gateway")) as (_, client):
            with pytest.raises(Refused, match="refused the request: oops"):
                await client.get_text("/metrics")

    async def test_an_html_page_in_place_of_json_is_refused(self) -> None:
        async with connect_client(reply("<html>Welcome</html>", kind="text/html")) as (server, client):
            with pytest.raises(Refused) as refused:
                await client.get_json("/slots")
            assert refused.value.title == f"{server.url}/slots sent something that is not JSON."


class TestSilence:
    async def test_a_refused_connection_is_reported(self, dead_url: str) -> None:
        async with ServerClient(dead_url) as client:
            assert await client.get_status("/health", timeout_s=PATIENCE_S) is None
            with pytest.raises(Unreachable, match=f"No server responds at {dead_url}"):
                await client.get_json("/slots")
            with pytest.raises(Unreachable, match=f"No server responds at {dead_url}"):
                await receive_events(client)

    async def test_a_server_that_never_answers_has_no_status(self) -> None:
        async with connect_client(stays=True) as (server, client):
            async with asyncio.timeout(PATIENCE_S):
                assert await client.get_status("/health", timeout_s=0.05) is None
                await server.client_gone.wait()

    async def test_a_request_without_an_answer_times_out(self) -> None:
        async with connect_client(stays=True) as (server, client):
            client._client.timeout = 0.05
            with pytest.raises(Unreachable, match=f"{server.url} did not respond in time"):
                await client.get_text("/metrics")

    async def test_an_incomplete_body_is_reported(self) -> None:
        async with connect_client(reply('{"status":"ok"}')[:-5]) as (_, client):
            with pytest.raises(Unreachable, match="was lost"):
                await client.get_json("/health")

    async def test_a_server_that_does_not_speak_http_is_reported(self) -> None:
        async with connect_client(b"SSH-2.0-OpenSSH_9.2\r\n\r\n") as (_, client):
            assert await client.get_status("/health", timeout_s=PATIENCE_S) is None
            with pytest.raises(Unreachable, match="was lost"):
                await client.get_text("/metrics")


class TestEvents:
    async def test_the_request_is_posted_as_json(self) -> None:
        async with connect_client(*whole_stream(DONE)) as (server, client):
            async with client.stream_events("/v1/chat/completions", {"stream": True, "max_tokens": 14}):
                pass
            assert server.head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
            assert json.loads(server.body) == {"stream": True, "max_tokens": 14}

    async def test_events_arrive_parsed_and_in_order(self) -> None:
        async with connect_client(*whole_stream(event({"n": 1}), event({"n": 2}) + event([3]), DONE)) as (_, client):
            assert await receive_events(client) == [{"n": 1}, {"n": 2}, [3]]

    async def test_the_key_is_sent_with_a_stream_and_later_requests_work(self) -> None:
        async with serve_answers(*whole_stream(DONE)) as server, ServerClient(server.url, api_key="s3cret") as client:
            await receive_events(client)
            assert "authorization: bearer s3cret\r\n" in server.head.lower()
            assert "accept: text/event-stream\r\n" in server.head.lower()
            await client.get_text("/metrics")
            assert "event-stream" not in server.head

    async def test_pings_and_comments_are_skipped(self) -> None:
        parts = (b":\n\n", event({"n": 1}), b": ping\n\n", b"\n\n", event({"n": 2}), b":\n\n", DONE)
        async with connect_client(*whole_stream(*parts)) as (_, client):
            assert await receive_events(client) == [{"n": 1}, {"n": 2}]

    async def test_done_ends_the_stream_even_if_the_connection_stays_open(self) -> None:
        stays = (STREAM_HEAD, chunk(event({"n": 1}) + DONE + event({"n": 2})))
        async with connect_client(*stays, stays=True) as (server, client), asyncio.timeout(PATIENCE_S):
            assert await receive_events(client) == [{"n": 1}]
            await server.client_gone.wait()

    async def test_a_stream_may_end_without_done(self) -> None:
        async with connect_client(*whole_stream(event({"n": 1}))) as (_, client):
            assert await receive_events(client) == [{"n": 1}]

    @pytest.mark.parametrize("token", ["\u2028", "\x85", "\x0b", "日本", "🦙"])
    async def test_tokens_are_decoded_for_all_characters_and_all_cuts(self, token: str) -> None:
        data = event({"content": token}) + DONE
        async with connect_client(*whole_stream(*(data[i : i + 1] for i in range(len(data))))) as (_, client):
            assert await receive_events(client) == [{"content": token}]

    async def test_an_error_before_the_stream_has_the_text_of_the_server(self) -> None:
        async with connect_client(reply(json.dumps(CONTEXT_EXCEEDED), "400 Bad Request")) as (_, client):
            with pytest.raises(Refused, match="9017 tokens") as refused:
                await receive_events(client)
            assert refused.value.status == 400
            assert "--ctx" in refused.value.hint

    async def test_an_error_within_the_stream_has_the_text_of_the_server(self) -> None:
        error = {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}
        seen: list[Any] = []
        async with connect_client(*whole_stream(event({"n": 1}), event(error), event({"n": 2}))) as (_, client):
            with pytest.raises(Refused, match=r"refused the request: Compute error\.$"):
                await receive_events(client, seen)
        assert seen == [{"n": 1}]

    async def test_a_stream_that_breaks_off_is_reported(self) -> None:
        seen: list[Any] = []
        async with connect_client(STREAM_HEAD, chunk(event({"n": 1}))) as (server, client):
            with pytest.raises(Unreachable, match=f"The connection to {server.url} was lost"):
                await receive_events(client, seen)
        assert seen == [{"n": 1}]

    async def test_an_event_that_is_not_json_is_refused(self) -> None:
        async with connect_client(*whole_stream(b"data: {cut\n\n")) as (_, client):
            with pytest.raises(Refused, match="not JSON"):
                await receive_events(client)

    async def test_an_answer_of_another_type_is_not_read_as_a_stream(self) -> None:
        async with connect_client(reply('{"choices":[]}')) as (_, client):
            with pytest.raises(Refused, match="event stream"):
                await receive_events(client)


class TestHangingUp:
    OPEN_STREAM = (STREAM_HEAD, chunk(event({"n": 1})))

    async def test_leaving_the_block_early_closes_the_connection(self) -> None:
        async with connect_client(*self.OPEN_STREAM, stays=True) as (server, client), asyncio.timeout(PATIENCE_S):
            async with client.stream_events("/completion", {}) as events:
                assert await anext(events) == {"n": 1}
                assert not server.client_gone.is_set()
            await server.client_gone.wait()

    async def test_an_error_in_the_reader_closes_the_connection_and_is_raised_unchanged(self) -> None:
        async with connect_client(*self.OPEN_STREAM, stays=True) as (server, client), asyncio.timeout(PATIENCE_S):

            async def read_missing_key() -> None:
                async with client.stream_events("/completion", {}) as events:
                    async for data in events:
                        data["missing"]

            with pytest.raises(KeyError, match="missing"):
                await read_missing_key()
            await server.client_gone.wait()

    async def test_cancelling_the_reader_closes_the_connection(self) -> None:
        async with connect_client(*self.OPEN_STREAM, stays=True) as (server, client), asyncio.timeout(PATIENCE_S):
            first = asyncio.Event()

            async def read() -> None:
                async with client.stream_events("/completion", {}) as events:
                    async for _ in events:
                        first.set()

            reading = asyncio.create_task(read())
            await first.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await server.client_gone.wait()

    async def test_closing_the_client_ends_an_open_stream(self) -> None:
        async with connect_client(*self.OPEN_STREAM, stays=True) as (server, client), asyncio.timeout(PATIENCE_S):
            first = asyncio.Event()

            async def read() -> None:
                async with client.stream_events("/completion", {}) as events:
                    async for _ in events:
                        first.set()

            reading = asyncio.create_task(read())
            await first.wait()
            await client.close()
            with pytest.raises(Unreachable, match="was lost"):
                await reading
            await server.client_gone.wait()


async def test_streams_that_are_cancelled_at_any_moment_leave_no_connection() -> None:
    async with connect_client(STREAM_HEAD, *[chunk(event({"n": 1}))] * 20, stays=True) as (server, client):
        for number in range(400):
            reading = asyncio.create_task(receive_events(client))
            for _ in range(number // 4):
                await asyncio.sleep(0)
            reading.cancel()
            with suppress(asyncio.CancelledError, Unreachable):  # a busy computer connects late
                await reading
        _, left = await asyncio.wait(filter(None, server.connections), timeout=PATIENCE_S)
        assert not left
