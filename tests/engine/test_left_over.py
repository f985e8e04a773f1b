"""An engine whose program and keeper were killed is ended; other processes are not."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.base.identity import ProcessId
from launcher.engine.server import registry
from launcher.engine.server.registry import end_orphaned_engine, hash_command

STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"


@contextmanager
def engine(port: int = 23_456, program: str = STUBBORN) -> Iterator[ProcessId]:
    with subprocess.Popen([sys.executable, "-c", program, "--port", str(port)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = ProcessId.from_pid(process.pid)
        assert identity is not None
        yield identity
        process.kill()


def test_an_orphaned_engine_is_ended_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with engine() as left:
        assert end_orphaned_engine(left, 23_456, hash_command(left.pid))
        assert not left.is_running()
        assert not end_orphaned_engine(left, 23_456, None)
    assert f"process {left.pid}, port 23456" in caplog.text


def test_other_processes_are_not_ended() -> None:
    with engine() as other:
        assert not end_orphaned_engine(ProcessId(other.pid, other.created_s - 60), 23_456, None)
        assert not end_orphaned_engine(other, 23_457, None)
        assert not end_orphaned_engine(other, 23_456, "another command")
        assert other.is_running()


def test_listing_servers_ends_an_orphaned_engine() -> None:
    endpoint, registration = registry.register_server(None, registry.ServedModel(model="m", engine="e", draft=0))
    with engine(endpoint.port) as left, subprocess.Popen(["/bin/true"]) as gone:
        gone_as = ProcessId.from_pid(gone.pid) or ProcessId(gone.pid, 1.0)
        gone.wait()
        registration.update_first(
            engine_pid=left.pid, engine_created_s=left.created_s, command_hash=hash_command(left.pid)
        )
        assert registration.wait_written(60)
        assert [entry.first.engine_pid for entry in registry.list_entries()] == [left.pid]
        assert left.is_running()
        registration.update(pid=gone_as.pid, created_s=gone_as.created_s)
        assert registration.wait_written(60)
        assert registry.list_entries() == ()
        assert not left.is_running()
