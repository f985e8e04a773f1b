"""A benchmark's child processes end with it, also after a failure."""

import subprocess
import sys

import psutil
import pytest

from benchmarks.workplace import ROOT

_PARENT = """
from benchmarks.workplace import child, read_result
with child("window_child", "empty", "300") as process:
    print(process.pid, flush=True)
    read_result(process, 300)
"""


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_child_process_ends_with_the_benchmark(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        getattr(parent, how)()
        _, alive = psutil.wait_procs([process], timeout=120)
        for each in alive:
            each.kill()
    assert not alive


def test_a_child_that_fails_is_reported() -> None:
    code = (
        "from benchmarks.workplace import child, read_result\n"
        'with child("window_child", "nothing") as process: read_result(process, 30)'
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "ended with exit code 1" in ran.stderr
