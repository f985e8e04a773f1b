"""Handover: streams of clients go on with another engine, word for word, whatever happens in between.

The engines are real: the built-in one with the demo model.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from launcher.app.serving.running_servers import restart_server
from launcher.app.serving.session import ServerSession
from launcher.base.errors import SettingsFailed, Superseded
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus
from launcher.engine.settings import load_model_settings
from launcher.gateway.exchange import ExchangeState, HandoverOutlook

QUESTION = "Explain why a bicycle stays upright, and how bread rises. " * 20
ENDLESS = {"max_tokens": 100_000, "ignore_eos": True}
"""Replies that no handover can be too late for; their readers leave."""

KEEPERS_PER_ENGINE = 0 if sys.platform == "win32" else 1
"""On Windows a job object ends an engine with its owner."""

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
CHAT_FIRST = (PATHS[0], *(pytest.param(path, marks=pytest.mark.thorough) for path in PATHS[1:]))


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(
        model=demo_model, built_in=True, threads=1, context=131_072, alias="demo", extra=("--ignore-eos",)
    )


@asynccontextmanager
async def serve_model(options: ServeOptions) -> AsyncIterator[tuple[ServerSession, httpx.AsyncClient]]:
    session = ServerSession()
    try:
        await session.start(StartRequest(options))
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            yield session, client
    finally:
        await session.stop()


@dataclass
class ReadReply:
    """A streamed reply as a client reads it, who leaves after `most_parts` parts."""

    content: str = ""
    reasoning: str = ""
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    counts: tuple[int, int] | None = None
    finish_reason: str | None = None
    error: Mapping[str, Any] | None = None
    parts: int = 0
    most_parts: int | None = None
    blocks: list[str] = field(default_factory=list)
    blocks_ended: list[int] = field(default_factory=list)
    part_came: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def text(self) -> str:
        return self.reasoning + self.content

    async def wait_for_parts(self, count: int) -> None:
        async with self.part_came:
            await self.part_came.wait_for(lambda: self.parts >= count)

    async def add_event(self, event: Mapping[str, Any]) -> None:
        self.error = event.get("error", self.error)
        if "choices" in event and (usage := event.get("usage")):
            self.counts = usage["prompt_tokens"], usage["completion_tokens"]
        if "id" in event:
            self.ids.add(event["id"])
        self._add_message_event(event)
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            self.roles += "role" in delta
            self.content += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            self.content += choice.get("text") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if delta.get("content") or delta.get("reasoning_content") or choice.get("text"):
                self.parts += 1
        async with self.part_came:
            self.part_came.notify_all()

    def _add_message_event(self, event: Mapping[str, Any]) -> None:
        """Add an event of Anthropic's API. Each block must be open while it gets text, and only once."""
        kind, index, delta = event.get("type"), event.get("index"), event.get("delta", {})
        if kind == "message_start":
            self.roles += 1
            self.ids.add(event["message"]["id"])
            usage = event["message"]["usage"]
            self.counts = usage["input_tokens"] + usage["cache_read_input_tokens"], 0
        elif kind == "content_block_start":
            assert index == len(self.blocks)
            self.blocks.append(event["content_block"]["type"])
        elif kind == "content_block_delta":
            part = delta.get("text") or delta.get("thinking") or ""
            assert not part or self.blocks[index] == ("text" if "text" in delta else "thinking")
            self.content += delta.get("text") or ""
            self.reasoning += delta.get("thinking") or ""
            self.parts += bool(part)
        elif kind == "content_block_stop":
            self.blocks_ended.append(index)
        elif kind == "message_delta":
            assert self.blocks_ended == [*range(len(self.blocks))]
            self.finish_reason = {"max_tokens": "length"}.get(delta["stop_reason"], delta["stop_reason"])
            self.counts = self.counts[0], event["usage"]["output_tokens"]


