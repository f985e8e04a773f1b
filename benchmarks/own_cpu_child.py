"""The process whose own processor time `own_cpu` measures: `MODEL DRAFT ROUNDS SECONDS`. Prints one JSON object."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workplace import request, slow_options
from launcher.app.serving.serving import serve

_WARM_UP_TOKENS = 400


@dataclass(frozen=True, slots=True)
class _ProcessorUse:
    """Duration of a piece of work: seconds, and processor seconds of this process without its children."""

    wall_s: float
    cpu_s: float

    @property
    def percent(self) -> float:
        return 100 * self.cpu_s / self.wall_s


async def _measure_use(work: Awaitable[object]) -> _ProcessorUse:
    wall_s, cpu_s = time.perf_counter(), time.process_time()  # user and system time of all threads
    await work
    return _ProcessorUse(time.perf_counter() - wall_s, time.process_time() - cpu_s)


async def measure(model: Path, draft: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Stream for `seconds` a round, then, if there are several rounds, stay idle for as long as one round."""
    found: dict[str, list[float]] = {"tokens_per_second": [], "cpu_percent": [], "samples_per_second": []}
    async with serve(slow_options(model, draft)) as session:
        warm_up = await _measure_use(session.send_request(request(_WARM_UP_TOKENS)))
        tokens = int(seconds * _WARM_UP_TOKENS / warm_up.wall_s)
        for _ in range(rounds):
            samples = session.monitor.snapshot_count
            use = await _measure_use(session.send_request(request(tokens)))
            found["tokens_per_second"].append(tokens / use.wall_s)
            found["cpu_percent"].append(use.percent)
            found["samples_per_second"].append((session.monitor.snapshot_count - samples) / use.wall_s)
        idle = [await _measure_use(asyncio.sleep(seconds / rounds)) for _ in range(rounds) if rounds > 1]
    return found | {"idle_percent": [use.percent for use in idle]}


def main() -> None:
    """Read the command line and measure."""
    model, draft, rounds, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(Path(model), int(draft), int(rounds), float(seconds)))))


if __name__ == "__main__":
    main()
