"""Runs the fake file server of the tests as a process of its own."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).parents[2] / "tests" / "fakes" / "files.py"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The server's record of one run: requests with their headers, and how many bytes of bodies it has sent."""

    requests: list[dict[str, Any]]
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class FileServer:
    """The running file server: the addresses of its two hosts, and the folder of its files."""

    origin: str
    store: str
    folder: Path

    def url(self, run: str, faults: str, file: str) -> str:
        """Return the URL of a file, sent with these faults. Requests to it are recorded under the name `run`."""
        return f"{self.origin}/{run}/{faults}/{file}"

    def read_record(self, run: str) -> RunRecord:
        """Return what the server recorded for `run`."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.origin}/record/{run}") as answer:
            return RunRecord(**json.load(answer))


@contextmanager
def run_file_server(folder: Path) -> Iterator[FileServer]:
    """Run the server for files of `folder` until the block ends."""
    command = [sys.executable, str(_PROGRAM), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            addresses = json.loads(program.stdout.readline())
            yield FileServer(addresses["origin"], addresses["store"], folder)
        finally:
            program.stdin.close()
