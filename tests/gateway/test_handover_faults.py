"""Faults in the middle of a handover: no stream repeats or loses words, nothing hangs, and no file is left.

The engines are real. They, their files and their clients are made to fail just before a step of the handover.
"""

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.app.serving.session import ServerSession
from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder
from launcher.base.paths import cache_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerState
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.state_keeper import SavedSlot, StateKeeper
from tests.gateway.test_handover import (
    ReadReply,
    change_settings,
    check_same_words,
    read_stream,
    read_whole,
    serve_model,
)

CHECK, CANONICAL, SAVE, COUNT, RESTORE = (
    "/apply-template",
    "/tokenize",
    "/slots/0?action=save",
    "/detokenize",
    "/slots/0?action=restore",
)
"""The gateway's own requests to the engines, in the order of a handover."""
STEPS = (CHECK, CANONICAL, SAVE, COUNT, RESTORE)


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=131_072, alias="demo")


def act_before(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], None]) -> list[str]:
    """Call `act` once, before the gateway's first request of a step; return a list that grows by each step made."""
    made: list[str] = []
    original = EngineLink.request_json

    async def request_json(self: EngineLink, path: str, *rest: object, **limits: float) -> tuple[int, dict[str, Any]]:
        if path == step and step not in made:
            act()
        made.append(path)
        return await original(self, path, *rest, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineLink, "request_json", request_json)
    return made


def kill_engine(session: ServerSession) -> None:
    pid = session.supervisor.engine_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def slot_folder(session: ServerSession) -> Path:
    launch = session.supervisor.launch
    assert launch is not None
    return Path(launch.command.arguments[launch.command.arguments.index("--slot-save-path") + 1])


async def begin_stream(client: httpx.AsyncClient, **fields: object) -> tuple[ReadReply, asyncio.Task[None]]:
    reply = ReadReply()
    reading = asyncio.create_task(read_stream(client, reply, **fields))
    await reply.wait_for_parts(8)
    return reply, reading


