"""The keeper: a small process between the launcher and an engine that ends the engine with the launcher (POSIX).

    python -I -S keeper.py STATUS_FD COMMAND [ARGUMENT ...]

Its standard input is a pipe from the launcher, and the engine's standard input is a pipe from the keeper. It accepts
these lines on standard input:

    start     start the command in a new process group. So a keeper can be started before its engine is needed.
    stop      write the exit line of the router protocol to the engine, and send SIGTERM to its group
    signal N  send signal N to the group

At end of file (the launcher has ended, even by SIGKILL) it ends the group: SIGTERM, half a second, SIGKILL.
Processes started by the engine end with it, even in other sessions: on Linux the keeper becomes the parent of all
orphaned descendants. To STATUS_FD it writes `started PID`, `failed ERRNO` or `exited CODE` (negative for a signal),
one on each line.

Linux's parent-death signal (PR_SET_PDEATHSIG) is no substitute: it is sent when the thread that spawned the process
ends, not when the launcher's process ends.
"""

import os
import select
import signal
import sys
import time

assert sys.platform != "win32"  # noqa: S101 -- narrows the platform for the type checker

_EXIT_LINE = b"cmd_router_to_child:exit\n"
_GRACE_S = 0.5
"""Seconds between SIGTERM and SIGKILL at end of file."""
_STRAYS_S = 2.0
"""Seconds for killing strays: processes that the engine started in other groups or sessions."""
_PR_SET_CHILD_SUBREAPER = 36


class _Keeper:
    def __init__(self, status_fd: int, command: list[str]) -> None:
        self._status_fd = status_fd
        self._command = command
        self._wake_read, self._wake_write = os.pipe()  # signals write to it, so that select returns
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._stopping = False
        self._pid = 0
        self._engine_input = -1

    def run(self) -> int:
        _adopt_orphans()
        pending = b""
        while not self._stopping:
            ready, _, _ = select.select([0, self._wake_read], [], [])
            if self._wake_read in ready:
                os.read(self._wake_read, 512)
                if self._pid and self._report_if_ended():
                    return 0
            if 0 in ready:
                data = os.read(0, 4096)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    if line != b"start":
                        self._execute_line(line.split())
                    elif not self._start_engine():
                        return 127
        return self._end_engine() if self._pid else 0

    def _start_engine(self) -> bool:
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
            self._report(f"failed {error.errno}")
            return False
        os.close(source)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)  # now only the engine holds its output pipes, so they reach end of file when it ends
        os.dup2(devnull, 2)
        self._report(f"started {self._pid}")
        return True

    def _execute_line(self, words: list[bytes]) -> None:
        if words[:1] == [b"stop"]:
            try:
                os.write(self._engine_input, _EXIT_LINE)
            except OSError:
                pass  # the engine does not read its standard input; the signal below stops it
            self._signal_group(signal.SIGTERM)
        elif words[:1] == [b"signal"] and len(words) == 2 and words[1].isdigit():
            self._signal_group(int(words[1]))

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stopping = True

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _report_if_ended(self) -> bool:
        """Return whether the engine has ended; if so, kill what it left behind and report its exit code."""
        self._reap_strays()
        if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        # Kill what is left in the engine's group before reaping the engine: until then its pid cannot be reused.
        self._signal_group(signal.SIGKILL)
        strays = _list_descendants(os.getpid())
        _, status = os.waitpid(self._pid, 0)
        self._end_strays(strays)
        self._report(f"exited {os.waitstatus_to_exitcode(status)}")
        return True

    def _end_engine(self) -> int:
        self._signal_group(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if self._report_if_ended():
                return 0
            select.select([self._wake_read], [], [], 0.02)
        self._signal_group(signal.SIGKILL)
        strays = _list_descendants(os.getpid())
        os.waitpid(self._pid, 0)
        self._end_strays(strays)
        return 0

    def _reap_strays(self) -> None:
        """Reap strays that have ended, but not the engine itself."""
        try:
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self._pid:
                    return
                os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            pass

    def _end_strays(self, strays: list[int]) -> None:
        """Kill the strays and those that they start meanwhile. Call it after the engine was reaped."""
        deadline = time.monotonic() + _STRAYS_S
        while time.monotonic() < deadline:
            for pid in strays:
                if pid != self._pid:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except (ProcessLookupError, PermissionError):
                        pass
            self._reap_strays()
            if not (strays := _list_descendants(os.getpid())):  # their own children have been reparented to the keeper
                return
            select.select([self._wake_read], [], [], 0.01)

    def _report(self, line: str) -> None:
        try:
            os.write(self._status_fd, line.encode() + b"\n")
        except OSError:
            pass  # the launcher has ended


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, even after double forks (PR_SET_CHILD_SUBREAPER, prctl(2), Linux)."""
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            pass


def _list_descendants(process: int) -> list[int]:
    """Return the pids of all descendants of a process, from /proc; empty on systems without it."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 -- without pathlib this process stays tiny
    except OSError:
        return []
    for name in names:
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 -- see above
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    descendants = []
    parents = [process]
    while parents:
        found = children.get(parents.pop(), [])
        descendants += found
        parents += found
    return descendants


if __name__ == "__main__":
    status_fd = int(sys.argv[1])
    os.set_inheritable(status_fd, False)
    os._exit(_Keeper(status_fd, sys.argv[2:]).run())  # the launcher waits for this end; nothing is left to be flushed
