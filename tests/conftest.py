"""What all tests share: a home of their own, the demo model, engines, and the proof that nothing is left running."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model

# A test run in the background of a script inherits SIGINT as ignored, and so would every program that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

FAKES = Path(__file__).parent / "fakes"
BUILT_IN = Path(__file__).parents[1] / "launcher" / "engine" / "builtin.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds everything the program writes."""
    folder = tmp_path / "home"
    monkeypatch.setenv(HOME_VARIABLE, str(folder))
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "FAKE_")):
            monkeypatch.delenv(name)
    return folder


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No test may leave a process."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=3)
    names = [f"{child.pid} {shlex.join(child.cmdline())}" for child in alive if child.is_running()]
    for child in alive:
        child.kill()
    assert not names, f"left running: {names}"


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, unpacked once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("demo")))
        return unpack_demo_model()


@pytest.fixture(scope="session")
def headless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like the demo's that was made without an MTP head, hardly trained: its replies mean nothing."""
    path = tmp_path_factory.mktemp("headless") / "headless.gguf"
    make = [sys.executable, "-m", "tools.demo_model", "--no-mtp", "--steps", "2", "--out", str(path)]
    subprocess.run(make, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    return path


def _program(path: Path, *command: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def fake_engine(tmp_path: Path) -> Path:
    """The fake llama-server as a program."""
    return _program(tmp_path / "fake-llama-server", sys.executable, str(FAKES / "llama_server.py"))


@pytest.fixture
def real_engine(tmp_path: Path) -> Path:
    """The built-in engine as a llama-server program of its own, as one on PATH would be."""
    return _program(tmp_path / "llama-server", sys.executable, "-P", str(BUILT_IN))