async def read_stream(
    client: httpx.AsyncClient,
    reply: ReadReply,
    question: str = QUESTION,
    path: str = "/v1/chat/completions",
    **fields: object,
) -> None:
    messages = [{"role": "user", "content": question}]
    body = {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}, **ENDLESS, **fields}
    body |= {"prompt": question} if path == "/v1/completions" else {"messages": messages}
    async with client.stream("POST", path, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                await reply.add_event(json.loads(line.removeprefix("data: ")))
            if reply.most_parts is not None and reply.parts >= reply.most_parts:
                return


async def read_whole(
    client: httpx.AsyncClient, parts: int | None = None, path: str = "/v1/chat/completions", **fields: object
) -> ReadReply:
    """Read a reply without a handover, up to `parts` parts."""
    reply = ReadReply(most_parts=parts)
    await read_stream(client, reply, path=path, **fields)
    return reply


async def change_settings(session: ServerSession, **changes: Any) -> None:  # noqa: ANN401 -- values of any setting
    options = session.supervisor.options
    assert options is not None
    await session.start(StartRequest(replace(options, **changes)))


async def read_through_change(
    session: ServerSession, client: httpx.AsyncClient, path: str = "/v1/chat/completions", **fields: object
) -> tuple[ReadReply, int]:
    """Read a reply during which settings change, to its end; return it and its tokens: what outlasts a change here."""
    for draft, tokens in ((3, 900), (4, 3_600), (3, 14_400)):
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply, path=path, max_tokens=tokens, **fields))
        await reply.wait_for_parts(9)
        await change_settings(session, draft=draft)
        await reading
        assert session.last_handover is not None
        if session.last_handover.continued:
            assert len(session.last_handover.continued) == 1
            return reply, tokens
    raise AssertionError("No reply lasted until the settings had changed.")


def check_same_words(cut: ReadReply, whole: ReadReply) -> None:
    """Check that a stream that was cut has the words of one that was not, as far as both were read."""
    assert cut.error is None
    length = min(len(cut.text), len(whole.text))
    assert length > len(whole.text) // 2
    assert cut.text[:length] == whole.text[:length]
    assert (len(cut.ids), cut.roles) == (1, whole.roles)


@pytest.mark.cases(1)
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_is_continued_word_for_word_while_settings_change(options: ServeOptions, path: str) -> None:
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut, path=path))
        for changes in ({"draft": 3}, {"draft": 0}, {"context": 65_536}):
            await cut.wait_for_parts(cut.parts + 9)
            await change_settings(session, **changes)
            report = session.last_handover
            assert report is not None
            assert (report.outcome, len(report.continued), report.uncertain) == ("seamless", 1, 0)
        cut.most_parts = cut.parts + 50
        await reading
        check_same_words(cut, await read_whole(client, cut.most_parts, path))


@pytest.mark.parametrize("path", CHAT_FIRST)
async def test_token_counts_after_a_handover_include_the_whole_reply(options: ServeOptions, path: str) -> None:
    async with serve_model(options) as (session, client):
        cut, tokens = await read_through_change(session, client, path)
        short = await read_whole(client, path=path, max_tokens=100)
        assert short.counts is not None
        assert (cut.counts, cut.finish_reason) == ((short.counts[0], tokens), short.finish_reason)
        check_same_words(cut, short)


@pytest.mark.thorough
async def test_the_token_limit_of_the_engine_holds_over_a_handover(options: ServeOptions) -> None:
    async with serve_model(replace(options, extra=("--n-predict", "900"))) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut, max_tokens=-1))
        await cut.wait_for_parts(9)
        await change_settings(session, draft=3)
        await reading
        assert session.last_handover is not None
        assert session.last_handover.outcome == "seamless"
        assert cut.counts is not None
        assert (cut.counts[1], cut.finish_reason) == (900, "length")


async def test_the_outlook_of_a_handover_is_known_beforehand(options: ServeOptions) -> None:
    async with serve_model(replace(options, slots=2)) as (session, client):
        assert await session.foresee_handover() == HandoverOutlook()
        free, seeded = ReadReply(), ReadReply()
        reading = [
            asyncio.create_task(read_stream(client, free)),
            asyncio.create_task(read_stream(client, seeded, temperature=1, seed=1)),
        ]
        await free.wait_for_parts(5)
        await seeded.wait_for_parts(5)
        outlook = await session.foresee_handover()
        assert outlook is not None
        assert (outlook.going_on, outlook.uncertain, outlook.ending) == (1, 0, 1)
        assert outlook.reasons == {"seed": 1}
        (reason,) = outlook.reason_sentences
        assert "seed" in reason
        assert outlook.prompt_tokens > 100
        assert outlook.reply_tokens >= 5
        seeded.most_parts = seeded.parts + 5
        await reading[1]
        engine = session.supervisor.engine_pid
        while (outlook := await session.foresee_handover()) and outlook.ending:
            await asyncio.sleep(0.02)
        assert outlook is not None
        assert outlook.going_on == 1
        assert outlook.reading_speed is not None
        assert session.supervisor.engine_pid == engine
        free.most_parts = free.parts + 5
        await reading[0]


