"""Conversations outlive a stop and a crash: the next engine restores them, and does not read them again."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.serving.session import ServerSession
from launcher.app.settings import change_setting, forget_conversations, open_vault
from launcher.app.settings_file import settings_path
from launcher.base.paths import cache_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.reread import RereadCause
from launcher.engine.server.start_request import StartRequest
from launcher.gateway import gate, state_keeper
from launcher.gateway.slot_file import digest_file
from tests.gateway.test_handover import kill_engine, serve_model

pytestmark = pytest.mark.usefixtures("home", "small_gains_count")
LONG = " ".join(f"Line {number} of a long prompt about draft heads." for number in range(200))
QUESTION = {"role": "user", "content": LONG}


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=32_768, slots=1, alias="demo")


async def ask(client: httpx.AsyncClient, *messages: dict[str, str], **headers: str) -> dict[str, Any]:
    """Return a reply's text, its message, and how many tokens of its prompt were read and reused."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 24}
    reply = await client.post("/v1/chat/completions", json=body, headers=headers)
    reply.raise_for_status()
    data = reply.json()
    answer = data["choices"][0]["message"]
    return {**data["timings"], "answer": {"role": "assistant", "content": answer["content"]}, "whole": answer}


def list_kept() -> list[Path]:
    return sorted((cache_dir() / "states").glob("*.state"))


async def wait_until_kept(count: int = 1) -> None:
    async with asyncio.timeout(30):
        while len(list_kept()) < count:
            await asyncio.sleep(0.05)


async def kill_and_wait(session: ServerSession) -> None:
    """Kill the engine, and wait until another one runs."""
    killed = session.supervisor.engine_pid
    kill_engine(session)
    async with asyncio.timeout(60):
        while session.supervisor.engine_pid in (killed, None):
            await asyncio.sleep(0.05)


async def test_a_conversation_is_not_read_again_after_a_stop(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        told = await ask(client, QUESTION)
        turn = [QUESTION, told["answer"], {"role": "user", "content": "And then?"}]
        expected = await ask(client, *turn)
        assert session.request_log.records[-1].restored_tokens is None  # the engine had it
    async with serve_model(options) as (session, client):
        answered = await ask(client, *turn)
        assert answered["whole"] == expected["whole"]
        assert answered["cache_n"] > 0.95 * told["prompt_n"]
        record = session.request_log.records[-1]
        assert record.restored_tokens is not None
        assert record.restored_tokens > 0.95 * told["prompt_n"]
        assert record.spared_s is not None
        metrics = (await client.get("/metrics")).text
        assert f'restored_tokens_total{{model="demo",key="default"}} {record.restored_tokens}' in metrics
    assert len(list_kept()) == 1  # the longer one has replaced the shorter
    assert list_kept()[0].stat().st_mode & 0o077 == 0


async def test_a_conversation_is_not_read_again_after_a_crash(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.1)
    async with serve_model(options) as (session, client):
        told = await ask(client, QUESTION)
        await wait_until_kept()
        await kill_and_wait(session)
        answered = await ask(client, QUESTION, told["answer"], {"role": "user", "content": "And then?"})
        assert answered["cache_n"] > 0.95 * told["prompt_n"]


async def test_of_several_conversations_each_is_found_again(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.1)
    questions = [{"role": "user", "content": f"{topic}: {LONG}"} for topic in ("Bread", "Sky", "Sea")]
    async with serve_model(replace(options, slots=2, kv_unified=True)) as (_, client):
        told = []
        for number, question in enumerate(questions, 1):
            told.append(await ask(client, question))
            await wait_until_kept(number)
    async with serve_model(replace(options, slots=1, kv_unified=True)) as (_, client):
        for question, before in zip(questions, told, strict=True):
            answered = await ask(client, question, before["answer"], {"role": "user", "content": "And then?"})
            assert answered["cache_n"] > 0.95 * before["prompt_n"]


@pytest.mark.parametrize(
    ("changes", "headers"),
    [({"kv": "q8_0"}, {}), ({}, {"Cache-Control": "no-store"}), ({"extra": ("--top-k", "7")}, {})],
)
async def test_what_may_not_be_used_is_read_again(
    options: ServeOptions, changes: dict[str, Any], headers: dict[str, str]
) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION, **headers)
    assert len(list_kept()) == (0 if headers else 1)
    async with serve_model(replace(options, **changes)) as (session, client):
        answered = await ask(client, QUESTION, told["answer"], {"role": "user", "content": "And then?"})
        assert answered["cache_n"] == 0
        record = session.request_log.records[-1]
        assert record.restored_tokens is None
        assert (record.reread and record.reread.cause) == (None if headers else RereadCause.KEPT_OTHERWISE)


