"""Processes told apart from later ones with the same pid."""

import os
import subprocess
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
    identity = ProcessId.of(process.pid)
    assert identity is not None
    return identity


def test_a_running_process_is_recognised(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    assert identity.pid == child.pid
    assert identity.running()


def test_it_is_the_same_each_time_it_is_asked_for(child: subprocess.Popen[bytes]) -> None:
    first, second = identity_of(child), identity_of(child)
    assert first.pid == second.pid
    assert first.created_s == pytest.approx(second.created_s, abs=0.1)


def test_a_zombie_does_not_run(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    end(child)
    assert ProcessId.of(child.pid) is not None  # its entry is still there
    assert not identity.running()


def test_a_process_that_is_gone_does_not_run(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    end(child)
    child.wait()
    assert not identity.running()
    assert ProcessId.of(child.pid) is None


@pytest.mark.parametrize("seconds", [-3600.0, -1.0, 1.0])
def test_another_process_with_the_same_pid_is_not_mistaken_for_it(
    child: subprocess.Popen[bytes], seconds: float
) -> None:
    identity = identity_of(child)
    earlier = identity._replace(created_s=identity.created_s + seconds)
    assert not earlier.running()
    assert identity.running()


def test_a_boot_time_that_is_read_anew_makes_no_other_process(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    assert identity._replace(created_s=identity.created_s + 0.1).running()
    assert identity._replace(created_s=identity.created_s - 0.1).running()
