"""Measures the supervision of an idle server, beside a process that wakes as often and does nothing."""

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter, Waker, count_wakes
from benchmarks.report import Row
from benchmarks.workplace import ROOT, command

_LIMIT_STARTS_PER_S = 0.5
_SETTLE_S = 4.0
_ENDS_S = 20.0


def run(*, quick: bool) -> Iterator[Row]:
    """Serve the demo with `mtp-launcher serve`, without requests. Engine and keeper are measured separately."""
    rounds, seconds = (3, 8.0) if quick else (5, 30.0)
    serve = [*command(), "serve", "--model", "demo", "--json"]
    bare = Interpreter()
    bare.start(5)
    shares = _measure_serve(serve, rounds, seconds)
    bare.start(5)
    yield bare.difference_row(
        "own processor time of `serve` while its server is idle, its keeper included",
        [share[0] + share[1] for share in shares],
        "a process that wakes as often",
        [share[3] for share in shares],
        _LIMIT_STARTS_PER_S,
    )
    yield Row(
        "processor time of the idle engine meanwhile", format_summary([share[2] for share in shares], "% of a core", 2)
    )
    if not quick:
        alone = _measure_serve([sys.executable, "-m", "benchmarks.idle_child"], rounds, seconds)
        yield Row(
            "own processor time without the monitor's sampling: guard, keeper and control socket",
            format_summary([share[0] + share[1] for share in alone], "% of a core", 2),
        )


def _measure_serve(serve: list[str], rounds: int, seconds: float) -> list[list[float]]:
    with subprocess.Popen(serve, stdout=subprocess.PIPE, cwd=ROOT) as program:
        try:
            assert program.stdout is not None
            program.stdout.readline()
            time.sleep(_SETTLE_S / 2)
            launcher = psutil.Process(program.pid)
            keeper, engine = _find_keeper_and_engine(launcher)
            ours, before = (launcher.pid, keeper.pid), time.perf_counter()
            woken = sum(map(count_wakes, ours))
            time.sleep(_SETTLE_S / 2)
            rate = (sum(map(count_wakes, ours)) - woken) / (time.perf_counter() - before)
            return [_measure_shares([launcher, keeper, engine], rate, seconds) for _ in range(rounds)]
        finally:
            program.terminate()
            program.wait(_ENDS_S)


def _find_keeper_and_engine(launcher: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    keeper = launcher.children()[0]
    return keeper, keeper.children()[0]


def _measure_shares(processes: list[psutil.Process], rate: float, seconds: float) -> list[float]:
    """Return the share of a core that each process uses, in percent; the last is of a process that does nothing but
    wake `rate` times a second."""
    waker = Waker(rate, seconds)
    before, began_s = [sum(each.cpu_times()[:2]) for each in processes], time.perf_counter()
    beside = waker.end()
    spent = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(processes, before, strict=True)]
    return [*(100 * each / (time.perf_counter() - began_s) for each in spent), beside]
