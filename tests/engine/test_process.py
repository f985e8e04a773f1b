"""Engine processes whose start is cancelled: none remains."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from launcher.engine.server.process import EngineCommand, start_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on Windows no process exists before its start")


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6, 10, 20])
def test_a_start_that_the_end_of_the_event_loop_cancels_leaves_no_process(tmp_path: Path, turns: int) -> None:
    command = EngineCommand([sys.executable, "-c", "input()", str(tmp_path)], dict(os.environ), tmp_path)

    async def begin_start() -> asyncio.Task[object]:
        starting = asyncio.create_task(start_process(command, lambda _stream, _line: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not starting.done()
        return starting  # asyncio.run cancels it, and each task that it has made, all at once

    starting = asyncio.run(begin_start())
    assert starting.cancelled()
    assert not [each for each in psutil.Process().children(recursive=True) if str(tmp_path) in each.cmdline()]
