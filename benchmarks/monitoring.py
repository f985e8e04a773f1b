"""Measures the server's tokens/s with and without the monitor, in pairs of replies."""

import asyncio
import random
import statistics
import sys

from benchmarks.measure import format_summary, paired_ratio
from benchmarks.report import Row
from benchmarks.workplace import request, slow_model, slow_options
from launcher.app.measuring.machine_proof import measure_reply_rate
from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession

_LEAST_RATIO = 0.99
_DRAFT = 2
_TOKENS = 125
"""Tokens of a reply of half a second. On a busy machine, pairs of longer replies differ as much, so many short pairs
give a narrower interval in the same time.
"""
_LEAST_PAIRS, _MOST_PAIRS, _QUICK_PAIRS = 120, 1_500, 6
_STEP_PAIRS = 60
_WIDTH = 0.005
"""Pairs are added until the interval is this narrow on both sides. Only its width ends the run, never its position,
which would bias the result; and no pair is left out.
"""


def run(*, quick: bool) -> list[Row]:
    """Request the same reply from one server repeatedly, with the monitor on and off in random order within each
    pair.
    """
    on, off = asyncio.run(_measure(_QUICK_PAIRS if quick else _MOST_PAIRS))
    ratio = paired_ratio(on, off)
    # A few pairs can show that the limit is missed, but not that it is kept.
    end, judged = ("upper", ratio.upper) if quick else ("lower", ratio.lower)
    return [
        Row(
            "the server's tokens/s with the monitor to those without (10 samples a second, /metrics in every reply)",
            format_summary(on, "t/s", 1),
            f"without: {statistics.median(off):.1f} t/s",
            f"{ratio.estimate:.4f} (95 %: {ratio.lower:.4f} to {ratio.upper:.4f}, n {len(on)} pairs)",
            f">= {_LEAST_RATIO}, {end} end of the 95 % interval",
            judged >= _LEAST_RATIO,
        )
    ]


async def _measure(most_pairs: int) -> tuple[list[float], list[float]]:
    chance = random.Random(1)
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with serve(slow_options(slow_model(), _DRAFT)) as session:
        await session.monitor.end()
        for monitored in (True, False):
            await _measure_rate(session, monitored=monitored)  # warm-up: caches, the prompt, the sensors' libraries
        while not _has_enough_pairs(rates[True], rates[False], most_pairs):
            first = chance.random() < 0.5
            for monitored in (first, not first):
                rates[monitored].append(await _measure_rate(session, monitored=monitored))
    return rates[True], rates[False]


def _has_enough_pairs(on: list[float], off: list[float], most_pairs: int) -> bool:
    pairs = len(on)
    if pairs >= most_pairs or pairs < _LEAST_PAIRS or pairs % _STEP_PAIRS:
        return pairs >= most_pairs
    ratio = paired_ratio(on, off)
    width = max(ratio.upper - ratio.estimate, ratio.estimate - ratio.lower)
    print(f"  {pairs} pairs, interval +-{width:.4f}", file=sys.stderr, flush=True)
    return width <= _WIDTH


async def _measure_rate(session: ServerSession, *, monitored: bool) -> float:
    """Return the rate of one reply as the engine timed it. The client reads the stream in the same way with and without
    the monitor.
    """
    return await measure_reply_rate(session, request(_TOKENS), monitored=monitored)
