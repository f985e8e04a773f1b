"""Measures the program's own processor time while it reads a stream and samples."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT, slow_model

_LIMIT_STARTS_PER_S = 12.5
_LEAST_RATE = 200.0
_DRAFT = 2


def run(*, quick: bool) -> Iterator[Row]:
    """Measure with MTP on, for which the limit is; in a complete run also with MTP off, where each token is an event of
    its own.
    """
    rounds, seconds = (1, 5.0) if quick else (5, 12.0)
    bare = Interpreter()
    bare.start(5)
    with_mtp = _measure(_DRAFT, rounds, seconds)
    bare.start(5)
    rate = statistics.median(with_mtp["tokens_per_second"])
    samples = statistics.median(with_mtp["samples_per_second"])
    yield bare.share_row(
        f"own processor time while reading {rate:.0f} tokens/s (MTP on) and sampling at {samples:.1f} Hz",
        with_mtp["cpu_percent"],
        1,
        _LIMIT_STARTS_PER_S,
        f" at {_LEAST_RATE:.0f} tokens/s or more",
        holds=rate >= _LEAST_RATE,
    )
    if not quick:
        yield Row(
            "the same without a stream: sampling alone", format_summary(with_mtp["idle_percent"], "% of a core", 1)
        )
        without = _measure(0, 3, seconds)
        rate = statistics.median(without["tokens_per_second"])
        yield Row(
            f"the same at {rate:.0f} tokens/s (MTP off)", format_summary(without["cpu_percent"], "% of a core", 1)
        )


def _measure(draft: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Run own_cpu_child, which ends its engine in any case."""
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
