"""A home and a project for each agent, with its program installed, and the commands that are run there."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from launcher.agents.agent import Agent

TREE = Path(__file__).parents[2]
_ENGINE = TREE / "tests" / "fakes" / "agent_server.py"
_CLAUDE = TREE / "tests" / "fakes" / "claude_client.py"
"""The client in place of Claude Code, which is proprietary: it sends the same requests."""
_CONTEXT = 131_072
"""The demo's vocabulary is so small that a prompt of 17,000 tokens of other models has 60,000 of its tokens."""
_LIMIT_S = 600
_MOST_REQUESTS = 500
"""As many as the gateway remembers."""
_BEGIN = re.compile(r", context [\d,]+\.\n")
_END = re.compile(
    r"^(?:\d+ requests?: |(?:A prompt was|\d+ prompts were) refused|\S.* sent no request\.|Is it ready for |Stopping)",
    re.MULTILINE,
)
"""The lines of `mtp-launcher code` before and after what the agent prints."""


class RecordingProxy(http.server.BaseHTTPRequestHandler):
    """Refuses every request, and records where it would have gone."""

    hosts: ClassVar[set[str]] = set()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def handle_one_request(self) -> None:
        """Read the request's first line, and refuse it."""
        line = self.rfile.readline(65_536).decode("latin-1").split()
        if len(line) > 1:
            target = line[1] if line[0] != "CONNECT" else f"https://{line[1]}"
            self.hosts.add(urlsplit(target).hostname or target)
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.close_connection = True


def install_agents(folder: Path, agents: list[Agent]) -> None:
    """Install the agents that are not in the folder yet."""
    if any(agent.name == "claude" for agent in agents):
        write_script(folder / "npm/node_modules/.bin/claude", _CLAUDE)
    if any(agent.name == "aider" for agent in agents) and not (folder / "npm/node_modules/.bin/aider").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "aider-venv")], check=True)
        subprocess.run([str(folder / "aider-venv/bin/pip"), "install", "-q", "aider-chat"], check=True)
        (folder / "npm/node_modules/.bin").mkdir(parents=True, exist_ok=True)
        (folder / "npm/node_modules/.bin/aider").symlink_to(folder / "aider-venv/bin/aider")
    missing = [agent for agent in agents if not (folder / "npm/node_modules/.bin" / agent.program).exists()]
    if missing:
        packages = [agent.install.split()[-1] for agent in missing]
        (folder / "npm").mkdir(exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder / "npm"), *packages]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_script(path: Path, program: Path) -> None:
    """Write a script that runs one of our Python programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    path.chmod(0o755)


@dataclass(frozen=True)
class Workplace:
    """A home and a project of its own for an agent, with the environment in which it runs there."""

    agent: Agent
    folder: Path
    environment: Mapping[str, str]

    @property
    def project(self) -> Path:
        """The folder in which the agent runs."""
        return self.folder / "project"

    @property
    def log(self) -> Path:
        """The requests that the scripted engine has received."""
        return self.folder / "requests.jsonl"

    @property
    def hold_file(self) -> Path:
        """While this file is there, the scripted engine stops within its next text."""
        return self.folder / "hold"

    @property
    def scripted_options(self) -> list[str]:
        """Options for a server with the scripted engine."""
        return ["--model", "demo", "--engine", str(self.folder / "scripted-engine")]

    def read_log(self) -> list[dict[str, Any]]:
        """Return the requests that the scripted engine got, and empty its log."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def read_package_version(self) -> str | None:
        """Return the version in the package that npm installed; None for a program of another kind."""
        package = self.folder.parent / "npm/node_modules" / self.agent.install.split()[-1] / "package.json"
        return str(json.loads(package.read_text())["version"]) if package.exists() else None


@dataclass(frozen=True)
class CodeRun:
    """One `mtp-launcher code`: its words, exit code, and output in the order of a terminal."""

    words: tuple[str, ...]
    code: int
    output: str

    @property
    def agent_output(self) -> str:
        """The output of the agent itself."""
        return _END.split(_BEGIN.split(self.output, maxsplit=1)[-1], maxsplit=1)[0]


def make_workplace(folder: Path, agent: Agent, proxy_port: int) -> Workplace:
    """Make the folders anew."""
    place = folder / agent.name
    shutil.rmtree(place, ignore_errors=True)
    project = place / "project"
    project.mkdir(parents=True)
    (place / "home").mkdir()
    (project / "answer.py").write_text("def answer():\n    return 42\n")
    write_script(place / "scripted-engine", _ENGINE)
    address = f"http://127.0.0.1:{proxy_port}"
    environment = os.environ | {
        "HOME": str(place / "home"),
        "MTP_LAUNCHER_HOME": str(place / "launcher"),
        "PATH": f"{folder / 'npm/node_modules/.bin'}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(project),  # opencode takes the current folder from it
        "PYTHONPATH": str(TREE),
        "AGENT_FILE": str(project / "answer.py"),
        "AGENT_LOG": str(place / "requests.jsonl"),
        "AGENT_HOLD": str(place / "hold"),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }
    return Workplace(agent, place, environment)


@contextmanager
def serve_model(place: Workplace, *model: str) -> Iterator[None]:
    """Serve a model within the block, as `code` would for this agent."""
    slots = ["--slots", str(place.agent.slots), "--kv-unified"] if place.agent.slots > 1 else []
    command = [sys.executable, "-m", "launcher", "serve", *model, "--json", "--ctx", str(_CONTEXT), *slots]
    with subprocess.Popen(command, env=place.environment, cwd=TREE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def run_code(place: Workplace, options: list[str], arguments: tuple[str, ...], *, limit_s: float = _LIMIT_S) -> CodeRun:
    """Run `mtp-launcher code` in the project's folder. Raises TimeoutExpired with what it printed."""
    words = ("code", place.agent.name, *options, "--", *arguments)
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        env=place.environment,
        cwd=place.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # the command ends its agent and its server, too
        output, _ = process.communicate()
        raise subprocess.TimeoutExpired(process.args, limit_s, output) from None
    print(
        f"  {place.agent.name} {arguments[0][:20]}: {process.returncode} after {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    return CodeRun(words, process.returncode, output)


def run_launcher(place: Workplace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another command of the program."""
    command = [sys.executable, "-m", "launcher", *arguments]
    return subprocess.run(command, env=place.environment, cwd=TREE, capture_output=True, text=True, check=True)


def read_requests(place: Workplace) -> list[dict[str, Any]]:
    """Return the last requests to the running server."""
    result = run_launcher(place, "requests", "--json", "-n", str(_MOST_REQUESTS))
    return list(json.loads(result.stdout)["requests"])
