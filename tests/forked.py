"""Commands, and other Python programs of ours, in processes forked from one that has imported all of them.

Most of the processor time of a short command goes into imports. In all else a forked command is like a user's: it has
its own arguments, environment, folder, streams, signals and exit code. A fork cannot change what a process reads from
its environment when it starts, such as the search path of its libraries; a command that needs other values there is
started with subprocess.

    python -m tests.forked DESCRIPTOR    runs the process that they are forked from
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, NoReturn, Self

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "launcher")
_READ_AT_START = ("LD_", "PYTHON", "LANG", "LC_", "GLIBC_", "MALLOC_")
"""Prefixes of the variables that a process reads when it starts."""
_NOT_IMPORTED = (
    "launcher.gui",
    "launcher.__main__",
    "launcher.engine.builtin",
    "launcher.engine.server.process_windows",
)
_IMPORTED_LATE = ("anyio._backends._asyncio", "anyio.streams.tls", "encodings.idna", "httpcore", "pynvml")
"""Modules that the first request and the first reading of a GPU import."""
OWN_HOME = Path(gettempdir(), "mtp-launcher-tests" + (f"-{os.getuid()}" if os.name == "posix" else ""))
"""Folder of data that is the same in all tests and takes time to compute: the catalogue, sizes of buffers."""
_MOST_BYTES = 1 << 17
_servers: dict[tuple[tuple[str, str], ...], socket.socket] = {}


@contextmanager
def prepared(**environment: str) -> Iterator[None]:
    """Run a process that commands are forked from if they have its values of the variables in _READ_AT_START."""
    merged = os.environ | environment
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, env=merged, pass_fds=[theirs.fileno()])
    with server, ours:  # closing `ours` ends the process
        _servers[_start_values(merged)] = ours
        yield
        del _servers[_start_values(merged)]


def _start_values(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in environment.items() if item[0].startswith(_READ_AT_START)))


class Program:
    """A running forked command, with the part of subprocess.Popen that tests use."""

    def __init__(self, words: Sequence[str], pid: int, answers: socket.socket, files: Sequence[IO[Any] | None]) -> None:
        self.args = list(words)
        self.pid = pid
        self.stdin, self.stdout, self.stderr = files
        self.returncode: int | None = None
        self._answers = answers
        weakref.finalize(self, answers.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # a failed test must not wait for a command that it did not end
            self.kill()
        for file in filter(None, (self.stdin, self.stdout, self.stderr)):
            file.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            # The exit code stays in the socket, for other threads that wait.
            self.returncode = int(self._answers.recv(_MOST_BYTES, socket.MSG_PEEK))
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the command may have ended just now, as in subprocess.Popen
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Wait until the command ends; return the text of standard output and standard error since the last read."""
        deadline_s = time.monotonic() + timeout
        pipes = [-1 if file is None else file.fileno() for file in (self.stdout, self.stderr)]
        try:
            texts = _read([pipe for pipe in pipes if pipe >= 0], deadline_s)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout) from None
        self.wait(max(deadline_s - time.monotonic(), 1.0))
        out, err = (texts.get(pipe, "") for pipe in pipes)
        return out, err


