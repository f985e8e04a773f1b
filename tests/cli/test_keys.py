"""`mtp-launcher keys` as a user types it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.engine.server.endpoint import claim_endpoint
from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def answer(*arguments: str, code: int = 0) -> Any:  # noqa: ANN401 -- any JSON value
    told = run(*arguments, "--json")
    assert told.returncode == code, told.stderr
    return json.loads(told.stdout)


def test_none_yet() -> None:
    assert "no keys yet" in run("keys").stdout
    assert answer("keys") == {"replaced": False, "keys": []}
    assert answer("keys", "replace") == {"replaced": True, "keys": []}


def test_they_are_listed_and_shown_only_when_asked_for() -> None:
    endpoint = claim_endpoint(None)
    for told in (run("keys").stdout, run("keys", "--json").stdout):
        assert str(endpoint.port) in told
        assert endpoint.api_key not in told
    assert endpoint.api_key in run("keys", "--show-key").stdout
    (listed,) = answer("keys", "--show-key")["keys"]
    assert listed == {"port": endpoint.port, "url": endpoint.url, "running": False, "api_key": endpoint.api_key}


def test_one_is_replaced_for_good() -> None:
    first = claim_endpoint(None)
    port = 31_000 if first.port != 31_000 else 31_001
    other = claim_endpoint(port)
    told = answer("keys", "replace", "--port", str(first.port), "--show-key")["keys"]
    now = claim_endpoint(first.port)
    assert now.api_key != first.api_key
    assert told == [{"port": first.port, "url": first.url, "running": False, "api_key": now.api_key}]
    assert claim_endpoint(port) == other
    assert len(answer("keys", "replace", "--all")["keys"]) == 2
    assert claim_endpoint(port) != other
    assert first.port == claim_endpoint(None).port, "the usual port stays so"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["keys", "replace"], "Choose: --port"),
        (["keys", "replace", "--port", "31003"], "Port 31003 has no API key"),
        (["keys", "--all"], "keys replace"),
    ],
)
def test_it_is_said_what_is_missing(arguments: list[str], words: str) -> None:
    claim_endpoint(31_001)
    claim_endpoint(31_002)
    told = run(*arguments)
    assert told.returncode == 1
    assert words in told.stderr


def test_a_running_server_goes_on_with_the_old_one_and_the_next_takes_the_new() -> None:
    def served(*during: str) -> tuple[Any, str]:
        with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
            assert program.stdout
            ready = json.loads(program.stdout.readline())
            told = run(*during).stdout
            program.terminate()
            program.wait(120)
        return ready, told

    def status(ready: Any, key: str) -> int:  # noqa: ANN401 -- any JSON value
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{ready['url']}/v1/models", headers=headers, trust_env=False).status_code

    before, told = served("keys", "replace")
    assert "still uses the old key" in told
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout
        after = json.loads(program.stdout.readline())
        assert after["url"] == before["url"]
        assert after["api_key"] != before["api_key"]
        assert (status(after, before["api_key"]), status(after, after["api_key"])) == (401, 200)
        program.terminate()
        program.wait(120)


def test_a_folder_where_the_list_of_keys_belongs_is_set_aside_and_keeps_its_rights(home: Path) -> None:
    folder = home / "state" / "endpoints.json"
    folder.mkdir(parents=True, mode=0o755)
    told = run("keys")
    bad = folder.with_name("endpoints.json.bad")
    assert (told.returncode, f"is kept as {bad}" in told.stderr) == (0, True)
    assert bad.stat().st_mode & 0o777 == 0o755
