"""`restart --dry-run`: the cost of other settings, as text."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


@pytest.fixture
def launcher_pid(home: object) -> Iterator[int]:
    """A server of the demo; its launcher's pid."""
    command = ["serve", "demo", "--json", "--ctx", "2K"]
    with forked.start(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["pid"]
        finally:
            process.terminate()
            process.wait(120)


def test_a_dry_run_shows_memory_and_time_and_changes_nothing(launcher_pid: int) -> None:
    result = run("restart", "--dry-run", "--set", "ctx=8K", "--set", "draft=3")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ctx 2,048 -> 8,192: +")
    assert lines[1] == "draft 2 -> 3: +0 MiB for 1 more draft token"
    assert lines[2].startswith("memory   FITS: needs ")
    assert lines[3].startswith("context  largest that fits with these settings, ")
    assert lines[4].startswith("restart  about ")
    assert lines[4].endswith(" s, as the last time")
    assert lines[-1] == "Nothing was changed."
    assert "already" in run("restart", "--dry-run").stdout
    (running,) = json.loads(run("status", "--json").stdout)
    assert (running["engine_pid"], running["settings"]["ctx"]) == (launcher_pid, 2_048)


def test_switches_are_shown_as_on_or_off(launcher_pid: int) -> None:
    output = run("restart", "--dry-run", "--set", "kv-unified=on").stdout
    assert output.startswith("kv-unified off -> on: ")


def test_the_json_has_the_same_facts(launcher_pid: int) -> None:
    result = json.loads(run("restart", "--dry-run", "--set", "slots=2", "--json").stdout)
    assert [change["name"] for change in result["changes"]] == ["slots"]
    assert (result["needs_restart"], result["status"], result["unknown"]) == (True, "FITS", None)
    assert result["needed_mib"] == pytest.approx(sum(result["parts"].values()), abs=1.5)
    refused = json.loads(run("restart", "--dry-run", "--set", "extra=--port 1", "--json").stdout)
    assert refused["error"]["code"] == "bad_option"
