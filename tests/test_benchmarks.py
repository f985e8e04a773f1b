"""Processes that a benchmark has started end with it, also after a failure."""

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

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
