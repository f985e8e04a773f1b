"""Measurements on a running server: they wait while clients use it, and restore its settings at the end.

The engines are real: the built-in one with the demo model.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.measuring.session_bench import SessionBench
from launcher.app.measuring.tuner import run_tune_when_idle
from launcher.app.measuring.tuner_space import prepare_tune
from launcher.app.serving import verbs
from launcher.app.serving.borrowed_session import BorrowedSession, IdleRules, borrow_server
from launcher.app.serving.session import ServerSession
from launcher.base.errors import ActionImpossible, BadOption, Superseded
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerState
from launcher.gateway.engine_link import EngineLink
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt
from launcher.tuning.tuner import ClientsAwaited, TrialPlanned, TuneEvent
from tests.app.measuring.test_tuner import WORK
from tests.gateway.test_handover import QUESTION, ReadReply, check_same_words, read_stream, read_whole

RULES = IdleRules(quiet_s=0.0, report_s=0.0)
LONG = Prompt("long", (("user", "Tell me of a boat on a river."),), 900, {"temperature": 0.0, "ignore_eos": True})


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=16_384, alias="demo", draft=2)


@asynccontextmanager
async def serve_demo(
    options: ServeOptions, *, direct: bool = False
) -> AsyncIterator[tuple[ServerSession, httpx.AsyncClient]]:
    session = ServerSession(direct=direct)
    try:
        await session.start(StartRequest(options, model_name="demo"))
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            yield session, client
    finally:
        await session.stop()


async def find_entry(session: ServerSession) -> registry.ServerEntry:
    """Return the registry entry of a session's server, once it is written with its control socket."""
    while True:
        entry = await asyncio.to_thread(registry.find_server, session.supervisor.endpoint.url)
        if entry.control is not None:
            return entry
        await asyncio.sleep(0.01)


@asynccontextmanager
async def borrow_session(session: ServerSession, rules: IdleRules = RULES) -> AsyncIterator[BorrowedSession]:
    async with borrow_server(await find_entry(session), rules) as lent:
        yield lent


async def test_a_client_request_during_a_measurement_is_answered_and_the_measurement_repeated(
    options: ServeOptions,
) -> None:
    async with serve_demo(options) as (session, client):
        async with borrow_session(session) as lent:
            bench = SessionBench(lent, options)
            await bench.become({"draft": 3})
            measuring = asyncio.create_task(bench.run(LONG, seed=1))
            while not await session.supervisor.client.count_working_slots():
                assert not measuring.done()
            cut = ReadReply(most_parts=30)
            reading = asyncio.create_task(read_stream(client, cut))
            await cut.wait_for_parts(30)
            assert not measuring.done()  # the client has not waited for its 900 tokens
            await reading
            run = await measuring
            assert (run.error, run.reply_tokens) == (None, 900)
            assert lent.waited_s > 0
            assert run.began_s + run.wall_s <= bench.now_s() + 0.001  # the bench's clock is stopped while it waits
            assert [record.end for record in session.request_log.records] == ["client left"]  # no measurement is logged
        assert session.supervisor.options == options


async def test_a_tune_completes_while_a_client_streams_and_the_settings_are_restored(
    options: ServeOptions,
) -> None:
    async with serve_demo(options) as (session, client):
        async with borrow_session(session) as lent:
            events: list[TuneEvent] = []
            cut = ReadReply()
            reading: asyncio.Task[None] | None = None

            def listen(event: TuneEvent) -> None:
                nonlocal reading
                events.append(event)
                if isinstance(event, ClientsAwaited):
                    cut.most_parts = cut.parts + 50
                if isinstance(event, TrialPlanned) and reading is None:
                    reading = asyncio.create_task(read_stream(client, cut))

            prepared = await prepare_tune("demo", lent.options, WORK, Goal(), 2.0, vary=[])
            verdict = await run_tune_when_idle(lent, prepared, listen)
            assert verdict.trials
            assert reading is not None
            await reading
            assert any(isinstance(event, ClientsAwaited) for event in events)
            assert lent.waited_s > 0
        assert session.supervisor.options == options
        check_same_words(cut, await read_whole(client, cut.parts))


