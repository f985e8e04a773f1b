"""Fixtures of the attacks: a real server of the real program, a terminal, another user."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.base.paths import HOME_VARIABLE
from tests import forked

NOBODY = 65_534
"""The user and group of nobody (Debian, Fedora, Arch)."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]")
"""Control and invisible characters."""


@dataclass(frozen=True)
class Served:
    """A server that `serve` runs: what it printed, and its own processes."""

    url: str
    api_key: str
    pid: int
    launcher_pid: int
    lan: tuple[str, ...]
    home: Path


@contextmanager
def serve(home: Path, *arguments: str) -> Iterator[Served]:
    """Run `serve demo` with a home of its own, umask 0, and secrets of other programs in the environment."""
    environment = os.environ | {
        HOME_VARIABLE: str(home),
        "HF_TOKEN": "hf_theirs",
        "AWS_SECRET_ACCESS_KEY": "aws_theirs",
    }
    command = [sys.executable, "-m", "launcher", "serve", "demo", "--json", *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, umask=0) as program:
        try:
            assert program.stdout
            result = json.loads(program.stdout.readline())
            lan = tuple(result.get("lan", ()))
            yield Served(result["url"], result["api_key"], result["pid"], result["launcher_pid"], lan, home)
        finally:
            program.send_signal(signal.SIGINT)
            program.wait(120)


@pytest.fixture(scope="session", autouse=True)
def commands_are_forked(forked_commands: None) -> None:
    """Start the process that the commands of tests.forked are forked from."""


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Served]:
    """The demo, served to this computer alone, in a folder that every user may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with serve(Path(folder) / "home") as server:
            yield server


def in_terminal(*arguments: str, home: Path, interrupt_after: bytes = b"") -> tuple[int, str]:
    """Run the program in a terminal; return its exit code and all that the terminal got.

    With `interrupt_after` it gets SIGINT as soon as it has printed that.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
    environment = os.environ | {HOME_VARIABLE: str(home), "QT_QPA_PLATFORM": "offscreen"}
    with forked.start(*arguments, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave) as running:
        os.close(slave)
        got = b""
        with suppress(OSError):  # the end of a terminal
            while data := os.read(master, 65_536):
                waits = bool(interrupt_after) and interrupt_after not in got
                got += data
                if waits and interrupt_after in got:
                    running.send_signal(signal.SIGINT)
    os.close(master)
    return running.wait(), got.decode("utf-8", "replace")


def as_another_user(script: str, *arguments: str) -> str:
    """Run Python as the user nobody if that is allowed, and return its output."""
    drop = (
        "import encodings.idna, http.client, os, socket, sys, urllib.error, urllib.request\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    )
    command = [sys.executable, "-I", "-c", drop + script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
