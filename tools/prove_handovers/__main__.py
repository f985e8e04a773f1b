"""Proves the handover with real clients.

    python -m tools.prove_handovers FOLDER [--handovers 200] [--llama-server PATH] [--client NAME] ...      see --help

Clients are installed into FOLDER: the SDKs of OpenAI and Anthropic, for Python and for Node, and the commands llm,
opencode and Codex. Each streams replies from `mtp-launcher serve demo` while the server is restarted with random
settings. A reply must not break; where the gateway says that a stream goes on, its text must be that of the same
request without a handover. Prints a table, and ends with exit code 1 if a reply was broken.

The result of each handover is saved in FOLDER at once, in one file for each engine. Saved results count towards
--handovers, so an interrupted proof continues where it was. Delete the file to start over.

With --forms it prints another table: what becomes of each form of stream (grammars, tools, stop texts, ...) at a
restart, a crash of the engine and two quick restarts. --client chooses forms then.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.base.http import ServerClient
from tools.markdown import format_table
from tools.prove_handovers.forms import prove_forms

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
"""Changes after which the engine computes the same numbers. After others even an uninterrupted reply may have another
text.
"""
_PROMPTS = (
    "Explain why a bicycle stays upright.",
    "How does bread rise, and what makes the crust brown?",
    "What is a draft, and who checks it? Answer in three paragraphs.",
)
_SERVER = ("--defaults", "--ctx", str(_CHANGES["ctx"][0]))
_ENGINE = ("--ignore-eos", "--temp", "0", "--n-predict")
"""Arguments of the engine, because not every client can set these in its requests."""
_REPLY_S, _DRAIN_S = 180.0, 30.0
_POLL_S = 0.25


@dataclass(frozen=True)
class Outcome:
    """The result of one handover. `error` is empty unless the reply was broken.

    `way` is "seamless", "drained" or "cut", or "no stream" if no reply was running; `text` is "same", "uncertain" or
    "other"; `gap_s` is the pause of a stream that went on.
    """

    client: str
    change: str
    way: str
    text: str
    error: str
    gap_s: float | None


class Client:
    """A client process, which streams one reply a request."""

    prompts: tuple[str, ...] = _PROMPTS

    def __init__(self, name: str, command: list[str], folder: Path, tokens: int) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._tokens = tokens

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24
        )

    async def begin_reply(self, prompt: str) -> bool:
        """Send a request; return whether its reply has begun, and not already ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "most": self._tokens}).encode() + b"\n")
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
        super().__init__(name, command, folder, 0)  # the engine's --n-predict limits its replies
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


def make_clients(folder: Path, server: ServerClient, key: str, tokens: int) -> list[Client]:
    """Return the clients in the order in which they take turns: SDKs twice, because commands take seconds to start."""
    url, python, node = server.url, str(folder / "venv" / "bin" / "python"), "node"
    commands = {
        "openai (Python), chat": [python, "openai_python.py", "chat"],
        "openai (Python), completions": [python, "openai_python.py", "completions"],
        "openai (Python), responses": [python, "openai_python.py", "responses"],
        "anthropic (Python), messages": [python, "anthropic_python.py", "messages"],
        "openai (Node), chat": [node, "node.mjs", "chat"],
        "anthropic (Node), messages": [node, "node.mjs", "messages"],
    }
    sdks = [Client(name, [*command, url, key], folder, tokens) for name, command in commands.items()]
    return [*sdks, *_make_command_clients(folder, server, key, tokens), *sdks]


