"""`mtp-launcher keys` as a user types it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.engine.server.endpoint import Endpoint, claim_endpoint
from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def answer(*arguments: str, code: int = 0) -> Any:  # noqa: ANN401 -- any JSON value
    result = run(*arguments, "--json")
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def line_of(endpoint: Endpoint) -> dict[str, Any]:
    return {"port": endpoint.port, "url": endpoint.url, "running": False}


def test_an_empty_list_is_reported() -> None:
    assert "no keys yet" in run("keys").stdout
    assert answer("keys") == {"action": "list", "replaced": False, "keys": []}
    assert answer("keys", "replace") == {"action": "replace", "replaced": True, "keys": []}


def test_keys_are_listed_and_shown_only_on_request() -> None:
    endpoint = claim_endpoint(None)
    for each in (run("keys").stdout, run("keys", "--json").stdout):
        assert str(endpoint.port) in each
        assert endpoint.api_key not in each
    assert endpoint.api_key in run("keys", "--show-key").stdout
    (listed,) = answer("keys", "--show-key")["keys"]
    assert listed == {"name": "default", **line_of(endpoint), "api_key": endpoint.api_key}


def test_a_replaced_key_is_stored() -> None:
    first = claim_endpoint(None)
    other = claim_endpoint(None, taken=frozenset({first.port}))
    port = other.port
    result = answer("keys", "replace", "--port", str(first.port), "--show-key")["keys"]
    now = claim_endpoint(first.port)
    assert now.api_key != first.api_key
    assert result == [{"name": "default", **line_of(first), "applied": None, "api_key": now.api_key}]
    assert claim_endpoint(port) == other
    assert len(answer("keys", "replace", "--all")["keys"]) == 2
    assert claim_endpoint(port) != other
    assert first.port == claim_endpoint(None).port, "the usual port stays the same"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["keys", "replace"], "Choose: --port"),
        (["keys", "replace", "--port", "UNUSED"], "Port UNUSED has no API key"),
        (["keys", "--all"], "keys replace"),
        (["keys", "add"], "keys add NAME"),
        (["keys", "add", "laptop"], "Choose one with --port"),
        (["keys", "add", "laptop", "--port", "UNUSED"], "Port UNUSED has no API key"),
        (["keys", "add", "a laptop", "--port", "FIRST"], "cannot be the name of a key"),
        (["keys", "add", "default", "--port", "FIRST"], "already has a key named default"),
        (["keys", "rotate", "laptop", "--port", "FIRST"], "no key named laptop"),
        (["keys", "revoke", "laptop", "--port", "FIRST"], "Its keys: default."),
        (["keys", "revoke", "default", "--port", "FIRST"], "keys rotate default"),
        (["keys", "revoke", "laptop", "--all"], "keys replace"),
        (["keys", "replace", "laptop"], "keys rotate NAME"),
        (["keys", "list", "--port", "UNUSED"], "Port UNUSED has no API key"),
        (["keys", "list", "laptop"], "keys list` takes no name"),
    ],
)
def test_impossible_changes_are_refused_with_the_reason(arguments: list[str], words: str) -> None:
    first = claim_endpoint(None)
    claim_endpoint(None, taken=frozenset({first.port}))
    ports = {"FIRST": str(first.port), "UNUSED": "9"}
    result = run(*(ports.get(each, each) for each in arguments))
    assert result.returncode == 1
    assert words.replace("UNUSED", "9") in result.stderr


def test_named_keys_are_added_replaced_and_revoked() -> None:
    endpoint = claim_endpoint(None)
    (added,) = answer("keys", "add", "laptop")["keys"]
    assert {**added, "api_key": ""} == {"name": "laptop", **line_of(endpoint), "applied": None, "api_key": ""}
    assert len(added["api_key"]) == 43
    (rotated,) = answer("keys", "rotate", "laptop", "--port", str(endpoint.port))["keys"]
    assert rotated["api_key"] not in (added["api_key"], endpoint.api_key)
    listed = answer("keys", "list", "--show-key")["keys"]
    assert {each["name"]: each["api_key"] for each in listed} == {
        "default": endpoint.api_key,
        "laptop": rotated["api_key"],
    }
    assert rotated["api_key"] not in run("keys").stdout
    (revoked,) = answer("keys", "revoke", "laptop")["keys"]
    assert revoked == {"name": "laptop", **line_of(endpoint), "applied": None}
    assert [each["name"] for each in answer("keys")["keys"]] == ["default"]
    (rotated,) = answer("keys", "rotate", "default")["keys"]
    assert rotated["api_key"] == claim_endpoint(None).api_key != endpoint.api_key


def status(url: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{url}/v1/models", headers=headers, trust_env=False).status_code


def test_a_running_server_applies_changes_at_once() -> None:
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout
        ready = json.loads(program.stdout.readline())
        url, first = ready["url"], ready["api_key"]
        (added,) = answer("keys", "add", "laptop")["keys"]
        assert added["applied"] is True
        assert (status(url, added["api_key"]), status(url, first)) == (200, 200)
        (replaced,) = answer("keys", "replace", "--show-key")["keys"]
        assert (replaced["applied"], replaced["running"]) == (True, True)
        assert (status(url, first), status(url, replaced["api_key"])) == (401, 200)
        assert replaced["api_key"] in run("status", "--show-key").stdout
        assert run("chat", "Hello", "--max-tokens", "2").returncode == 0, "our own commands know the new key"
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {added['api_key']}"}
        with (
            httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as reply,
        ):
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            (revoked,) = answer("keys", "revoke", "laptop")["keys"]
            rest = [line for line in lines if line]
        assert revoked["applied"] is True
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == 401
        assert status(url, added["api_key"]) == 401
        program.terminate()
        program.wait(120)
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout
        ready = json.loads(program.stdout.readline())
        assert (ready["url"], ready["api_key"]) == (url, replaced["api_key"])
        assert (status(url, added["api_key"]), status(url, ready["api_key"])) == (401, 200)
        program.terminate()
        program.wait(120)


def test_a_server_without_the_gateway_keeps_the_old_key() -> None:
    command = ("serve", "demo", "--direct", "--json")
    with forked.start(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout
        ready = json.loads(program.stdout.readline())
        output = run("keys", "replace").stdout
        assert "still uses the old keys" in output
        assert status(ready["url"], ready["api_key"]) == 200
        program.terminate()
        program.wait(120)


def test_a_folder_in_place_of_the_key_file_is_renamed_and_keeps_its_rights(home: Path) -> None:
    folder = home / "state" / "endpoints.json"
    folder.mkdir(parents=True, mode=0o755)
    result = run("keys")
    bad = folder.with_name("endpoints.json.bad")
    assert (result.returncode, f"is kept as {bad}" in result.stderr) == (0, True)
    assert bad.stat().st_mode & 0o777 == 0o755
