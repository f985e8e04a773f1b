"""Servers of other programs: complete, minimal, strange and hostile ones."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from launcher.app.serving.attach import AttachedServer, attach_server
from launcher.base import http
from launcher.base.errors import BadOption, LauncherError, ProxyUnusable, Refused, ServerNotFound, Unreachable
from launcher.cli.agent_check import run
from launcher.cli.options.agent_check import configure
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.state import ServerState
from launcher.monitor.monitor import Monitor, MonitorPeriods, MonitorSnapshot

KEY = "k" * 40
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def reply(body: object, status: str = "200 OK", kind: str = "application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


NOT_FOUND = reply({"detail": "Not Found"}, "404 Not Found")
MODELS = reply({"object": "list", "data": [{"id": "some/model"}, {"id": "other"}]})


@asynccontextmanager
async def serve_answers(
    routes: dict[str, Answer], default: Answer = NOT_FOUND
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server with an answer for each path; yield its address and the requests that it received."""
    requests: list[bytes] = []
    talks: set[asyncio.Task[Any]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        talks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    head += await reader.readexactly(int(line.split(b":")[1]))
            requests.append(head)
            answer = routes.get(head.split(b" ")[1].decode(), default)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await server.wait_closed()


async def detect_features_of(url: str, key: str | None = None) -> AttachedServer:
    server = AttachedServer(parse_address(url), key)
    try:
        await server.detect_features()
    finally:
        await server.close()
    return server


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "url", "local"),
        [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", True),
            ("http://localhost:8080/v1/", "http://localhost:8080", True),
            ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
            ("http://[::1]:8080/v1", "http://[::1]:8080", True),
            ("https://models.example/prefix/v1", "https://models.example/prefix", False),
            ("http://192.168.1.20:8080/v1/chat/completions", "http://192.168.1.20:8080", False),
            ("http://localhost.example", "http://localhost.example", False),
        ],
    )
    def test_addresses_are_parsed_as_users_write_them(self, text: str, url: str, local: bool) -> None:
        address = parse_address(text)
        assert (address.url, address.local) == (url, local)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "http://",
            "ftp://x",
            "http://x:99999",
            "http://x:0",
            "http://[::1",
            "http://u:p@x",
            "http://x/?key=1",
            "x",
            "x/v1",
        ],
    )
    def test_an_invalid_address_is_refused(self, text: str) -> None:
        with pytest.raises(BadOption):
            parse_address(text)

    def test_a_single_word_is_not_an_address(self) -> None:
        with pytest.raises(
            BadOption, match=r"^`nonsense` is not the address of a server\. .* http://127\.0\.0\.1:8080"
        ):
            parse_address("nonsense")

    @pytest.mark.parametrize("place", ["x", "[x", "x:99999", "x@[y"])
    @pytest.mark.parametrize("login", ["user:hunter2", "user:p/hunter2", "hunter2"])
    @pytest.mark.parametrize("scheme", ["http://", ""])
    def test_a_password_in_an_address_is_not_shown(self, scheme: str, login: str, place: str) -> None:
        with pytest.raises(BadOption) as refused:
            parse_address(f"{scheme}{login}@{place}")
        assert "hunter2" not in str(refused.value)

    def test_a_key_over_plain_http_to_another_computer_is_reported_as_exposed(self) -> None:
        assert parse_address("http://192.168.1.20:8080").exposes_key
        assert not parse_address("http://127.0.0.1:8080").exposes_key
        assert not parse_address("https://models.example").exposes_key


