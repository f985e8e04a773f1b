"""A restart of the demo with other settings, from the wish to the first reply."""

import asyncio
import statistics
import subprocess
import time
from dataclasses import replace

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import command
from launcher.app.serving import serve
from launcher.app.start_settings import options_for
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions

_LIMIT_S = 2.5


def run(*, quick: bool) -> list[Row]:
    """Change context and draft length to and fro, as the window does and by the command."""
    inside, outside = asyncio.run(_measure(5 if quick else 20))
    kinds = (("within the program, as the window does it", inside), ("by `mtp-launcher restart --set`", outside))
    return [
        Row(
            f"restart of the demo with new settings to its first reply, {way}",
            f"< {_LIMIT_S:g} s",
            summary(seconds, "s", 2),
            statistics.median(seconds) < _LIMIT_S,
        )
        for way, seconds in kinds
    ]


async def _measure(times: int) -> tuple[list[float], list[float]]:
    options = options_for(DEMO, lambda path: ServeOptions(model=path))
    inside, outside = [], []
    async with serve(options) as session:
        for number in range(times):
            context = (4_096, 8_192)[number % 2]
            began_s = time.perf_counter()
            await session.start(replace(options, context=context, draft=1 + number % 3))
            inside.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            words = [*command(), "restart", "--set", f"draft={2 + number % 3}", "--json"]
            await asyncio.to_thread(subprocess.run, words, check=True, stdout=subprocess.DEVNULL)
            outside.append(time.perf_counter() - began_s)
    return inside, outside
