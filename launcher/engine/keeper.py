"""The keeper: a tiny process between the launcher and an engine, so that no engine outlives its launcher (POSIX).

    python -I -S keeper.py STATUS_FD COMMAND [ARGUMENT ...]

It starts the command in a process group of its own and holds both ends that matter: its standard input comes
from the launcher, the engine's standard input from it. Lines it understands on standard input:

    stop      write the engine the exit line of its parent protocol, and SIGTERM to its group
    signal N  send signal N to the group

At end of file (the launcher is gone, even by SIGKILL) it ends the group: SIGTERM, half a second, SIGKILL.
On STATUS_FD it writes `started PID`, `failed ERRNO` or `exited CODE` (negative: the signal), a line each.

The parent-death signal of Linux is no substitute: it follows the spawning thread, not the process.
"""

import os
import select
import signal
import sys
import time

assert sys.platform != "win32"  # noqa: S101 -- narrows the platform for the type checker

_EXIT_LINE = b"cmd_router_to_child:exit\n"
_GRACE_S = 0.5


class _Keeper:
    def __init__(self, status: int, command: list[str]) -> None:
        self._status = status
        self._command = command
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._leave = False
        self._pid = 0
        self._engine_input = -1

    def run(self) -> int:
        if not self._start():
            return 127
        pending = b""
        while not self._leave:
            ready, _, _ = select.select([0, self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 512)
                if self._ended():
                    return 0
            if 0 in ready:
                data = os.read(0, 4096)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._obey(line.split())
        return self._end()

    def _start(self) -> bool:
        source, self._engine_input = os.pipe()
        os.set_blocking(self._engine_input, False)
        try:
            self._pid = os.posix_spawn(
                self._command[0],
                self._command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, 0)],
                setpgroup=0,
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD],
            )
        except OSError as error:
            self._say(f"failed {error.errno}")
            return False
        os.close(source)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # only the engine holds its pipes now, so their end is its end
        os.dup2(nothing, 2)
        self._say(f"started {self._pid}")
        return True

    def _obey(self, words: list[bytes]) -> None:
        if words[:1] == [b"stop"]:
            try:
                os.write(self._engine_input, _EXIT_LINE)
            except OSError:
                pass  # it does not read its input: the signal does it
            self._signal(signal.SIGTERM)
        elif words[:1] == [b"signal"] and len(words) == 2 and words[1].isdigit():
            self._signal(int(words[1]))

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._leave = True

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _ended(self) -> bool:
        if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._signal(signal.SIGKILL)  # what it may have started itself; while it is not reaped its pid is not recycled
        _, status = os.waitpid(self._pid, 0)
        self._say(f"exited {os.waitstatus_to_exitcode(status)}")
        return True

    def _end(self) -> int:
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if self._ended():
                return 0
            select.select([self._wake], [], [], 0.02)
        self._signal(signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return 0

    def _say(self, line: str) -> None:
        try:
            os.write(self._status, line.encode() + b"\n")
        except OSError:
            pass  # nobody listens any more


if __name__ == "__main__":
    status_fd = int(sys.argv[1])
    os.set_inheritable(status_fd, False)
    sys.exit(_Keeper(status_fd, sys.argv[2:]).run())
