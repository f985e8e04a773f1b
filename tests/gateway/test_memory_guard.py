"""The guard of host memory: an engine that grows within a small limit is replaced in time, and its stream goes on.

The engine and its memory are real; its limit is in files like those of a control group. The health watch is called
after each prompt, with a clock of the test.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from launcher.app import settings
from launcher.app.serving.memory_guard import GUARD_RESTARTED_ENGINE, MODEL_FILLS_MEMORY, MemoryGuard
from launcher.app.serving.session import ServerSession
from launcher.app.settings_declared import MEMORY_GUARD, VALUE_RESTART
from launcher.base.paths import models_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.own_memory import private_mib
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice, ServerEvent
from launcher.engine.settings import save_model_settings
from launcher.machine.gpus import GpuSensors
from launcher.monitor.health_event import FindingCode, FindingLevel, HealthEvent
from tests import forked
from tests.gateway.test_handover import ReadReply, read_stream

ROOM_MIB = 20
MOST_PROMPTS = 40
WORDS = ("bread", "wheel", "river", "stone", "green", "quick", "house", "light", "paper", "sound", "cloud", "train")


class MemoryLimit:
    """A limit on engines' memory, in files like a control group's: `ROOM_MIB` more than the first engine uses."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._group = root / "sys/fs/cgroup/engines"
        self._limit_mib = 0

    def apply_to(self, pid: int) -> None:
        """Write the files for an engine with what it has now."""
        used = private_mib(pid)
        assert used is not None
        self._limit_mib = self._limit_mib or used + ROOM_MIB
        self._group.mkdir(parents=True, exist_ok=True)
        (self._root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (self._root / f"proc/{pid}/cgroup").write_text("0::/engines\n")
        for name, text in (("max", self._limit_mib << 20), ("current", used << 20), ("stat", "")):
            (self._group / f"memory.{name}").write_text(f"{text}\n")


class LimitedServer:
    """A served engine under a memory limit: `ROOM_MIB` more than it has after its first prompt."""

    def __init__(self, session: ServerSession, client: httpx.AsyncClient, root: Path) -> None:
        self.session, self.client = session, client
        self.findings: list[HealthEvent] = []
        self.notices: list[Notice] = []
        self._limit = MemoryLimit(root)
        self._now_s = 0.0
        self._chance = random.Random(3)
        self._gpu = GpuSensors()
        session.monitor.health_watch.root = root

    async def send_prompt(self) -> None:
        """Send a prompt that no other is like, and have the server's health checked after it."""
        await send_words(self.client, self._chance)
        supervisor = self.session.supervisor
        pid = supervisor.engine_pid
        if pid is None or supervisor.is_changing:
            return
        self._limit.apply_to(pid)
        watch = self.session.monitor.health_watch
        machine = await asyncio.to_thread(watch.read_machine, self._gpu, pid, supervisor.launch, supervisor.log)
        self._now_s += 4.0
        watch.run_detectors(self._now_s, machine, {})


async def send_words(client: httpx.AsyncClient, chance: random.Random, **fields: object) -> None:
    body = {"prompt": " ".join(chance.choices(WORDS, k=700)), "max_tokens": 1, "temperature": 0, **fields}
    (await client.post("/v1/completions", json=body)).raise_for_status()


@asynccontextmanager
async def serve_with_limit(
    model: Path, root: Path, *, guard: bool | None, direct: bool = False
) -> AsyncIterator[LimitedServer]:
    options = ServeOptions(
        model=model,
        built_in=True,
        threads=1,
        context=16_384,
        slots=2,
        extra=("--ignore-eos", "--cache-ram", "1000000"),
    )
    server: LimitedServer

    def note_event(event: ServerEvent) -> None:
        if isinstance(event, Notice):
            server.notices.append(event)

    session = ServerSession(
        memory_guard=guard, direct=direct, on_event=note_event, on_health=lambda event: server.findings.append(event)
    )
    await session.set_watched(False)
    try:
        await session.start(StartRequest(options))
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            server = LimitedServer(session, client, root)
            yield server
    finally:
        await session.stop()


def is_urgent(event: HealthEvent) -> bool:
    return event.finding.code is FindingCode.HOST_MEMORY and event.finding.level is FindingLevel.WARNING


async def send_until_urgent(server: LimitedServer) -> None:
    for _ in range(MOST_PROMPTS):
        await server.send_prompt()
        if any(map(is_urgent, server.findings)):
            return
    pytest.fail("Nothing was found.")


async def test_the_engine_is_restarted_in_time_and_its_stream_goes_on(demo_model: Path, tmp_path: Path) -> None:
    async with serve_with_limit(demo_model, tmp_path, guard=True) as server:
        engine = server.session.supervisor.engine_pid
        stream = ReadReply()
        reading = asyncio.create_task(read_stream(server.client, stream))
        await stream.wait_for_parts(5)
        await send_until_urgent(server)
        while not server.notices:
            await stream.wait_for_parts(stream.parts + 1)
        (notice,) = server.notices
        assert notice.code == GUARD_RESTARTED_ENGINE
        assert server.session.supervisor.engine_pid not in (engine, None)
        stream.most_parts = stream.parts + 20
        await reading
        assert stream.error is None
        assert (len(stream.ids), stream.roles) == (1, 1)
        (finding,) = [event.finding for event in server.findings if is_urgent(event)]
        assert finding.evidence["cause"] == "prompt_cache"


@pytest.mark.parametrize(
    "by", ["setting", *(pytest.param(by, marks=pytest.mark.thorough) for by in ("nobody", "direct"))]
)
async def test_without_consent_or_gateway_the_finding_is_only_reported(
    demo_model: Path, tmp_path: Path, by: str
) -> None:
    if by == "setting":
        settings.change_setting(MEMORY_GUARD, VALUE_RESTART)
    async with serve_with_limit(
        demo_model, tmp_path, guard=True if by == "direct" else None, direct=by == "direct"
    ) as server:
        engine = server.session.supervisor.engine_pid
        await send_until_urgent(server)
        restarts = tuple(server.session._memory_guard._restarts.values())
        await asyncio.gather(*restarts)
        assert (server.session.supervisor.engine_pid != engine) is (by == "setting")
        assert len(server.notices) == (by == "setting")
        assert (not restarts) is (by == "direct")


def test_the_guard_needs_the_gateway() -> None:
    refused = forked.run("serve", "demo", "--direct", "--memory-guard")
    assert refused.returncode == 1
    assert "Omit --memory-guard or --direct" in refused.stderr


@pytest.mark.parametrize("agreed", [True, pytest.param(None, marks=pytest.mark.thorough)])
async def test_a_model_beside_the_main_one_is_guarded(
    demo_model: Path, home: Path, tmp_path: Path, agreed: bool | None
) -> None:
    """The session's own loop finds it: from one check to the next the model gets a prompt."""
    models_dir().mkdir(parents=True)
    shutil.copy(demo_model, models_dir() / "second.gguf")
    save_model_settings(models_dir() / "second.gguf", {"threads": 1, "ctx": 16_384})
    notices: list[Notice] = []
    limit, chance, now_s, ended = MemoryLimit(tmp_path), random.Random(3), 0.0, asyncio.Event()
    engines: list[int] = []
    session = ServerSession(takes_models=True)
    session.monitor.health_watch.root = tmp_path

    async def send_prompt() -> None:
        nonlocal now_s
        now_s += 4.0
        if len(notices) == (2 if agreed else 1) or now_s > 4.0 * MOST_PROMPTS:
            ended.set()
            await asyncio.Future()
        await send_words(client, chance, model="second")
        assert session.pool is not None
        pid = session.pool.supervisors_beside["second"].engine_pid
        if pid is not None:
            engines.append(pid)
            limit.apply_to(pid)

    session._memory_guard = MemoryGuard(
        session._restart_engine, notices.append, agreed=agreed, clock=lambda: now_s, pause=send_prompt
    )
    try:
        await session.start(
            StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096, alias="demo"))
        )
        assert session.pool is not None
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            await send_words(client, chance, model="second")  # loads the second model, which wakes the loop
            await ended.wait()
        assert (session.pool.supervisors_beside["second"].engine_pid != engines[0]) is bool(agreed)
    finally:
        await session.stop()
    assert [each.code for each in notices] == (
        [MODEL_FILLS_MEMORY, GUARD_RESTARTED_ENGINE] if agreed else [MODEL_FILLS_MEMORY]
    )
    assert notices[0].text.startswith("second: Host memory will be used up")
