"""Measures the time from the command to a server that answers, from outside."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import command
from launcher.base.paths import HOME_VARIABLE

_LIMIT = 250
_PATIENCE_S = 20.0


def run(*, quick: bool) -> Iterator[Row]:
    """Start in several new home folders, then repeatedly in one."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-", ignore_cleanup_errors=True) as folder:
        for kind, homes in (
            ("first start in a new home (unpacks and probes)", [str(number) for number in range(2 if quick else 10)]),
            ("later start", ["0"] * (2 if quick else 20)),
        ):
            bare, seconds = Interpreter(), []
            for home in homes:
                bare.start(3)
                seconds.append(_ready_seconds(Path(folder, home)))
            yield bare.row(f"0 to ready, demo model, {kind}", seconds, "s", 2, _LIMIT)


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
