"""What the program itself uses of a core while it reads a stream and samples."""

import json
import statistics
import subprocess
import sys

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT, slow_model

_LIMIT_PERCENT = 10.0
_LEAST_RATE = 200.0
_DRAFT = 2


def run(*, quick: bool) -> list[Row]:
    """Measure with MTP on, where the limit holds, and off, where each token is an event of its own."""
    rounds, seconds = (1, 10.0) if quick else (5, 12.0)
    with_mtp = _measure(_DRAFT, rounds, seconds)
    without = _measure(0, 1 if quick else 3, seconds)
    rate = statistics.median(with_mtp["tokens_per_second"])
    percent = with_mtp["cpu_percent"]
    return [
        Row(
            f"own processor time while reading {rate:.0f} tokens/s (MTP on) and sampling at"
            f" {statistics.median(with_mtp['samples_per_second']):.1f} Hz",
            f"< {_LIMIT_PERCENT:.0f} % of a core at {_LEAST_RATE:.0f} tokens/s or more",
            summary(percent, "%", 1),
            statistics.median(percent) < _LIMIT_PERCENT and rate >= _LEAST_RATE,
        ),
        Row(
            f"the same at {statistics.median(without['tokens_per_second']):.0f} tokens/s (MTP off)",
            "-",
            summary(without["cpu_percent"], "%", 1),
            None,
        ),
        Row("the same without a stream: sampling alone", "-", summary(with_mtp["idle_percent"], "%", 1), None),
    ]


def _measure(draft: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Run the child, which ends its engine however it ends; see own_cpu_child."""
    arguments = (str(slow_model()), str(draft), str(rounds), str(seconds))
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.own_cpu_child", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60 + 4 * rounds * seconds,
    )
    measured: dict[str, list[float]] = json.loads(child.stdout)
    return measured
