"""`mtp-launcher up` as a user types it, against the fake hub."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.app.first.test_first_start import REPO, add_to_catalogue
from tests.conftest import Hub
from tests.models.pulling import FILE

pytestmark = pytest.mark.usefixtures("no_engine_here", "repository")


@pytest.fixture
def repository(hub: Hub, demo_model: Path, home: Path) -> Iterator[Path]:
    """A repository with the demo model, which is also in the user's own catalogue."""
    folder = hub.folder / REPO
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    add_to_catalogue(home)
    yield folder
    shutil.rmtree(folder)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("up", *arguments)


@pytest.mark.thorough
def test_up_downloads_tests_and_serves_until_ctrl_c() -> None:
    with forked.start("up", "mine", "--json", stdout=subprocess.PIPE) as program:
        assert program.stdout
        received = []
        for line in program.stdout:
            received.append(json.loads(line))
            if received[-1]["event"] == "ready":
                program.send_signal(signal.SIGINT)
    assert program.returncode == 0
    plan, *steps, ready = received
    assert (plan["event"], plan["model"], plan["ctx"], plan["backend"]) == ("plan", "mine:F16", 4096, "cpu")
    done = [step["step"] for step in steps if step["stage"] == "done"]
    assert list(dict.fromkeys(done)) == ["engine", "model", "verify", "load", "warm up", "self-test"]
    tested = steps[-1]
    assert 0 < tested["draft_n_accepted"] <= tested["draft_n"]
    assert ready["url"].startswith("http://127.0.0.1:")
    assert ready["text"]


def test_each_step_has_a_line_and_is_done_the_second_time() -> None:
    for had in ("received", "here already"):
        with forked.start("up", "mine", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            assert program.stdout
            assert program.stderr
            next(line for line in program.stdout if "Ctrl-C" in line)
            program.send_signal(signal.SIGINT)
            lines = program.stderr.read().splitlines()
        assert program.returncode == 0
        assert lines[0].startswith("Mine, F16, context 4,096, KV f16, draft 2: needs ")
        assert "Engine:    built in" in lines
        assert f"Model:     F16, {had}" in lines
        assert lines[-1].startswith("Self-test: ")
        assert "drafted tokens accepted" in lines[-1]


def test_without_a_gpu_the_possibilities_are_listed() -> None:
    result = run()
    assert result.returncode == 1
    assert "There is no usable GPU here" in result.stderr
    assert "`mtp-launcher up " in result.stderr
    assert "`mtp-launcher demo`" in result.stderr


def test_without_a_network_the_demo_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = run("mine")
    assert result.returncode == 1
    assert "HF_HUB_OFFLINE is set" in result.stderr
    assert "`mtp-launcher demo` runs a small built-in model" in result.stderr
    (*_, error) = (json.loads(line) for line in run("mine", "--json").stdout.splitlines())
    assert error["error"]["code"] == "offline"


def test_an_interrupted_up_is_paused_and_resumes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("stalls"))
    with forked.start("up", "mine", "--json", stdout=subprocess.PIPE) as program:
        assert program.stdout
        received = []
        for line in program.stdout:
            received.append(json.loads(line))
            if (
                received[-1].get("step") == "model"
                and received[-1]["done_bytes"]
                and received[-1]["stage"] == "running"
            ):
                program.send_signal(signal.SIGINT)
    assert program.returncode == 130
    assert received[-1] == {"event": "paused"}
    assert (received[-2]["step"], received[-2]["stage"]) == ("model", "paused")