def start(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Program | subprocess.Popen[str]:
    """Start `mtp-launcher ARGUMENTS` as subprocess.Popen would, with its streams as text."""
    words = [*COMMAND, *map(str, arguments)]
    environment = dict(os.environ if env is None else env)
    streams = (stdin, stdout, stderr)
    if (program := _fork(words, environment, cwd, streams, encoding="utf-8")) is not None:
        return program
    own = environment | {"PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(words, encoding="utf-8", env=own, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)


def popen(
    command: Sequence[str],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
    creationflags: int = 0,
) -> Program | subprocess.Popen[bytes]:
    """Start a Python program of ours as subprocess.Popen would; tests patch modules to call this in its place."""
    streams = (stdin, stdout, stderr)
    environment = dict(os.environ if env is None else env)
    if (program := _fork(command, environment, None, streams, new_session=start_new_session)) is not None:
        return program
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        start_new_session=start_new_session,
        creationflags=creationflags,
    )


def _fork(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
    streams: Sequence[int | None],
    encoding: str | None = None,
    *,
    new_session: bool = False,
) -> Program | None:
    """Return the forked program; None if there is no process with such an environment to fork it from."""
    if (server := _servers.get(_start_values(environment))) is None:
        return None
    answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nowhere = os.open(os.devnull, os.O_RDWR)
    given: list[int] = []
    files: list[IO[Any] | None] = []
    pipes = [nowhere]
    for stream, wanted in enumerate(streams):
        file, end = None, wanted
        if wanted == subprocess.PIPE:
            read, write = os.pipe()
            end, ours = (write, read) if stream else (read, write)
            file = os.fdopen(ours, ("r" if stream else "w") + ("" if encoding else "b"), encoding=encoding)
            pipes.append(end)
        files.append(file)
        given.append(stream if end is None else nowhere if end == subprocess.DEVNULL else end)
    request = {
        "words": command[1:],
        "environment": environment,
        "folder": str(folder or Path.cwd()),
        "new_session": new_session,
    }
    with theirs:
        socket.send_fds(server, [json.dumps(request).encode()], [*given, theirs.fileno()])
    for descriptor in pipes:
        os.close(descriptor)
    return Program(command, int(answers.recv(_MOST_BYTES)), answers, files)


def run(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | None = None,  # noqa: A002 -- as subprocess.run names it
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run `mtp-launcher ARGUMENTS` as subprocess.run would, with its outputs captured."""
    with TemporaryFile() as given:
        given.write(input or b"")
        given.seek(0)
        stdin = None if input is None else given.fileno()
        pipe = subprocess.PIPE
        with start(*arguments, env=env, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe) as program:
            out, err = program.communicate(timeout=timeout)
            return subprocess.CompletedProcess(program.args, program.wait(), out, err)


def _read(pipes: list[int], deadline_s: float) -> dict[int, str]:
    """Read all pipes to their ends. Raises TimeoutError at the deadline, a time of time.monotonic()."""
    received = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if not (ready := selector.select(deadline_s - time.monotonic())) and time.monotonic() > deadline_s:
                raise TimeoutError
            for key, _ in ready:
                if data := os.read(key.fd, _MOST_BYTES):
                    received[key.fd] += data
                else:
                    selector.unregister(key.fd)
    return {pipe: text.decode().replace("\r\n", "\n").replace("\r", "\n") for pipe, text in received.items()}


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for every request; send the fork's process id, and its exit code when it ends.

    Returns in forks only, with the request.
    """
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        while running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            with suppress(OSError):  # the socket is closed if nobody waits for the exit code
                os.write(running[process], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(running.pop(process))
        if channel not in ready:
            continue
        request, descriptors, *_ = socket.recv_fds(channel, _MOST_BYTES, 4)
        if not request:
            sys.exit()
        *streams, answers = descriptors
        if not (process := os.fork()):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream, descriptor in enumerate(streams):
                os.dup2(descriptor, stream)
            for descriptor in (*descriptors, *running.values(), woken, wake):
                os.close(descriptor)
            channel.close()
            return dict(json.loads(request))
        os.write(answers, str(process).encode())
        running[process] = answers
        for descriptor in streams:
            os.close(descriptor)


def _import_all() -> None:
    """Import every module that a command may need, although commands import most of them only when they use them."""
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith(_NOT_IMPORTED):
            importlib.import_module(name)
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    _fill_caches()
    gc.collect()
    gc.freeze()  # objects that the collector never visits stay in memory that forks share
    gc.set_threshold(20_000)


def _fill_caches() -> None:
    from launcher.base.paths import HOME_VARIABLE, shipped_file
    from launcher.engine import demo
    from launcher.engine.builds.probe import probe_engine
    from launcher.engine.diagnosis.signatures import fault_signatures
    from launcher.models import kept_buffers
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import PlanCriteria, make_plans
    from launcher.models.situation import describe_machine
    from tests.remembered import remember_answers

    remember_answers()
    os.environ[HOME_VARIABLE] = str(OWN_HOME)
    asyncio.run(probe_engine(None))
    demo.lzma.decompress((shipped_file("resources", "demo") / "demo.gguf.xz").read_bytes())  # as each new home does
    for machine in (describe_machine(24), describe_machine(24, host_gib=16, backend="cpu")):
        make_plans(load_catalogue(), machine, PlanCriteria())  # computes hundreds of buffer sizes
    kept_buffers._open_store(str(OWN_HOME)).save()  # for the next process that commands are forked from
    fault_signatures()


def _exit_process(ended: SystemExit) -> NoReturn:
    """End as Python does, but without clearing its modules, which would write to every page that forks share."""
    if isinstance(ended.code, str):
        raise ended
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        raise ended from None
    os._exit(ended.code or 0)


def _run_program(words: Sequence[str]) -> None:
    """Run the program that these arguments of the interpreter name."""
    if words[:2] == ["-m", "launcher"]:
        from launcher.entry import run as command  # importing it changes the handler of SIGINT

        sys.argv = [str(ROOT / "launcher" / "__main__.py"), *words[2:]]
        command()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    match words:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-P", "-c", program, *arguments]:
            del sys.path[0]
            sys.argv = ["-c", *arguments]
            exec(program, {"__name__": "__main__"})
        case [script, *arguments]:
            sys.path[0] = str(Path(script).parent)
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _import_all()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = (
        os.fdopen(0, encoding="utf-8", closefd=False),
        os.fdopen(1, "w", encoding="utf-8", closefd=False),
        os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False),
    )
    try:
        _run_program(request["words"])
    except SystemExit as ended:
        _exit_process(ended)
    _exit_process(SystemExit())
