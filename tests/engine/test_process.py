"""Engine processes whose start or use is cancelled by the end of the event loop: none remains, and nothing waits."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from launcher.engine.server.process import EngineCommand, prepare_process, start_process


def _waiting_command(folder: Path) -> EngineCommand:
    return EngineCommand([sys.executable, "-c", "input()", str(folder)], dict(os.environ), folder)


async def _use_process(command: EngineCommand, started: asyncio.Event) -> None:
    process = await start_process(command, lambda _stream, _line: None)
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        await process.stop((0.1, 0.1))


def _list_left(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if str(folder) in each.cmdline()]


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6, 10, 20])
def test_a_start_that_the_end_of_the_event_loop_cancels_leaves_no_process(tmp_path: Path, turns: int) -> None:
    async def begin_start() -> asyncio.Task[None]:
        using = asyncio.create_task(_use_process(_waiting_command(tmp_path), asyncio.Event()))
        for _ in range(turns):
            await asyncio.sleep(0)
        return using  # asyncio.run then cancels this task and all tasks that it has started

    using = asyncio.run(begin_start())
    assert using.cancelled()
    assert not _list_left(tmp_path)


def test_a_process_is_stopped_before_the_cancelled_task_that_watches_it_has_ended(tmp_path: Path) -> None:
    async def cancel_all() -> None:
        started = asyncio.Event()
        using = asyncio.create_task(_use_process(_waiting_command(tmp_path), started))
        await started.wait()
        assert _list_left(tmp_path)
        made = asyncio.all_tasks() - {using, asyncio.current_task()}
        for task in (using, *made):  # as the end of the event loop cancels all tasks, in no particular order
            task.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait([using])

    asyncio.run(cancel_all())
    assert not _list_left(tmp_path)


def test_what_was_prepared_is_freed_once(tmp_path: Path) -> None:
    prepared = prepare_process(_waiting_command(tmp_path))
    prepared.discard()
    opened = os.pipe() + os.pipe()  # they get the numbers of what was freed
    prepared.discard()
    for each in opened:
        os.close(each)
