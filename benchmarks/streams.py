"""Measures several streams at once: tokens/s of each and in total, with MTP and without, and with requests queued at
one slot.
"""

import asyncio
import time
from dataclasses import replace
from statistics import median

from benchmarks.measure import format_summary
from benchmarks.report import Row
from benchmarks.workplace import request, slow_model, slow_options
from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.monitor.reply import Reply

_TOKENS = 200
_STREAMS = (1, 2, 4, 8)


def run(*, quick: bool) -> list[Row]:
    """Serve the slowed-down demo model with as many slots as streams, then with one slot for four."""
    rounds = 2 if quick else 5
    model = slow_model()
    rows = []
    for draft, name in ((2, "MTP on"), (0, "MTP off")):
        for streams in _STREAMS:
            options = replace(slow_options(model, draft), slots=streams)
            rows += _rows(f"{streams} stream(s) at once, {name}", asyncio.run(_measure(options, streams, rounds)))
    return rows + _rows("4 requests at one slot, MTP on", asyncio.run(_measure(slow_options(model, 2), 4, rounds)))


def _rows(what: str, rounds: list["_Round"]) -> list[Row]:
    return [
        Row(f"{what}: all together", format_summary([each.together for each in rounds], "t/s", 0)),
        Row(f"{what}: each", format_summary([each.each for each in rounds], "t/s", 0)),
        Row(
            f"{what}: time until all have their first token",
            format_summary([each.last_first_s for each in rounds], "s", 2),
        ),
    ]


class _Round:
    """The result of one round of replies."""

    def __init__(self, replies: list[Reply], seconds: float) -> None:
        timed = [reply.timings for reply in replies if reply.timings is not None]
        self.together = sum(timings.predicted_n for timings in timed) / seconds
        self.each = median(timings.predicted_per_second for timings in timed)
        self.last_first_s = max(reply.first_token_s or 0.0 for reply in replies)


async def _measure(options: ServeOptions, streams: int, rounds: int) -> list[_Round]:
    async with serve(options) as session:
        await _send_round(session, streams)  # the prompts are in the cache from here on
        return [await _send_round(session, streams) for _ in range(rounds)]


async def _send_round(session: ServerSession, streams: int) -> _Round:
    began_s = time.monotonic()
    replies = await asyncio.gather(*(session.send_request(request(_TOKENS)) for _ in range(streams)))
    return _Round(replies, time.monotonic() - began_s)
