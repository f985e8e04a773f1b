"""Proves the handover with real clients.

    python -m tools.prove_handovers FOLDER [--handovers 200] [--llama-server PATH] [--seed N]

Into FOLDER the SDKs of OpenAI and Anthropic are installed, for Python and for Node. Each client streams replies from
`mtp-launcher serve demo`, while the server is restarted with random settings. A reply must not break; where the
gateway says that a stream goes on, its text must be that of the same request without a handover. Prints a table, and
ends with exit code 1 if a reply was broken.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PYTHON_SDKS, _NODE_SDKS = ("openai", "anthropic"), ("openai", "@anthropic-ai/sdk")
_CHANGES: Mapping[str, tuple[object, ...]] = {
    "draft": (0, 1, 2, 3, 4, 5),
    "ctx": (4096, 8192, 2048),
    "kv": ("f16", "q8_0"),
    "ubatch": (512, 128, 256),
    "slots": (1, 2),
}
_SAME_NUMBERS = ("draft", "ctx")
"""Changes with which the engine computes the same numbers. With others even an uncut reply may have another text."""
_PROMPTS = (
    "Explain why a bicycle stays upright.",
    "How does bread rise, and what makes the crust brown?",
    "What is a draft, and who checks it? Answer in three paragraphs.",
)
_MOST_TOKENS = 1_500


@dataclass
class Tally:
    """What the handovers of one client and one kind of change did."""

    ways: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    equal: int = 0
    uncertain: int = 0
    other: int = 0
    broken: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


class Client:
    """A client process, which streams one reply a request."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._command = command
        self._folder = folder

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24
        )

    async def begin_reply(self, prompt: str) -> bool:
        """Send a request; return whether its reply has begun, and not already ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "most": _MOST_TOKENS}).encode() + b"\n")
        self._last = await self._read_line()
        return "text" not in self._last

    async def end_reply(self) -> dict[str, Any]:
        """Return the whole reply: `text`, and `error` if it was broken."""
        if "text" not in self._last:
            self._last = await self._read_line()
        return self._last

    async def stop(self) -> None:
        """End the process."""
        self._process.kill()
        await self._process.wait()

    async def _read_line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 120)
        data = json.loads(line or b'{"text": "", "error": "the client ended"}')
        assert isinstance(data, dict)
        return data


def install_sdks(folder: Path) -> None:
    """Install the SDKs into a folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv" / "bin" / "pip", "install", "--quiet", *_PYTHON_SDKS], check=True)
    if not (folder / "node_modules").exists():
        (folder / "package.json").write_text("{}")
        subprocess.run(["npm", "install", "--silent", *_NODE_SDKS], cwd=folder, check=True)
    for path in (_HERE / "clients").iterdir():  # Node looks for modules beside the script
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())


def make_clients(folder: Path, url: str, key: str) -> list[Client]:
    """Return all clients."""
    python, node = str(folder / "venv" / "bin" / "python"), "node"
    commands = {
        "openai (Python), chat": [python, "openai_python.py", "chat"],
        "openai (Python), completions": [python, "openai_python.py", "completions"],
        "openai (Python), responses": [python, "openai_python.py", "responses"],
        "anthropic (Python), messages": [python, "anthropic_python.py", "messages"],
        "openai (Node), chat": [node, "node.mjs", "chat"],
        "anthropic (Node), messages": [node, "node.mjs", "messages"],
    }
    return [Client(name, [*command, url, key], folder) for name, command in commands.items()]


async def run_proof(options: argparse.Namespace) -> int:
    """Run all handovers and print the table; return the exit code."""
    from launcher.app.running_servers import restart_server

    chance = random.Random(options.seed)
    install_sdks(options.folder)
    home = options.folder / "home"
    environment = {**os.environ, "MTP_LAUNCHER_HOME": str(home)}
    os.environ["MTP_LAUNCHER_HOME"] = str(home)
    engine = ["--engine", str(options.llama_server)] if options.llama_server else []
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launcher", "serve", "demo", "--json", "--defaults", *engine),
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    ready = json.loads(await server.stdout.readline())
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    try:
        clients = make_clients(options.folder, ready["url"], ready["api_key"])
        each_client = -(-options.handovers // len(clients))
        for client in clients:
            await client.start()
            whole = {prompt: await read_whole(client, prompt) for prompt in _PROMPTS}
            for _ in range(each_client):
                name = chance.choice(tuple(_CHANGES))
                change = {name: str(chance.choice(_CHANGES[name]))}
                prompt = chance.choice(_PROMPTS)
                begun = await client.begin_reply(prompt)
                await asyncio.sleep(chance.uniform(0.0, 0.2))
                report = await restart_server(None, change, drain_s=30.0)
                reply = await client.end_reply()
                tally = tallies[client.name, name]
                add_result(tally, report, reply, whole[prompt], begun=begun)
                if name not in _SAME_NUMBERS:  # the next reply is compared with one of the first settings
                    await restart_server(None, {name: str(_CHANGES[name][0])})
            await client.stop()
            print(f"{client.name}: {each_client} handovers", file=sys.stderr, flush=True)
    finally:
        server.terminate()
        await server.wait()
    print_table(tallies)
    return 1 if any(tally.broken for tally in tallies.values()) else 0


async def read_whole(client: Client, prompt: str) -> str:
    """Return a reply without a handover."""
    await client.begin_reply(prompt)
    reply = await client.end_reply()
    assert "error" not in reply, reply
    return str(reply["text"])


def add_result(
    tally: Tally, report: Mapping[str, Any], reply: Mapping[str, Any], expected: str, *, begun: bool
) -> None:
    """Add one handover to a tally."""
    if "error" in reply:
        tally.broken.append(str(reply["error"]))
    went_on = begun and bool(report["continued"])
    tally.ways["no stream" if not begun or not report["streams"] else str(report["handover"])] += 1
    if reply["text"] == expected:
        tally.equal += 1
    elif went_on and report["uncertain"]:
        tally.uncertain += 1
    else:
        tally.other += 1
    if report["gap_s"] is not None:
        tally.gaps_s.append(report["gap_s"])


def print_table(tallies: Mapping[tuple[str, str], Tally]) -> None:
    """Print a row for each client and kind of change, as Markdown."""
    print(
        "| client | change | handovers | went on | ended before | no stream | same text | may differ | other | broken |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    gaps: list[float] = []
    for (client, change), tally in sorted(tallies.items()):
        gaps += tally.gaps_s
        total = sum(tally.ways.values())
        ways = [tally.ways[way] for way in ("seamless", "drained", "no stream")]
        print(
            f"| {client} | {change} | {total} | {' | '.join(map(str, ways))} | {tally.equal} | {tally.uncertain} |"
            f" {tally.other} | {len(tally.broken)} |"
        )
    if len(gaps) > 1:
        slow = statistics.quantiles(gaps, n=20)[-1]
        print(f"\nPause in streams that went on: median {statistics.median(gaps):.2f} s, 95 % below {slow:.2f} s.")
    for key, tally in tallies.items():
        for error in tally.broken:
            print(f"broken: {key}: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--handovers", type=int, default=200)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    sys.exit(asyncio.run(run_proof(given)))
