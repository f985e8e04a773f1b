"""A server session: one server that is started and stopped repeatedly, at any moment."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from launcher.app.serving import owner_stream
from launcher.app.serving.owner_stream import OwnerStream
from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession
from launcher.base.control import send_request
from launcher.base.errors import ModelBroken, PortBusy, ServerNotFound, Superseded
from launcher.base.paths import runtime_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.endpoint import claim_endpoint
from launcher.engine.server.launch import Launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice, ServerEvent, ServerState, ServerStatus

QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=20)


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1)


@asynccontextmanager
async def session(*, takes_models: bool = False) -> AsyncIterator[ServerSession]:
    opened = ServerSession(takes_models=takes_models)
    try:
        yield opened
    finally:
        await opened.stop()


async def test_the_last_of_many_simultaneous_starts_counts(options: ServeOptions) -> None:
    async with session() as mine:
        many = [
            asyncio.create_task(mine.start(StartRequest(replace(options, context=context))))
            for context in (512, 1024, 2048, 4096)
        ]
        ends = await asyncio.gather(*many, return_exceptions=True)
        assert [type(end) for end in ends] == [Superseded, Superseded, Superseded, type(None)]
        assert mine.supervisor.status.state is ServerState.READY
        assert mine.supervisor.launch is not None
        assert mine.supervisor.launch.context == 4096
        assert (await mine.send_request(QUESTION)).text
        assert len(registry.list_entries()) == 1
        await mine.stop()
        assert registry.list_entries() == ()
        with pytest.raises(ServerNotFound):
            _ = mine.supervisor


@pytest.mark.parametrize(
    "turns", [0, 24, 54, *(pytest.param(turns, marks=pytest.mark.thorough) for turns in range(2, 60, 4))]
)
async def test_a_start_can_be_followed_by_a_stop_or_a_start_at_any_moment(options: ServeOptions, turns: int) -> None:
    async with session() as mine:
        first = asyncio.create_task(mine.start(StartRequest(options)))
        for _ in range(turns):
            await asyncio.sleep(0.005)
        second = asyncio.create_task(mine.start(StartRequest(replace(options, draft=1))))
        await asyncio.sleep(0.005)
        await mine.start(StartRequest(replace(options, draft=3)))
        await asyncio.gather(first, second, return_exceptions=True)
        assert mine.supervisor.status.state is ServerState.READY
        assert mine.supervisor.launch is not None
        assert mine.supervisor.launch.options.draft == 3


async def test_a_program_that_locks_the_list_of_servers_blocks_no_other(options: ServeOptions) -> None:
    _, registration = await asyncio.to_thread(
        registry.register_server, None, registry.ServedModel(model="m", engine="e", draft=0)
    )
    registration.remove()  # registering the server has created the folder
    async with session() as mine:
        with FileLock(runtime_dir() / "lock"):
            first = asyncio.create_task(mine.start(StartRequest(options)))
            await asyncio.wait([first], timeout=0.1)
            second = asyncio.create_task(mine.start(StartRequest(options)))
            first.cancel()
            await asyncio.wait([first, second], timeout=0.1)
            assert not first.done()
            stopping = asyncio.create_task(mine.stop())
            await asyncio.wait([stopping], timeout=0.1)
            assert not stopping.done()
        await stopping
        ends = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError, Superseded]
        assert registry.list_entries() == ()
        await mine.start(StartRequest(options))
        assert [entry.first.state for entry in registry.list_entries()] == ["ready"]


async def test_a_server_goes_on_when_the_next_start_is_impossible(options: ServeOptions, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("<html>")
    async with session() as mine:
        await mine.start(StartRequest(options))
        with pytest.raises(ModelBroken):
            await mine.start(StartRequest(replace(options, model=broken)))
        assert mine.supervisor.status.state is ServerState.READY
        assert (await mine.send_request(QUESTION)).text


async def test_a_start_waits_until_a_stop_has_closed_everything(options: ServeOptions) -> None:
    reached, go, sampled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    mine = ServerSession(on_snapshot=lambda _: sampled.set())
    end = mine.monitor.end

    async def end_late() -> None:
        reached.set()
        await go.wait()
        await end()

    await mine.start(StartRequest(options))
    mine.monitor.end = end_late  # type: ignore[method-assign]
    try:
        stopping = asyncio.create_task(mine.stop())
        await reached.wait()
        starting = asyncio.create_task(mine.start(StartRequest(options)))
        await asyncio.wait([starting], timeout=0.2)
        go.set()
        await asyncio.gather(stopping, starting)
        sampled.clear()
        await asyncio.wait_for(sampled.wait(), 120)
        (entry,) = registry.list_entries()
        assert entry.control_address is not None
        assert [each["state"] async for each in send_request(entry.control_address, "status")] == ["ready"]
    finally:
        go.set()
        await mine.stop()


@pytest.mark.thorough
async def test_an_engine_is_restarted_although_its_listener_fails(options: ServeOptions) -> None:
    def terminal_is_gone(_: object) -> None:
        raise BrokenPipeError

    async with serve(options, on_event=terminal_is_gone) as mine:
        before = mine.supervisor.engine_pid
        assert before is not None
        os.kill(before, signal.SIGTERM)
        await mine.supervisor.wait_for_state(ServerState.RESTARTING)
        await asyncio.wait_for(mine.supervisor.wait_for_state(ServerState.READY), 120)
        assert mine.supervisor.engine_pid != before


@pytest.mark.parametrize("takes_models", [False, True])
async def test_cancelling_a_stop_still_stops(options: ServeOptions, takes_models: bool) -> None:
    async with session(takes_models=takes_models) as mine:
        await mine.start(StartRequest(options))
        process = mine.supervisor.process
        assert process is not None
        stopping = asyncio.create_task(mine.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert not process.identity.is_running()


async def test_time_to_first_token_is_measured_from_the_request(options: ServeOptions) -> None:
    async with session() as mine:
        await mine.start(StartRequest(options))
        long = replace(QUESTION, max_tokens=600, extra={"ignore_eos": True})
        begun = asyncio.Event()
        first = asyncio.create_task(mine.send_request(long, lambda _: begun.set()))
        await begun.wait()
        began_s = time.monotonic()
        second = asyncio.create_task(mine.send_request(QUESTION))
        await first
        waited_s = time.monotonic() - began_s
        first_token_s = (await second).first_token_s
        assert first_token_s is not None
        assert waited_s / 2 < first_token_s < time.monotonic() - began_s


class Thief:
    """Another program, which takes a session's port before the engine does, this many `times`."""

    def __init__(self, times: int) -> None:
        self.stolen: list[socket.socket] = []
        self.states: list[ServerState] = []
        self._times = times

    def __call__(self, event: ServerEvent) -> None:
        if isinstance(event, ServerStatus):
            self.states.append(event.state)
            if event.state is ServerState.PREPARING and len(self.stolen) < self._times:
                (entry,) = registry.list_entries()
                self.stolen.append(socket.create_server(("127.0.0.1", entry.port)))

    @property
    def ports(self) -> list[int]:
        return [stolen.getsockname()[1] for stolen in self.stolen]

    def give_back(self) -> None:
        for stolen in self.stolen:
            stolen.close()


