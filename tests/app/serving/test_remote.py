"""Commands to running servers from other processes, on the real engine."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.serving import running_servers, verbs
from launcher.app.serving.serving import request_reply
from launcher.app.serving.session import ServerSession
from launcher.base.control import send_request
from launcher.base.errors import BadOption, LauncherError, ServerNotFound, SettingsFailed, Unreachable
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus
from launcher.engine.settings import load_model_settings


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)


@asynccontextmanager
async def serve_demo(
    options: ServeOptions, seen: list[ServerEvent] | None = None, *, direct: bool = False
) -> AsyncIterator[ServerSession]:
    session = ServerSession(on_event=None if seen is None else seen.append, direct=direct)
    try:
        await session.start(StartRequest(options))
        yield session
    finally:
        await session.stop()


async def test_the_program_itself_reports_its_status(options: ServeOptions) -> None:
    async with serve_demo(options) as session:
        (result,) = await running_servers.read_running_servers()
        assert (result.state, result.entry.first.settings["ctx"], result.entry.first.settings["draft"]) == (
            "ready",
            1_024,
            2,
        )
        assert result.entry.first.engine_pid == session.supervisor.engine_pid
    assert await running_servers.read_running_servers() == ()


async def test_the_server_is_restarted_with_other_settings_at_the_same_address(options: ServeOptions) -> None:
    seen: list[str] = []
    async with serve_demo(options) as session:
        endpoint = session.supervisor.endpoint
        result = await running_servers.restart_server(
            None, {"ctx": "2K", "draft": "0"}, on_state=lambda state, _: seen.append(state)
        )
        assert (result["state"], result["settings"]["ctx"], result["settings"]["draft"]) == ("ready", 2_048, 0)
        assert session.supervisor.endpoint == endpoint
        assert session.supervisor.launch is not None
        assert session.supervisor.launch.context == 2_048
        assert "restarting" in seen
        assert load_model_settings(options.model) == {"ctx": 2_048, "draft": 0}
        before = session.supervisor.engine_pid
        await running_servers.restart_server(None, {})
        assert session.supervisor.engine_pid != before


async def test_settings_that_fail_are_undone_and_the_reason_is_reported(
    options: ServeOptions, fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ServerEvent] = []
    async with serve_demo(options, seen) as session:
        monkeypatch.setenv("FAKE_FAULTS", "dies-loading")
        with pytest.raises(SettingsFailed, match="the previous ones were restored") as raised:
            await session.start(StartRequest(replace(options, engine=fake_engine, built_in=False)))
        assert raised.value.reason.title in raised.value.title
        assert session.supervisor.status.state is ServerState.READY
        assert session.supervisor.options == options
        assert (await session.send_request(ChatRequest([{"role": "user", "content": "Hi"}], max_tokens=8))).reasoning
    reasons = [
        event.error for event in seen if isinstance(event, ServerStatus) and event.state is ServerState.RESTARTING
    ]
    assert raised.value.reason in reasons


async def test_an_invalid_setting_changes_nothing(options: ServeOptions) -> None:
    async with serve_demo(options) as session:
        before = session.supervisor.engine_pid
        with pytest.raises(BadOption):
            await running_servers.restart_server(None, {"drft": "2"})
        with pytest.raises(LauncherError) as raised:
            await running_servers.restart_server(None, {"draft": "99"})
        assert raised.value.code == "bad_option"
        (entry,) = registry.list_entries()
        assert entry.control_address is not None
        with pytest.raises(LauncherError, match="not a server setting"):
            _ = [each async for each in send_request(entry.control_address, "restart", set={"drft": "2"})]
        assert session.supervisor.engine_pid == before
        assert load_model_settings(options.model) == {}


async def test_the_log_is_followed_until_the_server_ends(options: ServeOptions) -> None:
    async with serve_demo(options) as session:
        lines: list[str] = []
        reached = asyncio.Event()

        async def follow() -> None:
            async for line in running_servers.follow_log(None, lines=5, follow=True):
                lines.append(line)
                if "a line of ours" in line:
                    reached.set()

        following = asyncio.create_task(follow())
        while not lines:
            await asyncio.sleep(0)
        assert len(lines) <= 5
        session.supervisor.log.add("a line of ours")
        await asyncio.wait_for(reached.wait(), 120)
        assert len([line async for line in running_servers.follow_log(None, lines=3, follow=False)]) == 3
        await session.stop()
        await asyncio.wait_for(following, 120)
    assert "a line of ours" in "".join(
        [line async for line in running_servers.follow_log(None, lines=500, follow=False)]
    )
    with pytest.raises(ServerNotFound):
        await anext(running_servers.follow_log(None, lines=3, follow=True))


@pytest.mark.thorough
async def test_the_longest_log_lines_are_transmitted(options: ServeOptions) -> None:
    async with serve_demo(options) as session:
        for number in range(300):
            session.supervisor.log.add(f"{number}" + "\N{OX}" * 16_000)
        lines = [line async for line in running_servers.follow_log(None, lines=250, follow=False)]
        assert [line.split("\N{OX}")[0].rpartition(" ")[2] for line in lines] == [str(each) for each in range(50, 300)]


async def test_after_the_end_a_restart_is_refused_and_a_stop_has_nothing_to_do() -> None:
    session = ServerSession()
    address = await session.control.listen("control")
    with pytest.raises(ServerNotFound, match="not running"):
        await verbs.ask(address, verbs.Restart())
    assert await verbs.ask(address, verbs.Stop()) == {"stopped": True}
    await session.control.close()
    gc.collect()  # Python warns of a coroutine that was never awaited, and warnings fail tests
    assert session.is_idle


@pytest.mark.thorough
async def test_the_server_is_stopped_and_its_program_goes_on(options: ServeOptions) -> None:
    async with serve_demo(options) as session:
        ended = asyncio.create_task(session.wait_until_ended())
        await running_servers.stop_server(None)
        assert await asyncio.wait_for(ended, 120) is None
        assert registry.list_entries() == ()
        await session.start(StartRequest(options))
        assert session.supervisor.status.state is ServerState.READY


@pytest.mark.thorough
async def test_a_drain_finishes_replies_and_accepts_no_new_ones(options: ServeOptions) -> None:
    request = ChatRequest([{"role": "user", "content": "Hi"}], max_tokens=400, extra={"ignore_eos": True})
    async with serve_demo(options) as session:
        begun = asyncio.Event()
        asking = asyncio.create_task(session.send_request(request, lambda _: begun.set()))
        await begun.wait()
        stopping = asyncio.create_task(running_servers.stop_server(None, drain_s=30.0))
        await session.supervisor.wait_for_state(ServerState.DRAINING)
        with pytest.raises(ServerNotFound, match="accepts no new requests"):
            await session.send_request(request)
        assert (await asking).finish_reason == "length"
        await stopping


async def test_a_drain_has_a_time_limit(options: ServeOptions) -> None:
    request = ChatRequest([{"role": "user", "content": "Hi"}], max_tokens=100_000, extra={"ignore_eos": True})
    async with serve_demo(
        replace(options, context=131_072)
    ) as session:  # the reply fills the context, which takes longer than any delay here
        begun = asyncio.Event()
        asking = asyncio.create_task(session.send_request(request, lambda _: begun.set()))
        await begun.wait()
        await session.stop(drain_s=0.1)
        with pytest.raises(LauncherError, match="stopped during the reply"):
            await asking


@pytest.mark.thorough
async def test_two_sessions_never_share_a_port_or_a_key_and_see_each_other(options: ServeOptions) -> None:
    sessions = [ServerSession() for _ in range(3)]
    try:
        await asyncio.gather(*(session.start(StartRequest(options)) for session in sessions))
        result = await running_servers.read_running_servers()
        assert len({server.entry.port for server in result}) == len({server.entry.api_key for server in result}) == 3
        assert {server.state for server in result} == {"ready"}
        await running_servers.stop_server(result[1].entry.url)
        assert {server.entry.url for server in await running_servers.read_running_servers()} == {
            result[0].entry.url,
            result[2].entry.url,
        }
    finally:
        for session in sessions:
            await session.stop()


async def test_an_unwritable_state_folder_is_reported_and_the_model_is_served(
    options: ServeOptions, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "cache").mkdir(parents=True)
    (home / "state").write_text("in the way")
    async with serve_demo(options) as session:
        assert session.supervisor.status.state is ServerState.READY
        assert (await session.send_request(ChatRequest([{"role": "user", "content": "Hi"}], max_tokens=8))).reasoning
        assert "The server runs, but other commands cannot find it" in caplog.text
        assert session.supervisor.log.last_lines()


@pytest.mark.cases(1)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "gateway"])
async def test_a_reply_is_continued_or_ended_with_an_error_for_another_program_when_its_engine_is_killed(
    options: ServeOptions, *, direct: bool
) -> None:
    async with serve_demo(options, direct=direct) as session:
        victims = [session.supervisor.engine_pid]

        def kill(_: object) -> None:
            if victims:
                os.kill(victims.pop() or 0, signal.SIGKILL)

        question = ChatRequest([{"role": "user", "content": "Hello"}], max_tokens=900, extra={"ignore_eos": True})
        if not direct:
            reply = await request_reply(question, url=None, on_delta=kill)
            assert reply.timings is not None
            assert reply.timings.predicted_n == 900
            assert not victims
            return
        with pytest.raises(
            Unreachable,
            match=r"ended in the middle of the reply\. The engine was killed by the system or another program",
        ):
            await request_reply(question, url=None, on_delta=kill)
