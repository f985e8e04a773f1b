"""Measures a restart of the demo with other settings, from the request to the first reply."""

import asyncio
import subprocess
import time
from dataclasses import replace

from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import command
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.serving import serve
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest

_LIMIT = 315


def run(*, quick: bool) -> list[Row]:
    """Change context and draft length back and forth, as the window does it and by `mtp-launcher restart`."""
    bare = Interpreter()
    inside, outside = asyncio.run(_measure(bare, 3 if quick else 20))
    kinds = (("within the program, as the window does it", inside), ("by `mtp-launcher restart --set`", outside))
    return [
        bare.row(f"restart of the demo with new settings to its first reply, {way}", seconds, "s", 2, _LIMIT)
        for way, seconds in kinds
    ]


async def _measure(bare: Interpreter, times: int) -> tuple[list[float], list[float]]:
    options = make_unresolved_options(DEMO, lambda path: ServeOptions(model=path))
    inside, outside = [], []
    async with serve(options) as session:
        for number in range(times):
            bare.start(3)
            context = (4_096, 8_192)[number % 2]
            began_s = time.perf_counter()
            await session.start(StartRequest(replace(options, context=context, draft=1 + number % 3)))
            inside.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            words = [*command(), "restart", "--set", f"draft={2 + number % 3}", "--json"]
            await asyncio.to_thread(subprocess.run, words, check=True, stdout=subprocess.DEVNULL)
            outside.append(time.perf_counter() - began_s)
    return inside, outside
