"""What it takes to look after a server that nobody asks anything."""

import statistics
import subprocess
import sys
import time

import psutil

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command

_LIMIT_PERCENT = 0.5
_SETTLE_S = 5.0
_ENDS_S = 20.0


def run(*, quick: bool) -> list[Row]:
    """Serve the demo by the command and leave it alone; its engine and its keeper are counted apart."""
    rounds, seconds = (2, 10.0) if quick else (5, 30.0)
    serve = [*command(), "serve", "--model", "demo", "--json"]
    shares = _measured(serve, rounds, seconds)
    bare = _measured([sys.executable, "-m", "benchmarks.idle_child"], rounds, seconds)
    ours = [share[0] + share[1] for share in shares]
    return [
        Row(
            "own processor time of `serve` while its server is idle, its keeper included",
            f"< {_LIMIT_PERCENT} % of a core",
            summary(ours, "%", 2),
            statistics.median(ours) < _LIMIT_PERCENT,
        ),
        Row(
            "the same without the monitor's sampling: the guard, the keeper, the line for other programs",
            "-",
            summary([share[0] + share[1] for share in bare], "%", 2),
            None,
        ),
        Row("what the idle engine takes meanwhile", "-", summary([share[2] for share in shares], "%", 2), None),
    ]


def _measured(serve: list[str], rounds: int, seconds: float) -> list[list[float]]:
    with subprocess.Popen(serve, stdout=subprocess.PIPE, cwd=ROOT) as program:
        try:
            assert program.stdout is not None
            program.stdout.readline()
            time.sleep(_SETTLE_S)
            launcher = psutil.Process(program.pid)
            keeper, engine = _keeper_and_engine(launcher)
            return [_shares([launcher, keeper, engine], seconds) for _ in range(rounds)]
        finally:
            program.terminate()
            program.wait(_ENDS_S)


def _keeper_and_engine(launcher: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    keeper = launcher.children()[0]
    return keeper, keeper.children()[0]


def _shares(processes: list[psutil.Process], seconds: float) -> list[float]:
    """Return what each takes of a core, in percent."""
    before, began_s = [sum(each.cpu_times()[:2]) for each in processes], time.perf_counter()
    time.sleep(seconds)
    spent = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(processes, before, strict=True)]
    return [100 * each / (time.perf_counter() - began_s) for each in spent]
