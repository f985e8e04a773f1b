"""Coding agents and editors read their exported configurations, and send a request with them."""

import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path

from tools.prove_exports.checks import COMMAND, Proofs, ensure, export, run, serve_model

_NPM = ("opencode-ai", "@openai/codex", "@continuedev/config-yaml")
_CONTEXT = "64K"
_ASKED = "Say hello."
_CONTINUE = """\
import { parseConfigYaml } from "@continuedev/config-yaml";
import { readFileSync } from "node:fs";
const [model] = parseConfigYaml(readFileSync(process.argv[2], "utf8")).models;
console.log(JSON.stringify(model));
"""


def prove_agents(proofs: Proofs, folder: Path) -> None:
    """Install the programs from npm and PyPI, and let each read its configuration or send a request."""
    place = folder / "agents"
    for each in ("codex", "home", "work"):
        (place / each).mkdir(parents=True, exist_ok=True)

    def install() -> str:
        (place / "package.json").write_text('{"private": true}')
        ensure(run("npm", "install", "--no-fund", "--no-audit", "--silent", *_NPM, cwd=place))
        modules = place / "node_modules"
        versions = (json.loads((modules / name / "package.json").read_text())["version"] for name in _NPM)
        return ", ".join(f"{name} {version}" for name, version in zip(_NPM, versions, strict=True))

    proofs("agents: opencode, Codex and Continue's parser from npm", install)
    with serve_model("--model", "demo", "--ctx", _CONTEXT) as ready:
        for kind in ("without the key", "with the key"):
            with_key = kind.startswith("with the")
            options = ("--with-key",) if with_key else ()
            (place / "codex/config.toml").write_text(export("codex", *options))
            (place / "opencode.json").write_text(export("opencode", *options))
            (place / "continue.yaml").write_text(export("continue", *options))
            (place / "aider.yml").write_text(export("aider", *options))
            key = {} if with_key else {"LLAMA_API_KEY": ready["api_key"]}
            proofs(f"opencode: asks the model, {kind}", partial(_ask_opencode, place, key))
            proofs(f"codex: asks the model, {kind}", partial(_ask_codex, place, key))
        proofs("continue: its own parser reads it", lambda: _read_continue(place, ready["api_key"]))
        proofs("aider: asks the model", lambda: _ask_aider(place))
        proofs("env: curl asks the model with the variables", lambda: _ask_by_variables(ready["api_key"]))


def _make_environment(place: Path, key: dict[str, str], **more: str) -> dict[str, str]:
    """Return an environment with a home of its own, so that nothing of the user's is read or written."""
    return {"HOME": str(place / "home"), "LLAMA_API_KEY": "", **key, **more}


def _list_senders() -> list[str]:
    """Return the senders of the requests that the server received."""
    result = json.loads(ensure(run(*COMMAND, "requests", "--json")).stdout)["requests"]
    return [f"{each['who']} {each['end']}" for each in result]


def _ask_opencode(place: Path, key: dict[str, str]) -> str:
    program = place / "node_modules/.bin/opencode"
    environment = _make_environment(place, key, OPENCODE_CONFIG=str(place / "opencode.json"))
    environment["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
    listed = ensure(run(program, "models", env=environment, cwd=place / "work")).stdout.split()
    assert listed == ["mtp/demo"], listed
    ensure(run(program, "run", _ASKED, env=environment, cwd=place / "work"))
    return _check_last_request("opencode")


def _ask_codex(place: Path, key: dict[str, str]) -> str:
    words = ("exec", "--skip-git-repo-check", "-s", "read-only", _ASKED)
    environment = _make_environment(place, key, CODEX_HOME=str(place / "codex"))
    ensure(run(place / "node_modules/.bin/codex", *words, env=environment, cwd=place / "work"))
    return _check_last_request("codex")


def _check_last_request(name: str) -> str:
    """Return the last request, which must be the program's and complete."""
    last = _list_senders()[-1]
    assert name in last, last
    assert "complete" in last, last
    return last


def _read_continue(place: Path, api_key: str) -> str:
    (place / "read.mjs").write_text(_CONTINUE)
    model = json.loads(ensure(run("node", "read.mjs", "continue.yaml", cwd=place)).stdout)
    assert (model["model"], model["apiKey"]) == ("demo", api_key), model
    assert model["defaultCompletionOptions"]["contextLength"] == 65_536, model
    return f"{model['provider']} {model['apiBase']}"


def _ask_aider(place: Path) -> str:
    python = place / "aider/bin/python"
    if not python.exists():
        ensure(run("python3", "-m", "venv", place / "aider"))
    ensure(run(python, "-m", "pip", "install", "--quiet", "aider-chat"))
    text = (place / "aider.yml").read_text()
    limits = re.search(r"^# (\{.*\})$", text, re.MULTILINE)
    assert limits is not None, text
    (place / "limits.json").write_text(limits[1])
    words = (
        "--config",
        place / "aider.yml",
        "--model-metadata-file",
        place / "limits.json",
    )
    environment = _make_environment(place, {}, PYTHONPATH="")
    own = ("--no-git", "--yes-always", "--message", _ASKED)
    ensure(run(python.with_name("aider"), *words, *own, env=environment, cwd=place / "work"))
    version = ensure(run(python, "-m", "aider", "--version", env=environment)).stdout.strip()
    return f"{version}: {_check_last_request('OpenAI/Python')}"


def _ask_by_variables(api_key: str) -> str:
    asks = """curl --silent --fail "$OPENAI_BASE_URL/models" --header "Authorization: Bearer $OPENAI_API_KEY" &&
curl --silent --fail "$ANTHROPIC_BASE_URL/v1/models" --header "X-Api-Key: $ANTHROPIC_API_KEY" """
    result = subprocess.run(
        ["bash", "-c", f"{export('env', '--shell', 'bash')}\n{asks}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "LLAMA_API_KEY": api_key},
    )
    assert result.stdout.replace(" ", "").count('"object":"list"') == 2, result.stdout
    return "by OpenAI's and by Anthropic's"