async def test_an_engine_killed_before_any_step_loses_no_reply(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_model(options) as (session, client):
        whole = await read_whole(client, 1_000)
        for number, step in enumerate(STEPS):
            reply, reading = await begin_stream(client)
            with monkeypatch.context() as patched:
                made = act_before(patched, step, lambda: kill_engine(session))
                with suppress(LauncherError):
                    await change_settings(session, draft=1 + number % 2)
                assert step in made
                reply.most_parts = reply.parts + 20
                await reading
            assert reply.error is None, step
            length = min(len(reply.text), len(whole.text))
            assert reply.text[:length] == whole.text[:length], step
            assert (len(reply.ids), reply.roles) == (1, 1)
            await session.supervisor.wait_for_state(ServerState.READY, ServerState.BUSY)
            assert (await read_whole(client, max_tokens=5)).finish_reason == "length"
        assert list(slot_folder(session).iterdir()) == []


@pytest.mark.thorough
async def test_a_client_that_leaves_before_any_step_does_not_block_the_handover(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_model(options) as (session, client):
        for number, step in enumerate(STEPS):
            _, reading = await begin_stream(client)
            with monkeypatch.context() as patched:
                made = act_before(patched, step, reading.cancel)
                await change_settings(session, draft=1 + number % 2)
                assert step in made
        _, reading = await begin_stream(client)
        changing = asyncio.create_task(change_settings(session, draft=3))
        await session.supervisor.wait_for_state(ServerState.RESTARTING)
        reading.cancel()
        await changing
        assert (await read_whole(client, max_tokens=20)).finish_reason == "length"
        assert [each.end for each in session.request_log.records] == ["client left"] * (len(STEPS) + 1) + ["complete"]
        assert list(slot_folder(session).iterdir()) == []


def cut_file(slot: SavedSlot) -> SavedSlot:
    os.truncate(slot.path, slot.path.stat().st_size * 2 // 3)
    return slot


def flip_bit(slot: SavedSlot) -> SavedSlot:
    data = bytearray(slot.path.read_bytes())
    data[len(data) // 2] ^= 1
    slot.path.write_bytes(data)
    return slot


def remove_file(slot: SavedSlot) -> SavedSlot:
    slot.path.unlink()
    return slot


def call_other_quant(slot: SavedSlot) -> SavedSlot:
    return replace(slot, state_key="that of another quantisation of the model")


@pytest.mark.thorough
async def test_an_unsuitable_slot_file_is_not_restored_and_the_stream_goes_on(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoils: list[Callable[[SavedSlot], SavedSlot]] = [cut_file, flip_bit, remove_file, call_other_quant, lambda it: it]
    found: list[set[int]] = []

    restore_slots = StateKeeper.restore_slots

    async def restore_spoilt(self: StateKeeper, link: EngineLink, saved: list[SavedSlot]) -> set[int]:
        found.append(await restore_slots(self, link, [spoils[len(found)](slot) for slot in saved]))
        return found[-1]

    async with serve_model(options) as (session, client):
        monkeypatch.setattr(StateKeeper, "restore_slots", restore_spoilt)
        cut, reading = await begin_stream(client)
        for number in range(len(spoils)):
            await change_settings(session, draft=1 + number % 2)
            await cut.wait_for_parts(cut.parts + 5)
        assert found == [set(), set(), set(), set(), {0}]
        cut.most_parts = cut.parts + 50
        await reading
        check_same_words(cut, await read_whole(client, cut.most_parts))
        assert list(slot_folder(session).iterdir()) == []


async def test_a_slot_file_without_disk_space_is_deleted_and_the_stream_goes_on(
    options: ServeOptions,
) -> None:
    async with serve_model(options) as (session, client):
        cut, reading = await begin_stream(client)
        pid = session.supervisor.engine_pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4_096, 4_096))
        await change_settings(session, draft=3)
        report = session.last_handover
        assert report is not None
        assert (report.outcome, len(report.continued)) == ("seamless", 1)
        assert list(slot_folder(session).iterdir()) == []
        cut.most_parts = cut.parts + 50
        await reading
        assert (cut.error, len(cut.ids), cut.roles) == (None, 1, 1)


async def test_a_key_revoked_during_a_handover_ends_only_its_own_reply(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_model(replace(options, slots=2, kv_unified=True)) as (session, client):
        gateway = session._gateway and session._gateway._gateway
        assert gateway is not None
        keys = dict(gateway.access.keys)
        gateway.set_keys({**keys, "other": "o" * 43})
        theirs = ReadReply()
        other = httpx.AsyncClient(
            base_url=client.base_url, headers={"Authorization": "Bearer " + "o" * 43}, timeout=60, trust_env=False
        )
        async with other:
            reading_theirs = asyncio.create_task(read_stream(other, theirs))
            ours, reading = await begin_stream(client)
            await theirs.wait_for_parts(8)
            act_before(monkeypatch, SAVE, lambda: gateway.set_keys(keys))
            await change_settings(session, draft=3)
            await reading_theirs
        assert theirs.error is not None
        assert theirs.error["code"] == 401
        await ours.wait_for_parts(ours.parts + 5)
        ours.most_parts = ours.parts + 5
        await reading
        assert (ours.error, len(ours.ids), ours.roles) == (None, 1, 1)


async def test_without_a_slot_folder_a_stream_is_continued_by_reading_its_tokens_again(
    options: ServeOptions, caplog: pytest.LogCaptureFixture
) -> None:
    make_private_folder(cache_dir())
    (cache_dir() / "slots").write_text("a file in the folder's place")
    async with serve_model(options) as (session, client):
        launch = session.supervisor.launch
        assert launch is not None
        assert "--slot-save-path" not in launch.command.arguments
        assert "Restarts will read conversations again" in caplog.text
        # The end of thinking is known only from saved slots.
        reply, reading = await begin_stream(client, path="/v1/completions", max_tokens=600)
        await change_settings(session, draft=3)
        await asyncio.wait_for(reading, 60)
        assert (reply.error, reply.finish_reason) == (None, "length")