@asynccontextmanager
async def session_with_thief(times: int, port: int | None = None) -> AsyncIterator[tuple[ServerSession, Thief]]:
    thief = Thief(times)
    opened = ServerSession(port=port, direct=True, on_event=thief)  # the gateway holds its port from the first moment
    try:
        yield opened, thief
    finally:
        await opened.stop()
        thief.give_back()


async def test_a_port_that_another_program_takes_first_is_replaced(options: ServeOptions) -> None:
    async with session_with_thief(2) as (mine, thief):
        await mine.start(StartRequest(options))
        assert mine.supervisor.status.state is ServerState.READY
        assert len({mine.supervisor.endpoint.port, *thief.ports}) == 3
        assert [entry.port for entry in registry.list_entries()] == [mine.supervisor.endpoint.port]
        assert ServerState.FAILED not in thief.states


async def test_a_changed_address_is_reported_with_its_reason(options: ServeOptions) -> None:
    usual = claim_endpoint(None).port
    events: list[ServerEvent] = []
    mine = ServerSession(on_event=events.append)
    with socket.create_server(("127.0.0.1", usual)):
        await mine.start(StartRequest(options))
        address = mine.supervisor.endpoint.url
        await mine.stop()
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.code == "address_changed"
    assert f"Port {usual} is in use by another program" in notice.text
    assert address in notice.text


