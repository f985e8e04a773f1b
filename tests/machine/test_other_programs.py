"""Processor time of other programs."""

import os
import subprocess
import sys
from typing import NamedTuple

import psutil
import pytest

from launcher.machine.host_load import OtherProgramsLoad


class Times(NamedTuple):
    user: float
    system: float
    idle: float


@pytest.fixture
def spent_seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The seconds that the whole processor, this program and an engine have spent so far."""
    clock = {"busy": 100.0, "idle": 100.0, "ours": 10.0, "engine": 20.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(clock["busy"], 0.0, clock["idle"]))

    def times_of(process: psutil.Process) -> Times:
        return Times(clock["ours" if process.pid == os.getpid() else "engine"], 0.0, 0.0)

    monkeypatch.setattr(psutil.Process, "cpu_times", times_of)
    return clock


@pytest.mark.parametrize(
    ("busy", "ours", "engine", "percent"),
    [(2.0, 0.1, 1.9, 0.0), (3.0, 0.2, 0.8, 50.0), (1.0, 0.6, 0.6, 0.0), (4.0, 0.0, 0.0, 100.0)],
)
def test_the_load_of_others_excludes_the_engine_and_this_program(
    spent_seconds: dict[str, float], busy: float, ours: float, engine: float, percent: float
) -> None:
    others, parent = OtherProgramsLoad(), os.getppid()
    assert others.read_percent(parent) is None  # a share needs two readings
    spent_seconds["busy"] += busy
    spent_seconds["idle"] += 4.0 - busy
    spent_seconds["ours"] += ours
    spent_seconds["engine"] += engine
    assert others.read_percent(parent) == pytest.approx(percent)


def test_another_engine_resets_the_count_and_an_ended_one_is_unknown(spent_seconds: dict[str, float]) -> None:
    others = OtherProgramsLoad()
    others.read_percent(os.getppid())
    assert others.read_percent(os.getpid()) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert others.read_percent(ended.pid) is None
