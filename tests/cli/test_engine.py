"""The commands `mtp-launcher engine`, and `serve` with the engines that they installed from a fake GitHub."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.engine.builds.installed import PROGRAM
from tests import forked
from tests.conftest import FAKES, ReleaseServer

pytestmark = pytest.mark.usefixtures("no_engine_here")
FAKE = f"{sys.executable} -S {FAKES / 'llama_server.py'}"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "launcher", *map(str, arguments)]


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = forked.run(*arguments)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def run_json(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run a command with --json and return the last object that it prints."""
    lines = run(*arguments, "--json", code=code).stdout.splitlines()
    return dict(json.loads(lines[-1]))


@pytest.fixture(autouse=True)
def published_builds(releases: ReleaseServer) -> None:
    """Two builds, the older one stable."""
    builds = "cpu", "vulkan", "cuda-13.4"
    releases.publish("b11400", *builds, command=FAKE)
    releases.publish("v0.7.0", points_at="b11400")
    releases.publish("b11434", *builds, command=FAKE)


def test_engines_are_installed_listed_switched_and_removed() -> None:
    assert run_json("engine", "list")["current"] == "auto"
    first = run_json("engine", "install")
    assert (first["event"], first["name"], first["current"]) == ("done", "b11400-cpu-x64", True)
    assert run_json("engine", "install", "nightly")["name"] == "b11434-cpu-x64"
    assert run_json("engine", "rollback") == {
        "current": "b11400-cpu-x64",
        "previous": "b11434-cpu-x64",
        "pinned": False,
    }
    assert run_json("engine", "pin")["pinned"]
    kept = run_json("engine", "install", "b11434")
    assert kept["current"] is False
    listed = run_json("engine")
    assert [(each["name"], each["current"]) for each in listed["engines"]][:2] == [
        ("b11434-cpu-x64", False),
        ("b11400-cpu-x64", True),
    ]
    assert run_json("engine", "remove", "b11400", code=1)["error"]["code"] == "engine_kept"
    assert run_json("engine", "use", "b11434")["pinned"] is False
    assert run_json("engine", "remove", "b11400")["removed"] == "b11400-cpu-x64"
    assert run_json("engine", "test")["accepted"] > 0
    assert run_json("engine", "use", "auto")["current"] == "auto"


def test_the_text_output_is_readable() -> None:
    installed = run("engine", "install")
    assert installed.stdout.startswith("b11400-cpu-x64 is in use now: `mtp-launcher serve` takes it. Its test: ")
    steps = installed.stderr.splitlines()
    assert steps[0] == "Checking this computer and the releases ..."
    assert steps[1] == "  No GPU found, so the engine runs on the CPU."
    assert steps[2] == "Downloading llama-b11400-bin-ubuntu-x64.tar.gz ..."
    assert steps[-1] == "Running the demo model with MTP ..."
    listed = run("engine", "list").stdout
    assert "*  b11400-cpu-x64  installed  cpu" in listed
    assert "In use: b11400-cpu-x64." in listed
    assert "`mtp-launcher engine rollback` goes back to the usual choice (auto)." in listed
    available = run("engine", "available").stdout
    assert "b11400  2026-11-01  cpu" in available
    assert "stable, installed" in available
    assert "Stable: `mtp-launcher engine install` takes b11400" in available
    assert run("engine", "pin").stdout == "In use: b11400-cpu-x64, pinned. Before: the usual choice (auto).\n"
    back = run("engine", "rollback").stdout.splitlines()
    assert back[0].startswith("In use: the usual choice (auto)")
    assert back[1].startswith("b11400-cpu-x64 is no longer pinned")


def test_progress_as_json_is_one_object_per_line() -> None:
    lines = [json.loads(line) for line in run("engine", "install", "--json").stdout.splitlines()]
    assert {line["event"] for line in lines} == {"step", "note", "progress", "done"}
    assert lines[-1]["event"] == "done"
    assert len(next(iter(lines[-1]["archives"].values()))) == 64


