"""Handover: each reply goes on with its own slot, and with what the fields of its request mean to the engine."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState
from launcher.gateway import forwarder, gate
from launcher.gateway.continuation import (
    continue_text,
    drain_reason,
    find_mode,
    is_canonical,
    make_continuation,
    may_repeat,
)
from launcher.gateway.engine_connection import EngineReply
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import DrainReason, Exchange
from launcher.gateway.frames import ReplyPart
from tests.gateway.test_access import STREAM
from tests.gateway.test_gateway_load import CHAT_LINE
from tests.gateway.test_handover import (
    PATHS,
    ReadReply,
    change_settings,
    check_same_words,
    read_stream,
    read_through_change,
    read_whole,
    serve_model,
)
from tests.gateway.test_stream_passing import begin_stream, encode_event


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(
        model=demo_model, built_in=True, threads=1, context=65_536, slots=2, kv_unified=True, alias="demo"
    )


def make_exchange(path: str = "/v1/chat/completions", **fields: object) -> Exchange:
    body = {"stream": True, "prompt": "Hello", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return Exchange(path, b"", body)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"n": None, "best_of": None}, None),
        ({"n": 2}, DrainReason.CHOICES),
        ({"n_cmpl": 2}, DrainReason.CHOICES),
        ({"seed": 7}, DrainReason.SEED),
        ({"seed": 0}, DrainReason.SEED),
        ({"seed": -1}, None),
        ({"seed": 0xFFFF_FFFF}, None),
        ({"seed": 7, "temperature": 0}, None),
    ],
)
def test_fields_mean_what_they_mean_to_the_engine(
    path: str, fields: Mapping[str, object], reason: DrainReason | None
) -> None:
    exchange = make_exchange(path, **fields)
    assert drain_reason(exchange) == reason
    assert may_repeat(exchange) is ("temperature" in fields or (reason is DrainReason.SEED and path != "/v1/messages"))


@pytest.mark.parametrize(("value", "streams"), [(True, True), ("true", False), (1, False), (None, False)])
def test_only_true_asks_for_a_stream(value: object, streams: bool) -> None:
    assert make_exchange(stream=value).streams is streams
    assert not make_exchange("/apply-template", stream=value).streams
    assert not make_exchange("/v1/embeddings", stream=value).streams


async def test_parts_before_one_that_the_engine_is_asked_about_are_passed_on_first() -> None:
    async with begin_stream() as (front, engine):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(front.request(CHAT_LINE, body=STREAM))
        engine.parts.put_nowait(encode_event("One"))
        await reader.readuntil(encode_event("One"))
        front.exchanges[-1].pauses_at_word = True
        engine.parts.put_nowait(encode_event("self") + encode_event(" word"))
        # The engine answers nothing about the tokens of the word.
        await reader.readuntil(encode_event("self"))
        assert front.exchanges[-1].text.content == "Oneself"
        writer.close()
        engine.parts.put_nowait(None)
        engine.parts.put_nowait(None)


async def test_equal_replies_go_on_at_the_same_time(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client), asyncio.timeout(90):
        replies = [ReadReply(), ReadReply()]
        reading = [asyncio.create_task(read_stream(client, reply)) for reply in replies]
        await asyncio.gather(*(reply.wait_for_parts(8) for reply in replies))
        await change_settings(session, draft=3)
        report = session.last_handover
        assert report is not None
        assert len(report.continued) == 2
        # Neither ends, so neither may wait for the other.
        await asyncio.gather(*(reply.wait_for_parts(reply.parts + 20) for reply in replies))
        most_parts = max(reply.parts for reply in replies)  # the one that is ahead waits for the other
        for reply in replies:
            reply.most_parts = most_parts
        await asyncio.gather(*reading)
        check_same_words(*sorted(replies, key=lambda reply: reply.parts))


def note_slots(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return the list to which each request that is sent or has begun is added, with whether it has a slot."""
    seen: list[tuple[str, bool]] = []
    original = EngineLink.open_reply

    async def open_reply(
        self: EngineLink, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> EngineReply:
        if path not in PATHS:
            return await original(self, method, path, headers, body)
        has_slot = json.loads(body).get("id_slot", -1) >= 0
        seen.append(("sent", has_slot))
        reply = await original(self, method, path, headers, body)
        seen.append(("begun", has_slot))
        return reply

    monkeypatch.setattr(EngineLink, "open_reply", open_reply)
    return seen


async def return_true(*_: object) -> bool:
    return True


async def test_a_reply_whose_slot_is_there_goes_on_first_where_there_are_fewer_slots(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_model(options) as (session, client):
        replies, reading = [ReadReply(), ReadReply()], []
        for reply, question in zip(replies, ("How does bread rise?", "Why is the sky blue?"), strict=True):
            reading.append(asyncio.create_task(read_stream(client, reply, question)))
            await reply.wait_for_parts(8)
        seen = note_slots(monkeypatch)
        for module in (gate, forwarder):  # a reply that is written again, because of where it was cut, needs no slot
            monkeypatch.setattr(module, "is_canonical", return_true)
        await change_settings(session, slots=1)
        assert session.last_handover is not None
        assert len(session.last_handover.continued) == 2
        for reply in replies:
            reply.most_parts = reply.parts + 20
        await asyncio.gather(*reading)
        assert seen == [("sent", True), ("begun", True), ("sent", False), ("begun", False)]


async def test_no_other_request_gets_the_slot_of_a_reply_that_goes_on(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_model(options) as (session, client):
        going_on, new = ReadReply(), ReadReply(most_parts=5)
        reading = [asyncio.create_task(read_stream(client, going_on))]
        await going_on.wait_for_parts(8)
        seen = note_slots(monkeypatch)
        changing = asyncio.create_task(change_settings(session, draft=3))
        await session.supervisor.wait_for_state(ServerState.RESTARTING)
        reading.append(asyncio.create_task(read_stream(client, new, "Hello")))
        await changing
        await new.wait_for_parts(5)
        going_on.most_parts = going_on.parts + 20
        await asyncio.gather(*reading)
        assert [each for each in seen if each != ("begun", False)] == [("sent", True), ("begun", True), ("sent", False)]


@pytest.mark.parametrize("fields", [{"id_slot": 0}, {"return_progress": False}])
async def test_the_prompt_of_a_reply_that_goes_on_is_counted(options: ServeOptions, fields: Mapping[str, Any]) -> None:
    async with serve_model(options) as (session, client):
        whole = ReadReply()
        await read_stream(client, whole, path="/v1/completions", max_tokens=5, **fields)
        assert whole.counts is not None
        cut, tokens = await read_through_change(session, client, "/v1/completions", **fields)
        assert cut.counts == (whole.counts[0], tokens)


async def test_no_token_joins_the_prompt_of_a_completion_and_its_reply(options: ServeOptions) -> None:
    question, pieces = "How does bread rise.", ("\n\n", "Programs", " on", " your", " computer")
    async with serve_model(options) as (session, client):
        assert session.pool is not None
        link = session.pool.main.gate._link
        assert link is not None
        exchange = make_exchange("/v1/completions", prompt=question)
        for piece in pieces:
            exchange.text.add_part(ReplyPart(piece))
        found = await find_mode(link, exchange)
        assert found is not None

        async def tokenize(prompt: object) -> list[int]:
            tokens = (await client.post("/tokenize", json={"content": prompt})).json()["tokens"]
            assert isinstance(tokens, list)
            return tokens

        expected = [*await tokenize(question), *await tokenize("".join(pieces))]
        assert await tokenize(question + "".join(pieces)) != expected  # ".\n\n" is one token
        for going_on in (
            await continue_text(link, exchange, found, None, repeats=False),
            await make_continuation(link, exchange, found, [], None),
        ):
            assert going_on is not None
            assert await tokenize(going_on.request["prompt"]) == expected


async def test_a_reply_that_a_token_joins_to_its_prompt_may_have_other_words(options: ServeOptions) -> None:
    async with serve_model(options) as (session, _):
        assert session.pool is not None
        link = session.pool.main.gate._link
        assert link is not None
        exchange = make_exchange()
        exchange.text.add_part(ReplyPart("\n\n"))
        assert await is_canonical(link, exchange.text, ("How does bread rise", "content"))
        assert not await is_canonical(link, exchange.text, ("How does bread rise.", "content"))


async def test_a_reply_whose_last_words_are_not_enough_is_written_again(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = 2  # after the second one, too, the reply is no suspect: no engine was lost
    answers = [True, False, False] * changes
    bodies: list[dict[str, Any]] = []
    original = EngineLink.open_reply

    async def is_canonical_once(*_: object) -> bool:
        return answers.pop(0)

    async def open_reply(
        self: EngineLink, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> EngineReply:
        if path in PATHS:
            bodies.append(json.loads(body))
        return await original(self, method, path, headers, body)

    for module in (gate, forwarder):
        monkeypatch.setattr(module, "is_canonical", is_canonical_once)
    monkeypatch.setattr(EngineLink, "open_reply", open_reply)
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        for draft in range(1, changes + 1):
            await cut.wait_for_parts(cut.parts + 40)
            await change_settings(session, draft=draft)
        cut.most_parts = cut.parts + 50
        await reading
        assert not answers
        assert bodies[1]["messages"] == bodies[2]["messages"] == bodies[0]["messages"]
        check_same_words(cut, await read_whole(client, cut.most_parts))