def _make_command_clients(folder: Path, server: ServerClient, key: str, tokens: int) -> Iterator[CommandClient]:
    """Write the configurations of llm, opencode and Codex, and yield these clients."""
    home = folder / "clients"
    places = {name: home / name for name in ("llm", "opencode", "codex")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    models = [{"model_id": "demo", "model_name": "demo", "api_base": f"{server.url}/v1", "api_key_name": "demo"}]
    (places["llm"] / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    window = {"context": int(_SERVER[-1]), "output": tokens}
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
    """Run the handovers that are left and print the table of all; return the exit code."""
    install_clients(options.folder)
    kept = options.folder / f"handovers-{'llama-server' if options.llama_server else 'built-in'}.jsonl"
    outcomes = [Outcome(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    try:
        if len(outcomes) < options.handovers:
            with kept.open("a") as lines:
                async for outcome in _hand_over(options, range(len(outcomes), options.handovers)):
                    outcomes.append(outcome)
                    print(json.dumps(asdict(outcome)), file=lines, flush=True)
                    print(f"{len(outcomes)} of {options.handovers}", file=sys.stderr, flush=True)
    finally:
        print_table(outcomes)  # printed after Ctrl-C, too
    return 1 if any(outcome.error for outcome in outcomes) else 0


async def _hand_over(options: argparse.Namespace, numbers: range) -> AsyncIterator[Outcome]:
    """Serve the demo and yield the outcomes of handovers. Handovers with the same number are the same in each run."""
    from launcher.app.serving.running_servers import restart_server

    os.environ["MTP_LAUNCHER_HOME"] = str(options.folder / "home")
    engine = ["--engine", str(options.llama_server)] if options.llama_server else []
    arguments = ["serve", "demo", "--json", *_SERVER, *engine, "--", *_ENGINE, str(options.tokens)]
    server = await asyncio.create_subprocess_exec(sys.executable, "-m", "launcher", *arguments, stdout=subprocess.PIPE)
    assert server.stdout is not None
    ready = json.loads(await server.stdout.readline())
    engine_client = ServerClient(ready["url"], api_key=ready["api_key"])
    turns = make_clients(options.folder, engine_client, ready["api_key"], options.tokens)
    turns = [client for client in turns if options.client in client.name]
    clients = set(turns)
    whole: dict[tuple[str, str], str] = {}
    try:
        for client in clients:
            await client.start()
        for number in numbers:
            client, chance = turns[number % len(turns)], random.Random(f"{options.seed}/{number}")
            name, prompt = chance.choice(tuple(_CHANGES)), chance.choice(client.prompts)
            if (client.name, prompt) not in whole:
                whole[client.name, prompt] = await read_whole(client, prompt)
            change = {name: str(chance.choice(_CHANGES[name]))}
            begun = await client.begin_reply(prompt)
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            report = await restart_server(None, change, drain_s=_DRAIN_S)
            reply = await client.end_reply()
            yield make_outcome(client.name, name, report, reply, whole[client.name, prompt], begun=begun)
            if name not in _SAME_NUMBERS:  # the next reply is compared with one made with the first settings
                await restart_server(None, {name: str(_CHANGES[name][0])})
        for client in clients:
            await client.stop()
    finally:
        await engine_client.close()
        server.terminate()
        await server.wait()


async def read_whole(client: Client, prompt: str) -> str:
    """Return the text of a reply during which there is no handover."""
    await client.begin_reply(prompt)
    reply = await client.end_reply()
    assert "error" not in reply, reply
    return str(reply["text"])


def make_outcome(
    client: str, change: str, report: Mapping[str, Any], reply: Mapping[str, Any], expected: str, *, begun: bool
) -> Outcome:
    """Return the outcome of a handover: `report` is what `restart` printed, `expected` the text without a handover."""
    way = str(report["handover"]) if begun and report["streams"] else "no stream"
    uncertain = begun and report["continued"] and report["uncertain"]
    text = "same" if reply["text"] == expected else "uncertain" if uncertain else "other"
    return Outcome(client, change, way, text, str(reply.get("error", "")), report["gap_s"])


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a row for each client, as Markdown, then the other texts, the pauses, and replies that were broken."""
    columns = ["client", "went on", "ended first", "cut off", "no reply was running"]
    columns += ["same text", "uncertain", "other text", "broken"]
    rows = []
    for client in sorted({outcome.client for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.client == client]
        ways, texts = Counter(each.way for each in mine), Counter(each.text for each in mine)
        cells = [ways[way] for way in ("seamless", "drained", "cut", "no stream")]
        cells += [texts[text] for text in ("same", "uncertain", "other")]
        cells.append(sum(bool(each.error) for each in mine))
        rows.append((client, *map(str, cells)))
    print(format_table(columns, rows))
    for change in _CHANGES:
        mine = [outcome for outcome in outcomes if outcome.change == change]
        others = Counter(each.way for each in mine if each.text == "other")
        print(f"\nOther text after another {change}: {others.total()} of {len(mine)} {dict(others) or ''}", end="")
    gaps = [outcome.gap_s for outcome in outcomes if outcome.gap_s is not None]
    if len(gaps) > 1:
        slow = statistics.quantiles(gaps, n=20)[-1]
        print(f"\n\nPause in streams that went on: median {statistics.median(gaps):.2f} s, 95 % below {slow:.2f} s.")
    for outcome in outcomes:
        if outcome.error:
            print(f"broken: {outcome.client}, {outcome.change}: {outcome.error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--handovers", type=int, default=200)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--tokens", type=int, default=3_000, help="length of a reply")
    parser.add_argument("--client", default="", help="only clients whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forms", action="store_true", help="prove each form of stream instead, without clients")
    parser.add_argument("--places", type=float, nargs="+", default=(0.2, 0.6), help="shares of a reply, for --forms")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    sys.exit(asyncio.run(prove_forms(given) if given.forms else run_proof(given)))
