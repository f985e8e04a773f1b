"""A session in a server process, on the real engine: it goes on without its owner for a limited time."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil
import pytest

from launcher.app import settings
from launcher.app.serving import running_servers
from launcher.app.serving.owner_stream import SessionState
from launcher.app.serving.remote_session import RemoteSession
from launcher.app.serving.server_process import find_process
from launcher.app.serving.session_host import SessionHost
from launcher.app.settings_declared import MEMORY_LIMIT, UNKNOWN_MODEL, VALUE_REFUSE
from launcher.base.errors import (
    BadOption,
    EngineFailed,
    LauncherError,
    ModelMissing,
    SettingsFailed,
    Superseded,
)
from launcher.base.identity import ProcessId
from launcher.base.paths import models_dir
from launcher.engine.builds.build import EngineBuild
from launcher.engine.serve_options import DraftFile, ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.launch import Launch, check_model
from launcher.engine.server.process import EngineCommand
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import (
    MAIN_UNLOADED,
    LogAdded,
    Notice,
    PromptRead,
    ServerEvent,
    ServerState,
    ServerStatus,
    StreamsContinued,
)
from launcher.engine.settings import save_model_settings
from launcher.monitor.health_event import FindingCode, HealthEvent
from launcher.monitor.monitor import MonitorPeriods
from tests import forked

pytestmark = pytest.mark.usefixtures("forked_sessions")
QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=20, temperature=0.0)
LONG = replace(QUESTION, max_tokens=2_000, extra={"ignore_eos": True})
END_S = 60.0
"""Seconds after which a process that should end counts as left running, however busy this machine is."""


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1)


@dataclass(frozen=True)
class Killable:
    """A program that owns a server process, started as by a user, and the address of its server."""

    program: "forked.Program | subprocess.Popen[bytes]"
    url: str
    key: str
    engine: psutil.Process
    process: psutil.Process

    def kill(self) -> None:
        """Kill the owner, as a crash or the kernel would."""
        self.program.kill()
        self.program.wait()


@contextmanager
def owner_program(options: ServeOptions, idle_limit_s: float = 600.0) -> Iterator[Killable]:
    program = [sys.executable, "-m", "tests.app.serving.owner_program", str(options.model), str(idle_limit_s)]
    with forked.popen(program, stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        where = json.loads(owner.stdout.readline())
        owned = Killable(
            owner, where["url"], where["key"], psutil.Process(where["engine"]), psutil.Process(where["process"])
        )
        try:
            yield owned
        finally:
            owner.kill()
            for each in (owned.process, owned.engine):
                if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                    each.kill()


def login_program(model: Path) -> "forked.Program | subprocess.Popen[str]":
    """Start what autostart starts at login."""
    return forked.start("serve", "--for-window", "--model", model, "--json", stdout=subprocess.PIPE)


@asynccontextmanager
async def open_remote_session(seen: list[ServerEvent] | None = None) -> AsyncIterator[RemoteSession]:
    session = RemoteSession(on_event=None if seen is None else seen.append)
    try:
        yield session
    finally:
        await session.close()
        assert find_process() is None


def states(seen: list[ServerEvent]) -> list[ServerState]:
    """The states without repetitions, in their order."""
    every = [each.state for each in seen if isinstance(each, ServerStatus)]
    return [each for each, before in zip(every, [None, *every], strict=False) if each is not before]


async def wait_for_end(*processes: psutil.Process) -> None:
    """Wait until processes have ended, those that are not children of this one included."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, END_S)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


