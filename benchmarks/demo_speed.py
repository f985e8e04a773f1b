"""Measures the demo model, for the statements of presets/demo.toml about threads and MTP."""

import asyncio
from dataclasses import replace

from benchmarks.measure import format_summary
from benchmarks.report import Row
from benchmarks.workplace import request
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.serving import serve
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions

_TOKENS = 400


def run(*, quick: bool) -> list[Row]:
    """Serve the demo model with MTP on and off, and with one and two threads."""
    replies = 5 if quick else 20
    options = make_unresolved_options(DEMO, lambda path: ServeOptions(model=path))
    kinds = (
        ("MTP on, 1 thread", replace(options, threads=1)),
        ("MTP on, 2 threads", replace(options, threads=2)),
        ("MTP off, 1 thread", replace(options, threads=1, draft=0)),
    )
    return [
        Row(f"demo model, {kind}", format_summary(asyncio.run(_measure_rates(chosen, replies)), "t/s", 0))
        for kind, chosen in kinds
    ]


async def _measure_rates(options: ServeOptions, replies: int) -> list[float]:
    async with serve(options) as session:
        await session.send_request(request(_TOKENS))
        answers = [await session.send_request(request(_TOKENS)) for _ in range(replies)]
    timed = [reply.timings for reply in answers if reply.timings is not None]
    return [timings.predicted_per_second for timings in timed]