class TestFeatures:
    async def test_a_server_with_only_models_and_chat_is_recognised(self) -> None:
        async with serve_answers({"/v1/models": MODELS}) as (url, _):
            features = (await detect_features_of(f"{url}/v1")).features
        assert features.models == ("some/model", "other")
        assert not features.is_llama_server
        assert (features.engine, features.context, features.slots, features.drafts, features.healthy) == (None,) * 5
        assert not features.has_counters
        assert features.missing == dict.fromkeys(("/props", "/slots", "/metrics", "/health"), "not offered")

    async def test_missing_counters_do_not_count_as_zero(self) -> None:
        other = reply(b"vllm:num_requests_running 3.0\n", kind="text/plain")
        routes: dict[str, Answer] = {"/v1/models": MODELS, "/metrics": other}
        async with serve_answers(routes) as (url, _), attach_server(parse_address(url)) as server:
            assert not server.features.has_counters
            assert "not those of llama-server" in server.features.missing["/metrics"]
            with pytest.raises(ServerNotFound):
                _ = server.client

    async def test_figures_of_a_wrong_type_are_unknown(self) -> None:
        props = reply({"build_info": 7, "total_slots": -1, "default_generation_settings": {"n_ctx": True}})
        slots = reply(["what", None])
        async with serve_answers({"/v1/models": MODELS, "/props": props, "/slots": slots}) as (url, _):
            features = (await detect_features_of(url)).features
        assert (features.engine, features.context, features.slots, features.drafts) == (None,) * 4

    async def test_names_cannot_act_on_a_terminal(self) -> None:
        models = reply({"data": [{"id": "\x1b]0;gotcha\x07\u202eevil\nname" + "x" * 10_000}, {"id": 3}, 4]})
        async with serve_answers({"/v1/models": models}) as (url, _):
            (name,) = (await detect_features_of(url)).features.models
        assert name.isprintable()
        assert len(name) <= 401

    async def test_the_key_is_sent_in_a_header_and_a_wrong_one_is_reported(self) -> None:
        refused = reply({"error": {"message": "Invalid API Key", "code": 401}}, "401 Unauthorized")
        async with serve_answers({}, default=refused) as (url, requests):
            with pytest.raises(Refused, match="rejected the API key") as error:
                await detect_features_of(url, KEY)
            with pytest.raises(Refused, match="requires an API key") as without:
                await detect_features_of(url)
        assert f"Authorization: Bearer {KEY}".encode() in requests[0]
        assert KEY not in f"{error.value!r} {error.value} {error.value.facts}"
        assert "--api-key-env" in without.value.hint


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 1_000 + b"\r\n")
        await writer.drain()


async def drip_spaces(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b"x" * 2**20)
        await writer.drain()


async def send_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


STRANGE: dict[str, Answer] = {
    "endless headers": endless_headers,
    "drip": drip_spaces,
    "endless body": endless_body,
    "silence": send_nothing,
    "closes at once": b"",
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "HTML": reply(b"<html>hello</html>", kind="text/html"),
    "deep JSON": reply(b"[" * 200_000),
    "a number": reply(7),
    "odd list": reply({"data": "models"}),
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "error 500": reply({"error": ["odd"]}, "500 Oops"),
    "loading": reply({"error": {"message": "Loading model", "code": 503}}, "503 Service Unavailable"),
    "wrong length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "bad chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("kind", STRANGE)
async def test_an_unknown_kind_of_server_is_an_error_in_a_sentence(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_REPLY_S", 0.5)
    async with serve_answers({}, default=STRANGE[kind]) as (url, _):
        with pytest.raises((Unreachable, Refused)) as error:
            async with asyncio.timeout(60):
                await detect_features_of(url, KEY)
    assert error.value.title.endswith((".", "?"))
    assert len(str(error.value)) < 600
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("redirect", "redirects to http://127.0.0.1:1/; redirects are not followed"),
        ("secret redirect", "redirects to http://127.0.0.1:1/v1; redirects are not followed"),
        ("endless body", "sent more than 8,388,608 bytes"),
        ("HTML", "sent something that is not JSON"),
        ("a message", "refused the request: out of cheese"),
        ("a number", "its answer is not a list of models; its answer is not that of llama-server"),
    ],
)
async def test_an_invalid_reply_of_a_server_is_reported(kind: str, why: str) -> None:
    more: dict[str, Answer] = {
        "a message": reply({"error": {"message": "out of cheese"}}, "500 Oops"),
        "secret redirect": b"HTTP/1.1 302 Found\r\nLocation: http://u:pw@127.0.0.1:1/v1?key=x\r\n"
        b"Content-Length: 0\r\n\r\n",
    }
    async with serve_answers({}, default=(STRANGE | more)[kind]) as (url, _):
        with pytest.raises(Refused, match="not a llama-server, and has no OpenAI interface") as error:
            await detect_features_of(url)
    assert why in error.value.title