def test_serve_uses_the_engine_in_use(demo_model: Path, releases: ReleaseServer) -> None:
    releases.publish("b11450", "cpu")
    run("engine", "install", "b11450")
    with forked.start("serve", "--model", demo_model, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout
        head = [server.stdout.readline() for _ in range(2)][1]
        busy = run_json("engine", "use", "auto")
        removal = run_json("engine", "remove", "b11450", code=1)
        server.send_signal(signal.SIGINT)
        server.communicate()
    assert "b11450-cpu-x64 engine 0.6.0-dev (build 11450" in head
    assert busy["current"] == "auto"
    assert removal["error"]["code"] == "engine_busy"
    assert run_json("engine", "remove", "b11450")["freed_bytes"] > 0


@pytest.mark.thorough
def test_an_installed_engine_is_chosen_by_its_name(demo_model: Path, releases: ReleaseServer) -> None:
    run("engine", "install", "b11434")
    run("engine", "use", "auto")
    with forked.start("serve", "--model", demo_model, "--engine", "b11434", stdout=subprocess.PIPE) as server:
        assert server.stdout
        lines = [server.stdout.readline() for _ in range(2)]
        server.send_signal(signal.SIGINT)
        server.communicate()
    assert "b11434-cpu-x64 engine" in lines[1]


@pytest.mark.thorough
def test_a_missing_engine_in_use_stops_serve_with_a_hint(home: Path, demo_model: Path) -> None:
    run("engine", "install")
    shutil.rmtree(home / "data" / "engines" / "b11400-cpu-x64")
    error = run_json("serve", "--model", demo_model, code=1)["error"]
    assert error["message"] == "The engine in use, b11400-cpu-x64, no longer exists."
    assert "engine rollback" in error["hint"]
    assert "It is missing" in run("engine", "list").stdout
    assert "b11400-cpu-x64, no longer exists" in run("doctor").stdout


def test_an_engine_of_the_user_is_added_and_removed(fake_engine: Path, tmp_path: Path) -> None:
    fork = tmp_path / "my-fork" / "build" / "bin"
    fork.mkdir(parents=True)
    shutil.copy(fake_engine, fork / PROGRAM)
    assert run("engine", "add", tmp_path / "my-fork").stdout.startswith(f"my-fork: {fork / PROGRAM}\n")
    assert run("engine", "use", "my-fork").stdout == "In use: my-fork. Before: the usual choice (auto).\n"
    assert "my-fork works." in run("engine", "test").stdout
    run("engine", "use", "built-in")
    assert run("engine", "remove", "my-fork").stdout == (
        f"my-fork is no longer listed. Its files stay: {fork / PROGRAM}\n"
    )


def test_a_program_that_is_no_engine_is_not_added(tmp_path: Path) -> None:
    assert run_json("engine", "add", "/bin/true", code=1)["error"]["code"] == "engine_unsuitable"
    assert run_json("engine", "add", tmp_path, code=1)["error"]["code"] == "engine_missing"


@pytest.mark.thorough
def test_a_known_bad_build_is_refused(releases: ReleaseServer) -> None:
    releases.publish("b10745", "cpu", command=FAKE)
    error = run_json("engine", "install", "b10745", code=1)["error"]
    assert error["code"] == "known_bad"
    assert "--anyway" in error["hint"]
    run("engine", "install", "b10745", "--anyway")
    listed = run("engine", "list").stdout
    assert "b10745-cpu-x64: known to be bad: it cannot start MTP" in listed
    assert "known to be bad: it cannot start MTP" in run("engine", "available").stdout
    assert "b10745-cpu-x64 is b10745, a build with a known bug" in run("doctor").stdout


def test_an_interrupted_installation_reports_that_nothing_was_changed(releases: ReleaseServer) -> None:
    releases.publish("b11450", "cpu", command=f"env FAKE_FAULTS=slow-load FAKE_RELEASE=/nowhere {FAKE}")
    with forked.start("engine", "install", "b11450", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as installing:
        assert installing.stderr
        assert any("Running the demo model" in line for line in installing.stderr), (
            "the installation has reached its test"
        )
        installing.send_signal(signal.SIGINT)
        _, rest = installing.communicate()
    assert installing.returncode == 130
    assert "Interrupted: nothing was changed." in rest
    assert "Traceback" not in rest
    assert [each["name"] for each in run_json("engine")["engines"]] == ["built-in"]


@pytest.mark.parametrize("wrong", [["nonsense"], ["use"], ["remove"], ["add"], ["install", "a", "b"]])
def test_wrong_command_lines_are_refused(wrong: list[str]) -> None:
    assert "--help` shows the usage." in run("engine", *wrong, code=2).stderr


def test_an_unreachable_release_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTP_LAUNCHER_GITHUB_API", "http://127.0.0.1:9")
    error = run_json("engine", "install", code=1)["error"]
    assert error["code"] == "unreachable"
    assert run_json("engine", "list")["engines"], "the list needs no network"
