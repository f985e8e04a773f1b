"""Samples of this host and of a process, by the real psutil."""

import os
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from launcher.machine.gpu import Reading
from launcher.machine.sensors import HostSensors

MIB = 2**20
ENDED = Reading(None, "The engine has ended.")
NONE = Reading(None, "No engine is running.")


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its standard input does."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it end without reaping it."""
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def engine_memory(sensors: HostSensors) -> Reading:
    return sensors.sample()["engine_memory_mib"]


def test_the_host_is_sampled_in_the_units_of_the_names() -> None:
    sensors = HostSensors()
    while (readings := sensors.sample())["host_cpu_percent"].value is None:
        assert readings["host_cpu_percent"].absent == "Not measured for long enough yet."
    use, memory = readings["host_cpu_percent"].value, readings["host_memory_used_mib"].value
    assert use is not None
    assert 50 / (psutil.cpu_count() or 1) <= use <= 100  # this loop has kept one processor busy
    assert memory is not None
    assert 1 < memory <= psutil.virtual_memory().total / MIB


def test_engine_memory_is_unknown_without_an_engine() -> None:
    assert engine_memory(HostSensors()) == NONE


def test_a_watched_process_is_measured() -> None:
    sensors = HostSensors()
    sensors.watch_process(os.getpid())
    value = engine_memory(sensors).value
    assert value == pytest.approx(psutil.Process().memory_info().rss / MIB, rel=0.2)


def test_sampling_a_process_can_stop() -> None:
    sensors = HostSensors()
    sensors.watch_process(os.getpid())
    sensors.watch_process(None)
    assert engine_memory(sensors) == NONE


def test_the_memory_of_an_ended_engine_is_unknown_and_not_0(engine: subprocess.Popen[bytes]) -> None:
    sensors = HostSensors()
    sensors.watch_process(engine.pid)
    assert (engine_memory(sensors).value or 0) > 0
    end(engine)
    assert engine_memory(sensors) == ENDED  # an engine that its keeper has not reaped yet counts as ended
    engine.wait()
    assert engine_memory(sensors) == ENDED


def test_an_ended_process_is_not_an_engine(engine: subprocess.Popen[bytes]) -> None:
    end(engine)
    engine.wait()
    sensors = HostSensors()
    sensors.watch_process(engine.pid)
    assert engine_memory(sensors) == NONE


def test_an_unknown_reading_carries_its_reason() -> None:
    assert Reading.unknown("Why not.") == (None, "Why not.")