async def test_an_address_without_a_server_is_reported() -> None:
    async with serve_answers({}) as (url, _):
        pass
    with pytest.raises(Unreachable, match="No server responds"):
        await detect_features_of(url)


@pytest.mark.parametrize("url", ["http://xn--zz", "http://\N{SNOWMAN}.example", "http://a\x7fb"])
async def test_an_invalid_host_name_is_an_error_in_a_sentence(url: str) -> None:
    with pytest.raises(Unreachable, match="Cannot connect to"):
        await detect_features_of(url)


@pytest.mark.parametrize("proxy", ["socks4://127.0.0.1:1", "odd://127.0.0.1:1", "http://127.0.0.1:x"])
async def test_an_unusable_proxy_is_an_error_in_a_sentence(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ProxyUnusable) as error:
        await detect_features_of("https://models.example")
    assert "HTTPS_PROXY" in error.value.hint
    assert ".." not in error.value.title


async def request_text(url: str, request: ChatRequest) -> str:
    async with attach_server(parse_address(url)) as server, server.chat(request) as deltas:
        return "".join([delta.content async for delta in deltas])


def build_event_stream(*events: object, done: bool = True) -> bytes:
    data = b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)
    body = data + (b"data: [DONE]\n\n" if done else b"")
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body


REQUEST = ChatRequest([{"role": "user", "content": "Hello"}], max_tokens=5, thinking=False)


ROUTER = {
    "role": "router",
    "models_autoload": True,
    "build_info": "b11549-0fb1b61",
    "default_generation_settings": {"params": {}, "n_ctx": 0},
}
NAMELESS = reply({"error": {"message": "model name is missing from the request", "code": 400}}, "400 Bad Request")


def router_models(**states: str) -> bytes:
    models = [{"id": name, "aliases": [f"my-{name}"], "status": {"value": state}} for name, state in states.items()]
    return reply({"object": "list", "data": models})


def router_routes(**states: str) -> dict[str, Answer]:
    child = {"build_info": "b11549-0fb1b61", "total_slots": 2, "default_generation_settings": {"n_ctx": 131_072}}
    return {
        "/v1/models": router_models(**states),
        "/health": reply({"status": "ok"}),
        "/props": reply(ROUTER),
        "/slots": NAMELESS,
        "/metrics": NAMELESS,
        "/props?model=small": reply(child),
        "/slots?model=small": reply([{"speculative": True}, {"speculative": True}]),
        "/metrics?model=small": reply(b"llamacpp:requests_processing 1\n", kind="text/plain"),
        "/v1/chat/completions": build_event_stream({"choices": [{"delta": {"content": "Hi"}}]}),
    }


def sent_model(requests: list[bytes]) -> str:
    return str(json.loads(requests[-1].partition(b"\r\n\r\n")[2])["model"])