async def test_a_deleted_chat_is_not_kept_again_by_the_server_that_has_it_in_a_slot(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.1)
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION, **{"X-Conversation": "a1b2"})
        await wait_until_kept()
        await asyncio.to_thread(forget_conversations, ["a1b2"])
        assert not list_kept()
        turn = (QUESTION, told["answer"], {"role": "user", "content": "And then?"})
        assert (await ask(client, *turn, **{"X-Conversation": "a1b2"}))["cache_n"] > 0
    assert not list_kept()
    async with serve_model(options) as (_, client):  # another conversation with the same text may be kept
        await ask(client, QUESTION)
    assert len(list_kept()) == 1


async def test_requests_of_our_own_are_kept_only_where_they_say_so(options: ServeOptions) -> None:
    request = ChatRequest([QUESTION], max_tokens=4)
    async with serve_model(options) as (session, _):
        await session.send_request(request)
    assert not list_kept()
    async with serve_model(options) as (session, _):
        await session.send_request(replace(request, kept_as="a1b2"))
    with closing(open_vault()) as vault:
        assert [each.conversation for each in vault.list_states()] == ["a1b2"]


@pytest.mark.parametrize("left_out", ["default", "DEMO", "other demo2"])
async def test_a_key_or_a_name_of_a_model_can_be_left_out(options: ServeOptions, left_out: str) -> None:
    async with serve_model(options) as (_, client):
        change_setting("cache.leave_out", left_out)
        reply = await client.post(
            "/v1/chat/completions", json={"model": "demo", "messages": [QUESTION], "max_tokens": 4}
        )
        assert reply.is_success
    assert len(list_kept()) == ("other" in left_out)


async def test_nothing_is_kept_while_nobody_knows_what_is_to_be_left_out(options: ServeOptions) -> None:
    change_setting("cache.leave_out", "default")
    settings_path().write_bytes(b"[cache\nleave_out = ")
    async with serve_model(options) as (_, client):
        for _ in range(2):  # the second finds that the file was set aside
            await ask(client, QUESTION)
    assert not list_kept()
    change_setting("cache.leave_out", "other")  # the user has chosen anew
    async with serve_model(options) as (_, client):
        await ask(client, QUESTION)
    assert len(list_kept()) == 1


def spoil_file(_: pytest.MonkeyPatch) -> None:
    """Make a state one that the engine refuses, although its file is whole."""
    (path,) = list_kept()
    path.write_bytes(bytes(64) + path.read_bytes()[64:])
    with closing(sqlite3.connect(path.parent / "index.sqlite")) as db:
        db.execute("UPDATE states SET digest = ?", (digest_file(path),))
        db.commit()


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_keeper, "_FIRST_BYTES_S", 1e3)


@pytest.mark.parametrize(
    ("spoil", "cause"), [(spoil_file, RereadCause.KEPT_REFUSED), (slow_disk, RereadCause.KEPT_SLOW)]
)
async def test_a_request_knows_why_what_was_kept_was_not_used(
    options: ServeOptions,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    cause: RereadCause,
) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION)
    spoil(monkeypatch)
    async with serve_model(options) as (session, client):
        assert (await ask(client, QUESTION))["whole"] == told["whole"]
        record = session.request_log.records[-1]
        assert record.restored_tokens is None
        assert record.reread is not None
        assert record.reread.cause is cause


async def test_without_a_disk_requests_say_so(options: ServeOptions) -> None:
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "states").write_text("in the way")
    async with serve_model(options) as (session, client):
        await ask(client, QUESTION)
        assert session.request_log.records[-1].reread is None, "it was read for the first time"
        await session.start(StartRequest(replace(options, kv="q8_0")))
        await ask(client, QUESTION)
        reread = session.request_log.records[-1].reread
        assert reread is not None
        assert reread.cause is RereadCause.NOT_KEPT
        assert session.supervisor.kept_problem


