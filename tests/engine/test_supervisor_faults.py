"""A supervisor with an engine that fails while it serves."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.base.errors import (
    CrashLoop,
    DraftsInert,
    EngineFailed,
    EngineHung,
    LauncherError,
    ModelBroken,
    Superseded,
)
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Delta
from launcher.engine.server.endpoint import claim_endpoint
from launcher.engine.server.guard import GuardLimits
from launcher.engine.server.logs import LogBook
from launcher.engine.server.state import Notice, ServerEvent, ServerState, ServerStatus
from launcher.engine.server.supervisor import RestartPolicy, Supervisor

QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=64, temperature=0.0)
QUICK = RestartPolicy((0.0, 0.0, 0.0))


@asynccontextmanager
async def supervise_server(
    restarts: RestartPolicy = QUICK, limits: GuardLimits | None = None
) -> AsyncIterator[tuple[Supervisor, list[ServerEvent]]]:
    events: list[ServerEvent] = []
    endpoint = claim_endpoint(None)
    supervisor = Supervisor(endpoint, LogBook.for_port(endpoint.port), events.append, restarts=restarts, limits=limits)
    try:
        yield supervisor, events
    finally:
        await supervisor.become(None)
        supervisor.log.close()


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1)


@pytest.fixture
def fake(fake_engine: Path, options: ServeOptions, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ServeOptions]:
    def engine_with_faults(*faults: str) -> ServeOptions:
        monkeypatch.setenv("FAKE_FAULTS", ",".join(faults))
        return replace(options, engine=fake_engine)

    return engine_with_faults


def notices(events: list[ServerEvent]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


async def read(supervisor: Supervisor) -> list[Delta]:
    async with supervisor.chat(QUESTION) as deltas:
        return [delta async for delta in deltas]


async def kill(supervisor: Supervisor) -> ServerStatus:
    """Kill the engine; return the status after the supervisor has reacted."""
    pid = supervisor.engine_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while supervisor.status.state is not ServerState.FAILED and supervisor.engine_pid in (pid, None):
        await supervisor.wait_for_change()
    return await supervisor.wait_for_state(ServerState.READY, ServerState.FAILED)


async def test_repeated_crashes_end_with_the_reason_and_a_start_resets_the_count(options: ServeOptions) -> None:
    async with supervise_server() as (supervisor, events):
        await supervisor.become(options)
        for _ in range(3):
            assert (await kill(supervisor)).state is ServerState.READY
        last = await kill(supervisor)
        assert isinstance(last.error, CrashLoop)
        assert last.error.title.startswith("The engine crashed 4 times within ")
        assert "killed" in last.error.title
        assert notices(events) == ["crashed"] * 3
        await supervisor.become(options)
        assert (await kill(supervisor)).state is ServerState.READY


async def test_the_reason_is_shown_during_a_restart(options: ServeOptions) -> None:
    async with supervise_server() as (supervisor, events):
        await supervisor.become(options)
        await kill(supervisor)
    (status,) = [event for event in events if isinstance(event, ServerStatus) and event.state is ServerState.RESTARTING]
    assert isinstance(status.error, EngineFailed)


async def test_a_temporary_lack_of_memory_does_not_end_restarts(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server(RestartPolicy((0.0, 0.3, 0.0))) as (supervisor, events):
        await supervisor.become(fake())
        fake("dies-loading")
        killed = asyncio.create_task(kill(supervisor))
        while "Not enough memory" not in str(supervisor.status.error):
            await supervisor.wait_for_change()
        assert supervisor.status.state is ServerState.RESTARTING
        fake()
        assert (await killed).state is ServerState.READY
        assert notices(events) == ["crashed"] * 2
        states = [event.state for event in events if isinstance(event, ServerStatus)]
        assert ServerState.FAILED not in states


async def test_failed_restarts_count_as_crashes(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server(replace(QUICK, steady_s=0.0)) as (supervisor, events):
        await supervisor.become(fake())
        fake("dies-loading")
        status = await kill(supervisor)
        assert isinstance(status.error, CrashLoop)
        assert status.error.title.startswith("The engine crashed 4 times within ")
        assert "Not enough memory" in status.error.title
        assert notices(events) == ["crashed"] * 3
        assert supervisor.process is None


async def test_a_restart_with_a_permanent_error_is_not_repeated(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as (supervisor, events):
        await supervisor.become(fake())
        fake("no-drafts")
        status = await kill(supervisor)
        assert isinstance(status.error, DraftsInert)
        assert status.state is ServerState.FAILED
        assert notices(events) == ["crashed"]


async def test_a_stop_ends_failing_restarts(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server(RestartPolicy((0.0, 600.0))) as (supervisor, _):
        await supervisor.become(fake())
        fake("dies-loading")
        killed = asyncio.create_task(kill(supervisor))
        while "Not enough memory" not in str(supervisor.status.error):
            await supervisor.wait_for_change()
        await supervisor.become(None)
        assert supervisor.status.state is ServerState.STOPPED
        killed.cancel()


async def test_a_stop_during_the_pause_ends_restarts(options: ServeOptions) -> None:
    async with supervise_server(RestartPolicy((600.0,))) as (supervisor, _):
        await supervisor.become(options)
        assert supervisor.engine_pid
        os.kill(supervisor.engine_pid, signal.SIGKILL)
        await supervisor.wait_for_state(ServerState.RESTARTING)
        await supervisor.become(None)
        assert supervisor.status.state is ServerState.STOPPED


async def test_a_start_during_the_pause_replaces_the_restart(options: ServeOptions) -> None:
    async with supervise_server(RestartPolicy((600.0,))) as (supervisor, _):
        await supervisor.become(options)
        assert supervisor.engine_pid
        os.kill(supervisor.engine_pid, signal.SIGKILL)
        await supervisor.wait_for_state(ServerState.RESTARTING)
        await supervisor.become(replace(options, draft=0))
        assert supervisor.status == ServerStatus(ServerState.READY)


async def test_a_crash_during_a_check_of_other_settings_is_handled(options: ServeOptions) -> None:
    async with supervise_server() as (supervisor, _):
        await supervisor.become(options)
        changing = asyncio.create_task(supervisor.become(replace(options, draft=1)))
        await asyncio.sleep(0)
        assert supervisor.engine_pid
        os.kill(supervisor.engine_pid, signal.SIGKILL)
        try:
            await changing
        except (LauncherError, Superseded):
            pytest.fail("it did not start")
        assert supervisor.status.state is ServerState.READY
        assert supervisor.launch is not None
        assert supervisor.launch.options.draft == 1


async def test_an_engine_with_a_stalled_reply_is_restarted(fake: Callable[..., ServeOptions]) -> None:
    quick = GuardLimits(period_s=0.05, asleep_s=60.0, stalled_s=0.3)
    async with supervise_server(limits=quick) as (supervisor, events):
        await supervisor.become(fake("stalls"))
        before = supervisor.engine_pid
        with pytest.raises(LauncherError):
            await read(supervisor)
        while supervisor.engine_pid in (before, None):
            await supervisor.wait_for_change()
        await supervisor.wait_for_state(ServerState.READY)
        assert notices(events) == ["crashed"]
    assert [event.error for event in events if isinstance(event, ServerStatus) and isinstance(event.error, EngineHung)]


async def test_an_engine_without_a_first_reply_is_a_failure(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server(limits=GuardLimits(first_reply_s=0.3)) as (supervisor, _):
        with pytest.raises(EngineFailed, match="its first reply of 8 tokens took longer"):
            await supervisor.become(fake("endless"))
        assert supervisor.process is None


async def test_a_suspended_engine_is_reported_and_goes_on(options: ServeOptions) -> None:
    quick = GuardLimits(period_s=0.05, asleep_s=60.0)
    async with supervise_server(limits=quick) as (supervisor, events):
        await supervisor.become(options)
        assert supervisor.engine_pid
        psutil.Process(supervisor.engine_pid).suspend()
        while "paused" not in notices(events):
            await asyncio.sleep(0.01)
        psutil.Process(supervisor.engine_pid).resume()
        while "answers_again" not in notices(events):
            await asyncio.sleep(0.01)
        assert await read(supervisor)
        assert supervisor.status.state is ServerState.READY


async def test_a_truncated_model_explains_a_crash_and_is_not_retried(options: ServeOptions, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(options.model.read_bytes())
    async with supervise_server() as (supervisor, events):
        await supervisor.become(replace(options, model=model))
        os.truncate(model, 10_000)
        status = await kill(supervisor)
        assert status.state is ServerState.FAILED
        assert isinstance(status.error, ModelBroken)
        assert "truncated while it read the file" in status.error.title
        assert notices(events) == []


@pytest.mark.thorough
async def test_a_flood_of_lines_is_read_completely_within_limits(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as (supervisor, _):
        await supervisor.become(fake("flood"))
        assert supervisor.log.line_count >= 200_001
        lines = supervisor.log.last_lines()
        assert len(lines) <= 5_000
        assert "the flood is over" in lines
        supervisor.log.close()
        folder = supervisor.log.path.parent
        assert "the flood is over" in supervisor.log.path.read_text()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 32 * 2**20


async def test_partial_lines_and_nul_bytes_are_read(fake: Callable[..., ServeOptions]) -> None:
    async with supervise_server() as (supervisor, _):
        await supervisor.become(fake("half-lines"))
        while "no end" not in supervisor.log.last_lines():
            await asyncio.sleep(0.01)
        assert "first half, \u2400second half" in supervisor.log.last_lines()
