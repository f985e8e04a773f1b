"""Start of an engine process that cannot outlive this program."""

import asyncio
import sys
from contextlib import suppress

from launcher.base.errors import EngineMissing
from launcher.engine.server.process import EngineCommand, EngineProcess, OnLine


async def start_process(command: EngineCommand, on_line: OnLine) -> EngineProcess:
    """Start `command` so that it ends with this process, even if this process is killed.

    `on_line` is called with each line of its output. Raises EngineMissing if it cannot be started. If the call is
    cancelled, no process remains.
    """
    if sys.platform == "win32":
        from launcher.engine.server.process_windows import start_in_job as start_on_platform
    else:
        from launcher.engine.server.process_posix import start_with_keeper as start_on_platform
    starting = asyncio.ensure_future(start_on_platform(command, on_line))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(EngineMissing):
            process = await starting
            await process.stop((0.5, 0.5))
        raise
