"""Proves the handover with real clients.

    python -m tools.prove_handovers FOLDER [--handovers 200] [--llama-server PATH] [--client NAME] [--seed N]

Into FOLDER clients are installed: the SDKs of OpenAI and Anthropic, for Python and for Node, and the commands llm,
opencode and Codex. Each streams replies from `mtp-launcher serve demo`, while the server is restarted with random
settings. A reply must not break; where the gateway says that a stream goes on, its text must be that of the same
request without a handover. Prints a table, and ends with exit code 1 if a reply was broken.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.base.http import ServerClient

_HERE = Path(__file__).parent
_PYTHON_PACKAGES = ("openai", "anthropic", "llm")
_NODE_PACKAGES = ("openai", "@anthropic-ai/sdk", "opencode-ai", "@openai/codex")
_CHANGES: Mapping[str, tuple[object, ...]] = {
    "draft": (0, 1, 2, 3, 4, 5),
    "ctx": (131_072, 98_304, 65_536),  # the prompts of agents are long
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
_MOST_TOKENS = 3_000
_SERVER = ("--defaults", "--ctx", str(_CHANGES["ctx"][0]))
_ENGINE = ("--ignore-eos", "--n-predict", str(_MOST_TOKENS), "--temp", "0")
"""Arguments of the engine: not every client can name these itself."""
_REPLY_S = 180.0
_POLL_S = 0.25


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

    prompts: tuple[str, ...] = _PROMPTS

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
        line = await asyncio.wait_for(self._process.stdout.readline(), _REPLY_S)
        data = json.loads(line or b'{"text": "", "error": "the client ended"}')
        assert isinstance(data, dict)
        return data


class CommandClient(Client):
    """A command that prints one reply and ends. Its reply has begun when the engine has generated a token."""

    prompts = _PROMPTS[:1]  # an agent takes some seconds to start

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: Mapping[str, str], server: ServerClient
    ) -> None:
        super().__init__(name, command, folder)
        self._environment = {**os.environ, **environment}
        self._server = server

    async def start(self) -> None:
        """Make the folder in which the command works."""
        self._folder.mkdir(parents=True, exist_ok=True)

    async def begin_reply(self, prompt: str) -> bool:
        """Start the command; return whether its reply has begun, and not already ended."""
        self._process = await asyncio.create_subprocess_exec(
            *(*self._command, prompt),
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._ending = asyncio.ensure_future(self._process.communicate())
        while not self._ending.done():
            slots = await self._server.get_json("/slots")
            if any(slot.get("is_processing") and slot["next_token"][0]["n_decoded"] > 0 for slot in slots):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def end_reply(self) -> dict[str, Any]:
        """Return the whole reply: `text`, and `error` if it was broken."""
        output, errors = await asyncio.wait_for(self._ending, _REPLY_S)
        reply = {"text": output.decode().strip()}
        if self._process.returncode or not reply["text"]:
            reply["error"] = f"exit code {self._process.returncode}: {errors.decode()[-600:]}"
        return reply

    async def stop(self) -> None:
        """See Client. The command has ended."""


def install_clients(folder: Path) -> None:
    """Install the clients into a folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv" / "bin" / "pip", "install", "--quiet", *_PYTHON_PACKAGES], check=True)
    if not (folder / "node_modules").exists():
        (folder / "package.json").write_text("{}")
        subprocess.run(["npm", "install", "--silent", *_NODE_PACKAGES], cwd=folder, check=True)
    for path in (_HERE / "clients").iterdir():  # Node looks for modules beside the script
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())


def make_clients(folder: Path, server: ServerClient, key: str) -> list[Client]:
    """Return all clients."""
    url, python, node = server.url, str(folder / "venv" / "bin" / "python"), "node"
    commands = {
        "openai (Python), chat": [python, "openai_python.py", "chat"],
        "openai (Python), completions": [python, "openai_python.py", "completions"],
        "openai (Python), responses": [python, "openai_python.py", "responses"],
        "anthropic (Python), messages": [python, "anthropic_python.py", "messages"],
        "openai (Node), chat": [node, "node.mjs", "chat"],
        "anthropic (Node), messages": [node, "node.mjs", "messages"],
    }
    sdks = [Client(name, [*command, url, key], folder) for name, command in commands.items()]
    return [*sdks, *_make_command_clients(folder, server, key)]


