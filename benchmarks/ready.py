"""How long it takes from the command to a server that answers, from outside."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import command
from launcher.base.paths import HOME_VARIABLE

_LIMIT_S = 2.0
_PATIENCE_S = 20.0


def run(*, quick: bool) -> list[Row]:
    """Start in fresh homes, then again and again in one."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-", ignore_cleanup_errors=True) as folder:
        cold = [_ready_seconds(Path(folder, str(number))) for number in range(3 if quick else 10)]
        warm = [_ready_seconds(Path(folder, "0")) for _ in range(3 if quick else 20)]
    kinds = (("first start in a new home (unpacks and probes)", cold), ("later start", warm))
    return [
        Row(
            f"0 to ready, demo model, {kind}",
            f"< {_LIMIT_S} s",
            summary(values, "s", 2),
            statistics.median(values) < _LIMIT_S,
        )
        for kind, values in kinds
    ]


def _ready_seconds(home: Path) -> float:
    """Return the seconds from the start of `serve` to its ready line; the server is stopped then."""
    began_s = time.perf_counter()
    with subprocess.Popen(
        [*command(), "serve", "--model", "demo", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {HOME_VARIABLE: str(home)},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            seconds = time.perf_counter() - began_s
            if not line or json.loads(line).get("state") != "ready":
                raise RuntimeError(f"serve did not become ready: {line}")
            return seconds
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
