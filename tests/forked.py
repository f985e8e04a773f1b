"""Commands of the command line in processes forked from one that has imported them all.

Most of the processor time of a short command goes into imports. A forked one is all else that a user's is: it has its
own arguments, environment, folder, streams, signals, and end. What a process takes from its environment when it starts,
like the path of its libraries, a fork cannot have otherwise; a command that differs in it is started the usual way.

    python -m tests.forked DESCRIPTOR    is the process that they are forked from
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "launcher")
_AT_THE_START = ("LD_", "PYTHON", "LANG", "LC_", "TZ", "GLIBC_", "MALLOC_")
_MOST_BYTES = 1 << 17
_servers: dict[tuple[tuple[str, str], ...], socket.socket] = {}


@contextmanager
def prepared(**environment: str) -> Iterator[None]:
    """Have a process that commands are forked from, if what they take from theirs at the start is as in this one."""
    whole = os.environ | environment
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, env=whole, pass_fds=[theirs.fileno()])
    with server, ours:  # whose end ends it
        _servers[_at_the_start(whole)] = ours
        yield
        del _servers[_at_the_start(whole)]


def _at_the_start(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in environment.items() if item[0].startswith(_AT_THE_START)))


def run(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | None = None,  # noqa: A002 -- as subprocess.run names it
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run `mtp-launcher ARGUMENTS` as subprocess.run would, with its outputs captured."""
    words = [str(argument) for argument in arguments]
    environment = dict(os.environ if env is None else env)
    if (server := _servers.get(_at_the_start(environment))) is None:
        return subprocess.run(
            [*COMMAND, *words],
            capture_output=True,
            encoding="utf-8",
            env=environment | {"PYTHONIOENCODING": "utf-8"},
            cwd=cwd,
            input=None if input is None else input.decode(),
            timeout=timeout,
            check=False,
        )
    request = {"arguments": words, "environment": environment, "folder": str(cwd or Path.cwd())}
    answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes = [os.pipe(), os.pipe()]
    with answers, theirs, TemporaryFile() as given:
        given.write(input or b"")
        given.seek(0)
        stdin = 0 if input is None else given.fileno()
        descriptors = [stdin, *(write for _, write in pipes), theirs.fileno()]
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
        for _, write in pipes:
            os.close(write)
        theirs.close()
        try:
            process = int(answers.recv(_MOST_BYTES))
            try:
                out, err = _read([read for read, _ in pipes], time.monotonic() + timeout)
                answers.settimeout(timeout)
                code = int(answers.recv(_MOST_BYTES))
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                answers.settimeout(None)
                answers.recv(_MOST_BYTES)
                raise subprocess.TimeoutExpired(words, timeout) from None
        finally:
            for read, _ in pipes:
                os.close(read)
    return subprocess.CompletedProcess([*COMMAND, *words], code, out, err)


def _read(pipes: list[int], deadline_s: float) -> list[str]:
    """Read all to their ends; raises TimeoutError at the deadline, of time.monotonic()."""
    found = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if not (ready := selector.select(deadline_s - time.monotonic())) and time.monotonic() > deadline_s:
                raise TimeoutError
            for key, _ in ready:
                if data := os.read(key.fd, _MOST_BYTES):
                    found[key.fd] += data
                else:
                    selector.unregister(key.fd)
    return [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in found.values()]


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for every request, tell its process id, then its exit code; return the request, in the fork."""
    while True:
        request, descriptors, *_ = socket.recv_fds(channel, _MOST_BYTES, 4)
        if not request:
            sys.exit()
        *streams, answers = descriptors
        if not (process := os.fork()):
            for stream, descriptor in enumerate(streams):
                os.dup2(descriptor, stream)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.close()
            return dict(json.loads(request))
        os.write(answers, str(process).encode())
        for descriptor in streams:
            os.close(descriptor)
        _, status = os.waitpid(process, 0)
        os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(answers)


def _import_all() -> None:
    import launcher
    import launcher.cli

    for package in (launcher, launcher.cli):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name != "launcher.__main__":
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # what is never looked at stays shared


if __name__ == "__main__":
    _import_all()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = [str(ROOT / "launcher" / "__main__.py"), *asked["arguments"]]
    sys.path[0] = asked["folder"]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = (
        os.fdopen(0, encoding="utf-8", closefd=False),
        os.fdopen(1, "w", encoding="utf-8", closefd=False),
        os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False),
    )
    from launcher.entry import run as command

    command()
