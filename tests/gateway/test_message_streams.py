"""Streams of Anthropic's API over a handover, frame for frame, with engines that send what a test chooses."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from aiohttp import web

from launcher.gateway.access import Access
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.gate import Gate
from launcher.gateway.gateway import Gateway

KEY = "d" * 43
WORDS = ("Bread", " rises", " because", " yeast", " makes", " gas", " in", " the", " dough", ".")
BEGIN = {"type": "message_start", "message": {"id": "msg-1", "role": "assistant", "usage": {"input_tokens": 7}}}
THINKING = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
TEXT = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
TOOL = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "bake"}}
END = [
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
]
HOLD = {"type": "hold"}
"""Not an event: the engine sends nothing more until it is cut off, or the test lets it go on."""

DIE = {"type": "die"}
"""Not an event: the engine breaks the connection off."""


def thinking_delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": text}}


@dataclass
class Engine:
    """An engine that streams the events it was given. Its tokens are words with the space before them.

    Its template continues a reply in the field `mode` alone: in the other one it ends the thinking first.
    """

    events: Sequence[Mapping[str, Any]]
    mode: str = "reasoning_content"
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.path == "/v1/messages/count_tokens":
            texts = [part for message in body["messages"] for part in _texts(message["content"])]
            marks = 4 if body.get("continue_final_message", self.mode) == self.mode else 6
            return web.json_response({"input_tokens": marks + sum(len(_split(text)) for text in texts)})
        if request.path == "/tokenize":
            return web.json_response({"tokens": [{"id": 1, "piece": piece} for piece in _split(body["content"])]})
        if request.path != "/v1/messages":
            raise web.HTTPNotImplemented
        self.requests.append(body)
        if body.get("continue_final_message") and not self.events:
            return web.json_response({"error": {"code": 400, "message": "too long"}}, status=400)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for event in self.events:
            if event is HOLD:
                await self.goes_on.wait()
            elif event is DIE:
                assert request.transport is not None
                request.transport.abort()
                return reply
            else:
                await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return reply


def _texts(content: Any) -> list[str]:  # noqa: ANN401 -- a message's content
    return [content] if isinstance(content, str) else [part.get("text") or part.get("thinking") for part in content]


def _split(text: str) -> list[str]:
    first, *rest = text.split(" ")
    return [*([first] if first else []), *(f" {word}" for word in rest)]


@dataclass
class Client:
    """A gateway with one engine after another, and what its client has received."""

    gate: Gate
    http: httpx.AsyncClient
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read(self) -> None:
        body = {"messages": [{"role": "user", "content": "How does bread rise?"}], "stream": True, "temperature": 0}
        async with self.http.stream("POST", "/v1/messages?beta=true", json=body) as response:
            name = ""
            async for line in response.aiter_lines():
                kind, _, data = line.partition(": ")
                name = data if kind == "event" else name
                if kind == "data":
                    async with self.came:
                        self.events.append((name, json.loads(data)))
                        self.came.notify_all()

    async def wait_for_events(self, count: int) -> None:
        async with self.came:
            await self.came.wait_for(lambda: len(self.events) >= count)

    @property
    def data(self) -> list[dict[str, Any]]:
        assert all(name == data["type"] for name, data in self.events)
        return [data for _, data in self.events]


@asynccontextmanager
async def open_gateway() -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        tried = Gateway(Access({"default": KEY}))
        await tried.listen([listener])
        headers = {"X-Api-Key": KEY}
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as http:
                yield Client(tried.gate, http)
        finally:
            await tried.close()


@asynccontextmanager
async def run_engine(client: Client, engine: Engine) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    link = EngineLink(f"http://127.0.0.1:{port}", "e", slots=1, slot_folder=None, state_key="")
    await client.gate.resume_requests(link)
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("text", [False, True], ids=["thinking", "text"])
async def test_a_message_stream_is_continued_as_if_uncut(*, text: bool) -> None:
    part, begin = (text_delta, {**TEXT}) if text else (thinking_delta, THINKING)
    first = [BEGIN, begin, *map(part, WORDS[:3]), HOLD, *map(part, WORDS[3:])]
    again = [{**BEGIN, "message": {"id": "msg-2"}}, begin, *map(part, WORDS[3:]), *END]
    async with open_gateway() as client:
        mode = "content" if text else "reasoning_content"
        old, new = Engine(first, mode), Engine(again, mode)
        async with run_engine(client, old):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(5)
            pausing = asyncio.create_task(client.gate.pause_requests(5.0))
            while not any(each.exchange.pauses_at_word for each in client.gate._forwarders):
                await asyncio.sleep(0.01)
            old.goes_on.set()
            await pausing
        assert client.gate.report is not None
        assert (client.gate.report.outcome, len(client.gate.report.continued)) == ("seamless", 1)
        async with run_engine(client, new):
            await reading
        end = [END[0], {**END[1], "usage": {"output_tokens": 7}}, END[2]]
        assert client.data == [BEGIN, begin, *map(part, WORDS), *end]
        block = {"type": "text", "text": "Bread rises because"}
        if not text:
            block = {"type": "thinking", "thinking": "Bread rises because", "signature": ""}
        (request,) = new.requests
        assert request["messages"][1:] == [{"role": "assistant", "content": [block]}]
        assert request["continue_final_message"] == mode


async def test_a_message_without_delivered_text_starts_again() -> None:
    async with open_gateway() as client:
        async with run_engine(client, Engine([BEGIN, THINKING, HOLD])):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(2)
            await client.gate.pause_requests(5.0)
        new = Engine([{**BEGIN, "message": {"id": "msg-2"}}, THINKING, *map(thinking_delta, WORDS), *END])
        async with run_engine(client, new):
            await reading
        assert client.data == [BEGIN, THINKING, *map(thinking_delta, WORDS), *END]
        assert len(new.requests[0]["messages"]) == 1


@pytest.mark.parametrize(
    ("again", "whole", "requested"),
    [
        ([" be", "cause"], "Bread rises because", ["Bread rises"]),
        ([" because"], "Bread rises because", ["Bread rises"]),
        ([" into", " air"], "Bread rises be into air", ["Bread rises", "Bread rises be"]),
    ],
    ids=["the same pieces", "other pieces", "other words"],
)
async def test_a_message_of_a_crashed_engine_is_continued_at_a_word_end(
    again: Sequence[str], whole: str, requested: Sequence[str]
) -> None:
    async with open_gateway() as client:
        async with run_engine(client, Engine([BEGIN, THINKING, *map(thinking_delta, ("Bread", " rises", " be")), DIE])):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(5)
        new = Engine([{**BEGIN, "message": {"id": "msg-2"}}, THINKING, *map(thinking_delta, again), *END])
        async with run_engine(client, new):
            await reading
        texts = [each["delta"]["thinking"] for each in client.data if each["type"] == "content_block_delta"]
        assert "".join(texts) == whole
        assert [each["type"] for each in client.data if each not in map(thinking_delta, texts)] == [
            *("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop")
        ]
        assert [each["messages"][-1]["content"][0]["thinking"] for each in new.requests] == requested


@pytest.mark.parametrize(("further", "goes_on"), [(255, False), (256, True)])
async def test_a_message_survives_a_second_crash_only_after_enough_new_text(further: int, *, goes_on: bool) -> None:
    async with open_gateway() as client:
        async with run_engine(client, Engine([BEGIN, THINKING, *map(thinking_delta, WORDS[:3]), DIE])):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(5)
        again = [thinking_delta(WORDS[2]), *[thinking_delta(" and")] * further, DIE]
        async with run_engine(client, Engine([BEGIN, THINKING, *again])):
            await client.wait_for_events(5 + further)
        async with run_engine(client, Engine([BEGIN, THINKING, thinking_delta(" and"), thinking_delta(" air"), *END])):
            await reading
        if goes_on:
            assert client.data[5 + further :] == [thinking_delta(" air"), END[0], ANY, END[2]]
        else:
            assert client.data[-1]["error"]["code"] == 502


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_message_whose_engine_crashes_before_its_first_word_is_repeated_once(crashes: int) -> None:
    async with open_gateway() as client:
        reading = asyncio.create_task(client.read())
        for _ in range(crashes):
            engine = Engine([BEGIN, THINKING, DIE])
            async with run_engine(client, engine):
                while not engine.requests:
                    await asyncio.sleep(0.01)
                await client.wait_for_events(2)
        async with run_engine(client, Engine([BEGIN, THINKING, *map(thinking_delta, WORDS), *END])):
            await reading
        if crashes == 1:
            assert client.data == [BEGIN, THINKING, *map(thinking_delta, WORDS), *END]
        else:
            assert [each["type"] for each in client.data] == ["message_start", "content_block_start", "error"]
            assert client.data[-1]["error"]["code"] == 502


async def test_a_message_with_a_begun_tool_call_is_finished_first() -> None:
    call = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{"}}
    events = [BEGIN, THINKING, thinking_delta("Bread"), TOOL, call, HOLD, call, *END]
    async with open_gateway() as client:
        old = Engine(events)
        async with run_engine(client, old):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(5)
            assert (await client.gate.foresee_handover()).ending == 1
            pausing = asyncio.create_task(client.gate.pause_requests(10.0))
            await asyncio.sleep(0.05)
            old.goes_on.set()
            await pausing
            await reading
        assert client.gate.report is not None
        assert (client.gate.report.outcome, client.gate.report.drained) == ("drained", 1)
        assert client.data == [each for each in events if each is not HOLD]


@pytest.mark.parametrize(
    ("mode", "words", "foreseen", "reasons"),
    [
        ("reasoning_content", WORDS[:3], (1, 0, 0), {}),
        ("reasoning_content", ("Br", "ead", " rises"), (0, 1, 0), {"words": 1}),
        ("neither", WORDS[:3], (0, 0, 1), {"template": 1}),
    ],
    ids=["goes on", "other tokens", "template"],
)
async def test_the_outlook_of_a_handover_is_known(
    mode: str, words: Sequence[str], foreseen: tuple[int, int, int], reasons: dict[str, int]
) -> None:
    async with (
        open_gateway() as client,
        run_engine(client, Engine([BEGIN, THINKING, *map(thinking_delta, words), HOLD], mode)),
    ):
        reading = asyncio.create_task(client.read())
        await client.wait_for_events(5)
        outlook = await client.gate.foresee_handover()
        assert (outlook.going_on, outlook.uncertain, outlook.ending) == foreseen
        assert outlook.reasons == reasons
        assert outlook.reply_tokens == (0 if outlook.ending else 3)
        reading.cancel()


async def test_an_engine_that_refuses_the_continuation_ends_the_message_with_an_error_event() -> None:
    async with open_gateway() as client:
        old = Engine([BEGIN, THINKING, *map(thinking_delta, WORDS[:3]), HOLD, *map(thinking_delta, WORDS[3:])])
        async with run_engine(client, old):
            reading = asyncio.create_task(client.read())
            await client.wait_for_events(5)
            assert (await client.gate.foresee_handover()).going_on == 1
            pausing = asyncio.create_task(client.gate.pause_requests(5.0))
            while not any(each.exchange.pauses_at_word for each in client.gate._forwarders):
                await asyncio.sleep(0.01)
            old.goes_on.set()
            await pausing
        async with run_engine(client, Engine([])):
            await reading
        name, data = client.events[-1]
        assert (name, data["error"]["message"]) == ("error", "too long")
