"""A process is distinguished from a later one with the same pid."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from launcher.base.identity import ProcessId


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its standard input does."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it end without reaping it."""
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def identity_of(process: subprocess.Popen[bytes]) -> ProcessId:
    identity = ProcessId.from_pid(process.pid)
    assert identity is not None
    return identity


def test_a_running_process_is_identified(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    assert identity.pid == child.pid
    assert identity.is_running()


def test_the_identity_of_a_process_does_not_change(child: subprocess.Popen[bytes]) -> None:
    first, second = identity_of(child), identity_of(child)
    assert first.pid == second.pid
    assert first.created_s == pytest.approx(second.created_s, abs=0.1)


def test_a_zombie_does_not_count_as_running(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    end(child)
    assert ProcessId.from_pid(child.pid) is not None  # a process that was not reaped still has an entry
    assert not identity.is_running()


def test_an_ended_process_does_not_count_as_running(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    end(child)
    child.wait()
    assert not identity.is_running()
    assert ProcessId.from_pid(child.pid) is None


@pytest.mark.parametrize("seconds", [-3600.0, -1.0, 1.0])
def test_another_process_with_the_same_pid_is_distinguished(child: subprocess.Popen[bytes], seconds: float) -> None:
    identity = identity_of(child)
    earlier = identity._replace(created_s=identity.created_s + seconds)
    assert not earlier.is_running()
    assert identity.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps the time of creation")
def test_creation_times_count_from_the_boot_and_are_independent_of_the_clock() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        created_s = identity_of(process).created_s
    assert before_s - 0.02 <= created_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
