"""Handover: streams of clients go on with another engine, word for word, whatever happens in between.

The engines are real: the built-in one with the demo model.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.session import ServerSession
from launcher.base.errors import SettingsFailed, Superseded
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState

QUESTION = "Explain why a bicycle stays upright, and how bread rises. " * 4
LONGER = {"max_tokens": 1500, "ignore_eos": True}
LONG = {"max_tokens": 300, "ignore_eos": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=2048, alias="demo")


@asynccontextmanager
async def serving(options: ServeOptions) -> AsyncIterator[tuple[ServerSession, httpx.AsyncClient]]:
    session = ServerSession()
    try:
        await session.start(options)
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            yield session, client
    finally:
        await session.stop()


@dataclass
class ReadReply:
    """A streamed reply as a client reads it."""

    content: str = ""
    reasoning: str = ""
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    counts: tuple[int, int] | None = None
    finish_reason: str | None = None
    error: Mapping[str, Any] | None = None
    parts: int = 0
    part_came: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def text(self) -> tuple[str, str]:
        return self.reasoning, self.content

    async def wait_for_parts(self, count: int) -> None:
        async with self.part_came:
            await self.part_came.wait_for(lambda: self.parts >= count)

    async def add_event(self, event: Mapping[str, Any]) -> None:
        self.error = event.get("error", self.error)
        if usage := event.get("usage"):
            self.counts = usage["prompt_tokens"], usage["completion_tokens"]
        if "id" in event:
            self.ids.add(event["id"])
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            self.roles += "role" in delta
            self.content += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if delta.get("content") or delta.get("reasoning_content"):
                self.parts += 1
        async with self.part_came:
            self.part_came.notify_all()


async def read_stream(client: httpx.AsyncClient, reply: ReadReply, question: str = QUESTION, **fields: object) -> None:
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0, **LONG, **fields}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                await reply.add_event(json.loads(line.removeprefix("data: ")))


async def read_through(
    client: httpx.AsyncClient, session: ServerSession, *changes: tuple[int, Mapping[str, Any]], **fields: object
) -> ReadReply:
    """Read a reply, and after so many of its parts restart the engine with other settings."""
    reply = ReadReply()
    reading = asyncio.create_task(read_stream(client, reply, **fields))
    for parts, changed in changes:
        await reply.wait_for_parts(parts)
        options = session.supervisor.options
        assert options is not None
        await session.start(replace(options, **changed), drain_s=30)
    await reading
    return reply


@pytest.mark.parametrize("thinking", [True, False])
async def test_a_stream_goes_on_word_for_word_while_the_draft_length_changes(
    options: ServeOptions, thinking: bool
) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": thinking}}
    async with serving(options) as (session, client):
        whole = await read_through(client, session, **fields)
        cut = await read_through(client, session, (9, {"draft": 3}), (90, {"draft": 0}), **fields)
        assert cut.text == whole.text
        assert cut.counts == whole.counts
        assert (len(cut.ids), cut.roles, cut.finish_reason) == (1, whole.roles, "length")
        report = session.last_handover
        assert report is not None
        assert report.cut == 0


async def test_several_streams_go_on_at_once(options: ServeOptions) -> None:
    questions = ["How does bread rise?", "Why does a bicycle stay upright?", "What is a draft?"]
    async with serving(replace(options, slots=3, kv_unified=True, context=6144)) as (session, client):
        alone = [ReadReply() for _ in questions]
        for question, reply in zip(questions, alone, strict=True):
            await read_stream(client, reply, question)
        together = [ReadReply() for _ in questions]
        reading = [
            asyncio.create_task(read_stream(client, reply, question))
            for question, reply in zip(questions, together, strict=True)
        ]
        await asyncio.gather(*(reply.wait_for_parts(8) for reply in together))
        assert session.supervisor.options is not None
        await session.start(replace(session.supervisor.options, draft=4), drain_s=30)
        await asyncio.gather(*reading)
        assert [reply.error for reply in together] == [None] * 3
        assert [reply.counts for reply in together] == [reply.counts for reply in alone]


async def test_a_request_of_which_nothing_was_delivered_starts_again(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **LONGER}
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        assert session.supervisor.options is not None
        while not await session.supervisor.client.count_working_slots():
            assert not asking.done()
        await session.start(replace(session.supervisor.options, draft=3))
        again = (await asking).json()
        assert again["choices"][0]["message"] == whole["choices"][0]["message"]


async def test_settings_that_fail_bring_the_old_ones_back_and_the_stream_goes_on(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        whole, cut = await read_through(client, session), ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        assert session.supervisor.options is not None
        with pytest.raises(SettingsFailed):
            await session.start(replace(session.supervisor.options, extra=("--no-such-flag",)))
        await reading
        assert cut.text == whole.text
        assert session.supervisor.options == options


async def test_many_changes_at_once_are_one_for_the_stream(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        whole, cut = await read_through(client, session), ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        assert session.supervisor.options is not None
        changes = []
        for number in range(30):
            changed = replace(session.supervisor.options, draft=1 + number % 5)
            changes.append(asyncio.create_task(session.start(changed)))
            await asyncio.sleep(0.02)
        ends = await asyncio.gather(*changes, return_exceptions=True)
        assert {type(end) for end in ends} <= {Superseded, type(None)}
        assert ends[-1] is None
        await reading
        assert (cut.error, cut.text, cut.counts) == (None, whole.text, whole.counts)


async def test_a_client_that_leaves_while_its_stream_is_paused_holds_nothing_up(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply))
        await reply.wait_for_parts(8)
        assert session.supervisor.options is not None
        changing = asyncio.create_task(session.start(replace(session.supervisor.options, draft=3)))
        await session.supervisor.wait_for_state(ServerState.RESTARTING)
        reading.cancel()
        await changing
        assert (await read_through(client, session)).finish_reason == "length"


async def test_an_engine_that_is_killed_in_a_reply_is_told_and_the_next_request_waits_for_it(
    options: ServeOptions,
) -> None:
    async with serving(options) as (session, client):
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply, **LONGER))
        await reply.wait_for_parts(8)
        pid = session.supervisor.engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await reading
        assert reply.error is not None
        assert reply.error["code"] == 502
        assert (await read_through(client, session)).finish_reason == "length"


async def test_no_file_of_a_conversation_is_left(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        await read_through(client, session, (9, {"draft": 3}))
        folder = Path(session.supervisor.launch.command.arguments[-1])  # type: ignore[union-attr]
        assert folder.parent.name == "slots"
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o077 == 0


async def test_clients_cannot_reach_the_engine_with_the_gateway_s_key(options: ServeOptions) -> None:
    async with serving(options) as (session, client):
        engine = session.supervisor.engine_endpoint
        assert engine.port != session.supervisor.endpoint.port
        assert (await client.get(f"{engine.url}/props")).status_code == 401
        assert (await client.get("/props")).status_code == 200
        assert (await client.get("/props", headers={"Authorization": "Bearer wrong"})).status_code == 401
