"""`restart`: the lines before it begins, and the end of the process that reads them."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forked

LARGE = ["--set", "ctx=16777216", "--set", "kv=f32"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def status() -> dict[str, Any]:
    (result,) = json.loads(run("status", "--json").stdout)
    return dict(result)


@contextmanager
def wait_until_ready(program: Any) -> Iterator[None]:  # noqa: ANN401 -- a subprocess.Popen, or what stands for one
    with program as process:
        try:
            assert json.loads(process.stdout.readline())["state"] == "ready"
            yield
        finally:
            process.terminate()
            process.wait(120)


@pytest.mark.thorough
def test_settings_that_are_too_big_are_warned_about_and_tried() -> None:
    command = ["prlimit", f"--as={2_800 << 20}", *forked.COMMAND, "serve", "demo", "--json"]
    with wait_until_ready(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)):
        dry = json.loads(run("restart", *LARGE, "--dry-run", "--json").stdout)
        result = run("restart", *LARGE)
        assert result.returncode == 1
        assert "so the previous ones were restored" in result.stderr
        assert ("Note: This is too big" in result.stderr.partition("Restarting")[0]) is (dry["status"] == "TOO BIG")
        assert "Note" not in run("restart", "--set", "draft=1").stderr


def test_a_restart_completes_after_its_reader_has_left(
    fake_engine: Path, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"
    release.touch()
    monkeypatch.setenv("FAKE_FAULTS", "slow-load")
    monkeypatch.setenv("FAKE_RELEASE", str(release))
    serve = ["serve", str(demo_model), "--engine", str(fake_engine), "--json"]
    with wait_until_ready(forked.start(*serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)):
        release.unlink()
        change = ["restart", "--set", "ctx=2K"]
        with forked.start(*change, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as restart:
            assert restart.stderr is not None
            while restart.stderr.readline() != "Loading\n":
                assert restart.poll() is None
            assert "is loading with these settings already." in run("restart", "--set", "ctx=2K", "--dry-run").stdout
            restart.send_signal(signal.SIGINT)
            assert "The restart goes on in the process that runs the server" in restart.stderr.read()
            assert restart.wait(120) == 130
        release.touch()
        while (now := status())["state"] != "ready":
            assert now["state"] in ("loading", "warming up")
            time.sleep(0.02)
        assert now["settings"]["ctx"] == 2_048
