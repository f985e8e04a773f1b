"""`mtp-launcher doctor` in WSL: the suggested .wslconfig, printed, and copied on request."""

import json
from pathlib import Path

import psutil
import pytest

from launcher.machine import host as hosts
from launcher.machine.surroundings import wsl_version
from launcher.machine.wsl import suggest_wsl_memory
from tests.cli.in_process import run

GIB = 2**30


@pytest.fixture
def wsl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """WSL 2 with 16 GiB, no .wslconfig, and a clip.exe; return the file into which clip.exe copies its input."""
    programs, got = tmp_path / "windows", tmp_path / "clipboard"
    programs.mkdir()
    clip = programs / "clip.exe"
    clip.write_text(f"#!/bin/sh\ncat >'{got}'\n")
    clip.chmod(0o755)
    memory = psutil.virtual_memory()._replace(total=16 * GIB, available=12 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert wsl_version() == 2
    return got


def test_the_suggestion_is_printed_and_nothing_is_written(wsl: Path) -> None:
    result = run("doctor")
    assert "Suggested for %UserProfile%\\.wslconfig:\n\n    [wsl2]\n    memory=24GB\n" in result.stdout
    assert "mtp-launcher doctor --copy-wslconfig" in result.stdout
    assert not wsl.exists()
    assert json.loads(run("doctor", "--json").stdout)["wslconfig"]["text"] == "[wsl2]\nmemory=24GB\n"


def test_the_suggestion_is_copied_on_request(wsl: Path) -> None:
    result = run("doctor", "--copy-wslconfig")
    assert result.returncode == 0, result.stderr
    assert wsl.read_bytes() == b"[wsl2]\r\nmemory=24GB\r\n"
    output = " ".join(result.stdout.split())
    assert "memory=24GB: WSL has 16.0 GiB now" in output
    assert "wsl --shutdown" in output
    assert json.loads(run("doctor", "--copy-wslconfig", "--json").stdout)["text"].startswith("[wsl2]")


def test_outside_wsl_there_is_nothing_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "wsl_version", lambda _root: None)
    result = run("doctor", "--copy-wslconfig")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: This is not WSL 2")


def test_a_good_configuration_is_reported_as_such(wsl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=2 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert suggest_wsl_memory(2 * GIB) == 2
    result = run("doctor", "--copy-wslconfig")
    assert result.returncode == 1
    assert ".wslconfig needs no change" in result.stderr
    assert not wsl.exists()
