"""Runs real coding agents by `mtp-launcher code`: with a scripted engine behind the gateway, and with the demo.

The agents are installed from npm into a folder, each gets a home and a project of its own, and everything that it tries
to reach beside this computer is refused and written down.
"""

import argparse
import asyncio
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from launcher.agents.agent import Agent, find_agent
from launcher.agents.program import read_version

_TREE = Path(__file__).parent.parent
_ENGINE = _TREE / "tests" / "fakes" / "agent_server.py"
_CLAUDE = _TREE / "tests" / "fakes" / "claude_client.py"
"""In place of Claude Code, which is proprietary: a client that sends what it sends."""
_QUESTION = "Read the file answer.py in this folder and say what it returns."
_SECOND_QUESTION = "And what is multi-token prediction?"
_CONTEXT = 131_072
"""The demo's vocabulary is so small that a prompt of 17,000 tokens elsewhere is 60,000 here."""
_LIMIT_S = 600
_LEAST_REUSE = 0.95
_HEADLESS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "opencode": (("run",), ("run", "-c")),
    "codex": (
        ("exec", "--skip-git-repo-check", "-s", "danger-full-access"),
        ("exec", "--skip-git-repo-check", "-s", "danger-full-access", "resume", "--last"),
    ),
    "qwen": (("-y", "-p"), ("-y", "-c", "-p")),
    "pi": (("-p",), ("-c", "-p")),
    "cline": ((), None),
    "claude": (("-p",), ("-c", "-p")),
}
"""Arguments before the question, in the first turn and in the next; None if a next one needs a terminal."""


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


@dataclass
class Outcome:
    """What an agent did: whether it read the file by a tool, its exit codes, and the reuse of its later prompts."""

    agent: Agent
    version: str
    read_file: bool = False
    codes: list[int] = field(default_factory=list)
    reuse: list[float] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all of it is as it should be."""
        return self.read_file and not any(self.codes) and all(share >= _LEAST_REUSE for share in self.reuse)

    def as_row(self) -> str:
        """Return it as a row of a Markdown table."""
        reuse = ", ".join(f"{100 * share:.1f} %" for share in self.reuse) or "-"
        reached = ", ".join(self.reached) or "nothing"
        tool = "read" if self.read_file else "not read"
        return f"| {self.agent.title} {self.version} | {tool} | {self.codes} | {reuse} | {reached} |"


def main() -> int:
    """Run the agents. Exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one of an earlier run")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"default: {', '.join(_HEADLESS)}")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    agents = [find_agent(name) for name in options.agents or _HEADLESS]
    install_agents(folder, agents)
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingProxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    outcomes = []
    for agent in agents:
        RecordingProxy.hosts.clear()
        outcome = prove_agent(folder, agent, proxy.server_address[1])
        outcome.reached = sorted(RecordingProxy.hosts)
        outcomes.append(outcome)
        print(outcome.as_row(), flush=True)
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"{passed} passed, {len(outcomes) - passed} failed")
    return 0 if passed == len(outcomes) else 1


def install_agents(folder: Path, agents: list[Agent]) -> None:
    """Install the agents that are not in the folder yet."""
    if any(agent.name == "claude" for agent in agents):
        write_script(folder / "npm/node_modules/.bin/claude", _CLAUDE)
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


def prove_agent(folder: Path, agent: Agent, proxy_port: int) -> Outcome:
    """Run one agent against the scripted engine, and for two turns against the demo with a restart in between."""
    place = folder / agent.name
    shutil.rmtree(place, ignore_errors=True)
    project, log = place / "project", place / "requests.jsonl"
    project.mkdir(parents=True)
    (project / "answer.py").write_text("def answer():\n    return 42\n")
    engine = place / "scripted-engine"
    write_script(engine, _ENGINE)
    address = f"http://127.0.0.1:{proxy_port}"
    environment = os.environ | {
        "HOME": str(place / "home"),
        "MTP_LAUNCHER_HOME": str(place / "launcher"),
        "PATH": f"{folder / 'npm/node_modules/.bin'}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(project),  # opencode goes by it
        "AGENT_FILE": str(project / "answer.py"),
        "AGENT_LOG": str(log),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }
    (place / "home").mkdir()
    program = shutil.which(agent.program, path=environment["PATH"])
    version = asyncio.run(read_version((program,))) if program else None
    outcome = Outcome(agent, version or "?")
    first, later = _HEADLESS[agent.name]
    told = run_code(agent, project, environment, ["--model", "demo", "--engine", str(engine)], (*first, _QUESTION))
    outcome.codes.append(told.returncode)
    answered = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    outcome.read_file = "returns 42" in told.stdout + told.stderr and any(each.get("results") for each in answered)
    (place / "scripted.txt").write_text(told.stdout + told.stderr)
    with served_demo(agent, environment):
        told = run_code(agent, project, environment, [], (*first, _QUESTION))
        outcome.codes.append(told.returncode)
        if later is not None:
            run_launcher(environment, "restart", "--set", "draft=3")
            told = run_code(agent, project, environment, [], (*later, _SECOND_QUESTION))
            outcome.codes.append(told.returncode)
        (place / "demo.txt").write_text(told.stdout + told.stderr)
        requests = json.loads(run_launcher(environment, "requests", "--json").stdout)["requests"]
        (place / "requests.json").write_text(json.dumps(requests, indent=1))
    outcome.reuse = list(find_reuse(requests)) if later is not None else []
    return outcome


def find_reuse(requests: list[dict[str, Any]]) -> Iterator[float]:
    """Yield how much each later prompt reused of what earlier ones had in common with it, by `requests`."""
    for each in requests:
        lost = (each["reread"] or {"tokens": 0})["tokens"]
        if each["reused_tokens"] or lost:
            yield each["reused_tokens"] / (each["reused_tokens"] + lost)


@contextmanager
def served_demo(agent: Agent, environment: Mapping[str, str]) -> Iterator[None]:
    """Serve the demo within the block, as `code` would for this agent."""
    slots = ["--slots", str(agent.slots), "--kv-unified"] if agent.slots > 1 else []
    command = [sys.executable, "-m", "launcher", "serve", "demo", "--json", "--ctx", str(_CONTEXT), *slots]
    with subprocess.Popen(command, env=environment, cwd=_TREE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def run_code(
    agent: Agent, project: Path, environment: Mapping[str, str], options: list[str], arguments: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run `mtp-launcher code` in the project's folder."""
    command = [sys.executable, "-m", "launcher", "code", agent.name, *options, "--", *arguments]
    began_s = time.monotonic()
    told = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": str(_TREE)},
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    print(f"  {agent.name} {arguments[0]}: {told.returncode} after {time.monotonic() - began_s:.0f} s", flush=True)
    return told


def run_launcher(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another command of the program."""
    command = [sys.executable, "-m", "launcher", *arguments]
    return subprocess.run(command, env=environment, cwd=_TREE, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
