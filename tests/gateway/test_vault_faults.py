"""Faults around conversations on disk: nothing is kept under a wrong name, nothing waits for a file, none is left.

The engines are real. They, their files and their clients are made to fail just before a step.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.app import settings
from launcher.app.serving.session import ServerSession
from launcher.app.settings import open_vault
from launcher.engine.serve_options import ServeOptions
from launcher.gateway import gate, state_keeper
from launcher.gateway.engine_connection import EngineLost, EngineReply, EngineUnreached
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import Exchange
from launcher.gateway.forwarder import Forwarder
from launcher.gateway.gate import Gate
from launcher.gateway.slot_folder import SLOT_FILES
from launcher.gateway.state_keeper import SavedSlot, StateKeeper
from launcher.gateway.vault import SavedState, StateVault
from tests.gateway.test_handover import ReadReply, change_settings, kill_engine, read_stream, serve_model
from tests.gateway.test_handover_faults import act_before, flip_bit
from tests.gateway.test_vault_serving import LONG, QUESTION, ask, list_kept

pytestmark = pytest.mark.usefixtures("home", "small_gains_count")
NEXT = {"role": "user", "content": "And then?"}
SAVE, RESTORE = "/slots/0?action=save", "/slots/0?action=restore"


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=32_768, slots=1, alias="demo")


def about(topic: str) -> dict[str, str]:
    return {"role": "user", "content": f"{topic}: {LONG}"}


def find_gate(session: ServerSession) -> Gate:
    assert session.pool is not None
    return session.pool.main.gate


def find_link(session: ServerSession) -> EngineLink:
    link = find_gate(session)._link
    assert link is not None
    return link


async def keep_now(session: ServerSession) -> None:
    """Keep on disk what is in the slots, as after some seconds without a request, and wait until it is there."""
    keeper = find_gate(session)._keeper
    await find_gate(session)._keep_slots(lambda: True)
    await asyncio.gather(*keeper._background)


def list_left(session: ServerSession) -> list[Path]:
    folder = find_link(session).slot_folder
    assert folder is not None
    return list(folder.iterdir())


@pytest.fixture
def keeping_blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold all threads that keep a file, until the event is set."""
    may_go_on, original = threading.Event(), StateKeeper._keep_file

    def keep_file(self: StateKeeper, *given: Any) -> None:  # noqa: ANN401 -- passed on
        may_go_on.wait(60)
        original(self, *given)

    monkeypatch.setattr(StateKeeper, "_keep_file", keep_file)
    yield may_go_on
    may_go_on.set()