def _make_command_clients(folder: Path, server: ServerClient, key: str) -> Iterator[CommandClient]:
    """Write the configurations of llm, opencode and Codex, and yield these clients."""
    home = folder / "clients"
    places = {name: home / name for name in ("llm", "opencode", "codex")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    models = [{"model_id": "demo", "model_name": "demo", "api_base": f"{server.url}/v1", "api_key_name": "demo"}]
    (places["llm"] / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    window = {"context": int(_SERVER[-1]), "output": _MOST_TOKENS}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": key, "timeout": False, "headerTimeout": False},
        "models": {"demo": {"limit": window, "reasoning": True}},
    }
    chosen = {"model": "here/demo", "small_model": "here/demo", "autoupdate": False, "share": "disabled"}
    (places["opencode"] / "opencode.json").write_text(json.dumps({"provider": {"here": provider}, **chosen}))
    (places["codex"] / "config.toml").write_text(
        f"""model = "demo"
model_provider = "here"
model_context_window = {window["context"]}
web_search = "disabled"
check_for_update_on_startup = false
[model_providers.here]
name = "here"
base_url = "{server.url}/v1"
env_key = "HERE_KEY"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
[analytics]
enabled = false
"""
    )
    modules = folder / "node_modules" / ".bin"
    llm = [str(folder / "venv" / "bin" / "llm"), "-m", "demo", "--key", key, "-o", "temperature", "0", "--no-log"]
    yield CommandClient("llm, chat", llm, places["llm"], {"LLM_USER_PATH": str(places["llm"])}, server)
    environment = {"HOME": str(places["opencode"]), "OPENCODE_CONFIG": str(places["opencode"] / "opencode.json")}
    environment |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    opencode = [str(modules / "opencode"), "run"]
    yield CommandClient("opencode, chat", opencode, places["opencode"] / "work", environment, server)
    environment = {"HOME": str(places["codex"]), "CODEX_HOME": str(places["codex"]), "HERE_KEY": key}
    codex = [str(modules / "codex"), "exec", "--skip-git-repo-check", "-s", "read-only"]
    yield CommandClient("Codex, responses", codex, places["codex"] / "work", environment, server)


async def run_proof(options: argparse.Namespace) -> int:
    """Run all handovers and print the table; return the exit code."""
    from launcher.app.running_servers import restart_server

    chance = random.Random(options.seed)
    install_clients(options.folder)
    home = options.folder / "home"
    environment = {**os.environ, "MTP_LAUNCHER_HOME": str(home)}
    os.environ["MTP_LAUNCHER_HOME"] = str(home)
    engine = ["--engine", str(options.llama_server)] if options.llama_server else []
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launcher", "serve", "demo", "--json", *_SERVER, *engine, "--", *_ENGINE),
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    ready = json.loads(await server.stdout.readline())
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    whole: dict[tuple[str, str], str] = {}
    engine_client = ServerClient(ready["url"], api_key=ready["api_key"])
    try:
        clients = make_clients(options.folder, engine_client, ready["api_key"])
        clients = [client for client in clients if options.client in client.name]
        for client in clients:
            await client.start()
            for prompt in client.prompts:
                whole[client.name, prompt] = await read_whole(client, prompt)
        for number in range(options.handovers):
            client = clients[number % len(clients)]
            name = chance.choice(tuple(_CHANGES))
            change = {name: str(chance.choice(_CHANGES[name]))}
            prompt = chance.choice(client.prompts)
            begun = await client.begin_reply(prompt)
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            report = await restart_server(None, change, drain_s=30.0)
            reply = await client.end_reply()
            add_result(tallies[client.name, name], report, reply, whole[client.name, prompt], begun=begun)
            if name not in _SAME_NUMBERS:  # the next reply is compared with one of the first settings
                await restart_server(None, {name: str(_CHANGES[name][0])})
            if number % len(clients) == len(clients) - 1:
                print(f"{number + 1} handovers", file=sys.stderr, flush=True)
        for client in clients:
            await client.stop()
    finally:
        await engine_client.close()
        server.terminate()
        await server.wait()
        print_table(tallies)  # after Ctrl-C, too
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
    columns = ["client", "change", "handovers", "went on", "ended before", "cut off", "no stream"]
    columns += ["same text", "may differ", "other", "broken"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    gaps: list[float] = []
    for (client, change), tally in sorted(tallies.items()):
        gaps += tally.gaps_s
        total = sum(tally.ways.values())
        ways = [tally.ways[way] for way in ("seamless", "drained", "cut", "no stream")]
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
    parser.add_argument("--client", default="", help="only clients whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    sys.exit(asyncio.run(run_proof(given)))
