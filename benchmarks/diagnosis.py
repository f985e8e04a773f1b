"""Measures the time from the end of the engine until the reason is shown: in the window, and in the terminal."""

import json
import subprocess
import time
from collections.abc import Iterator

import psutil

from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import child, command, read_result
from launcher.base.paths import state_dir

_LIMIT = 125
_CRASHES_S, _ENDS_S = 120.0, 20.0


def run(*, quick: bool) -> Iterator[Row]:
    """Kill the engine under a server again and again; the window is offscreen."""
    times = 2 if quick else 15
    for kind, name in (
        ("to the reason painted in the window, demo model", "demo"),
        ("to the same with 5,000 log lines in memory (fake engine)", "full-log"),
        ("to the reason printed by `mtp-launcher serve`, demo model", ""),
    ):
        bare = Interpreter()
        bare.start(5)
        seconds = _in_the_window(name, times) if name else [_in_the_terminal() for _ in range(times)]
        bare.start(5)
        yield bare.row(f"from kill -9 of the engine {kind}", seconds, "s", 3, _LIMIT)


def _in_the_window(kind: str, times: int) -> list[float]:
    with child("fault_child", "crash", kind, str(times)) as process:
        seconds: list[float] = read_result(process, _CRASHES_S)["seconds"]
    return seconds


def _in_the_terminal() -> float:
    with subprocess.Popen(
        [*command(), "serve", "--model", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            while "Ctrl-C" not in program.stdout.readline():
                assert program.poll() is None
            pid = json.loads(next(state_dir().rglob("server-*.json")).read_bytes())["engine_pid"]
            began_s = time.perf_counter()
            psutil.Process(pid).kill()
            while "killed" not in program.stderr.readline():
                assert program.poll() is None
            return time.perf_counter() - began_s
        finally:
            program.terminate()
            program.communicate(timeout=_ENDS_S)