def note_bodies(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Return the list to which the bodies of chats sent to engines are added; `act` is called before the first."""
    bodies: list[dict[str, Any]] = []
    original = EngineLink.open_reply

    async def open_reply(
        self: EngineLink, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> EngineReply:
        if path == "/v1/chat/completions":
            bodies.append(json.loads(body))
            if len(bodies) == 1:
                act()
        return await original(self, method, path, headers, body)

    monkeypatch.setattr(EngineLink, "open_reply", open_reply)
    return bodies


async def keep_one(options: ServeOptions) -> list[dict[str, str]]:
    """Have a server keep a conversation; return it with its next question."""
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION)
    assert len(list_kept()) == 1
    return [QUESTION, told["answer"], NEXT]


async def test_a_stream_that_was_told_to_wait_is_restored_and_a_state_at_which_the_engine_ends_is_not_used_again(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    monkeypatch.setattr(gate, "_FIRST_COMMENT_S", 0.0)
    async with serve_model(options) as (session, client):
        other = ReadReply()
        reading = asyncio.create_task(read_stream(client, other, "Hello"))
        await other.wait_for_parts(2)
        kept = open_vault().list_states()
        bodies = note_bodies(monkeypatch, lambda: kill_engine(session))
        body = {"messages": turn, "temperature": 0, "max_tokens": 8, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.aiter_lines()
            assert (await anext(lines)).startswith(":")  # it waits for the slot, and its status is out
            other.most_parts = other.parts
            text = "".join([line async for line in lines])
        await reading
        assert "[DONE]" in text
        assert [each.get("id_slot") for each in bodies] == [0, None]
        assert session.request_log.records[-1].restored_tokens == 0
        left = [each.name for each in open_vault().list_states()]
        assert kept[0].name not in left


async def test_an_engine_that_ends_at_a_state_gets_it_no_more_and_the_request_goes_on(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    async with serve_model(options) as (session, client):
        made, bodies = act_before(monkeypatch, RESTORE, lambda: kill_engine(session)), note_bodies(monkeypatch)
        assert (await ask(client, *turn))["cache_n"] == 0
        assert len(bodies) == 1  # only the next engine gets it: one that is just ending may still take connections
        assert made.count(RESTORE) == 1
        assert list_kept() == []
        assert list_left(session) == []


async def test_a_state_after_which_the_engine_cannot_be_reached_is_not_used_again(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    async with serve_model(options) as (session, client):
        open_reply, ended = EngineLink.open_reply, []

        async def end_first(self: EngineLink, method: str, path: str, *given: Any, **named: Any) -> EngineReply:  # noqa: ANN401
            if path == "/v1/chat/completions" and not ended:
                ended.append(path)
                kill_engine(session)
                raise EngineUnreached
            return await open_reply(self, method, path, *given, **named)

        monkeypatch.setattr(EngineLink, "open_reply", end_first)
        assert (await ask(client, *turn))["cache_n"] == 0
        assert ended
        assert list_kept() == []


async def test_an_engine_that_takes_its_time_to_end_at_a_state_gets_it_no_more(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it ends, it says for some seconds that it is well, and does nothing."""
    turn = await keep_one(options)
    async with serve_model(options) as (session, client):
        request_json, read_slots, waited = EngineLink.request_json, EngineLink.read_slots, []

        async def take_no_end(self: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            if path == RESTORE:
                waited.append(path)
                raise EngineLost
            return await request_json(self, path, *given, **named)

        async def say_nothing(self: EngineLink) -> list[dict[str, Any]]:
            if not waited or len(waited) > 2:
                return await read_slots(self)
            waited.append("slots")
            if len(waited) > 2:
                kill_engine(session)
            raise EngineLost

        monkeypatch.setattr(EngineLink, "request_json", take_no_end)
        monkeypatch.setattr(EngineLink, "read_slots", say_nothing)
        bodies = note_bodies(monkeypatch)
        assert (await ask(client, *turn))["cache_n"] == 0
        assert len(bodies) == 1  # only the next engine gets it
        assert waited == [RESTORE, "slots", "slots"]
        assert list_kept() == []


async def test_a_state_is_restored_although_the_engine_has_not_noticed_yet_that_the_client_before_has_left(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    async with serve_model(options) as (_, client):
        read_slots, looks = EngineLink.read_slots, []

        async def notice_late(self: EngineLink) -> list[dict[str, Any]]:
            looks.append(self)
            slots = await read_slots(self)
            return [{**each, "is_processing": True} for each in slots] if len(looks) < 3 else slots

        monkeypatch.setattr(EngineLink, "read_slots", notice_late)
        assert (await ask(client, *turn))["cache_n"] > 1_000


async def test_what_must_not_be_kept_is_not_kept_under_another_requests_name(options: ServeOptions) -> None:
    async with serve_model(options) as (_, client):
        await ask(client, about("Bread"))
        # It has as many tokens as the one before, whose slot it takes.
        await ask(client, about("Water"), **{"cache-control": "No-Store"})
    assert len(list_kept()) == 1
    async with serve_model(options) as (_, client):
        assert (await ask(client, about("Bread")))["cache_n"] > 1_000  # kept before the other took its slot


async def test_requests_that_use_no_slot_leave_the_conversation_to_be_kept(options: ServeOptions) -> None:
    async with serve_model(options) as (_, client):
        told = await ask(client, QUESTION)
        assert (await client.post("/tokenize", json={"content": "Hello"})).is_success
        assert (await client.post("/v1/chat/completions", json={"messages": "none"})).is_client_error
    assert len(list_kept()) == 1
    async with serve_model(options) as (_, client):
        assert (await ask(client, QUESTION, told["answer"], NEXT))["cache_n"] > 0.95 * told["prompt_n"]


async def test_each_slot_is_read_and_saved_under_the_lock_and_no_save_that_fails_leaves_a_file(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    failures: list[BaseException] = []
    read_slots, request_json = EngineLink.read_slots, EngineLink.request_json
    async with serve_model(replace(options, slots=2, kv_unified=True)) as (session, client):

        async def read_locked(self: EngineLink) -> list[dict[str, Any]]:
            locked.append(find_gate(session)._slots_lock.locked())
            return await read_slots(self)

        async def fail_to_save(self: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            await request_json(self, path, *given, **named)
            raise failures.pop()

        monkeypatch.setattr(EngineLink, "read_slots", read_locked)
        for failure in (EngineLost(), asyncio.CancelledError()):
            failures.append(failure)
            await ask(client, about("Bread"))
            with monkeypatch.context() as patch, suppress(asyncio.CancelledError):
                patch.setattr(EngineLink, "request_json", fail_to_save)
                await keep_now(session)
            assert not failures
            assert list_left(session) == list_kept() == []
        for topic in ("Sky", "Sea"):
            await ask(client, about(topic))
        locked.clear()
        await keep_now(session)
        assert len(list_kept()) == 2
        assert locked == [True] * 3  # for each of the two slots, and to find that there is no other
        assert list_left(session) == []


async def test_a_handover_neither_waits_for_what_is_being_kept_nor_deletes_it(
    options: ServeOptions, keeping_blocked: threading.Event
) -> None:
    async with serve_model(replace(options, slots=2, kv_unified=True)) as (session, client):
        await ask(client, about("Bread"))
        await find_gate(session)._keep_slots(lambda: True)
        going_on = ReadReply()
        reading = asyncio.create_task(read_stream(client, going_on, LONG))
        await going_on.wait_for_parts(8)
        await change_settings(session, draft=3)
        await going_on.wait_for_parts(going_on.parts + 20)
        assert session.last_handover is not None
        assert session.last_handover.outcome == "seamless"
        going_on.most_parts = going_on.parts
        await reading
        assert list_kept() == list_left(session) == []
        keeping_blocked.set()
        await asyncio.gather(*find_gate(session)._keeper._background)
        assert len(list_kept()) == 1
        assert open_vault().verify() == []


async def test_a_client_that_leaves_while_its_state_is_restored_leaves_no_file(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    entered, may_go_on, done = threading.Event(), threading.Event(), threading.Event()
    lent: list[Path] = []
    original = StateVault.lend_file

    def lend_file(self: StateVault, state: SavedState, path: Path) -> bool:
        lent.append(path)
        entered.set()
        may_go_on.wait(60)
        try:
            return original(self, state, path)
        finally:
            done.set()

    monkeypatch.setattr(StateVault, "lend_file", lend_file)
    body = {"messages": turn}
    async with serve_model(options) as (session, _):
        exchange = Exchange("/v1/chat/completions", json.dumps(body).encode(), body)
        restoring = asyncio.ensure_future(find_gate(session)._keeper.restore_for(find_link(session), exchange))
        await asyncio.to_thread(entered.wait, 60)
        restoring.cancel()
        await asyncio.wait([restoring], timeout=0)
        may_go_on.set()
        with suppress(asyncio.CancelledError):
            await restoring
        await asyncio.to_thread(done.wait, 60)
        assert list_left(session) == []
        assert len(list_kept()) == 1
        assert fnmatch(lent[0].name, SLOT_FILES)  # what a crash leaves is deleted at the next start


async def test_slots_that_the_next_engine_refuses_are_not_kept_but_those_that_it_is_not_offered(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_json, restore_slots = EngineLink.request_json, StateKeeper.restore_slots

    async def refuse(self: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401 -- passed on
        return (400, {}) if "restore" in path else await request_json(self, path, *given, **named)

    async def restore_damaged(self: StateKeeper, link: EngineLink, saved: list[SavedSlot]) -> set[int]:
        return await restore_slots(self, link, list(map(flip_bit, saved)))

    async with serve_model(options) as (session, client):
        for number, (holder, name, fault) in enumerate(
            ((EngineLink, "request_json", refuse), (StateKeeper, "restore_slots", restore_damaged))
        ):
            await ask(client, QUESTION)
            with monkeypatch.context() as patch:
                patch.setattr(holder, name, fault)
                await change_settings(session, draft=number)
            await asyncio.gather(*find_gate(session)._keeper._background)
            assert list_kept() == list_left(session) == []
        told = await ask(client, QUESTION)
        await change_settings(session, kv="q8_0")
        await asyncio.gather(*find_gate(session)._keeper._background)
        assert len(list_kept()) == 1
        await change_settings(session, kv=None)
        assert (await ask(client, QUESTION, told["answer"], NEXT))["cache_n"] > 0.95 * told["prompt_n"]


async def test_a_conversation_whose_slot_another_has_taken_is_restored_without_waiting_for_the_others_file(
    options: ServeOptions, keeping_blocked: threading.Event
) -> None:
    keeping_blocked.set()
    async with serve_model(options) as (session, client):
        told = await ask(client, about("Bread"))
        await keep_now(session)
        keeping_blocked.clear()
        await ask(client, about("Water"))  # as many tokens
        answered = await ask(client, about("Bread"), told["answer"], NEXT)
        assert session.request_log.records[-1].restored_tokens > 0.95 * told["prompt_n"]
        assert answered["cache_n"] > 0.95 * told["prompt_n"]
        assert len(list_kept()) == 1
        keeping_blocked.set()
    assert len(list_kept()) == 2


@pytest.mark.parametrize(("is_idle", "readings"), [(True, 1), (False, 3)])
async def test_a_shared_beginning_that_is_refused_or_cut_off_is_not_read_for_ever(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch, is_idle: bool, readings: int
) -> None:
    made: list[str] = []
    request_json, keep_file = EngineLink.request_json, StateVault.keep_file

    async def note_request(self: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401 -- passed on
        made.append(path)
        if path == "/completion" and not is_idle:
            await asyncio.Event().wait()  # until it is cut off
        return await request_json(self, path, *given, **named)

    monkeypatch.setattr(EngineLink, "request_json", note_request)
    monkeypatch.setattr(
        StateVault, "keep_file", lambda self, path, state: state.purpose != "prompt" and keep_file(self, path, state)
    )
    monkeypatch.setattr(state_keeper, "_POLL_S", 0.01)
    system = {"role": "system", "content": LONG}

    def may_read(answers: list[bool]) -> bool:
        return is_idle or (bool(answers) and answers.pop())

    async with serve_model(options) as (session, client):
        for topic in ("Bread! ", "Sky? "):
            await ask(client, system, {"role": "user", "content": topic * 400})
            await keep_now(session)
        for _ in range(5):
            answers = [True]
            await find_gate(session)._keeper.prepare_prompt(
                find_link(session), asyncio.Lock(), partial(may_read, answers)
            )
        assert made.count("/completion") == readings
        assert len(list_kept()) == 2


async def test_without_room_the_engine_writes_nothing_and_nothing_is_restored(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await keep_one(options)
    monkeypatch.setattr(settings, "read_cache_limits", lambda: (0, 30.0))
    async with serve_model(options) as (session, client):
        made = act_before(monkeypatch, "none", lambda: None)
        assert (await ask(client, *turn))["cache_n"] == 0
        await keep_now(session)
        assert not any("action" in each for each in made)


async def test_an_end_waits_for_no_engine_that_does_not_save(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_json = EngineLink.request_json

    async def hang_at_save(self: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401 -- passed on
        if path == SAVE:
            await asyncio.Event().wait()
        return await request_json(self, path, *given, **named)

    monkeypatch.setattr(EngineLink, "request_json", hang_at_save)
    monkeypatch.setattr(gate, "_KEEP_AT_END_S", 0.05)
    async with asyncio.timeout(90):
        async with serve_model(options) as (_, client):
            await ask(client, QUESTION)
    assert list_kept() == []


async def test_an_end_waits_for_what_is_being_kept_and_closes_the_vault(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_KEEP_AFTER_S", 0.0)
    entered, closing_gate = asyncio.Event(), asyncio.Event()
    ended: list[str] = []
    stop_keeping, close_keeper = Gate._stop_keeping, StateKeeper.close

    async def prepare_slowly(*_: object) -> None:
        entered.set()
        await closing_gate.wait()
        ended.append("preparing")

    def stop(self: Gate) -> None:
        if entered.is_set():  # not by the request before
            closing_gate.set()
        stop_keeping(self)

    async def close(self: StateKeeper) -> None:
        ended.append("keeper")
        await close_keeper(self)

    monkeypatch.setattr(StateKeeper, "prepare_prompt", prepare_slowly)
    monkeypatch.setattr(StateKeeper, "close", close)
    monkeypatch.setattr(Gate, "_stop_keeping", stop)
    async with serve_model(options) as (session, client):
        served = find_gate(session)
        await ask(client, QUESTION)
        await entered.wait()
    assert ended == ["preparing", "keeper"]
    assert served._keeper._vault is not None
    assert served._keeper._vault._db is None
    assert len(list_kept()) == 1
    assert not list(list_kept()[0].parent.glob("*-wal"))


async def test_embeddings_are_not_looked_up(tmp_path: Path) -> None:
    with closing(StateVault(tmp_path / "states", lambda: (1 << 30, 30.0))) as vault:
        keeper = StateKeeper(vault)
        body = {"input": LONG}
        exchange = Exchange("/v1/embeddings", json.dumps(body).encode(), body)
        link = EngineLink("http://127.0.0.1:1", "", 1, tmp_path, "kind")
        assert await keeper.restore_for(link, exchange) is None
        exchange.figures.prompt_tokens = 3_000
        exchange.note_run()
        keeper.note_end(exchange)
        assert keeper._find_asked(3_000) is None


async def test_a_request_that_failed_hides_the_slot_that_it_may_have_written_each_time(tmp_path: Path) -> None:
    with closing(StateVault(tmp_path / "states", lambda: (1 << 30, 30.0))) as vault:
        keeper = StateKeeper(vault)
        link = EngineLink("http://127.0.0.1:1", "", 1, None, "kind")
        body = {"messages": [QUESTION]}
        asked = Exchange("/v1/chat/completions", json.dumps(body).encode(), body)
        await keeper.restore_for(link, asked)
        asked.figures.prompt_tokens = 3_000
        asked.note_run()
        keeper.note_end(asked)
        for _ in range(2):
            failed = Exchange("/v1/chat/completions", b"", body)
            failed.note_run()
            failed.note_error({"code": 500, "message": "It broke"})
            keeper.note_end(failed)
            assert keeper._find_asked(3_000) is None
        found = keeper._find_asked(3_000)
        assert found is not None
        assert found.chain


async def test_models_with_adapters_keep_no_states_however_the_flag_is_written(options: ServeOptions) -> None:
    async with serve_model(options) as (session, _):
        launch, side = session.supervisor.launch, session.supervisor._client_side
        assert launch is not None
        for extra, keeps in (("--lora_scaled", False), ("--control_vector", False), ("--top-k", True)):
            changed = replace(launch, options=replace(launch.options, extra=(extra, "7")))
            await side.resume_requests(session.supervisor.endpoint, changed)
            assert find_link(session).keeps_states is keeps


async def test_two_requests_that_come_at_once_get_their_states_in_slots_of_their_own(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_slots, forward = EngineLink.read_slots, Forwarder.forward
    looks: list[None] = []
    looked_again = asyncio.Event()

    async def count_looks(self: EngineLink) -> list[dict[str, Any]]:
        looks.append(None)
        slots = await read_slots(self)
        if len(looks) > 1:
            looked_again.set()
        return slots

    async def forward_late(self: Forwarder, link: EngineLink) -> bool:
        await looked_again.wait()  # until the engine was asked for the other request
        return await forward(self, link)

    two = replace(options, slots=2, kv_unified=True)
    async with serve_model(two) as (_, client):
        for topic in ("Bread", "Water"):
            await ask(client, about(topic))
    async with serve_model(two) as (session, client):
        monkeypatch.setattr(EngineLink, "read_slots", count_looks)
        monkeypatch.setattr(Forwarder, "forward", forward_late)
        replies = {topic: ReadReply() for topic in ("Bread", "Water")}
        readings = [
            asyncio.create_task(read_stream(client, reply, about(topic)["content"])) for topic, reply in replies.items()
        ]
        async with asyncio.timeout(60):  # neither reply ends before it is told to
            for reply in replies.values():
                await reply.wait_for_parts(5)
        for reply in replies.values():
            reply.most_parts = reply.parts + 1
        await asyncio.gather(*readings)
        assert all(each.restored_tokens for each in session.request_log.records)
    assert len(list_kept()) == 2


async def test_a_conversation_that_must_not_be_kept_is_not_taken_for_one_as_long(options: ServeOptions) -> None:
    def note(keeper: StateKeeper, *, kept: bool) -> None:
        exchange = Exchange("/v1/chat/completions", b"", {}, may_be_kept=kept)
        exchange.figures.prompt_tokens, exchange.figures.reply_tokens = 2_655, 40
        exchange.heard_s = 1.0
        if kept:
            keeper._hashed[exchange.number] = state_keeper._HashedPrompt(b"12345678", b"", 0, 10_000)
        keeper.note_end(exchange)

    keeper = StateKeeper()
    note(keeper, kept=False)
    note(keeper, kept=True)
    assert keeper._find_asked(2_694) is None
    other = StateKeeper()
    note(other, kept=True)
    assert other._find_asked(2_694) is not None


async def test_the_time_that_was_spared_is_that_of_a_prompt_that_was_read(options: ServeOptions) -> None:
    turn = await keep_one(options)
    with closing(open_vault()) as vault:
        (first,) = vault.list_states()
    async with serve_model(options) as (session, client):
        for question in ("Why?", "And why?", "Really?"):  # few tokens are read of each: their speed says nothing
            turn = [*turn, (await ask(client, *turn))["answer"], {"role": "user", "content": question}]
        spared = session.request_log.records[0].spared_s
        assert spared is not None
        assert spared == pytest.approx(first.read_s, rel=0.1)
        gate = find_gate(session)
        speeds = {each.prompt_tokens / each.read_s for each in gate._keeper._live}
        assert max(speeds) == pytest.approx(first.prompt_tokens / first.read_s)
        assert min(speeds) == pytest.approx(first.prompt_tokens / first.read_s)