@pytest.mark.parametrize("ends", ["drained", pytest.param("cancelled", marks=pytest.mark.thorough)])
async def test_the_keeper_of_the_next_engine_waits_until_the_earlier_engine_is_idle(
    options: ServeOptions, ends: str
) -> None:
    async with serve_model(options) as (session, client):
        seeded = ReadReply()
        reading = asyncio.create_task(read_stream(client, seeded, temperature=1, seed=1))
        await seeded.wait_for_parts(5)
        engine = session.supervisor.engine_pid
        changing = asyncio.create_task(session.start(StartRequest(replace(options, draft=3), drain_s=60)))
        while len(find_keepers()) < 2 * KEEPERS_PER_ENGINE:
            assert not changing.done()
            await asyncio.sleep(0)
        assert session.supervisor.engine_pid == engine
        if ends == "cancelled":
            changing.cancel()
        seeded.most_parts = seeded.parts
        await asyncio.gather(reading, changing, return_exceptions=True)
        assert len(find_keepers()) == (0 if ends == "cancelled" else KEEPERS_PER_ENGINE)


def find_keepers() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if any(word.endswith("keeper.py") for word in each.cmdline())]


@pytest.mark.thorough
async def test_several_streams_are_continued(options: ServeOptions) -> None:
    questions = ["How does bread rise?", "Why does a bicycle stay upright?", "What is a draft?"]
    async with serve_model(replace(options, slots=3, kv_unified=True)) as (session, client):
        together = [ReadReply() for _ in questions]
        reading = [
            asyncio.create_task(read_stream(client, reply, question))
            for question, reply in zip(questions, together, strict=True)
        ]
        await asyncio.gather(*(reply.wait_for_parts(8) for reply in together))
        await change_settings(session, draft=4)
        report = session.last_handover
        assert report is not None
        assert len(report.continued) == 3
        for reply in together:
            reply.most_parts = reply.parts + 30
        await asyncio.gather(*reading)
        assert [(reply.error, len(reply.ids), reply.roles) for reply in together] == [(None, 1, 1)] * 3


@pytest.mark.thorough
async def test_a_request_without_delivered_tokens_starts_again(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "ignore_eos": True}
        body |= {"max_tokens": 1_500}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        while not await session.supervisor.client.count_working_slots():
            assert not asking.done()
        await change_settings(session, draft=3)
        report = session.last_handover
        assert report is not None
        assert (report.again, report.outcome) == (1, "seamless")
        again, whole = (await asking).json(), (await client.post("/v1/chat/completions", json=body)).json()
        assert again["choices"][0]["message"] == whole["choices"][0]["message"]


