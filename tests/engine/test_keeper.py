"""The keeper, controlled over its pipes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pytest

from launcher.base.identity import ProcessId

KEEPER = Path(__file__).parents[2] / "launcher" / "engine" / "server" / "keeper.py"
ECHO = "import sys; [print('got', line.strip(), flush=True) for line in sys.stdin]"


class KeptEngine:
    def __init__(self, keeper: subprocess.Popen[bytes], status: IO[bytes]) -> None:
        self.keeper = keeper
        self.status = status

    def tell(self, line: str) -> None:
        assert self.keeper.stdin is not None
        self.keeper.stdin.write(line.encode() + b"\n")
        self.keeper.stdin.flush()

    def started(self) -> ProcessId:
        word, pid = self.status.readline().split()
        assert word == b"started"
        identity = ProcessId.from_pid(int(pid))
        assert identity is not None
        return identity


@contextmanager
def run_under_keeper(*command: str, starts: bool = True) -> Iterator[KeptEngine]:
    read, write = os.pipe()
    arguments = [sys.executable, "-I", "-S", str(KEEPER), str(write), *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        arguments, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(write,), start_new_session=True
    ) as keeper:
        os.close(write)
        with os.fdopen(read, "rb") as status:
            engine = KeptEngine(keeper, status)
            if starts:
                engine.tell("start")
            yield engine
        assert keeper.stdin is not None
        with suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.wait(120)


def end_within(identity: ProcessId, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identity.is_running():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_the_keeper_reports_the_exit_code() -> None:
    with run_under_keeper("/bin/sh", "-c", "exit 7") as engine:
        engine.status.readline()
        assert engine.status.readline() == b"exited 7\n"


def test_the_keeper_reports_the_signal_that_ended_the_engine() -> None:
    with run_under_keeper("/bin/sh", "-c", "kill -SEGV $$") as engine:
        engine.status.readline()
        assert engine.status.readline() == f"exited {-signal.SIGSEGV}\n".encode()


def test_without_a_start_command_the_keeper_ends_with_the_launcher_and_runs_nothing(tmp_path: Path) -> None:
    with run_under_keeper("/bin/sh", "-c", f"echo up > {tmp_path}/run", starts=False) as engine:
        assert engine.keeper.stdin is not None
        engine.keeper.stdin.close()
        assert engine.keeper.wait(60) == 0
        assert engine.status.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_the_keeper_reports_why_a_program_cannot_be_started() -> None:
    with run_under_keeper("/no/such/program") as engine:
        assert engine.status.readline() == b"failed 2\n"


def test_the_engine_writes_directly_into_the_pipes_of_the_launcher() -> None:
    with run_under_keeper("/bin/sh", "-c", "echo out; echo err >&2") as engine:
        assert engine.keeper.stdout is not None
        assert engine.keeper.stderr is not None
        assert engine.keeper.stdout.read() == b"out\n"
        assert engine.keeper.stderr.read() == b"err\n"


def test_a_signal_reaches_the_whole_group() -> None:
    with run_under_keeper("/bin/sh", "-c", "sleep 600 & echo $!; wait") as engine:
        assert engine.keeper.stdout is not None
        grandchild = ProcessId.from_pid(int(engine.keeper.stdout.readline()))
        assert grandchild is not None
        engine.tell(f"signal {signal.SIGKILL:d}")
        assert end_within(grandchild, 2)


def test_child_processes_of_the_engine_end_with_it() -> None:
    with run_under_keeper("/bin/sh", "-c", "sleep 600 & echo $!") as engine:
        assert engine.keeper.stdout is not None
        grandchild = ProcessId.from_pid(int(engine.keeper.stdout.readline()))
        assert grandchild is None or end_within(grandchild, 2)


def test_stop_writes_the_exit_line_and_sends_sigterm() -> None:
    on_signal = "import os, signal; signal.signal(15, lambda *_: os.write(1, b'term\\n'))"
    program = f"{on_signal}; print('up', flush=True); {ECHO}"
    with run_under_keeper(sys.executable, "-c", program) as engine:
        assert engine.keeper.stdout is not None
        assert engine.keeper.stdout.readline() == b"up\n"
        engine.tell("stop")
        received = {engine.keeper.stdout.readline(), engine.keeper.stdout.readline()}
        assert received == {b"term\n", b"got cmd_router_to_child:exit\n"}


@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "ignores SIGTERM"])
def test_the_engine_ends_soon_after_the_pipe_closes(stubborn: bool) -> None:
    trap = "trap '' TERM; " if stubborn else ""
    with run_under_keeper("/bin/sh", "-c", f"{trap}echo up; while :; do sleep 0.1; done") as engine:
        assert engine.keeper.stdout is not None
        identity = engine.started()
        engine.keeper.stdout.readline()
        assert engine.keeper.stdin is not None
        engine.keeper.stdin.close()
        assert end_within(identity, 2)


def test_the_engine_ends_within_two_seconds_after_kill_9_of_the_launcher() -> None:
    launcher = (
        "import os, subprocess, sys; read, write = os.pipe(); "
        f"keeper = subprocess.Popen([sys.executable, '-I', '-S', {str(KEEPER)!r}, str(write), '/bin/sleep', '600'], "
        "stdin=subprocess.PIPE, pass_fds=(write,), start_new_session=True, bufsize=0); "
        "keeper.stdin.write(b'start\\n'); "
        "print(os.read(read, 100).decode(), end='', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        identity = ProcessId.from_pid(int(process.stdout.readline().split()[1]))
        assert identity is not None
        process.kill()
        process.wait()
        assert end_within(identity, 2)


def test_a_terminated_keeper_ends_the_engine() -> None:
    with run_under_keeper("/bin/sleep", "600") as engine:
        identity = engine.started()
        engine.keeper.terminate()
        assert end_within(identity, 2)


def test_the_keeper_uses_little_memory() -> None:
    with run_under_keeper("/bin/sleep", "600") as engine:
        engine.started()
        assert psutil.Process(engine.keeper.pid).memory_info().rss < 16 * 2**20


AWAY = (
    "import os, sys, time\n"
    "if os.fork(): {parent}\n"
    "os.setsid()\n"
    "if {twice} and os.fork(): os._exit(0)\n"
    "print(os.getpid(), flush=True)\n"
    "time.sleep(600)"
)
"""A program whose child goes into a session of its own, with `twice` as daemons do: its parent ends, too."""


def detached_command(*, twice: bool, parent: str = "time.sleep(600)") -> tuple[str, str, str]:
    return sys.executable, "-c", AWAY.format(parent=parent, twice=twice)


def child_of(engine: KeptEngine) -> ProcessId:
    assert engine.keeper.stdout is not None
    child = ProcessId.from_pid(int(engine.keeper.stdout.readline()))
    assert child is not None
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
@pytest.mark.parametrize("twice", [False, True], ids=["a session of its own", "a daemon"])
@pytest.mark.parametrize("end", ["stop", f"signal {signal.SIGKILL:d}", None], ids=["stop", "kill", "no launcher"])
def test_processes_that_left_the_group_of_the_engine_end_with_it(twice: bool, end: str | None) -> None:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as other:
        with run_under_keeper(*detached_command(twice=twice)) as engine:
            child = child_of(engine)
            if end is not None:
                engine.tell(end)
            else:
                assert engine.keeper.stdin is not None
                engine.keeper.stdin.close()
            assert engine.keeper.wait(60) == 0
            assert not child.is_running()
        assert other.poll() is None  # a process outside the engine's group goes on
        other.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_processes_that_left_the_group_of_a_crashing_engine_end_with_it() -> None:
    with run_under_keeper(*detached_command(twice=True, parent="time.sleep(0.2); os.abort()")) as engine:
        child = child_of(engine)
        engine.status.readline()
        assert engine.status.readline() == f"exited {-signal.SIGABRT}\n".encode()
        assert not child.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_orphans_leave_no_zombies() -> None:
    start_and_leave = "(sleep 0.01 &) ; (sleep 0.01 &) ; echo up; exec sleep 600"
    with run_under_keeper("/bin/sh", "-c", start_and_leave) as engine:
        identity = engine.started()
        assert engine.keeper.stdout is not None
        assert engine.keeper.stdout.readline() == b"up\n"
        keeper = psutil.Process(engine.keeper.pid)
        deadline = time.monotonic() + 120
        while [each.pid for each in keeper.children()] != [identity.pid]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
