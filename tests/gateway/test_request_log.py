"""The request log: the figures of each request, on the real built-in engine, and their storage."""

import asyncio
import gc
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app import settings
from launcher.app.serving import request_keeping
from launcher.app.serving.request_keeping import RequestKeeping
from launcher.app.serving.session import ServerSession
from launcher.app.settings_declared import REQUEST_LOG
from launcher.base.codec import to_json
from launcher.base.control import send_request
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.reread import RereadCause
from launcher.gateway.exchange import Exchange, ExchangeState, ReplyFigures
from launcher.gateway.frames import find_object
from launcher.gateway.request_log import MOST_REMEMBERED, RequestLog, RequestRecord
from launcher.tuning import kept_requests
from launcher.tuning.history import History, history_file
from tests.gateway.test_handover import ReadReply, read_stream, read_through_change, serve_model
from tests.gateway.test_prompt_memory import chat, ended_request

MESSAGES = [{"role": "user", "content": "Explain why a bicycle stays upright, and how bread rises. " * 4}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = {"temperature": 0, "max_tokens": 24}
"""At other temperatures a reply ends before its 24th token now and then: 1 of 500."""
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {**LONG, "messages": MESSAGES},
    COMPLETIONS: {**LONG, "prompt": "Bread rises because", "ignore_eos": True},
    "/v1/responses": {"temperature": 0, "input": "How does bread rise?", "max_output_tokens": 24},
    "/v1/messages": {**LONG, "messages": MESSAGES},
}


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=2048, alias="demo")


@asynccontextmanager
async def logging_requests(options: ServeOptions) -> AsyncIterator[tuple[ServerSession, httpx.AsyncClient]]:
    async with serve_model(options) as (session, client):
        client.headers["User-Agent"] = "bread/1.0"
        yield session, client


async def last_record(session: ServerSession) -> RequestRecord:
    while not (records := session.request_log.records) or not records[-1].has_ended:
        await asyncio.sleep(0.01)
    return records[-1]


@pytest.mark.parametrize("path", BODIES)
async def test_figures_of_each_kind_of_reply_are_recorded(options: ServeOptions, path: str) -> None:
    async with logging_requests(options) as (session, client):
        for streams in (True, False):
            response = await client.post(path, json={**BODIES[path], "model": "bread", "stream": streams})
            assert response.status_code == 200
            record = await last_record(session)
            assert (record.path, record.model, record.end) == (path, "demo", "complete")
            assert (record.key_name, record.user_agent) == ("default", "bread/1.0")
            assert record.prompt_tokens is not None
            assert record.prompt_tokens > 3
            assert record.reused_tokens is not None
            assert 0 <= record.reused_tokens < record.prompt_tokens
            assert record.reply_tokens == 24
            assert (record.gaps_s, record.handovers) == ((), 0)
            has_timings = path in (CHAT, COMPLETIONS) or (streams and path == "/v1/responses")
            assert (record.drafted is not None) is has_timings
            assert (record.first_token_s is not None) is (has_timings or streams)
            assert record.tokens_per_second is not None or not has_timings
            if record.tokens_per_second is not None:
                assert 1 < record.tokens_per_second < 100_000
            if record.first_token_s is not None:
                assert 0 < record.first_token_s < 60
            if record.drafted is not None and record.accepted is not None:
                assert 0 < record.accepted <= record.drafted
        if path in (CHAT, "/v1/messages"):  # these two send the same prompt twice
            assert record.reused_tokens > 40


