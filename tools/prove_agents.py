"""Runs real coding agents by `mtp-launcher code`: with a scripted engine behind the gateway, and with the demo.

The agents are installed from npm into a folder, each gets a home and a project of its own, and everything that it tries
to reach beside this computer is refused and written down. With --misfortunes the servers treat them badly instead:
prompts that are too long, conversations that outgrow the context, restarts and killed engines in the middle of a reply.
"""

import argparse
import asyncio
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from launcher.agents.agent import Agent, find_agent
from launcher.agents.program import read_version

_TREE = Path(__file__).parent.parent
_ENGINE = _TREE / "tests" / "fakes" / "agent_server.py"
_CLAUDE = _TREE / "tests" / "fakes" / "claude_client.py"
"""In place of Claude Code, which is proprietary: a client that sends what it sends."""
_QUESTION = "Read the file answer.py in this folder and say what it returns."
_LATER_QUESTIONS = ("And what is multi-token prediction?", "And what does it cost?")
"""The engine is replaced before the last one."""
_CONTEXT = 131_072
"""The demo's vocabulary is so small that a prompt of 17,000 tokens elsewhere is 60,000 here."""
_LIMIT_S = 600
_MISFORTUNE_LIMIT_S = 150
_POLL_S = 0.1
_LONG_QUESTION_WORDS = 60_000
"""Words of a prompt that is too long for every agent's least context, and just short enough for an argument."""
_LONG_FILE_SHARE = 0.2
"""Share of the context that a file takes which the agent reads again and again, in lines of which each is 12 tokens."""
_READINGS = 4
_LEAST_REUSE = 0.95
_MOST_REQUESTS = 500
"""As many as the gateway remembers."""
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
    "aider": (
        ("--yes-always", "--no-git", "answer.py", "--message"),
        ("--yes-always", "--no-git", "--restore-chat-history", "answer.py", "--message"),
    ),
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


class Reuse(NamedTuple):
    """What a turn's first prompt reused of the last prompt and reply before it, in tokens.

    A chat template that leaves earlier thinking out has the reply read again.
    """

    reused: int
    prompt: int
    reply: int

    def __str__(self) -> str:
        return f"{self.reused:,} of {self.prompt:,} + {self.reply:,}"


