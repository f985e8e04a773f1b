"""The keys of docs/json.md are in what the commands print."""

import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from launcher.engine.server.endpoint import claim_endpoint
from tests import forked
from tests.cli.test_tune import WORKLOAD

_DOCUMENT = (Path(__file__).parents[2] / "docs" / "json.md").read_text("utf-8")
_LINE = re.compile(r"^- (.+?): (.+(?:\n  .+)*)", re.MULTILINE)


def read_documented_keys(command: str) -> dict[str, set[str]]:
    """Return the keys that docs/json.md documents for a command, by the object that has them."""
    section = _DOCUMENT.split(f"\n## `{command}`\n")[1].split("\n## ")[0]
    return {what: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", keys))) for what, keys in _LINE.findall(section)}


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- what JSON holds
    done = forked.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_keys_of_plan_json_are_documented() -> None:
    result, keys = answer("plan", "demo"), read_documented_keys("plan")
    assert keys["the object"] <= result.keys()
    assert keys["`machine`"] <= result["machine"].keys()
    assert keys["`memory`"] <= result["machine"]["memory"].keys()
    assert keys["each of `plans`"] <= result["plans"][0].keys()
    described = answer("plan", "qwen3.8-27b", "--gpu", "RTX 4090", "--evidence")
    assert keys["`expected`"] == described["plans"][0]["expected"].keys()
    assert len(described["runs"]) > 300


@pytest.mark.parametrize("command", ["estimate", "models"])
def test_keys_of_single_objects_are_documented(command: str) -> None:
    result, keys = answer(command, *(["demo"] if command == "estimate" else [])), read_documented_keys(command)
    assert len(keys["the object"]) > 1
    assert keys["the object"] <= result.keys()
    for each in result.get("models", []):
        assert keys["each of `models`"] <= each.keys()


def test_keys_of_serve_status_restart_and_requests_json_are_documented() -> None:
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        running = answer("status")
        body = json.dumps({"prompt": "Bread", "max_tokens": 4}).encode()
        headers = {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{ready['url']}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.read()
        requests = answer("requests")
        restarted = answer("restart", "--set", "draft=1")
        process.terminate()
        process.wait(120)
    assert read_documented_keys("serve")["the first object"] <= ready.keys()
    assert [each["url"] for each in running] == [ready["url"]]
    assert read_documented_keys("status")["each model"] <= running[0].keys()
    assert read_documented_keys("restart")["the object"] <= restarted.keys()
    keys = read_documented_keys("requests")
    assert keys["the object"] <= requests.keys()
    assert keys["each of `requests`"] <= requests["requests"][0].keys()
    assert keys["`who`"] == requests["requests"][0]["who"].keys()


def test_keys_of_keys_json_are_documented() -> None:
    claim_endpoint(None)
    result, keys = answer("keys", "add", "laptop"), read_documented_keys("keys")
    assert keys["the object"] == result.keys()
    assert keys["each of `keys`"] | keys["each of `keys` after a change"] == result["keys"][0].keys()


@pytest.mark.thorough
def test_keys_of_tune_json_are_documented(tmp_path: Path) -> None:
    workload = tmp_path / "boats.toml"
    workload.write_text(WORKLOAD)
    words = ["demo", "--workload", str(workload), "--vary", "none", "--budget", "0.1"]
    done = forked.run("tune", *words, "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    end, keys = json.loads(done.stdout.splitlines()[-1]), read_documented_keys("tune")
    assert keys["the last object"] <= end.keys()
    assert keys["`verdict`"] <= end["verdict"].keys()