async def test_a_remote_session_serves_like_a_local_one(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    async with open_remote_session(seen) as session:
        assert session.is_idle
        await session.start(StartRequest(options, model_name="the demo", notices=[Notice("code", "A notice.")]))
        server = session.supervisor
        assert states(seen) == [
            ServerState.PREPARING,
            ServerState.LOADING,
            ServerState.WARMING_UP,
            ServerState.READY,
        ]
        assert Notice("code", "A notice.") in seen
        (model,) = session.models.models
        assert (model.is_main, model.path) == (True, str(options.model))
        assert session.models in seen
        assert server.launch is not None
        assert (server.launch.options.model, server.launch.header.has_mtp_head) == (options.model, True)
        assert [each.text for each in seen if isinstance(each, LogAdded)][-50:] == server.log.last_lines(50)
        reply = await session.send_request(QUESTION)
        assert reply.completion_tokens == 20
        assert (await session.send_request(QUESTION, measured=True)).text == reply.text
        assert (session.model_name, session.change_count) == ("the demo", 1)
        (entry,) = registry.list_entries()
        assert (entry.url, entry.pid) == (server.endpoint.url, session.process.pid)  # type: ignore[union-attr]
        process = find_process()
        assert process is not None
        assert entry.control_address == process.address  # one socket for the window and for commands
        await session.stop()
        assert states(seen)[-1] is ServerState.STOPPED
        assert (session.is_idle, registry.list_entries()) == (True, ())


@pytest.mark.thorough
async def test_a_stream_is_continued_over_a_restart_and_its_gap_is_reported(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    async with open_remote_session(seen) as session:
        await session.start(StartRequest(options))
        began = asyncio.Event()
        reading = asyncio.create_task(session.send_request(LONG, lambda _: began.set()))
        await began.wait()
        outlook = await session.foresee_handover()
        assert outlook is not None
        assert outlook.going_on + outlook.uncertain == 1
        await session.start(StartRequest(replace(options, draft=3), again=True))
        assert session.supervisor.launch is not None
        assert session.supervisor.launch.options.draft == 3
        assert (await reading).finish_reason == "length"
        assert [each for each in seen if isinstance(each, StreamsContinued)]
        await session.stop()
    (prompt,) = [each for each in seen if isinstance(each, PromptRead)]
    assert prompt.read_tokens + prompt.reused_tokens > 10
    assert prompt.first_token_s is not None


async def test_the_owner_sees_the_current_rate_of_a_stream_to_a_client(options: ServeOptions) -> None:
    rarely_s = 10 * END_S  # only what the process reports wakes the owner's monitor
    async with open_remote_session([]) as session, asyncio.timeout(END_S):
        session.monitor.periods = MonitorPeriods(
            visible_s=rarely_s, hidden_s=rarely_s, metrics_s=rarely_s, metrics_rest_s=rarely_s
        )
        await session.start(StartRequest(options))
        endpoint = session.supervisor.endpoint
        endless = replace(LONG, max_tokens=None)
        async with EngineClient(endpoint.url, endpoint.api_key) as client, client.chat(endless) as deltas:
            async for _ in deltas:
                rate = session.monitor.series.get("tokens_per_second")
                if rate is not None and rate.last:
                    break
            assert session.supervisor.status.state is ServerState.BUSY
        await session.supervisor.wait_for_state(ServerState.READY)


@pytest.mark.thorough
async def test_errors_keep_their_class_in_calls_and_in_the_status(options: ServeOptions, tmp_path: Path) -> None:
    seen: list[ServerEvent] = []
    async with open_remote_session(seen) as session:
        with pytest.raises(ModelMissing):
            await session.start(StartRequest(ServeOptions(tmp_path / "none.gguf")))
        with pytest.raises(LauncherError) as failed:
            await session.start(StartRequest(replace(options, extra=("--no-such-flag",))))
        assert failed.value.actions
        assert failed.value in [each.error for each in seen if isinstance(each, ServerStatus)]
        await session.apply_fix(failed.value.actions[0])
        assert session.supervisor.status.state is ServerState.READY
        with pytest.raises(SettingsFailed) as restored:
            await session.start(StartRequest(replace(options, extra=("--no-such-flag",)), again=True))
        assert isinstance(restored.value.reason, LauncherError)
        with pytest.raises(BadOption):
            await session.start(StartRequest(replace(options, context=-1)))


@pytest.mark.thorough
async def test_the_server_is_shared_at_the_same_address(options: ServeOptions) -> None:
    async with open_remote_session() as session:
        await session.start(StartRequest(options))
        url = session.supervisor.endpoint.url
        for shared in (True, False):
            await session.set_shared(shared)
            assert (session.shared, session.supervisor.endpoint.shared) == (shared, shared)
            assert session.supervisor.endpoint.url == url
            assert session.supervisor.launch is not None
            assert (await session.send_request(QUESTION)).text


async def test_the_last_start_or_stop_before_the_process_listens_counts(options: ServeOptions) -> None:
    async with open_remote_session() as session:
        first, second = (
            asyncio.create_task(session.start(StartRequest(replace(options, draft=draft)))) for draft in (1, 2)
        )
        await asyncio.sleep(0)
        stop = asyncio.create_task(session.stop())
        ends = await asyncio.gather(first, second, stop, return_exceptions=True)
        assert [type(end) for end in ends] == [Superseded, Superseded, type(None)]
        assert session.is_idle
        await session.start(StartRequest(options))
        assert session.supervisor.status.state is ServerState.READY


async def test_a_cancelled_start_is_cancelled_in_the_process(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    async with open_remote_session(seen) as session:
        loading = asyncio.Event()
        with session.listening(
            lambda event: (
                loading.set() if isinstance(event, ServerStatus) and event.state is ServerState.LOADING else None
            )
        ):
            start = asyncio.create_task(session.start(StartRequest(options)))
            await loading.wait()
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        await session.stop()
        assert session.is_idle
        assert ServerState.READY not in states(seen)


@pytest.mark.thorough
async def test_a_stream_ends_as_usual_after_its_owner_was_killed_and_the_next_owner_stops_the_server(
    options: ServeOptions,
) -> None:
    with owner_program(options) as owned:
        async with EngineClient(owned.url, owned.key) as client:
            finish_reason, parts = None, 0
            async with client.chat(LONG) as deltas:
                async for delta in deltas:
                    parts += 1
                    if parts == 10:
                        owned.kill()
                    finish_reason = delta.finish_reason or finish_reason
            assert finish_reason == "length"
        (result,) = await running_servers.read_running_servers()
        assert result.state in ("ready", "busy")
        seen: list[ServerEvent] = []
        async with open_remote_session(seen) as session:
            assert await session.attach()
            server = session.supervisor
            assert (session.model_name, server.engine_pid) == ("the demo", owned.engine.pid)
            assert states(seen) == [ServerState.READY]
            assert server.log.line_count == sum(isinstance(each, LogAdded) for each in seen) + 1
            assert server.launch is not None
            assert server.launch.options.model == options.model
            assert (await session.send_request(QUESTION)).completion_tokens == 20
            await session.stop()
            await wait_for_end(owned.engine)
        await wait_for_end(owned.process)


async def test_without_owner_and_requests_the_process_ends_but_not_during_a_stream(options: ServeOptions) -> None:
    with owner_program(options, idle_limit_s=0.0) as owned:
        async with EngineClient(owned.url, owned.key) as client, client.chat(LONG) as deltas:
            await anext(deltas)
            owned.kill()
            assert [delta.finish_reason async for delta in deltas if delta.finish_reason] == ["length"]
        await wait_for_end(owned.process, owned.engine)
        assert (find_process(), registry.list_entries()) == (None, ())


async def test_stop_ends_a_server_process_without_owner(options: ServeOptions) -> None:
    with owner_program(options, idle_limit_s=600.0) as owned:
        owned.kill()
        await running_servers.restart_server(None, {"draft": "1"})
        (result,) = await running_servers.read_running_servers()
        assert result.entry.first.settings["draft"] == 1
        await running_servers.stop_server(None)
        await wait_for_end(owned.process, owned.engine)


async def test_a_killed_process_leaves_no_engine_and_the_owner_can_start_again(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    async with open_remote_session(seen) as session:
        await session.start(StartRequest(options))
        process, engine = session.process, psutil.Process(session.supervisor.engine_pid)
        assert process is not None
        reading = asyncio.create_task(session.send_request(LONG))
        os.kill(process.pid, signal.SIGKILL)
        await wait_for_end(engine)
        with pytest.raises(LauncherError):
            await reading
        while not session.is_idle:
            await asyncio.sleep(0.01)
        (failed,) = [each.error for each in seen if isinstance(each, ServerStatus) and each.error]
        assert isinstance(failed, EngineFailed)
        assert "ended unexpectedly" in failed.title
        await session.start(StartRequest(options))
        assert session.supervisor.status.state is ServerState.READY
        assert session.process != process


async def test_a_process_that_does_not_answer_is_killed_at_quit(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.app.serving.remote_session._END_LIMIT_S", 1.0)
    session = RemoteSession()
    await session.start(StartRequest(options))
    assert session.process is not None
    process, engine = psutil.Process(session.process.pid), psutil.Process(session.supervisor.engine_pid)
    process.suspend()
    await session.close()
    await wait_for_end(process, engine)
    assert session.is_idle


async def test_the_server_counts_as_stopped_if_its_process_ended_without_reporting(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    session = RemoteSession(on_event=seen.append)
    await session.start(StartRequest(options))
    assert session.process is not None
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)  # lets `close` begin
    os.kill(session.process.pid, signal.SIGKILL)
    await closing
    assert states(seen)[-1] is ServerState.STOPPED


@pytest.mark.thorough
async def test_a_left_over_process_that_does_not_answer_is_replaced(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.app.serving.remote_session._ANSWER_LIMIT_S", 5.0)
    with owner_program(options) as owned:
        owned.kill()
        owned.process.suspend()
        async with open_remote_session() as session:
            await session.start(StartRequest(options))
            assert session.process is not None
            assert session.process.pid != owned.process.pid
            await wait_for_end(owned.process, owned.engine)


@pytest.mark.thorough
async def test_an_owner_is_notified_when_another_one_replaces_it(options: ServeOptions) -> None:
    seen: list[ServerEvent] = []
    first = RemoteSession(on_event=seen.append)
    await first.start(StartRequest(options))
    async with open_remote_session() as second:
        assert await second.attach()
        assert not second.is_idle
        while not first.is_idle:
            await asyncio.sleep(0.01)
        assert [each.error for each in seen if isinstance(each, ServerStatus) and each.error]
        assert second.supervisor.status.state is ServerState.READY
    await first.close()


async def test_a_process_without_a_server_ends_with_its_owner() -> None:
    session = RemoteSession(idle_limit_s=0.0)
    assert not await session.attach()
    session.prepare()
    await session._connect()
    process = session.process
    assert isinstance(process, ProcessId)
    session._link.following.cancel()  # type: ignore[union-attr]
    await wait_for_end(psutil.Process(process.pid))
    session._link.reap(END_S)  # type: ignore[union-attr]


@pytest.mark.thorough
async def test_a_window_takes_over_the_server_started_at_login_and_ends_it(options: ServeOptions, home: Path) -> None:
    with login_program(options.model) as program:
        assert program.stdout
        ready = json.loads(program.stdout.readline())
        engine = psutil.Process(ready["pid"])
        assert ready["launcher_pid"] == program.pid
        async with open_remote_session() as session:
            assert await session.attach()
            assert (session.process.pid, session.model_name) == (program.pid, str(options.model))  # type: ignore[union-attr]
            await session.start(StartRequest(replace(options, draft=1), again=True))
            assert session.supervisor.engine_pid != engine.pid
            await wait_for_end(engine)
        assert await asyncio.to_thread(program.wait, END_S) == 0
        assert registry.list_entries() == ()


async def test_the_watchdog_sees_replies_of_the_owner(options: ServeOptions) -> None:
    host = SessionHost(600.0)
    await host.listen()
    session = RemoteSession()
    try:
        await session.start(StartRequest(options))
        assert session.process == ProcessId.from_pid(os.getpid())
        supervisor = host.session.supervisor
        assert session.supervisor.launch == supervisor.launch
        assert (session.supervisor.options, session.supervisor.endpoint) == (supervisor.options, supervisor.endpoint)
        reading = asyncio.create_task(session.send_request(LONG))
        while not supervisor.open_replies:
            await asyncio.sleep(0.01)
        assert not reading.done()
        assert supervisor.open_replies[0].heard_s <= time.monotonic()
        reading.cancel()
        while supervisor.open_replies:
            await asyncio.sleep(0.01)
    finally:
        await session.stop()
        await host.close()


async def test_a_process_of_another_version_is_ended_before_a_start(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.app.serving.session_host.__version__", "0.0.1")
    host = SessionHost(None)
    await host.listen()
    await host.session.start(StartRequest(options))
    engine = psutil.Process(host.session.supervisor.engine_pid)

    async def serve_to_the_end() -> None:
        await host.wait_until_unused()
        await host.close()

    serving = asyncio.create_task(serve_to_the_end())
    async with open_remote_session() as session:
        assert not await session.attach()
        await serving
        await wait_for_end(engine)
        assert session.process is not None
        assert session.process.pid != os.getpid()
        assert session.is_idle


@pytest.fixture
def second_model(demo_model: Path, home: Path) -> Path:
    """A copy of the demo in the models folder."""
    assert home.parent.exists()
    models_dir().mkdir(parents=True)
    path = models_dir() / "second.gguf"
    shutil.copy(demo_model, path)
    save_model_settings(path, {"threads": 1, "ctx": 4_096})
    return path


@asynccontextmanager
async def client_of(session: RemoteSession) -> AsyncIterator[httpx.AsyncClient]:
    endpoint = session.supervisor.endpoint
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


async def ask(client: httpx.AsyncClient, model: str, text: str = "What is a draft?") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
    return await client.post("/v1/chat/completions", json=body)


async def wait_for_notice(seen: list[ServerEvent], code: str) -> None:
    async with asyncio.timeout(END_S):
        while code not in [each.code for each in seen if isinstance(each, Notice)]:
            await asyncio.sleep(0.01)


@pytest.mark.thorough
async def test_requests_can_name_other_models_and_a_start_of_the_window_goes_first(
    options: ServeOptions, second_model: Path
) -> None:
    seen: list[ServerEvent] = []
    options = replace(options, alias="demo")
    async with open_remote_session(seen) as session:
        await session.start(StartRequest(options))
        async with client_of(session) as client:
            settings.change_setting(UNKNOWN_MODEL, VALUE_REFUSE)
            assert (await ask(client, "nothing-here")).status_code == 404
            assert (reply := await ask(client, "second")).status_code == 200, reply.text
            await wait_for_notice(seen, "model_loaded")
            (entry,) = registry.list_entries()
            assert [(each.model, each.state, each.by_request) for each in entry.models[1:]] == [
                ("second", "ready", True)
            ]
            assert session.supervisor.status.state in (ServerState.READY, ServerState.BUSY)
            assert session.list_yielding_engines() == {session.supervisor.engine_pid, entry.models[1].engine_pid}
            await session.start(
                StartRequest(replace(options, draft=3), again=True)
            )  # the same model, so the other one stays
            assert registry.list_entries()[0].models[1:]
            settings.change_setting(MEMORY_LIMIT, 1)
            await session.stop()
            await session.start(StartRequest(options))
            # With this memory limit no model fits beside the main one. So a request for another model unloads the main
            # one, which is back when it is started again.
            assert (await ask(client, "second")).status_code == 200
            await session.supervisor.wait_for_state(ServerState.STOPPED)
            assert not session.is_idle
            await wait_for_notice(seen, MAIN_UNLOADED)
            await session.start(StartRequest(options))
            assert not registry.list_entries()[0].models[1:]
            assert (await ask(client, "demo")).json()["model"] == "demo"
        assert second_model.exists()


@pytest.mark.thorough
async def test_prompts_that_are_read_again_reach_the_health_checks_of_the_owner(options: ServeOptions) -> None:
    found: asyncio.Queue[HealthEvent] = asyncio.Queue()
    session = RemoteSession(on_health=found.put_nowait)
    try:
        await session.start(StartRequest(replace(options, context=8_192, alias="demo", cache_ram=0)))
        long = "Explain how bread rises, and why a bicycle stays upright. " * 60
        other = "Other words stand here, of another kind. " * 120
        async with client_of(session) as client:
            for text in (long, other, long, other):
                assert (await ask(client, "demo", text)).status_code == 200
        async with asyncio.timeout(END_S):
            while (finding := (await found.get()).finding).code is not FindingCode.PROMPT_READ_AGAIN:
                pass
        assert finding.evidence["cause"] == "other client"
    finally:
        await session.close()


def test_every_field_of_a_launch_is_transmitted(demo_model: Path) -> None:
    options = ServeOptions(
        demo_model,
        Path("/engine"),
        alias="a",
        draft_file=Path("/draft"),
        other_drafts=(DraftFile("dflash", Path("/block")),),
        mmproj=Path("/projector"),
        chat_template_file=Path("/template"),
        rpc=("h:1",),
        extra=("--x", "y"),
    )
    command = EngineCommand(("/engine", "--x"), {"A": "b"}, Path("/"))
    build = EngineBuild(
        "name", ("/engine",), "1", frozenset({"--x"}), frozenset({"f16"}), {"C": "d"}, frozenset({"draft-mtp"})
    )
    launch = Launch(command, build, check_model(ServeOptions(demo_model)), 512, options, "A note.", {"cache_ram": 5})
    before, after = SessionState(), SessionState(2, server=1, options=options, launch=launch)
    changes = json.loads(json.dumps(after.changes_since(before)))
    assert changes.keys() == {"change_count", "server", "options", "launch"}
    assert "header" not in changes["launch"]
    assert before.with_changes(changes) == after
    assert after.with_changes(json.loads(json.dumps(before.changes_since(after)))) == before
