"""The supervisor of an engine: with the real built-in engine and, for faults, with a fake program."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.base.errors import DraftsInert, EngineFailed, LauncherError, PortBusy, Superseded, Unreachable
from launcher.base.identity import ProcessId
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import process
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.endpoint import Endpoint, claim_endpoint
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.engine.server.logs import LogBook
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus
from launcher.engine.server.supervisor import RestartPolicy, Supervisor, parse_loading_percent
from launcher.machine.machine import Machine, read_machine
from launcher.models.read_situation import ServerMemory

QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=64, temperature=0.0)


class WatchedSupervisor:
    """A supervisor and its events. It restarts no engine by itself."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []
        endpoint = claim_endpoint(None)
        self.supervisor = Supervisor(
            endpoint, LogBook.for_port(endpoint.port), self.events.append, restarts=RestartPolicy(())
        )

    @property
    def states(self) -> list[ServerState]:
        states = [event.state for event in self.events if isinstance(event, ServerStatus)]
        return [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state]


@asynccontextmanager
async def supervise_server() -> AsyncIterator[WatchedSupervisor]:
    watched = WatchedSupervisor()
    try:
        yield watched
    finally:
        await watched.supervisor.become(None)
        watched.supervisor.log.close()


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1)


@pytest.fixture
def fake(fake_engine: Path, options: ServeOptions, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServeOptions]:
    def engine_with_faults(*faults: str) -> ServeOptions:
        monkeypatch.setenv("FAKE_FAULTS", ",".join(faults))
        return replace(options, engine=fake_engine)

    return engine_with_faults


def engine_of(watched: WatchedSupervisor) -> ProcessId:
    running = watched.supervisor.process
    assert running is not None
    return running.identity


