"""A server whose every reply fails although its health check passes: the restart, its limits, and what clients read."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.serving.memory_guard import MODEL_FAILS
from launcher.app.serving.session import ServerSession
from launcher.base.errors import CrashLoop, EngineBroken
from launcher.base.paths import models_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import supervisor as supervisor_module
from launcher.engine.server.guard import GuardLimits
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice, ServerEvent, ServerState
from launcher.engine.server.supervisor import RestartPolicy
from launcher.monitor.health_event import FindingCode, FindingLevel, HealthEvent

LOST = "decode() failed: vk::Queue::submit: ErrorDeviceLost"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.fixture
def options(demo_model: Path, fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    """The fake engine, which the guard checks often, and which is started again at once."""
    monkeypatch.setattr(supervisor_module, "GuardLimits", partial(GuardLimits, period_s=0.05))
    monkeypatch.setattr(supervisor_module, "RestartPolicy", partial(RestartPolicy, pauses_s=(0.0, 0.0, 0.0)))
    monkeypatch.setenv("FAKE_FAULTS", "fails")
    monkeypatch.setenv("FAKE_ERROR", LOST)
    return ServeOptions(model=demo_model, engine=fake_engine, threads=1)


class Watched:
    """A session with all that it has reported, and a client."""

    def __init__(self, *, takes_models: bool = False) -> None:
        self.events: list[ServerEvent] = []
        self.findings: list[HealthEvent] = []
        self.session = ServerSession(
            takes_models=takes_models, on_event=self.events.append, on_health=self.findings.append
        )
        self.session.monitor.health_watch.period_s = 0.05
        self.client: httpx.AsyncClient

    async def ask(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={**CHAT, **fields})

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.code == "crashed"]

    async def wait_for_another_engine(self, pid: int | None) -> None:
        supervisor = self.session.supervisor
        while supervisor.engine_pid in (pid, None) or supervisor.status.state is not ServerState.READY:
            await supervisor.wait_for_change()


@asynccontextmanager
async def serve(options: ServeOptions, watched: Watched | None = None) -> AsyncIterator[Watched]:
    watched = watched or Watched()
    try:
        async with asyncio.timeout(120):
            await watched.session.start(StartRequest(options))
            endpoint = watched.session.supervisor.endpoint
            headers = {"Authorization": f"Bearer {endpoint.api_key}"}
            async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
                watched.client = client
                yield watched
    finally:
        await watched.session.stop()


async def test_an_engine_that_lost_its_gpu_is_started_again(options: ServeOptions) -> None:
    async with serve(options) as server:
        pid = server.session.supervisor.engine_pid
        for _ in range(3):
            response = await server.ask()
            assert (response.status_code, response.json()["error"]["message"]) == (500, LOST)
        await server.wait_for_another_engine(pid)
        (notice,) = server.notices
        assert notice.startswith(f"The last 3 requests all failed: {LOST}.")
        assert notice.endswith("Restarting in 0 s (1 of 3).")
        records = server.session.request_log.records
        assert {(each.end, each.status, each.message) for each in records} == {("error", 500, LOST)}


async def test_errors_within_streams_count(options: ServeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULTS", "fails-midway")
    async with serve(options) as server:
        pid = server.session.supervisor.engine_pid
        for _ in range(3):
            response = await server.ask()
            assert response.status_code == 200
            assert LOST in response.text
        await server.wait_for_another_engine(pid)


async def test_restarts_that_do_not_help_end_as_crashes_do(options: ServeOptions) -> None:
    async with serve(options) as server:
        supervisor = server.session.supervisor
        while supervisor.status.state is not ServerState.FAILED:
            try:
                await server.ask()
            except httpx.HTTPError:
                break
            await asyncio.sleep(0)
        status = await supervisor.wait_for_state(ServerState.FAILED)
        assert isinstance(status.error, CrashLoop)
        assert isinstance(status.error.reason, EngineBroken)
        assert LOST in status.error.title
        assert len(server.notices) == 3


async def test_requests_that_wait_when_the_server_fails_read_the_reason(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RestartPolicy", partial(RestartPolicy, pauses_s=()))
    async with serve(options) as server:
        supervisor, refused = server.session.supervisor, None
        while refused is None:
            response = await server.ask()
            if response.status_code != 500:
                refused = response
        assert LOST in refused.json()["error"]["message"]
        await supervisor.wait_for_state(ServerState.FAILED)


async def wait_for_finding(server: Watched) -> HealthEvent:
    while not server.findings:
        await asyncio.sleep(0.01)
    return server.findings[0]


async def test_failures_that_no_restart_cures_are_a_finding(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ERROR", "something odd")
    async with serve(options) as server:
        pid = server.session.supervisor.engine_pid
        for _ in range(5):
            await server.ask()
        event = await wait_for_finding(server)
        assert (event.finding.code, event.finding.level) == (FindingCode.REPLIES_FAIL, FindingLevel.WARNING)
        assert "requests all failed: something odd." in event.finding.sentence
        assert server.session.supervisor.engine_pid == pid
        assert server.notices == []


async def test_refused_requests_restart_nothing(options: ServeOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    monkeypatch.setenv("FAKE_ERROR", message)
    async with serve(options) as server:
        pid = server.session.supervisor.engine_pid
        for _ in range(6):
            await server.ask()
        event = await wait_for_finding(server)
        assert event.finding.level is FindingLevel.INFORMATION
        assert event.finding.sentence.startswith("The engine refused the last ")
        guard_s = 3 * 0.05
        await asyncio.sleep(guard_s)
        assert server.session.supervisor.engine_pid == pid
        assert server.notices == []


async def test_the_reply_of_a_restarted_engine_ends_the_count(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_REPLIES", "3")
    async with serve(replace(options, slots=2)) as server:
        statuses: list[Any] = []
        while not server.notices:
            statuses.append((await server.ask()).status_code)
        assert statuses[:2] == [200, 200]
        assert (await server.ask()).status_code == 200
        failed = server.session.supervisor.failed_replies
        assert failed is not None
        assert failed.has_replied


async def test_of_two_models_only_the_one_that_fails_is_named(
    options: ServeOptions, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", "")
    models_dir().mkdir(parents=True)
    shutil.copy(demo_model, models_dir() / "second.gguf")
    watched = Watched(takes_models=True)
    async with serve(replace(options, alias="first"), watched):
        monkeypatch.setenv("FAKE_FAULTS", "fails")
        monkeypatch.setenv("FAKE_ERROR", "something odd")
        for _ in range(3):
            assert "something odd" in (await watched.ask(model="second")).text
            assert (await watched.ask(model="first")).status_code == 200
        while not (found := [each for each in watched.events if isinstance(each, Notice) and each.code == MODEL_FAILS]):
            await asyncio.sleep(0.01)
        assert found[0].text == "second: The last 3 requests all failed: something odd."
        failed = watched.session.supervisor.failed_replies
        assert failed is not None
        assert failed.total == 0
        assert watched.findings == []