async def test_settings_that_fail_are_undone_and_the_stream_goes_on(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        with pytest.raises(SettingsFailed):
            await change_settings(session, extra=("--no-such-flag",))
        assert session.supervisor.options == options
        cut.most_parts = cut.parts + 50
        await reading
        check_same_words(cut, await read_whole(client, cut.most_parts))


async def test_a_stream_that_does_not_fit_into_the_new_context_is_cut_and_reported(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(400)
        await change_settings(session, context=512)
        await reading
        assert cut.error is not None
        assert cut.error["type"] == "exceed_context_size_error"
        report = session.last_handover
        assert report is not None
        assert report.outcome == "cut"


@pytest.mark.thorough
async def test_no_reply_is_continued_with_another_model(options: ServeOptions, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    shutil.copy(options.model, other)
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        await change_settings(session, model=other)
        await reading
        assert cut.error is not None
        assert cut.error["code"] == 503
        report = session.last_handover
        assert report is not None
        assert (report.outcome, report.continued) == ("cut", [])
        assert (await read_whole(client, max_tokens=20)).finish_reason == "length"


async def test_no_reply_is_continued_with_the_model_of_a_second_change(options: ServeOptions, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    shutil.copy(options.model, other)
    async with serve_model(replace(options, slots=2, kv_unified=True)) as (session, client), asyncio.timeout(90):
        cut, drained = ReadReply(), ReadReply()
        fields = {"seed": 1, "temperature": 0.8}
        reading = [
            asyncio.create_task(read_stream(client, cut)),
            asyncio.create_task(read_stream(client, drained, **fields)),
        ]
        await asyncio.gather(cut.wait_for_parts(8), drained.wait_for_parts(8))
        begun = session.supervisor.options
        assert begun is not None
        first = asyncio.create_task(session.start(StartRequest(replace(begun, draft=3), drain_s=60)))
        assert session.pool is not None
        while not any(each.exchange.state is ExchangeState.PAUSED for each in session.pool.main.gate._forwarders):
            await asyncio.sleep(0.01)
        second = asyncio.create_task(session.start(StartRequest(replace(begun, model=other), drain_s=60)))
        drained.most_parts = drained.parts + 5
        await asyncio.gather(first, second, *reading, return_exceptions=True)
        assert cut.error is not None
        assert (cut.error["code"], cut.error["type"]) == (503, "reply_interrupted")
        report = session.last_handover
        assert report is not None
        assert (report.outcome, report.cut, report.continued) == ("cut", 1, [])


async def test_many_quick_changes_are_one_gap_in_the_stream(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        changes = []
        for number in range(100):
            changes.append(asyncio.create_task(change_settings(session, draft=1 + number % 5)))
            await asyncio.sleep(0.02)
        ends = await asyncio.gather(*changes, return_exceptions=True)
        assert {type(end) for end in ends} <= {Superseded, type(None)}
        assert ends[-1] is None
        cut.most_parts = cut.parts + 50
        await reading
        (record,) = session.request_log.records
        assert (record.handovers, len(record.gaps_s)) == (1, 1)
        check_same_words(cut, await read_whole(client, cut.most_parts))


async def test_quick_changes_start_one_engine(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        cut = ReadReply()
        reading = asyncio.create_task(read_stream(client, cut))
        await cut.wait_for_parts(8)
        starts: list[ServerEvent] = []

        def count_starts(event: ServerEvent) -> None:
            if event == ServerStatus(ServerState.LOADING):
                starts.append(event)

        with session.listening(count_starts):
            changes = [session.start(StartRequest(replace(options, draft=draft), settles=True)) for draft in (1, 3)]
            ends = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(end) for end in ends] == [Superseded, type(None)]
        assert session.supervisor.options == replace(options, draft=3)
        assert len(starts) == 1
        cut.most_parts = cut.parts + 50
        await reading
        check_same_words(cut, await read_whole(client, cut.most_parts))


async def test_a_restart_that_replaces_another_has_the_settings_of_both(options: ServeOptions) -> None:
    async with serve_model(options) as (session, _):
        url, change_count = session.supervisor.endpoint.url, session.change_count
        earlier = asyncio.create_task(restart_server(url, {"draft": "3"}))
        while session.change_count == change_count:
            assert not earlier.done()
            await asyncio.sleep(0)
        await restart_server(url, {"ubatch": "256"})
        await asyncio.gather(earlier, return_exceptions=True)
        assert session.supervisor.options == replace(options, draft=3, ubatch=256)
        assert load_model_settings(options.model) == {"draft": 3, "ubatch": 256}


async def test_two_restarts_wait_for_a_reply_that_cannot_go_on(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        reply, url = ReadReply(), session.supervisor.endpoint.url
        fields = {"seed": 1, "temperature": 0.8, "max_tokens": 2_000}
        reading = asyncio.create_task(read_stream(client, reply, **fields))
        await reply.wait_for_parts(8)
        change_count = session.change_count
        earlier = asyncio.create_task(restart_server(url, {"draft": "3"}, drain_s=60))
        while session.change_count == change_count:
            await asyncio.sleep(0.01)
        assert session.pool is not None
        while session.pool.main.gate._pausing is None:  # the reply is drained now
            assert not reading.done()
            await asyncio.sleep(0.01)
        await restart_server(url, {"ubatch": "256"}, drain_s=60)
        await asyncio.gather(earlier, reading, return_exceptions=True)
        assert (reply.error, reply.finish_reason) == (None, "length")
        assert reply.counts is not None
        assert reply.counts[1] == 2_000


@pytest.mark.parametrize(
    ("path", "constraint"),
    [
        ("/v1/completions", {"grammar": 'root ::= "begin" [a-z ]{300,2000}'}),
        ("/v1/chat/completions", {"grammar": 'root ::= "begin" [a-z ]{300,2000}'}),
        (
            "/v1/completions",
            {"json_schema": {"type": "object", "properties": {"begin": {"type": "string", "minLength": 300}}}},
        ),
    ],
)
async def test_a_reply_in_a_grammar_is_not_begun_again_in_the_middle(
    options: ServeOptions, path: str, constraint: Mapping[str, Any]
) -> None:
    async with serve_model(options) as (session, client):
        reply = ReadReply()
        fields = {**constraint, "max_tokens": 250, "ignore_eos": False}
        reading = asyncio.create_task(read_stream(client, reply, path=path, **fields))
        await reply.wait_for_parts(8)
        await change_settings(session, draft=3)
        await reading
        assert reply.error is not None or (reply.finish_reason is not None and reply.text.count("begin") <= 1)


def kill_engine(session: ServerSession) -> None:
    pid = session.supervisor.engine_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("path", CHAT_FIRST)
async def test_a_reply_of_a_killed_engine_is_continued_word_for_word(options: ServeOptions, path: str) -> None:
    async with serve_model(options) as (session, client):
        broken = ReadReply()
        reading = asyncio.create_task(read_stream(client, broken, path=path))
        await broken.wait_for_parts(8)
        # Until the reply's text has begun, after the thinking.
        while path == "/v1/chat/completions" and len(broken.content.split()) < 5:
            await broken.wait_for_parts(broken.parts + 1)
        kill_engine(session)
        # Until the kill was noticed: what its kernel still held could be more than the parts asked for.
        while not session.request_log.records[0].handovers:
            assert not reading.done()
            await asyncio.sleep(0.01)
        broken.most_parts = broken.parts + 100
        await reading
        check_same_words(broken, await read_whole(client, broken.most_parts, path))
        (record, _) = session.request_log.records
        assert (record.handovers, len(record.gaps_s)) == (1, 1)
        assert record.gaps_s[0] > 0.5


REPEATED = (
    ("/v1/chat/completions", {"grammar": 'root ::= "begin" [a-z ]+'}),
    ("/v1/chat/completions", {"temperature": 0.8, "seed": 3}),
    ("/v1/completions", {"grammar": 'root ::= "begin" [a-z ]+'}),
    ("/v1/completions", {"temperature": 0.8, "seed": 3}),
    ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}),
)
"""Forms of which the text alone is not enough to go on with the same words."""


@pytest.mark.cases(3)
@pytest.mark.parametrize(("path", "fields"), REPEATED)
async def test_a_reply_with_fixed_words_is_written_again_after_a_crash(
    options: ServeOptions, path: str, fields: Mapping[str, Any]
) -> None:
    async with serve_model(options) as (session, client):
        broken = ReadReply()
        reading = asyncio.create_task(read_stream(client, broken, path=path, **fields))
        await broken.wait_for_parts(40)
        kill_engine(session)
        while not session.request_log.records[0].handovers:
            assert not reading.done()
            await asyncio.sleep(0.01)
        broken.most_parts = broken.parts + 100
        await reading
        check_same_words(broken, await read_whole(client, broken.most_parts, path, **fields))
        (record, _) = session.request_log.records
        assert (record.handovers, len(record.gaps_s)) == (1, 1)


async def test_no_slot_file_is_left(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply))
        await reply.wait_for_parts(9)
        await change_settings(session, draft=3)
        launch = session.supervisor.launch
        assert launch is not None
        folder = Path(launch.command.arguments[launch.command.arguments.index("--slot-save-path") + 1])
        assert folder.parent.name == "slots"
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o077 == 0
        reply.most_parts = reply.parts
        await reading


async def test_the_key_of_the_gateway_does_not_open_the_engine(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        engine = session.supervisor.engine_endpoint
        assert engine.port != session.supervisor.endpoint.port
        assert (await client.get(f"{engine.url}/props")).status_code == 401
        assert (await client.get("/props")).status_code == 200
        assert (await client.get("/props", headers={"Authorization": "Bearer wrong"})).status_code == 401