@dataclass
class Outcome:
    """What an agent did: whether it read the file by a tool, its exit codes, and the reuse of its later prompts.

    `reuse` has the share of each prompt that others had in common with it, `turns` that of each later turn.
    """

    agent: Agent
    version: str
    read_file: bool = False
    codes: list[int] = field(default_factory=list)
    reuse: list[float] = field(default_factory=list)
    turns: list[Reuse] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all of it is as it should be."""
        return self.read_file and not any(self.codes) and all(share >= _LEAST_REUSE for share in self.reuse)

    def as_row(self) -> str:
        """Return it as a row of a Markdown table."""
        reuse = f"{100 * min(self.reuse):.1f} %" if self.reuse else "-"
        turns = " | ".join(str(turn) for turn in self.turns) or "-"
        reached = ", ".join(self.reached) or "nothing"
        tool = "read" if self.read_file else "not read"
        return f"| {self.agent.title} {self.version} | {tool} | {self.codes} | {turns} | {reuse} | {reached} |"


def main() -> int:
    """Run the agents. Exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one of an earlier run")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"default: {', '.join(_HEADLESS)}")
    parser.add_argument("--misfortunes", action="store_true", help="only print what each makes of bad luck")
    options = parser.parse_intermixed_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    agents = [find_agent(name) for name in options.agents or _HEADLESS]
    install_agents(folder, agents)
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingProxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    outcomes = []
    for agent in agents:
        RecordingProxy.hosts.clear()
        place = make_workplace(folder, agent, proxy.server_address[1])
        if options.misfortunes:
            print(f"| {agent.title} |", " | ".join(prove_misfortunes(place)), "|", flush=True)
            continue
        outcome = prove_agent(place)
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
        """What was sent to the scripted engine."""
        return self.folder / "requests.jsonl"

    @property
    def hold(self) -> Path:
        """While this file is there, the scripted engine stops within its next text."""
        return self.folder / "hold"

    @property
    def scripted(self) -> list[str]:
        """Options for a server with the scripted engine."""
        return ["--model", "demo", "--engine", str(self.folder / "scripted-engine")]

    def read_log(self) -> list[dict[str, Any]]:
        """Return the requests that the scripted engine got, and empty its log."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


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
        "PWD": str(project),  # opencode goes by it
        "AGENT_FILE": str(project / "answer.py"),
        "AGENT_LOG": str(place / "requests.jsonl"),
        "AGENT_HOLD": str(place / "hold"),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }
    return Workplace(agent, place, environment)


def prove_agent(place: Workplace) -> Outcome:
    """Run an agent with the scripted engine, and for three turns with the demo, the last after a restart."""
    program = shutil.which(place.agent.program, path=place.environment["PATH"])
    version = asyncio.run(read_version((program,))) if program else None
    outcome = Outcome(place.agent, version or "?")
    first, later = _HEADLESS[place.agent.name]
    told = run_code(place, place.scripted, (*first, _QUESTION))
    outcome.codes.append(told.returncode)
    called = any(each["results"] for each in place.read_log()) or not place.agent.calls_tools
    outcome.read_file = "returns 42" in told.stdout + told.stderr and called
    (place.folder / "scripted.txt").write_text(told.stdout + told.stderr)
    with served_demo(place):
        turns: list[list[dict[str, Any]]] = []
        for question in (_QUESTION, *(_LATER_QUESTIONS if later is not None else ())):
            if question == _LATER_QUESTIONS[-1]:
                run_launcher(place, "restart", "--set", "draft=3")
            told = run_code(place, [], (*((later or ()) if turns else first), question))
            outcome.codes.append(told.returncode)
            turns.append(read_requests(place)[sum(map(len, turns)) :])
            (place.folder / f"demo-{len(turns)}.txt").write_text(told.stdout + told.stderr)
        (place.folder / "requests.json").write_text(json.dumps(turns, indent=1))
    outcome.reuse = list(find_reuse([request for turn in turns for request in turn]))
    outcome.turns = list(compare_turns(turns))
    return outcome


def prove_misfortunes(place: Workplace) -> Iterator[str]:
    """Yield, as cells of a Markdown table, what the agent makes of each misfortune."""
    yield send_overlong_prompt(place)
    yield outgrow_context(place)
    for name, disturb in (("restarted", restart_engine), ("killed", kill_engine)):
        yield disturb_reply(place, name, disturb)


def send_overlong_prompt(place: Workplace) -> str:
    """Ask a question that no context holds; return how the agent ends, and how often it asked."""
    question = "a " * _LONG_QUESTION_WORDS
    options = [*place.scripted, "--ctx", str(place.agent.least_context)]
    try:
        told = run_code(place, options, (*_HEADLESS[place.agent.name][0], question), limit_s=_MISFORTUNE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"goes on: {len(place.read_log())} requests in {_MISFORTUNE_LIMIT_S} s"
    (place.folder / "overlong.txt").write_text(told.stdout + told.stderr)
    said = "says so" if "context" in told.stdout + told.stderr.partition("Stopping")[0] else "silent"
    return f"exit code {told.returncode}, {said}, {len(place.read_log())} requests"


def outgrow_context(place: Workplace) -> str:
    """Let the agent read a long file in each turn; return its exit codes, and whether it summed the conversation up."""
    context = place.agent.least_context * 3  # the scripted engine counts twice as many tokens as most models
    lines = int(context * _LONG_FILE_SHARE / 12)
    text = "".join(f"# line {number} of many lines\n" for number in range(lines))
    (place.project / "answer.py").write_text(f"{text}def answer():\n    return 42\n")
    first, later = _HEADLESS[place.agent.name]
    codes, sizes = [], []
    for turn in range(_READINGS if later is not None else 1):
        arguments = (*(first if turn == 0 or later is None else later), _QUESTION)
        try:
            told = run_code(place, [*place.scripted, "--ctx", str(context)], arguments, limit_s=_MISFORTUNE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"goes on: {len(place.read_log())} requests in {_MISFORTUNE_LIMIT_S} s"
        (place.folder / f"grown-{turn}.txt").write_text(told.stdout + told.stderr)
        codes.append(told.returncode)
        sizes += [each["tokens"] for each in place.read_log() if each["tools"] or each["tokens"] > context // 4]
    (place.project / "answer.py").write_text("def answer():\n    return 42\n")
    shrank = any(after < 0.8 * before for before, after in pairwise(sizes))
    return f"{'summed up' if shrank else 'not summed up'}, exit codes {codes}, prompts {sizes} of {context}"


def disturb_reply(place: Workplace, name: str, disturb: Callable[[Workplace], object]) -> str:
    """Do something to the server at the first word of the scripted engine's text; return what became of it.

    That engine then says no more, so the disturbance is never too late.
    """
    ended = threading.Event()
    reached = place.hold.with_name(f"{place.hold.name}.reached")

    def watch() -> None:
        while not reached.exists():
            if ended.wait(_POLL_S):
                return
        disturb(place)

    watcher = threading.Thread(target=watch, daemon=True)
    with served(place, "demo", "--engine", str(place.folder / "scripted-engine")):
        place.hold.touch()  # not before, for a start sends a request of its own
        watcher.start()
        try:
            told = run_code(place, [], (*_HEADLESS[place.agent.name][0], _QUESTION), limit_s=_MISFORTUNE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"goes on after {_MISFORTUNE_LIMIT_S} s"
        finally:
            ended.set()
            watcher.join()
        requests = read_requests(place)
    place.hold.unlink(missing_ok=True)
    if not reached.exists():
        return "no reply was held"
    reached.unlink()
    (place.folder / f"{name}.txt").write_text(told.stdout + told.stderr)
    (place.folder / f"{name}.json").write_text(json.dumps(requests, indent=1))
    answered = "answered" if "returns 42" in told.stdout + told.stderr else "no answer"
    went_on = sum(each["handovers"] > 0 and each["end"] == "complete" for each in requests)
    ends = ", ".join(str(each["end"]) for each in requests)
    return f"{answered}, exit code {told.returncode}, {went_on} went on, requests: {ends}"


def restart_engine(place: Workplace) -> None:
    """Restart the engine of the running server with another setting."""
    run_launcher(place, "restart", "--set", "draft=3")


def kill_engine(place: Workplace) -> None:
    """Kill the engine of the running server."""
    (server,) = json.loads(run_launcher(place, "status", "--json").stdout)
    os.kill(server["pid"], signal.SIGKILL)


def read_requests(place: Workplace) -> list[dict[str, Any]]:
    """Return the last requests to the running server."""
    told = run_launcher(place, "requests", "--json", "-n", str(_MOST_REQUESTS))
    return list(json.loads(told.stdout)["requests"])


def find_reuse(requests: list[dict[str, Any]]) -> Iterator[float]:
    """Yield how much each later prompt reused of what earlier ones had in common with it, by `requests`."""
    for each in requests:
        lost = (each["reread"] or {"tokens": 0})["tokens"]
        if each["reused_tokens"] or lost:
            yield each["reused_tokens"] / (each["reused_tokens"] + lost)


def compare_turns(turns: list[list[dict[str, Any]]]) -> Iterator[Reuse]:
    """Yield what each later turn reused. Of several kinds of requests the one with the longest prompts counts."""
    for before, after in pairwise([[each for each in turn if each["prompt_tokens"]] for turn in turns]):
        last = max(before, key=lambda each: each["prompt_tokens"])
        grown = (each for each in after if each["prompt_tokens"] > last["prompt_tokens"])
        if first := next(grown, None):
            yield Reuse(first["reused_tokens"], last["prompt_tokens"], last["reply_tokens"] or 0)


@contextmanager
def served_demo(place: Workplace) -> Iterator[None]:
    """Serve the demo within the block, as `code` would for this agent."""
    with served(place, "demo"):
        yield


@contextmanager
def served(place: Workplace, *model: str) -> Iterator[None]:
    """Serve a model within the block."""
    slots = ["--slots", str(place.agent.slots), "--kv-unified"] if place.agent.slots > 1 else []
    command = [sys.executable, "-m", "launcher", "serve", *model, "--json", "--ctx", str(_CONTEXT), *slots]
    with subprocess.Popen(command, env=place.environment, cwd=_TREE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.terminate()


def run_code(
    place: Workplace, options: list[str], arguments: tuple[str, ...], *, limit_s: float = _LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run `mtp-launcher code` in the project's folder. Raises TimeoutExpired."""
    command = [sys.executable, "-m", "launcher", "code", place.agent.name, *options, "--", *arguments]
    began_s = time.monotonic()
    process = subprocess.Popen(
        command,
        env={**place.environment, "PYTHONPATH": str(_TREE)},
        cwd=place.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its agent and its server
        process.communicate()
        raise
    print(
        f"  {place.agent.name} {arguments[0][:20]}: {process.returncode} after {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_launcher(place: Workplace, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another command of the program."""
    command = [sys.executable, "-m", "launcher", *arguments]
    return subprocess.run(command, env=place.environment, cwd=_TREE, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