async def test_a_requested_port_is_not_replaced(options: ServeOptions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with session_with_thief(1, port) as (mine, thief):
        with pytest.raises(PortBusy, match=str(port)):
            await mine.start(StartRequest(options))
        assert thief.ports == [port]
        assert thief.states[-1] is ServerState.FAILED
    assert registry.list_entries() == ()


@pytest.mark.thorough
async def test_the_search_for_a_port_is_limited(options: ServeOptions) -> None:
    async with session_with_thief(100) as (mine, thief):
        with pytest.raises(PortBusy):
            await mine.start(StartRequest(options))
        assert len(set(thief.ports)) == 4
        assert thief.states.count(ServerState.FAILED) == 1


async def test_a_stop_ends_the_search_for_a_port(options: ServeOptions) -> None:
    async with session_with_thief(100) as (mine, thief):
        starting = asyncio.create_task(mine.start(StartRequest(options)))
        while len(thief.stolen) < 2:
            await asyncio.sleep(0)
        await mine.stop()
        with pytest.raises(Superseded):
            await starting
    assert registry.list_entries() == ()


@pytest.mark.thorough
async def test_a_session_whose_port_is_taken_during_a_pause_uses_another(options: ServeOptions) -> None:
    async with session() as mine:
        await mine.start(StartRequest(options))
        port = mine.supervisor.endpoint.port
        await mine.stop()
        with socket.create_server(("127.0.0.1", port)):
            await mine.start(StartRequest(options))
            assert mine.supervisor.endpoint.port != port


async def test_a_stop_that_is_cancelled_while_closing_leaves_no_process(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()
    remove = registry.Registration.remove

    def remove_slowly(self: registry.Registration) -> None:
        held.set()
        go_on.wait(60)
        remove(self)

    async with session() as mine:
        await mine.start(StartRequest(options))
        monkeypatch.setattr(registry.Registration, "remove", remove_slowly)
        stopping = asyncio.create_task(mine.stop())
        await asyncio.to_thread(held.wait, 60)
        stopping.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert mine.is_idle
        assert registry.list_entries() == ()
        assert [path for path in runtime_dir().rglob("*") if path.is_socket()] == []


async def test_the_memory_of_a_load_is_read_again_after_its_first_full_ubatch(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[tuple[int, bool, bool]] = []

    def record(_: Launch, pid: int, __: list[str], *, has_read_prompt: bool, replaces_last: bool) -> bool:
        readings.append((pid, has_read_prompt, replaces_last))
        return True

    monkeypatch.setattr("launcher.app.planning.load_memory.record_load_memory", record)
    monkeypatch.setattr("launcher.app.serving.load_recording.BUILT_IN", "another")  # the built-in engine uses no GPU
    short, long = ("Hi", "What is a draft? " * 40)

    async def ask(mine: ServerSession, text: str) -> int:
        reply = await mine.send_request(ChatRequest([{"role": "user", "content": text}], max_tokens=1))
        assert reply.timings is not None
        return reply.timings.prompt_n

    async with session() as mine:
        await mine.start(StartRequest(replace(options, context=2_048, ubatch=128)))
        pid = mine.supervisor.engine_pid
        assert readings == [(pid, False, False)]
        assert await ask(mine, short) < 128
        assert readings == [(pid, False, False)]
        for begin in ("One.", "Two."):
            assert await ask(mine, f"{begin} {long}") >= 128
            assert mine.pool is not None
            await asyncio.gather(*mine.pool._tasks)
        assert readings == [(pid, False, False), (pid, True, True)]


async def test_work_that_goes_on_without_its_client_is_known_until_its_end() -> None:
    control, may_end, known = ServerSession().control, asyncio.Event(), list[bool]()
    control.on_work = lambda: known.append(control.is_working)
    work = control.run_to_end(may_end.wait())
    assert control.is_working  # or the server process would end meanwhile
    may_end.set()
    await work
    await asyncio.sleep(0)
    assert known == [False]


async def test_an_end_waits_until_the_owner_has_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_stream, "_SEND_S", 600.0)  # after which it would not wait for the owner any more
    stream, numbers = OwnerStream(ServerSession()), list[int]()

    async def read_all() -> None:
        async for each in stream.send_messages():
            numbers.append(each.get("number", 0))

    reading = asyncio.create_task(read_all())
    before = stream.mark()
    async with asyncio.timeout(60):
        await stream.wait_until_sent()
    assert max(numbers) > before
    stream.end()
    await reading
