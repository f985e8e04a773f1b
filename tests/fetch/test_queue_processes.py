"""One queue and several processes that run at once or are killed."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.fetch.jobs import JobState, RequestedState
from launcher.fetch.queue import DownloadQueue
from tests.fakes.copying import WORKS, Server, part_of

DATA = bytes(range(256)) * 1_024
PROGRAM = Path(__file__).parents[1] / "fakes" / "copying.py"


@asynccontextmanager
async def start_worker(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), *options, stdout=asyncio.subprocess.PIPE, limit=2**20
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_events(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """Return all events of a worker until it ends, and check that it ended well."""
    output, _ = await process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


async def wait_for_event(process: asyncio.subprocess.Process, event: str, job_id: int) -> dict[str, Any]:
    assert process.stdout is not None
    async for line in process.stdout:
        received: dict[str, Any] = json.loads(line)
        if received["event"] == event and received["job"]["id"] == job_id:
            return received
    raise AssertionError(f"it ended without {event}")


def add(queue: DownloadQueue, server: Server, folder: Path, *names: str) -> None:
    for name in names:
        queue.add_job("copy", server.job(name, folder), name, size_bytes=len(server.files[name]))


async def test_after_any_kill_the_next_process_resumes(tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    kills = 6
    async with Server(a=DATA) as server:
        add(queue, server, tmp_path, "a")
        for number in range(1, kills + 1):
            at = number * len(DATA) // (kills + 1)
            await server.allow("a", at)
            async with start_worker() as process:
                await server.wait_until_reached("a", at)
                assert queue.read_snapshot().jobs.find_job(1).state is JobState.RUNNING
                process.send_signal(signal.SIGKILL)
                await process.wait()
            await server.wait_until_unread("a")
            assert queue.read_snapshot().jobs.find_job(1).state is JobState.WAITING
        await server.allow_all()
        async with start_worker() as process:
            await read_events(process)
        assert len(server.requests) == kills + 1
        assert server.sent_bytes == len(DATA)
    assert (tmp_path / "a").read_bytes() == DATA
    assert queue.read_snapshot().jobs.find_job(1).state is JobState.DONE


async def test_a_requested_state_survives_a_killed_process(tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with start_worker() as process:
            await server.wait_until_reached("a", 10_000)
            process.send_signal(signal.SIGSTOP)  # a suspended process cannot obey
            assert queue.request_state(RequestedState.DISCARD, 1)[0].is_changing
            assert part_of(server.job("a", tmp_path)).exists()
            process.kill()
            await process.wait()
        assert queue.read_snapshot().jobs.find_job(1).state is JobState.CANCELLED
        assert not part_of(server.job("a", tmp_path)).exists()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_two_processes_never_run_the_same_job(at_once: int, tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    names = "abcdef"
    async with Server(**dict.fromkeys(names, DATA)) as server:
        await server.allow("a", 10_000)
        await server.allow("b", 10_000)
        add(queue, server, tmp_path, *names)
        async with start_worker("--at-once", str(at_once)) as one, start_worker("--at-once", str(at_once)) as other:
            await asyncio.gather(wait_for_event(one, "JobAdded", 6), wait_for_event(other, "JobAdded", 6))
            await server.allow_all()
            received = await asyncio.gather(read_events(one), read_events(other))
        assert sorted(server.requests) == [(name, 0) for name in names]
        assert server.most_open <= at_once
        assert server.sent_bytes == len(names) * len(DATA)
    if at_once == 1:
        assert [name for name, _ in server.requests] == list(names)
    for events in received:  # both processes report the end, whichever of them ran the job
        assert {each["job"]["id"] for each in events if each["event"] == "JobFinished"} == {1, 2, 3, 4, 5, 6}
    assert all((tmp_path / name).read_bytes() == DATA for name in names)


async def test_another_process_takes_over_the_job_of_a_killed_one(tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with start_worker() as one:
            await server.wait_until_reached("a", 10_000)
            async with start_worker() as other:
                # The second worker reports the progress of the first one's job.
                followed = await wait_for_event(other, "JobProgressed", 1)
                assert followed["progress"]["done_bytes"] <= 10_000
                assert server.requests == [("a", 0)]
                one.kill()
                await server.allow("a", len(DATA))
                done = await wait_for_event(other, "JobFinished", 1)
                await read_events(other)
    assert done["job"]["result"]["resumed_bytes"] == 10_000
    assert (tmp_path / "a").read_bytes() == DATA


async def test_a_terminated_process_returns_its_job(tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with start_worker() as process:
            await server.wait_until_reached("a", 10_000)
            process.send_signal(signal.SIGINT)
            await process.wait()
        await server.wait_until_unread("a")
        job = queue.read_snapshot().jobs.find_job(1)
        assert (job.state, job.owner) == (JobState.WAITING, None)
        assert job.done_bytes == 10_000
