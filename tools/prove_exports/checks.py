"""Helpers of all checks: running commands, servers for the time of a block, and a count of passed checks."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "launcher"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Proofs:
    """Runs checks by name and counts them."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def __call__(self, name: str, check: Callable[[], str]) -> None:
        """Run one check, which returns a note to print."""
        try:
            result = check()
        except Exception as error:  # noqa: BLE001 -- a check may fail in any way; it is named and the others go on
            self.failed.append(name)
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
        else:
            self.passed += 1
            print(f"passed  {name}{f': {result}' if result else ''}", flush=True)


def run(
    *command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, within five minutes."""
    words = [str(word) for word in command]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, cwd=cwd, check=False)


def ensure(result: subprocess.CompletedProcess[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """Return the output of a command; fail if it ended with another exit code."""
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, not {code}: {(result.stderr + result.stdout)[-800:]}")
    return result


def export(kind: str, *options: str) -> str:
    """Return the text of an export."""
    return ensure(run(*COMMAND, "export", kind, *options)).stdout


@contextmanager
def serve_model(*options: str, home: Path | None = None) -> Iterator[dict[str, Any]]:
    """Serve a model for as long as the block lasts; yield the JSON of `serve --json`. `home` is another home."""
    environment = {**os.environ, **({"MTP_LAUNCHER_HOME": str(home)} if home else {})}
    with subprocess.Popen(
        [*COMMAND, "serve", *options, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(20)


def get(url: str, key: str | None = None) -> tuple[int, Any]:
    """Return the status and the JSON of a response; status 0 if there is none."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with OPENER.open(request, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