class TestRouters:
    async def test_the_only_loaded_model_of_a_router_is_taken(self) -> None:
        async with (
            serve_answers(router_routes(large="unloaded", small="loaded")) as (url, seen),
            attach_server(parse_address(url)) as server,
        ):
            features = server.features
            assert (features.router, features.loaded, features.model) == ("llama-server router", ("small",), "small")
            assert (features.context, features.slots, features.drafts) == (131_072, 2, True)
            assert features.has_counters
            assert "/slots" not in features.missing
            async with server.chat(REQUEST) as deltas:
                assert [delta.content async for delta in deltas] == ["Hi"]
            assert sent_model(seen) == "small"

    @pytest.mark.parametrize(
        "states", [{"large": "loaded", "small": "loaded"}, {"large": "unloaded", "small": "failed"}]
    )
    async def test_without_a_choice_the_models_of_a_router_are_listed(self, states: dict[str, str]) -> None:
        async with serve_answers(router_routes(**states)) as (url, seen), attach_server(parse_address(url)) as server:
            assert server.features.model is None
            assert server.features.missing["/slots"].startswith("only for a model that is loaded")
            loaded = "large, small" if "loaded" in states.values() else "none"
            with pytest.raises(BadOption, match=rf"is a llama-server router, which has 2 models\. Loaded: {loaded}\."):
                async with server.chat(REQUEST):
                    pass
            assert not any(head.startswith(b"POST") for head in seen)

    @pytest.mark.parametrize(("wanted", "is_asked"), [("small", True), ("my-large", False), ("large", False)])
    async def test_the_named_model_is_used_and_none_is_loaded_by_looking(self, wanted: str, *, is_asked: bool) -> None:
        routes = router_routes(large="unloaded", small="loaded")
        async with serve_answers(routes) as (url, seen), attach_server(parse_address(url), model=wanted) as server:
            assert server.features.model == wanted
            assert any(b"?model=" in head.partition(b"\r\n")[0] for head in seen) == is_asked
            async with server.chat(REQUEST) as deltas:
                assert [delta.content async for delta in deltas] == ["Hi"]
            assert sent_model(seen) == wanted

    async def test_a_model_that_the_server_does_not_have_is_refused(self) -> None:
        for routes in (router_routes(large="loaded", small="loaded"), {"/v1/models": MODELS}):
            async with serve_answers(routes) as (url, _):
                with pytest.raises(BadOption, match=r"has no model nope\. It has: (large, small|some/model, other)\."):
                    async with attach_server(parse_address(url), model="nope"):
                        pass

    async def test_llama_swap_is_named_and_its_running_model_is_taken(self) -> None:
        running = [{"model": "other", "state": "ready"}, {"model": "some/model", "state": "stopping"}]
        routes: dict[str, Answer] = {
            "/v1/models": MODELS,
            "/running": reply({"running": running}),
            "/props?model=other": reply({"total_slots": 1, "default_generation_settings": {"n_ctx": 4096}}),
            "/v1/chat/completions": build_event_stream({"choices": [{"delta": {"content": "Hi"}}]}),
        }
        async with serve_answers(routes) as (url, seen), attach_server(parse_address(url)) as server:
            assert (server.features.router, server.features.model) == ("llama-swap router", "other")
            assert (server.features.context, server.features.is_llama_server) == (4096, True)
            async with server.chat(REQUEST) as deltas:
                assert [delta.content async for delta in deltas] == ["Hi"]
            assert sent_model(seen) == "other"

    async def test_a_server_with_several_models_takes_the_named_one(self) -> None:
        async with serve_answers({"/v1/models": MODELS}) as (url, _):
            async with attach_server(parse_address(url), model="other") as server:
                assert (server.features.router, server.features.model) == ("", "other")
            async with attach_server(parse_address(url)) as server:
                assert server.features.model == "some/model"

    async def test_a_router_that_wants_a_key_says_so(self) -> None:
        refused = reply({"error": {"message": "Invalid API Key", "code": 401}}, "401 Unauthorized")
        routes = router_routes(small="loaded") | {"/props": refused}
        async with serve_answers(routes) as (url, _):
            with pytest.raises(Refused, match="requires an API key"):
                await detect_features_of(url)

    async def test_agent_check_names_the_model_in_each_request(self) -> None:
        parser = argparse.ArgumentParser()
        configure(parser)
        answer = {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}]}
        routes = router_routes(large="loaded", small="loaded") | {"/v1/chat/completions": reply(answer)}
        async with serve_answers(routes) as (url, seen):
            with pytest.raises(BadOption, match=r"Loaded: large, small\. Others: none"):
                await run(parser.parse_args(["--url", url]))
            await run(parser.parse_args(["--url", url, "--model", "small"]))
        posted = [head for head in seen if head.startswith(b"POST /v1/chat/completions")]
        assert len(posted) >= 3
        assert {sent_model([head]) for head in posted} == {"small"}


