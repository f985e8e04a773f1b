"""Requests that the gateway refuses and passes, over sockets, before an engine that records all it receives.

The attempts are those of the table in docs/security.md, with the answers that it promises.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.app.settings_declared import ALLOWED_NAMES
from launcher.gateway import access, gateway
from launcher.gateway.access import Access
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import Exchange
from launcher.gateway.gateway import Gateway
from launcher.gateway.turns import MOST_WAITING
from launcher.machine.addresses import list_lan_addresses

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
KEY, OTHER_KEY, ENGINE_KEY = "d" * 43, "o" * 43, "e" * 43
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}]}'
STREAM = b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}'


@dataclass
class Engine:
    """A small HTTP server in place of an engine. A requested stream goes on until the client leaves."""

    requests: list[bytes] = field(default_factory=list)
    streams: int = 0
    port: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self.answer(reader, writer)
        finally:
            self.open -= 1

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            body = await reader.readexactly(int(length[1])) if length else b""
            if not head.startswith(b"GET /health "):
                self.requests.append(head + body)
            own = b"Access-Control-Allow-Origin: *\r\nServer: llama.cpp\r\nX-Own-Port: %d\r\n" % self.port
            if b'"stream": true' in body:
                self.streams += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + own + b"\r\n")
                try:
                    while True:
                        writer.write(b'data: {"choices": [{"delta": {"content": " word"}}]}\n\n')
                        await writer.drain()
                        await asyncio.sleep(0.01)
                finally:
                    self.streams -= 1
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + own + b"\r\n{}"
            )
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


class Answer(NamedTuple):
    """An HTTP response as it came."""

    status: int
    head: bytes
    body: bytes


@dataclass
class Front:
    """A gateway, its port, the engine behind it, and its exchanges, each as often as it changed."""

    gateway: Gateway
    port: int
    engine: Engine
    exchanges: list[Exchange]

    def host(self, name: str = "127.0.0.1") -> bytes:
        return f"Host: {name}:{self.port}\r\n".encode()

    def request(self, line: str, *headers: str, body: bytes = b"", key: str | None = KEY, host: str = "") -> bytes:
        """Return the bytes of a request; a body gets its type and length unless `headers` has one."""
        given = [f"Host: {host or f'127.0.0.1:{self.port}'}", *headers]
        names = {header.partition(":")[0].lower() for header in headers}
        if key is not None:
            given.append(f"Authorization: Bearer {key}")
        if line.startswith("POST") and "content-type" not in names:
            given.append("Content-Type: application/json")
        if body and not names & {"content-length", "transfer-encoding"}:
            given.append(f"Content-Length: {len(body)}")
        return "\r\n".join([f"{line} HTTP/1.1", *given, "", ""]).encode() + body

    async def send(self, data: bytes) -> Answer:
        """Send bytes over a new connection; return the first response."""
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(data)
                return await read_answer(reader, has_body=not data.startswith(b"HEAD"))
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def ask(self, line: str, *headers: str, body: bytes = b"", key: str | None = KEY, host: str = "") -> Answer:
        return await self.send(self.request(line, *headers, body=body, key=key, host=host))


async def read_answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower()) if has_body else None
    body = await reader.readexactly(int(length[1])) if length else b""
    return Answer(int(head.split()[1]), head, body)


@asynccontextmanager
async def open_gateway(*, own_names: Collection[str] = (), allowed: Collection[str] = ()) -> AsyncIterator[Front]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        exchanges: list[Exchange] = []
        access = Access({"default": KEY, "other": OTHER_KEY}, own_names, read_allowed=lambda: allowed)
        tried = Gateway(access, on_exchange=exchanges.append)
        await tried.listen([listener])
        link = EngineLink(f"http://127.0.0.1:{engine.port}", ENGINE_KEY, slots=2, slot_folder=None, state_key="")
        await tried.gate.resume_requests(link)
        try:
            yield Front(tried, port, engine, exchanges)
        finally:
            await tried.close()
            server.close()
            while engine.open:
                await asyncio.sleep(0.01)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with open_gateway() as it:
        yield it


def attempts(front: Front) -> dict[str, list[bytes]]:
    """Return the requests of each attempt in the table of docs/security.md."""
    chat = "POST /v1/chat/completions"
    post = front.request(chat).removesuffix(b"\r\n")
    health = b"GET /health HTTP/1.1\r\n" + front.host()

    def ask(line: str, *headers: str, body: bytes = b"", key: str | None = KEY, host: str = "") -> bytes:
        return front.request(line, *headers, body=body, key=key, host=host)

    return {
        "no key, or a wrong one": [
            ask("GET /v1/models", key=None),
            ask("GET /v1/models", key=KEY[:-1]),
            ask("GET /v1/models", key=KEY + "d"),
            ask("GET /v1/models", key=f"{KEY},{OTHER_KEY}"),
            ask("GET /v1/models", "X-Api-Key: wrong", key=None),
            ask("GET /v1/models", f"Authorization: Basic {KEY}", key=None),
            ask(chat, body=CHAT, key=None),
        ],
        "a key in the address": [ask(f"GET /v1/models?api_key={KEY}", key=None)],
        "a path that does not exist, without a key": [ask("GET /secret", key=None)],
        "a name that a site could point to this computer (DNS rebinding)": [
            ask("GET /v1/models", host=host)
            for host in (
                "evil.example",
                f"evil.example:{front.port}",
                "localhost.evil.example",
                "127.0.0.1.evil.example",
                "host.docker.internal.evil.example",
                "internal",
                f"127.1:{front.port}",
                f"0x7f000001:{front.port}",
            )
        ],
        "no `Host`, or several": [
            b"GET /health HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/1.0\r\n\r\n",
            health + front.host("localhost") + b"\r\n",
        ],
        "a page of another origin, even with the key": [
            ask("GET /v1/models", f"Origin: {origin}")
            for origin in (
                "https://evil.example",
                "null",
                "file://",
                "http://localhost.evil.example",
                "http://127.0.0.1.evil.example",
                "http://evil.example@localhost",
                "http://localhost:1:2",
            )
        ],
        "its preflight": [
            ask("OPTIONS /v1/chat/completions", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
        ],
        "a POST that needs no preflight": [
            *(
                ask(chat, f"Content-Type: {kind}", body=CHAT)
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
            ),
            post.replace(b"Content-Type: application/json\r\n", b"") + b"Content-Length: 2\r\n\r\n{}",
        ],
        "what changes the engine or reads its files": [
            ask(line, body=b"{}")
            for line in (
                "POST /props",
                "POST /slots/0?action=save",
                "POST /slots/0?action=restore",
                "POST /lora-adapters",
                "POST /models/load",
                "POST /models/unload",
                "DELETE /v1/stream",
                "GET /v1/streams",
                "GET /tools",
                "POST /tools",
                "GET /cors-proxy",
                "GET /models/sse",
                "POST /",
            )
        ],
        "another spelling of a path": [
            ask(f"GET {path}", key=None)
            for path in (
                "/%68ealth",
                "//health",
                "/x/../health",
                "/x/%2e%2e/health",
                "/x%2f..%2fhealth",
                f"http://127.0.0.1:{front.port}/health",
                "/health#x",
                "/health/",
            )
        ],
        "the same with the key": [
            ask(f"GET {path}") for path in ("/v1%2fmodels", "//v1/models", "/v1/./models", "/slots/%30?action=save")
        ],
        "two lengths, or a length beside chunks": [
            post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
            post + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            post.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
        "a length or a chunk that is not a number": [
            *(
                post + b"Content-Length: " + text + b"\r\n\r\nx"
                for text in (b"+1", b"-1", b"1, 1", b"1_0", b"0x1", b"")
            ),
            *(
                post + b"Transfer-Encoding: chunked\r\n\r\n" + text
                for text in (b"zz\r\n", b"-1\r\n", b"0x2\r\n", b"2\nab")
            ),
        ],
        "headers that two programs may read in two ways": [
            b"GET /health HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
            health + b"X: a\r\n b\r\n\r\n",
            health + b"X: a\rb\r\n\r\n",
            health + b"X: a\0b\r\n\r\n",
            health + b"X: \x1b[2J\r\n\r\n",
            health + b"X: \xff\r\n\r\n",
            health + b": a\r\n\r\n",
            (health + b"\r\n").replace(b"\r\n", b"\n"),
            post + b"Transfer-Encoding: xchunked\r\n\r\n",
        ],
        "another coding than chunks": [post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"],
        "a compressed body": [ask(chat, "Content-Encoding: gzip", body=b"\x1f\x8b")],
        "headers of more than 64 KB": [
            health + b"".join(b"X%d: %s\r\n" % (n, b"a" * 9_000) for n in range(8)) + b"\r\n"
        ],
        "a header of more than 64 KB, or more than 128 headers": [
            health + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
            health + b"".join(b"X%d: a\r\n" % n for n in range(200)) + b"\r\n",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + front.host() + b"\r\n",
        ],
        "a body of more than 256 MB": [post + b"Content-Length: 268435457\r\n\r\n"],
        "the same without the key": [ask(chat, "Content-Length: 268435457", key=None)],
        "JSON that is nested 100,000 times, or none": [ask(chat, body=b"[" * 100_000), ask(chat, body=b"{'a': 1}")],
        "TLS, HTTP/2, or no HTTP at all": [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\0\0\0\0\r\n\r\n",
            b"FOO /health HTTP/1.1\r\n" + front.host() + b"\r\n",
        ],
    }


def promised_statuses() -> dict[str, set[int]]:
    """Return the attempts of the table, with the statuses that it promises."""
    table = DOCS.read_text("utf-8").partition("| attempt |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {attempt: {int(status) for status in re.findall(r"\d{3}\b", answer)} for attempt, answer in rows}


@pytest.mark.parametrize("attempt", [each for each, statuses in promised_statuses().items() if statuses])
async def test_each_unauthorised_request_gets_the_documented_answer(
    front: Front, attempt: str, caplog: pytest.LogCaptureFixture
) -> None:
    tried = attempts(front)[attempt]
    for data in tried:
        answer = await front.send(data)
        assert answer.status in promised_statuses()[attempt], (data[:300], answer)
        assert b"access-control-allow" not in answer.head.lower(), data[:300]
        shown = answer.head + answer.body
        assert not any(each in shown for each in (ENGINE_KEY.encode(), KEY.encode(), str(front.engine.port).encode()))
    assert tried
    assert not front.engine.requests
    assert not caplog.records, "strangers could fill the disk with log lines"


async def test_documented_and_tested_requests_are_the_same(front: Front) -> None:
    assert {each for each, statuses in promised_statuses().items() if statuses} == set(attempts(front))


async def test_slow_headers_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "HEADER_TIME_S", 0.3)
    async with open_gateway() as front, asyncio.timeout(60):
        for sent in (b"", b"GET /health HTTP/1.1\r\nHo", b"GET /health HTTP/1.1\r\n" + front.host() + b"X: 1\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
        assert (await front.ask("GET /health")).status == 200


async def test_a_chunked_body_is_not_read_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_BODY_BYTES", 100_000)
    async with open_gateway() as front:
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        head = front.request("POST /tokenize", "Transfer-Encoding: chunked")
        assert (await front.send(head + 3 * chunk + b"0\r\n\r\n")).status == 413
        assert (await front.send(head + chunk + b"2\r\n{}\r\n0\r\n\r\n")).status == 200
        assert len(front.engine.requests) == 1


async def test_expect_100_continue_needs_the_key(front: Front) -> None:
    expect = ("Expect: 100-continue", f"Content-Length: {len(CHAT)}")
    line = "POST /v1/chat/completions"
    assert (await front.ask(line, *expect, key=None)).status == 401
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(front.request(line, *expect))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(CHAT)
    assert (await read_answer(reader)).status == 200
    writer.close()
    assert (await front.ask(line, "Expect: money", body=CHAT)).status == 417


async def test_a_body_that_does_not_arrive_times_out(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BODY_PAUSE_S", 0.3)
    line = "POST /tokenize"
    begun = front.request(line, "Transfer-Encoding: chunked") + b"2\r\n{ \r\n"
    for sent, then in ((front.request(line, "Content-Length: 9"), b"{"), (begun, b""), (begun, b"zz\r\n")):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(sent)
        await asyncio.sleep(0.05)
        writer.write(then)
        async with asyncio.timeout(60):
            assert (await read_answer(reader)).status == 408
        writer.close()
    assert not front.engine.requests


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "app.localhost",
        "[::1]",
        "0.0.0.0",
        "192.168.0.9",
        "host.docker.internal",
        "host.containers.internal",
    ],
)
async def test_hosts_that_no_site_can_have_are_accepted_with_any_port(front: Front, host: str) -> None:
    """Port 1 stands for a port that SSH, an editor, WSL or a container forwards from."""
    for given in (host, f"{host}:{front.port}", f"{host}:1"):
        assert (await front.ask("GET /v1/models", host=given)).status == 200
        assert (await front.ask("GET /v1/models", host=given, key=None)).status == 401


async def test_the_refusal_of_a_name_says_how_it_is_allowed(front: Front) -> None:
    refused = await front.ask("GET /v1/models", host="llm.example:8443")
    assert refused.status == 421
    assert ALLOWED_NAMES == access.ALLOWED_NAMES_SETTING
    assert f'mtp-launcher settings set {ALLOWED_NAMES} "llm.example"' in json.loads(refused.body)["error"]["message"]
    page = await front.ask("GET /v1/models", "Origin: https://Chat.example:8443")
    assert page.status == 403
    assert f'set {ALLOWED_NAMES} "https://chat.example:8443"' in json.loads(page.body)["error"]["message"]
    for odd in ("null", 'https://a"; rm -rf /', "https://chat.example/x"):
        page = await front.ask("GET /v1/models", f"Origin: {odd}")
        assert (page.status, b"settings set" in page.body) == (403, False)


async def test_a_name_and_a_page_that_the_user_allows_are_accepted_at_once() -> None:
    allowed: set[str] = set()
    async with open_gateway(allowed=allowed) as front:
        assert (await front.ask("GET /v1/models", host="llm.example")).status == 421
        allowed |= {"llm.example", "https://chat.example:8443"}
        for host in ("llm.example", "LLM.example:8443"):
            assert (await front.ask("GET /v1/models", host=host)).status == 200
        assert (await front.ask("GET /v1/models", host="x.llm.example")).status == 421
        for origin, status in (("https://chat.example:8443", 200), ("https://chat.example", 403)):
            assert (await front.ask("GET /v1/models", f"Origin: {origin}")).status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("[fd00::9]", 200),
        ("Desktop", 200),
        ("desktop.lan", 200),
        ("desktop.evil.example", 421),
        ("192.168.0.9.evil.example", 421),
    ],
)
async def test_a_shared_gateway_accepts_its_own_names(host: str, status: int) -> None:
    async with open_gateway(own_names={"desktop", "desktop.lan"}) as front:
        for port in (front.port, 1):
            assert (await front.ask("GET /v1/models", host=f"{host}:{port}")).status == status
    async with open_gateway() as front:
        assert (await front.ask("GET /v1/models", host="desktop")).status == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1",
        "https://[::1]:8443",
        "http://tauri.localhost",
        "app://obsidian.md",
        "chrome-extension://fjidfhngbnbnhlphflfhhhfbfhhmcjno",
        "moz-extension://0c4a2f3e-6d9b-4b8e-9a55-0f2c8d1f7a11",
    ],
)
async def test_a_web_page_of_this_computer_may_use_it_with_the_key(front: Front, origin: str) -> None:
    asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, content-type")
    preflight = await front.ask("OPTIONS /v1/chat/completions", f"Origin: {origin}", *asks, key=None)
    assert preflight.status == 200
    for header in (f"Allow-Origin: {origin}", "Allow-Methods: GET, POST", "Allow-Headers: authorization, content-type"):
        assert f"\r\nAccess-Control-{header}\r\n".encode() in preflight.head
    assert not front.engine.requests
    for answer in (
        await front.ask("POST /v1/chat/completions", f"Origin: {origin}", body=CHAT),
        await front.ask("POST /v1/chat/completions", f"Origin: {origin}", body=STREAM),
        await front.ask("GET /v1/models", f"Origin: {origin}", key=None),
    ):
        assert re.findall(rb"Access-Control-Allow-Origin: ([^\r]*)", answer.head) == [origin.encode()]


async def test_the_origin_of_the_gateway_itself_is_accepted(front: Front) -> None:
    assert (await front.ask("GET /v1/models", f"Origin: http://127.0.0.1:{front.port}")).status == 200
    async with open_gateway(own_names={"desktop"}) as shared:
        own = f"desktop:{shared.port}"
        assert (await shared.ask("GET /v1/models", f"Origin: http://{own}", host=own)).status == 200
        assert (await shared.ask("GET /v1/models", f"Origin: http://{own}")).status == 403


async def test_options_requests_without_an_origin_are_refused(front: Front) -> None:
    assert (await front.ask("OPTIONS /v1/models", key=None)).status == 405
    assert (await front.ask("OPTIONS *", key=None)).status == 404


async def test_the_engine_gets_its_own_key_and_no_headers_of_the_gateway(front: Front) -> None:
    body = b'{"id_slot": 1, "id\\u005fslot": 2, "content": "a"}'
    headers = ("X-Conversation-Id: mine", "Cookie: a=b", "Origin: http://localhost", "User-Agent: test/1")
    for path in ("/tokenize", "/v1/chat/completions?id_slot=1"):
        assert (await front.ask(f"POST {path}", *headers, body=body)).status == 200
    for request in front.engine.requests:
        assert f"Authorization: Bearer {ENGINE_KEY}".encode() in request
        assert b"User-Agent: test/1" in request
        for hidden in (KEY.encode(), b"mine", b"Cookie", b"Origin"):
            assert hidden not in request
    for sent in front.engine.requests:
        assert b"slot" not in sent.partition(b"\r\n\r\n")[2]


async def test_headers_of_the_engine_are_not_passed_on(front: Front) -> None:
    for body in (CHAT, STREAM):
        answer = await front.ask("POST /v1/chat/completions", body=body)
        assert answer.status == 200
        for hidden in (b"Access-Control", b"X-Own-Port", b"llama.cpp", str(front.engine.port).encode()):
            assert hidden not in answer.head


@pytest.mark.parametrize("path", ["/", "/index.html", "/_app/immutable/assets/bundle.De_-5.css", "/sw.js?x=1"])
async def test_the_web_page_of_the_engine_needs_no_key(front: Front, path: str) -> None:
    for key in (None, KEY, "wrong"):
        answer = await front.ask(f"GET {path}", "Cookie: a=b", "Accept-Encoding: gzip", key=key)
        assert answer.status == 200
        assert b"frame-ancestors 'none'" in answer.head
    assert len(front.engine.requests) == 3
    for request in front.engine.requests:
        assert request.startswith(f"GET {path.partition('?')[0]} HTTP/1.1".encode())
        assert b"Accept-Encoding: gzip" in request
        assert b"Authorization" not in request
        assert b"Cookie" not in request


async def test_other_files_than_those_of_the_web_page_need_the_key(front: Front) -> None:
    for path in (
        "/a/../b.js",
        "/.env.js",
        "//a.js",
        "/a//b.js",
        "/a%2ejs",
        "/slots/0",
        "/a.gguf",
        "/a.js/",
        "/a/",
        "/.js",
    ):
        assert (await front.ask(f"GET {path}", key=None)).status == 401, path
    assert (await front.ask("POST /index.html", key=None, body=b"{}")).status == 405
    assert (await front.ask("GET /index.html", key=None, host="evil.example")).status == 421
    assert (await front.ask("GET /index.html", "Origin: https://evil.example", key=None)).status == 403
    assert not front.engine.requests


async def test_an_upgrade_request_is_answered_as_http(front: Front) -> None:
    """Java's HTTP client asks for HTTP/2 with each request."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    assert (await front.ask("POST /v1/chat/completions", *upgrade, body=CHAT)).status == 200
    assert front.engine.requests[0].endswith(CHAT)
    assert (await front.ask("GET /health", "Connection: Upgrade", "Upgrade: websocket")).status == 200


