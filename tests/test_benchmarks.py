"""Processes that a benchmark has started end with it, also after a failure; verdicts say what was measured."""

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from benchmarks.reference import Interpreter, ratio_row
from benchmarks.report import Row
from benchmarks.workplace import ROOT


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_all_that_a_benchmark_has_started_ends_with_it(how: str) -> None:
    words = [sys.executable, "-m", "benchmarks", "--quick", "--only", "log-flood"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT) as benchmark:
        try:
            started = _wait_for_engine(psutil.Process(benchmark.pid))
        finally:
            getattr(benchmark, how)()
        _, alive = psutil.wait_procs(started, timeout=120)
        for each in alive:
            each.kill()
    assert not alive


def _wait_for_engine(benchmark: psutil.Process) -> list[psutil.Process]:
    """Return all processes of the benchmark once the server process of its window has an engine."""
    while benchmark.status() != psutil.STATUS_ZOMBIE:
        started = benchmark.children(recursive=True)
        if any(_serves_window(each) for each in started):
            return started
        time.sleep(0.05)
    raise AssertionError("the benchmark has ended before")


def _serves_window(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "session_host" in " ".join(process.cmdline()) and bool(process.children())
    return False


def test_a_child_that_fails_is_reported() -> None:
    code = (
        "from benchmarks.workplace import child, read_result\n"
        'with child("window_child", "nothing") as process: read_result(process, 30)'
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "ended with exit code 1" in ran.stderr


def test_a_limit_whose_condition_was_not_reached_was_not_measured() -> None:
    bare = Interpreter()
    bare.cpu_s = [0.01]
    for reached, verdict in ((True, "kept"), (False, "not measured")):
        rows = (
            ratio_row("it", [1.0], "s", 1, "a bare one", [1.0], 1.5, " at 200 tokens/s or more", holds=reached),
            bare.share_row("it", [1.0], 1, 38, " at 200 tokens/s or more", holds=reached),
        )
        assert [row.verdict for row in rows] == [verdict, verdict]
    assert Row("it", "1 s").verdict == "no limit"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.4, 1.6, 1.4, 1.45], "kept"),
        ([1.4, 1.6, 1.7, 1.7], "unclear"),
        ([1.6, 1.7, 1.6, 9.0], "MISSED"),
        ([1.6], "MISSED"),
        ([1.4], "kept"),
    ],
)
def test_a_limit_is_missed_if_no_part_of_the_interval_keeps_it(values: list[float], verdict: str) -> None:
    row = ratio_row("it", values, "s", 1, "a bare one", [1.0] * len(values), 1.5)
    assert row.verdict == verdict