class TestChat:
    async def test_other_servers_get_no_fields_of_llama_server(self) -> None:
        words = build_event_stream({"choices": [{"delta": {"content": "Hi"}}]}, {"choices": []})
        async with serve_answers({"/v1/models": MODELS, "/v1/chat/completions": words}) as (url, seen):
            assert await request_text(url, REQUEST) == "Hi"
        body = json.loads(seen[-1].partition(b"\r\n\r\n")[2])
        messages = [{"role": "user", "content": "Hello"}]
        assert body == {"model": "some/model", "messages": messages, "stream": True, "max_tokens": 5}

    @pytest.mark.parametrize(
        "events",
        [
            [[]],
            [3],
            ["text"],
            [{"choices": 3}],
            [{"choices": [{"delta": "text"}]}],
            [{"timings": {"predicted_n": []}}],
        ],
    )
    async def test_invalid_events_are_an_error(self, events: list[object]) -> None:
        odd = build_event_stream(*events)
        async with serve_answers({"/v1/models": MODELS, "/v1/chat/completions": odd}) as (url, _):
            with pytest.raises(Refused):
                await request_text(url, REQUEST)

    async def test_a_line_of_ten_megabytes_is_not_stored(self) -> None:
        long = build_event_stream({"choices": [{"delta": {"content": "x" * 10_000_000}}]})
        async with serve_answers({"/v1/models": MODELS, "/v1/chat/completions": long}) as (url, _):
            with pytest.raises(Refused, match="bytes"):
                await request_text(url, REQUEST)

    async def test_a_reply_that_ends_within_a_line_is_an_error(self) -> None:
        cut = build_event_stream(b'{"choices": [{"delta": {"cont', done=False)
        async with serve_answers({"/v1/models": MODELS, "/v1/chat/completions": cut}) as (url, _):
            with pytest.raises(LauncherError):
                await request_text(url, REQUEST)


class TestWatching:
    async def test_the_monitor_measures_requests_of_other_clients(self) -> None:
        tokens = iter(range(0, 1_000_000, 10))

        async def counters(writer: asyncio.StreamWriter) -> None:
            n = next(tokens)
            text = f"llamacpp:tokens_predicted_total {n}\nllamacpp:tokens_predicted_seconds_total {n / 50}\n"
            writer.write(reply(f"{text}llamacpp:requests_processing 1\n".encode(), kind="text/plain"))
            await writer.drain()

        seen = asyncio.Event()
        rates: list[float] = []

        def note_rate(sample: MonitorSnapshot) -> None:
            rate = sample.readings["tokens_per_second"].value
            if rate is not None:
                rates.append(rate)
                seen.set()

        routes: dict[str, Answer] = {"/v1/models": MODELS, "/metrics": counters, "/health": reply({})}
        async with serve_answers(routes) as (url, _), attach_server(parse_address(url)) as server:
            monitor = Monitor(note_rate, periods=MonitorPeriods(metrics_s=0.05))
            monitor.watch_server(server)
            try:
                async with asyncio.timeout(60):
                    await seen.wait()
            finally:
                await monitor.end()
            assert server.status.state is ServerState.BUSY
            assert server.engine_pid is None
        assert rates[0] == pytest.approx(50.0)

    async def test_a_refused_connection_suggests_to_check_the_address_and_not_the_internet(self) -> None:
        async with serve_answers({}) as (url, _):
            pass
        with pytest.raises(Unreachable, match="cannot be reached") as error:
            await detect_features_of(url.replace("http:", "https:"))  # an https address counts as another computer's
        assert error.value.hint == "Check the address, and whether the server runs."

    async def test_a_server_that_goes_away_is_reported(self) -> None:
        async with serve_answers({"/v1/models": MODELS, "/health": reply({})}) as (url, _):
            server = AttachedServer(parse_address(url))
            await server.detect_features()
        following = asyncio.create_task(server.follow_health(period_s=0.02))
        try:
            async with asyncio.timeout(60):
                while server.status.state is not ServerState.FAILED:
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await server.close()
        assert isinstance(server.status.error, Unreachable)