class Conversation:
    """A client's conversation, a turn at a time."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._turns = [{"role": "user", "content": QUESTION}]

    async def ask(self) -> dict[str, int]:
        """Send the next turn and return the engine's timings of the reply."""
        body = {
            "messages": self._turns,
            "max_tokens": 20,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        reply = (await self._client.post("/v1/chat/completions", json=body)).json()
        self._turns.append(reply["choices"][0]["message"] | {"reasoning_content": ""})
        self._turns.append({"role": "user", "content": "Go on."})
        timings: dict[str, int] = reply["timings"]
        return timings


async def test_the_prompt_cache_of_a_client_survives_measured_replies_and_restarts(options: ServeOptions) -> None:
    async with serve_demo(options) as (session, client), borrow_session(session) as lent:
        conversation = Conversation(client)
        read = (await conversation.ask())["prompt_n"]
        assert read > 100
        bench = SessionBench(lent, options)
        await bench.become({"draft": 1})
        river, sea = WORK.prompts
        assert (await bench.run(river, seed=1)).error is None
        assert (await conversation.ask())["cache_n"] >= read - 10
        await bench.become({"draft": 3})
        assert (await bench.run(sea, seed=1)).error is None
        await bench.become({"draft": 4})
        assert (await conversation.ask())["cache_n"] >= read - 10
        launch = session.supervisor.launch
        assert launch is not None
        folder = Path(launch.command.arguments[launch.command.arguments.index("--slot-save-path") + 1])
        assert list(folder.iterdir()) == []


async def test_a_restart_while_a_conversation_is_restored_does_not_lose_it(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing: asyncio.Task[None] | None = None
    original = EngineLink.request_json

    async def request_json(self: EngineLink, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal changing
        if path.endswith("restore") and changing is None:
            before = session.last_handover
            changing = asyncio.create_task(session.start(StartRequest(replace(options, draft=1))))
            while session.last_handover is before:
                await asyncio.sleep(0.01)
            answer = await self.count_prompt({"messages": [{"role": "user", "content": "Hi"}]})  # takes some time
            assert answer is not None
        return await original(self, path, body)

    async with serve_demo(options) as (session, client), borrow_session(session) as lent:
        conversation = Conversation(client)
        read = (await conversation.ask())["prompt_n"]
        bench = SessionBench(lent, options)
        await bench.become({"draft": 3})
        assert (await bench.run(WORK.prompts[0], seed=1)).error is None
        monkeypatch.setattr(EngineLink, "request_json", request_json)
        timings = await conversation.ask()
        assert changing is not None
        await changing
        assert timings["cache_n"] >= read - 10


async def test_the_settings_are_restored_when_a_measurement_is_killed(options: ServeOptions) -> None:
    async with serve_demo(options) as (session, _):
        address = (await find_entry(session)).control_address
        assert address is not None
        lending = verbs.send_verb(address, verbs.Lend())
        await anext(lending)
        await verbs.ask(address, verbs.RestartLent(replace(options, draft=4)))
        assert session.supervisor.options == replace(options, draft=4)
        await lending.aclose()  # as the end of its process closes the connection
        while session.supervisor.options != options:
            await session.supervisor.wait_for_change()
        await session.supervisor.wait_for_state(ServerState.READY)


async def test_a_change_by_another_client_ends_the_measurement_and_stays(options: ServeOptions) -> None:
    async with serve_demo(options) as (session, _), borrow_session(session) as lent:
        bench = SessionBench(lent, options)
        await bench.become({"draft": 3})
        measuring = asyncio.create_task(bench.run(LONG, seed=1))
        while not await session.supervisor.client.count_working_slots():
            assert not measuring.done()
        await session.start(StartRequest(replace(options, draft=1)))
        with pytest.raises(Superseded):
            await measuring
        with pytest.raises(Superseded):
            await bench.become({"draft": 4})
        assert session.supervisor.options == replace(options, draft=1)
    assert not session.control.is_lent


async def test_kept_settings_stay_after_the_loan(options: ServeOptions) -> None:
    async with serve_demo(options) as (session, _):
        async with borrow_session(session) as lent:
            await lent.keep_settings(replace(options, draft=4))
            assert not session.control.is_lent
        assert session.supervisor.options == replace(options, draft=4)


async def test_a_server_is_lent_to_one_measurement_at_a_time_and_only_with_the_gateway(options: ServeOptions) -> None:
    async with serve_demo(options) as (session, client):
        address = (await find_entry(session)).control_address
        assert address is not None
        lending = verbs.send_verb(address, verbs.Lend())
        headers = {"Authorization": f"Bearer {(await anext(lending))['api_key']}"}
        with pytest.raises(ActionImpossible):
            await anext(verbs.send_verb(address, verbs.Lend()))
        assert (await client.get("/props", headers=headers)).status_code == 200
        await verbs.ask(address, verbs.GiveBack())
        assert (await client.get("/props", headers=headers)).status_code == 401
        await lending.aclose()
    async with serve_demo(options, direct=True) as (session, _):
        with pytest.raises(BadOption, match="without the gateway"):
            async with borrow_session(session):
                pass