async def test_a_damaged_state_is_deleted_and_the_prompt_read(options: ServeOptions) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION)
    path = list_kept()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    async with serve_model(options) as (session, client):
        answered = await ask(client, QUESTION)
        assert answered["cache_n"] == 0
        assert answered["whole"] == told["whole"]
        assert path not in list_kept()
        reread = session.request_log.records[-1].reread
        assert reread is not None
        assert reread.cause is RereadCause.KEPT_CHANGED
        assert reread.tokens > 0.9 * told["prompt_n"]


async def test_what_sessions_of_an_agent_begin_with_is_read_once(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.1)
    system = {"role": "system", "content": LONG}
    questions = [{"role": "user", "content": topic * 400} for topic in ("Bread! ", "Sky? ", "Sea. ")]
    async with serve_model(options) as (_, client):
        for number, question in enumerate(questions[:2], 1):
            told = await ask(client, system, question)
            await wait_until_kept(number)
        await wait_until_kept(3)
    async with serve_model(options) as (session, client):
        answered = await ask(client, system, questions[2])
        assert answered["cache_n"] > 2_000
        assert session.request_log.records[-1].restored_tokens == answered["cache_n"]
    async with serve_model(options) as (_, client):
        assert (await ask(client, system, questions[1]))["whole"] == told["whole"]


async def test_a_conversation_is_kept_although_another_ones_state_was_restored_in_vain(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes the request goes on behind the checkpoint of the other one, and by its tokens it parts before."""
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.1)

    def ask_about(digit: str) -> dict[str, str]:
        return {"role": "user", "content": LONG + f"{digit} " * 500}

    async with serve_model(options) as (_, client):
        await ask(client, ask_about("1"))
        await wait_until_kept()
    async with serve_model(options) as (_, client):
        assert (await ask(client, ask_about("2")))["cache_n"] == 0
        await wait_until_kept(3)
    async with serve_model(options) as (_, client):
        assert (await ask(client, ask_about("3")))["cache_n"] > 1_000


async def test_what_an_agent_begins_with_is_restored_before_it_asks(options: ServeOptions) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION, **{"User-Agent": "agent/1.0"})
    async with serve_model(options) as (session, client):
        session.prepare_for("Agent")
        async with asyncio.timeout(30):
            while not (await client.get("/slots")).json()[0].get("n_prompt_tokens"):
                await asyncio.sleep(0.05)
        states = [path.stat().st_mtime_ns for path in list_kept()]
        answered = await ask(client, QUESTION, told["answer"], {"role": "user", "content": "And then?"})
        assert answered["cache_n"] > 0.95 * told["prompt_n"]
        record = session.request_log.records[-1]
        assert record.restored_tokens == answered["cache_n"]
        assert states == [path.stat().st_mtime_ns for path in list_kept()]


async def test_a_conversation_is_kept_before_another_one_takes_its_slot(options: ServeOptions) -> None:
    async with serve_model(options) as (session, client):
        told = await ask(client, QUESTION)
        turn = [QUESTION, told["answer"], {"role": "user", "content": "And then?"}]
        await ask(client, *turn)
        assert not list_kept()  # it has its slot still
        await ask(client, {"role": "user", "content": "Hello"})
        await wait_until_kept()
        turn += [{"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "Why?"}]
        await ask(client, *turn)
        await ask(client, {"role": "user", "content": "Good morning"})
        assert len(list_kept()) == 1  # most of it is kept
        await kill_and_wait(session)
        answered = await ask(client, *turn)
        assert answered["cache_n"] > 0.95 * told["prompt_n"]


async def test_a_short_turn_does_not_write_a_long_conversation_anew(options: ServeOptions) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION)
    kept = list_kept()
    assert len(kept) == 1
    async with serve_model(options) as (_, client):
        answered = await ask(client, QUESTION, told["answer"], {"role": "user", "content": "And then?"})
        assert answered["cache_n"] > 0.95 * told["prompt_n"]
    assert list_kept() == kept