async def test_a_restart_can_use_the_memory_of_the_engine_that_it_replaces(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []

    async def note_freed_memory(
        options: ServeOptions,
        endpoint: Endpoint,
        *,
        replaced: Callable[[Machine], ServerMemory] | None = None,
        slot_folder: Path | None = None,
    ) -> Launch:
        freed.append((replaced(read_machine()).host_mib or 0) if replaced else 0)
        return await prepare_launch(options, endpoint, replaced=replaced, slot_folder=slot_folder)

    monkeypatch.setattr("launcher.engine.server.supervisor.prepare_launch", note_freed_memory)
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        await watched.supervisor.become(options, again=True)
    assert freed[0] == 0
    assert freed[1] > 0


async def test_an_engine_starts_answers_and_stops(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        identity = engine_of(watched)
        async with watched.supervisor.chat(QUESTION) as deltas:
            assert watched.supervisor.status.state is ServerState.BUSY
            text = "".join([delta.content async for delta in deltas])
        assert len(text) > 20
        assert watched.supervisor.status.state is ServerState.READY
        await watched.supervisor.become(None)
        assert not identity.is_running()
    story = [
        ServerState.PREPARING,
        ServerState.LOADING,
        ServerState.WARMING_UP,
        ServerState.READY,
        ServerState.BUSY,
        ServerState.READY,
    ]
    assert watched.states == [*story, ServerState.STOPPING, ServerState.STOPPED]


async def test_drafts_are_made_and_some_are_accepted(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        async with watched.supervisor.chat(QUESTION) as deltas:
            timings = [delta.timings async for delta in deltas if delta.timings][-1]
    assert timings.draft_n
    assert timings.draft_n_accepted
    assert 0 < timings.draft_n_accepted < timings.draft_n


async def test_new_settings_restart_the_engine_at_the_same_address_with_the_same_key(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        first, address = engine_of(watched), watched.supervisor.endpoint
        await watched.supervisor.become(replace(options, draft=0))
        assert ServerState.RESTARTING in watched.states
        assert watched.supervisor.endpoint == address
        assert not first.is_running()
        async with watched.supervisor.chat(QUESTION) as deltas:
            timings = [delta.timings async for delta in deltas if delta.timings][-1]
        assert timings.draft_n is None


async def test_become_with_the_same_settings_restarts_nothing(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        before = engine_of(watched)
        await watched.supervisor.become(options)
        assert engine_of(watched) == before


async def test_stopping_ends_our_streams_first(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        endless = replace(QUESTION, max_tokens=8_000, extra={"ignore_eos": True})
        first_token = asyncio.Event()

        async def read() -> None:
            async with watched.supervisor.chat(endless) as deltas:
                async for _ in deltas:
                    first_token.set()

        reading = asyncio.create_task(read())
        await first_token.wait()
        await watched.supervisor.become(None)
        with pytest.raises(Unreachable, match="stopped during the reply"):
            await reading


async def test_a_timeout_of_a_reader_is_not_an_engine_failure(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        with pytest.raises(TimeoutError, match="mine"):
            async with watched.supervisor.chat(QUESTION):
                raise TimeoutError("mine")
        assert watched.supervisor.status.state is ServerState.READY


async def test_a_killed_engine_is_a_failure_with_a_reason(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        os.kill(engine_of(watched).pid, signal.SIGKILL)
        status = await watched.supervisor.wait_for_state(ServerState.FAILED)
        assert isinstance(status.error, EngineFailed)
        assert "killed by the system or another program" in str(status.error)
        await watched.supervisor.become(options)
        assert watched.supervisor.status.state is ServerState.READY


async def test_an_engine_whose_keeper_is_killed_is_ended(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        identity = engine_of(watched)
        keeper = psutil.Process(identity.pid).parent()
        assert keeper is not None
        keeper.kill()
        await watched.supervisor.wait_for_state(ServerState.FAILED)
        assert not identity.is_running()


async def test_settings_of_other_programs_are_ignored(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "config" / "llama.cpp" / "config.ini"
    settings.parent.mkdir(parents=True)
    settings.write_text("ctx-size = 512\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "256")
    monkeypatch.setenv("LLAMA_API_KEY", "somebody-elses")
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        process = psutil.Process(engine_of(watched).pid)
        environment = process.environ()
        assert "LLAMA_ARG_CTX_SIZE" not in environment
        assert environment["LLAMA_API_KEY"] == watched.supervisor.endpoint.api_key
        assert environment["XDG_CONFIG_HOME"] != str(tmp_path / "config")
        assert watched.supervisor.endpoint.api_key not in " ".join(process.cmdline())


async def test_the_log_is_kept_in_memory_and_in_a_file(options: ServeOptions) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(options)
        assert any("draft-mtp" in line for line in watched.supervisor.log.last_lines())
    assert "draft-mtp" in watched.supervisor.log.path.read_text()


async def test_loading_is_reported_in_percent(
    fake: Callable[..., ServeOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"
    monkeypatch.setenv("FAKE_RELEASE", str(release))
    async with supervise_server() as watched:
        starting = asyncio.create_task(watched.supervisor.become(fake("slow-load")))
        while watched.supervisor.status.percent != 100.0:
            await watched.supervisor.wait_for_change()
        release.touch()
        await starting
        received = [
            event.percent for event in watched.events if isinstance(event, ServerStatus) and event.percent is not None
        ]
    assert received == [0.0, 25.0, 50.0, 75.0, 100.0]


async def test_a_cancelled_start_leaves_nothing(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as watched:
        starting = asyncio.create_task(watched.supervisor.become(fake("silent-start")))
        await watched.supervisor.wait_for_state(ServerState.LOADING)
        while watched.supervisor.process is None:
            await asyncio.sleep(0)
        identity = engine_of(watched)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert watched.supervisor.status.state is ServerState.STOPPED
        assert not identity.is_running()


async def test_a_newer_request_replaces_one_in_progress(
    fake: Callable[..., ServeOptions], options: ServeOptions
) -> None:
    async with supervise_server() as watched:
        starting = asyncio.create_task(watched.supervisor.become(fake("silent-start")))
        await watched.supervisor.wait_for_state(ServerState.LOADING)
        await watched.supervisor.become(options)
        with pytest.raises(Superseded):
            await starting
        assert watched.supervisor.status.state is ServerState.READY


async def test_an_engine_that_ignores_signals_is_killed_with_its_group(
    fake: Callable[..., ServeOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path / "child"))
    async with supervise_server() as watched:
        await watched.supervisor.become(fake("ignores-term", "spawns-child"))
        identity, running = engine_of(watched), watched.supervisor.process
        assert running is not None
        child = ProcessId.from_pid(int((tmp_path / "child").read_text()))
        assert child is not None
        ended = await running.stop((0.2, 0.2))
        assert ended == process.ProcessExit(-signal.SIGKILL)
        assert not identity.is_running()
        while child.is_running():  # the kernel ends a group member by member
            await asyncio.sleep(0)


@pytest.mark.parametrize("fault", ["no-drafts", "not-speculative"])
async def test_mtp_that_drafts_nothing_is_an_error(fake: Callable[..., ServeOptions], fault: str) -> None:
    async with supervise_server() as watched:
        with pytest.raises(DraftsInert, match="--draft 0"):
            await watched.supervisor.become(fake(fault))
        assert watched.supervisor.status.state is ServerState.FAILED
        assert watched.supervisor.process is None


async def test_repeats_of_text_need_not_draft_in_the_first_reply(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(replace(fake("no-drafts"), chosen_drafter="ngram-simple"))
        assert watched.supervisor.status.state is ServerState.READY


async def test_without_mtp_no_drafts_are_expected(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(replace(fake("no-drafts", "not-speculative", "old"), draft=0))
        assert watched.supervisor.status.state is ServerState.READY


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("dies-loading", "Not enough memory for the KV cache"),
        ("dies-on-chat", "ended with exit code 3|internal error"),
        ("old", "--spec-type, --spec-draft-n-max"),
    ],
)
async def test_a_failed_start_has_its_reason(fake: Callable[..., ServeOptions], fault: str, sentence: str) -> None:
    async with supervise_server() as watched:
        with pytest.raises(LauncherError, match=sentence) as raised:
            await watched.supervisor.become(fake(fault))
        assert watched.supervisor.status == ServerStatus(ServerState.FAILED, error=raised.value)


async def test_binary_output_is_read(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as watched:
        await watched.supervisor.become(fake("garbage"))
        lines = watched.supervisor.log.last_lines()
        assert max(map(len, lines)) <= 16_384
        assert "after the long line" in lines


async def test_a_port_taken_before_the_engine_binds_it_is_named(
    options: ServeOptions,
) -> None:
    async with supervise_server() as watched:
        port = watched.supervisor.endpoint.port
        with socket.create_server(("127.0.0.1", port)), pytest.raises(PortBusy, match=str(port)):
            await watched.supervisor.become(options)


def test_a_cancelled_event_loop_stops_the_engine(options: ServeOptions) -> None:
    """A signal handler that raises SystemExit cancels all tasks at once, also the task that watches the engine."""
    running: list[ProcessId] = []

    async def serve() -> None:
        async with supervise_server() as watched:
            await watched.supervisor.become(options)
            running.append(engine_of(watched))
            asyncio.get_running_loop().call_soon(exit_now)
            await asyncio.Event().wait()

    def exit_now() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(serve())
    assert not running[0].is_running()


@pytest.mark.parametrize(
    ("payload", "percent"),
    [
        ('{"state":"loading","payload":{"stages":["a","b"],"current":"b","value":0.5}}', 75.0),
        ('{"state":"ready","payload":{}}', None),
        ('{"state":"loading","payload":{"stages":[],"current":"b","value":0.5}}', None),
        ("no json", None),
        ("[]", None),
    ],
)
def test_loading_reports_are_parsed(payload: str, percent: float | None) -> None:
    assert parse_loading_percent(payload) == percent