async def test_a_request_hidden_in_the_body_of_a_refused_one_is_not_answered(front: Front) -> None:
    """A request in the body of another one must not be answered."""
    hidden = front.request("GET /v1/models")
    outer = front.request("POST /v1/chat/completions", body=hidden, key=None) + front.request("GET /health", key=None)
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(outer)
    assert [(await read_answer(reader)).status for _ in range(2)] == [401, 200]
    writer.close()
    assert not front.engine.requests


async def test_a_valid_request_passes(front: Front) -> None:
    for headers in (["Content-Type: application/json; charset=utf-8"], [f"X-Api-Key: {OTHER_KEY}"]):
        key = None if "Api" in headers[0] else KEY
        assert (await front.ask("POST /v1/chat/completions", *headers, body=CHAT, key=key)).status == 200
    assert (await front.ask("HEAD /health", key=None)).status == 200
    assert (await front.ask("GET /health", key=None)).status == 200


async def open_stream(front: Front, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream, and read its first events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(front.request("POST /v1/chat/completions", body=STREAM, key=key))
    await reader.readuntil(b" word")
    return reader, writer


async def test_a_revoked_key_is_refused_and_its_replies_end(front: Front) -> None:
    async with asyncio.timeout(60):
        theirs, writer = await open_stream(front, OTHER_KEY)
        ours, our_writer = await open_stream(front, KEY)
        waits, wait_writer = await asyncio.open_connection("127.0.0.1", front.port)
        wait_writer.write(front.request("POST /v1/chat/completions", body=CHAT, key=OTHER_KEY))
        while len(front.gateway.gate._forwarders) < 3:
            await asyncio.sleep(0.01)
        front.gateway.set_keys({"default": KEY, "new": "n" * 43})
        assert (await read_answer(waits)).status == 401
        rest = await theirs.readuntil(b"0\r\n\r\n")
        assert json.loads(rest.rpartition(b"data: ")[2].partition(b"\n")[0])["error"]["code"] == 401
        await ours.readuntil(b" word")
        while front.engine.streams > 1:
            await asyncio.sleep(0.01)
        assert (await front.ask("GET /v1/models", key=OTHER_KEY)).status == 401
        assert (await front.ask("GET /v1/models", key="n" * 43)).status == 200
        for each in (writer, our_writer, wait_writer):
            each.close()


async def test_a_replaced_key_is_refused_and_its_replies_go_on(front: Front) -> None:
    async with asyncio.timeout(60):
        reader, writer = await open_stream(front, OTHER_KEY)
        front.gateway.set_keys({"default": KEY, "other": "n" * 43})
        assert (await front.ask("GET /v1/models", key=OTHER_KEY)).status == 401
        assert (await front.ask("GET /v1/models", key="n" * 43)).status == 200
        for _ in range(20):
            assert b"error" not in await reader.readuntil(b" word")
        writer.close()


async def test_a_queue_holds_256_requests(front: Front) -> None:
    async with asyncio.timeout(60):
        streams = [await open_stream(front, KEY) for _ in range(2)]
        waiting = [await asyncio.open_connection("127.0.0.1", front.port) for _ in range(MOST_WAITING)]
        for _, writer in waiting:
            writer.write(front.request("POST /v1/chat/completions", body=CHAT))
        while len(front.gateway.gate._forwarders) < MOST_WAITING + 2:
            await asyncio.sleep(0.02)
        refused = await front.ask("POST /v1/chat/completions", body=CHAT)
        assert (refused.status, b"Too many" in refused.body) == (503, True)
        # A request whose body has not arrived is refused as well: it gets no place in the queue.
        assert (await front.ask("POST /v1/chat/completions", "Content-Length: 9")).status == 503
        assert (await front.ask("GET /health", key=None)).status == 200
        for _, writer in streams:
            writer.close()
        answers = await asyncio.gather(*(read_answer(reader) for reader, _ in waiting))
        assert {each.status for each in answers} == {200}
        for _, writer in waiting:
            writer.close()


@pytest.mark.skipif(not list_lan_addresses(), reason="this computer is in no network")
async def test_connections_to_other_computers_end_when_the_address_is_left(front: Front) -> None:
    health = front.request("GET /health", key=None)
    async with asyncio.timeout(60):
        with socket.create_server((list_lan_addresses()[0], 0)) as listener:
            listener.setblocking(False)
            await front.gateway.listen([listener])
            own = await asyncio.open_connection("127.0.0.1", front.port)
            other = await asyncio.open_connection(*listener.getsockname()[:2])
            for reader, writer in (own, other):
                writer.write(health)
                assert (await read_answer(reader)).status == 200
            await front.gateway.stop_listening()
            other[1].write(health)
            with suppress(ConnectionError):
                assert await other[0].read() == b""
            own[1].write(health)
            assert (await read_answer(own[0])).status == 200
            for _, writer in (own, other):
                writer.close()


def test_log_lines_contain_no_keys() -> None:
    assert KEY not in repr(Access({"default": KEY}))
    assert access.MOST_HEADER_BYTES == 65_536
    assert access.HEADER_TIME_S == 10