async def test_the_speed_is_the_one_that_the_engine_reports(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        response = await client.post(CHAT, json=BODIES[CHAT])
        timings = response.json()["timings"]
        assert (await last_record(session)).tokens_per_second == timings["predicted_per_second"]


async def test_requests_in_progress_are_listed_and_requests_without_a_reply_are_not(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post("/tokenize", json={"content": "bread"})).status_code == 200
        assert session.request_log.records == []
        reply = ReadReply()
        reading = asyncio.create_task(read_stream(client, reply))
        await reply.wait_for_parts(4)
        (record,) = session.request_log.records
        assert (record.state, record.end, record.reply_tokens) == ("running", None, None)
        assert record.prompt_tokens is not None
        reading.cancel()
        record = await last_record(session)
        assert (record.end, record.reply_tokens, record.tokens_per_second) == ("client left", None, None)


async def test_a_reply_whose_drafted_tokens_lack_log_probabilities_says_so(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        notices = []
        for fields in ({"logprobs": True}, {}):
            await client.post(CHAT, json={**BODIES[CHAT], **fields})
            notices.append(to_json(await last_record(session))["notice"])
        assert "draft length 0" in notices[0]
        assert notices[1] is None


async def test_a_request_is_listed_as_ended_as_soon_as_its_client_has_the_reply(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        for number, path in enumerate(BODIES, 1):
            await client.post(path, json={**BODIES[path], "stream": True})
            assert [record.end for record in session.request_log.records] == ["complete"] * number


async def test_an_error_of_the_engine_is_recorded(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        assert (await client.post("/v1/embeddings", json={"input": "bread"})).status_code == 501
        record = await last_record(session)
        assert (record.end, record.first_token_s, record.prompt_tokens) == ("error", None, None)


@pytest.mark.parametrize("path", BODIES)
async def test_a_prompt_longer_than_the_context_is_recorded_as_not_read(options: ServeOptions, path: str) -> None:
    body = {**BODIES[path]}
    name = next(name for name in ("messages", "prompt", "input") if name in body)
    long = "How does bread rise? " * 2_000
    body[name] = [{"role": "user", "content": long}] if name == "messages" else long
    async with logging_requests(options) as (session, client):
        for streams in (True, False):
            await client.post(path, json={**body, "stream": streams})
            record = await last_record(session)
            assert (record.end, record.reused_tokens, record.reread) == ("too long", None, None)
            assert record.prompt_tokens is not None
            assert record.prompt_tokens > 10_000


def test_token_counts_of_all_api_formats_are_read() -> None:
    embedding = b'{"model":"e","usage":{"prompt_tokens":7,"total_tokens":7},"data":[{"embedding":[' + b"0.5," * 99_999
    figures = ReplyFigures()
    figures.add_usage(find_object(embedding + b"1]}]}", "usage") or {})
    assert (figures.prompt_tokens, figures.reused_tokens, figures.reply_tokens) == (7, None, None)
    figures.add_usage({"input_tokens": 4, "cache_read_input_tokens": 85, "output_tokens": 0})
    assert (figures.prompt_tokens, figures.reused_tokens, figures.reply_tokens) == (89, 85, None)
    figures.add_usage({"input_tokens": 11, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 7}})
    assert (figures.prompt_tokens, figures.reused_tokens, figures.reply_tokens) == (11, 7, 20)
    text = json.dumps({"text": 'no "usage":{"prompt_tokens":1} here'}).encode()
    assert find_object(text, "usage") is None
    assert find_object(b'{"usage": {"prompt_tokens": 1', "usage") is None
    assert find_object(b'{"usage": null}', "usage") is None


async def test_a_handover_is_recorded_as_a_gap_with_unknown_drafts(options: ServeOptions) -> None:
    async with logging_requests(replace(options, context=16_384)) as (session, client):
        _, tokens = await read_through_change(session, client)
        record = await last_record(session)
        assert (record.handovers, record.end, record.reply_tokens) == (1, "complete", tokens)
        (gap_s,) = record.gaps_s
        assert 0 < gap_s < 60
        assert (record.drafted, record.accepted) == (None, None)
        assert record.tokens_per_second is not None


async def test_the_control_socket_sends_the_last_records_and_follows(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        for _ in range(3):
            await client.post(COMPLETIONS, json=BODIES[COMPLETIONS])
        (entry,) = registry.list_entries()
        assert entry.control_address is not None
        (answer,) = [each async for each in send_request(entry.control_address, "requests", count=2)]
        assert [each["id"] for each in answer["requests"]] == [each.id for each in session.request_log.records[-2:]]
        following = send_request(entry.control_address, "requests", count=1, follow=True)
        assert (await anext(following))["requests"][0]["id"] == session.request_log.records[-1].id
        await client.post(COMPLETIONS, json=BODIES[COMPLETIONS])
        assert (await anext(following))["requests"][0]["id"] == session.request_log.records[-1].id


async def test_records_are_stored_after_the_server_unless_the_setting_is_off(options: ServeOptions) -> None:
    async with logging_requests(options) as (session, client):
        await client.post(CHAT, json=BODIES[CHAT])
        record = await last_record(session)
    with History() as history:
        assert history.load_requests(5) == [record]
    assert b"bicycle" not in history_file().read_bytes()
    settings.change_setting(REQUEST_LOG, False)
    async with logging_requests(options) as (session, client):
        await client.post(CHAT, json=BODIES[CHAT])
        assert (await last_record(session)).end == "complete"
    with History() as history:
        assert history.load_requests(5) == [record]
        history.forget_requests()
        assert history.load_requests(5) == []


def ended_exchange(end: str = "complete", *, streams: bool = True) -> Exchange:
    return Exchange(CHAT, b"", {"stream": streams}, state=ExchangeState.ENDED, end=end)


def test_our_clock_gives_the_speed_without_engine_timings_and_leaves_gaps_out() -> None:
    log = RequestLog()
    for streams, last_s, gaps, engine, speed in (
        (True, 3.0, [], None, 50.0),  # 101 tokens in 2 s
        (True, 5.0, [2.0], 99.0, 50.0),
        (True, 3.0, [], 99.0, 99.0),
        (True, 1.04, [], None, None),  # all tokens may have come in one piece
        (False, 3.0, [], None, None),
    ):
        exchange = ended_exchange(streams=streams)
        exchange.started, exchange.first_token, exchange.last_token, exchange.gaps_s = 0.0, 1.0, last_s, gaps
        exchange.figures.reply_tokens, exchange.figures.tokens_per_second = 101, engine
        log.note_exchange(exchange)
        assert log.records[-1].tokens_per_second == speed


def test_an_engine_that_was_started_is_the_cause_of_what_is_read_again() -> None:
    log = RequestLog()
    for reused in (0, 0):
        log.note_engine_start()
        exchange = ended_request(chat(3), reused)
        exchange.state = ExchangeState.ENDED
        log.note_exchange(exchange)
    (first, second) = log.records
    assert first.reread is None
    assert second.reread is not None
    assert second.reread.cause is RereadCause.RESTART


def test_only_the_last_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RequestLog()
    records: list[RequestRecord] = []
    with log.listening(records.append):
        for _ in range(MOST_REMEMBERED + 7):
            log.note_exchange(ended_exchange())
    assert log.records == records[7:]
    assert len({record.id for record in records}) == len(records)
    monkeypatch.setattr(kept_requests, "MOST_KEPT", 100)
    with History() as history:
        history.add_requests(records[:90])
        history.add_requests(records[90:130])
        assert history.load_requests(1_000) == records[30:130]
        assert history.load_requests(2) == records[128:130]


def test_an_ended_request_is_not_referenced() -> None:
    log, exchange = RequestLog(), Exchange(CHAT, b"x" * 1_000, {"stream": True})
    log.note_exchange(exchange)
    assert log.count_states() == {ExchangeState.WAITING: 1}
    exchange.state = ExchangeState.ENDED
    log.note_exchange(exchange)
    assert (log.count_states(), log.records[0].end) == ({}, "error")
    del exchange
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Exchange) and each.raw == b"x" * 1_000]


def test_json_has_a_time_zone_and_null_for_unknown_values() -> None:
    log = RequestLog()
    log.note_exchange(ended_exchange("refused"))
    result = json.loads(json.dumps(to_json(log.records[0])))
    assert datetime.fromisoformat(result["started"]).tzinfo is not None
    assert result["who"] == {"key": None, "user_agent": None}
    unknown = {name for name, value in result.items() if value is None}
    assert unknown == {
        *("model", "prompt_tokens", "reused_tokens", "reply_tokens", "first_token_s", "tokens_per_second"),
        *("draft_n", "draft_n_accepted", "status", "message", "reread", "notice"),
        *("restored_tokens", "restored_s", "spared_s"),
    }


async def test_a_locked_history_drops_records_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.base.database._BUSY_S", 0.05)
    monkeypatch.setattr(request_keeping, "_PERIOD_S", 0.01)
    with History():
        pass
    log = RequestLog()
    keeping = RequestKeeping(log)
    locking = sqlite3.connect(history_file(), isolation_level=None)
    locking.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.note_exchange(ended_exchange())
            await keeping.save_pending()
    locking.execute("ROLLBACK")
    locking.close()
    assert [each.getMessage() for each in caplog.records if "log of requests" in each.getMessage()] == [
        each.getMessage() for each in caplog.records
    ][:1]
    log.note_exchange(ended_exchange())
    await keeping.save_pending()
    with History() as history:
        assert history.load_requests(5) == log.records[-1:]


@pytest.mark.parametrize(("reused", "restored", "spared_s"), [(1_200, 1_000, 10.0), (250, 250, 2.5), (0, 0, 0.0)])
def test_only_what_the_engine_used_of_a_state_is_said_to_be_spared(reused: int, restored: int, spared_s: float) -> None:
    log, exchange = RequestLog(), Exchange(CHAT, b"", {})
    figures = exchange.figures
    figures.restored_tokens, figures.spared_s, figures.reused_tokens = 1_000, 10.0, reused
    exchange.state = ExchangeState.ENDED
    log.note_exchange(exchange)
    assert (log.records[-1].restored_tokens, log.records[-1].spared_s) == (restored, spared_s)
