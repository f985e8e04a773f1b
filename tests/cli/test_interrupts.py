"""Ctrl-C and SIGTERM, as real signals to processes of their own, at several moments."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.base.identity import ProcessId
from launcher.engine.server.registry import list_entries
from tests import forked
from tests.cli import in_process

ROOT = Path(__file__).parents[2]
_MOMENTS = 8
COMMAND = [sys.executable, "-m", "launcher"]


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the terminal, without a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)


def servers() -> list[dict[str, Any]]:
    return list(json.loads(in_process.run("status", "--json").stdout))


def end_within(seconds: float, *identities: ProcessId) -> bool:
    deadline = time.monotonic() + seconds
    while any(identity.is_running() for identity in identities):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("number", "after_s"),
    [
        *((signal.SIGINT, after_s) for after_s in (0.03, 0.1, 0.3, 0.9)),
        (signal.SIGTERM, 0.6),
    ],
)
def test_a_command_can_be_interrupted_at_any_moment(number: signal.Signals, after_s: float) -> None:
    """The fixture `nothing_left_running` proves that no process is left."""
    with subprocess.Popen(
        [*COMMAND, "demo", "--headless", "--seconds", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(after_s)  # the moment of the signal is what varies
        process.send_signal(number)
        assert process.stderr is not None
        result = process.stderr.read()
        code = process.wait(120)
    by_python = "Traceback" in result and "launcher/cli" not in result  # the server was starting, so it ends with 1
    assert code in (130, 143, -number) or by_python
    assert by_python or "Traceback" not in result
    assert servers() == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose Python packages are installed already, for ./start."""
    folder = tmp_path / "checkout"
    environment = folder / ".venv"
    environment.mkdir(parents=True)
    for name in ("start", "scripts", "resources", "requirements.lock", "pyproject.toml", "hatch_build.py"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "start").unlink()
    shutil.copy(ROOT / "start", folder)  # `start` looks for the other files of the checkout beside itself
    for name in ("bin", "lib"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment)
    files = "requirements.lock pyproject.toml hatch_build.py scripts/bootstrap.sh resources/locale/*/LC_MESSAGES/*.po"
    stamp = f"{{ cat {files}; pwd; }} | cksum"
    installed = subprocess.run(["sh", "-c", stamp], cwd=folder, capture_output=True, check=True)
    (environment / "requirements.lock.installed").write_bytes(installed.stdout)
    return folder


@pytest.mark.cases(1)
@pytest.mark.parametrize("arguments", [[], ["--version"]], ids=["the window or the demo", "an answer"])
def test_start_can_be_interrupted_at_any_moment_of_its_first_second(checkout: Path, arguments: list[str]) -> None:
    """The terminal sends Ctrl-C to the shell and to Python alike."""
    command = [str(checkout / "start"), *arguments]
    began_s = time.monotonic()
    subprocess.run([str(checkout / "start"), "--version"], capture_output=True, check=True)
    whole_s = time.monotonic() - began_s
    codes = set()
    for moment in range(_MOMENTS):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            time.sleep(whole_s * moment / _MOMENTS)  # the moment of the signal is what varies
            os.killpg(process.pid, signal.SIGINT)
            assert process.stderr is not None
            result = process.stderr.read()
            codes.add(process.wait(120))
        assert "Traceback" not in result, result
        assert "KeyboardInterrupt" not in result, result
    assert codes <= {130, -signal.SIGINT, 0}  # a shell shows -SIGINT as 130; 0 if it had ended before the signal
    assert codes & {130, -signal.SIGINT}


@pytest.mark.parametrize(("number", "form"), [(signal.SIGINT, []), (signal.SIGTERM, ["--json"])])
def test_interrupting_a_server_that_still_loads_is_reported(
    number: signal.Signals, form: list[str], fake_engine: Path, demo_model: Path
) -> None:
    serve = ["serve", "--model", str(demo_model), "--engine", str(fake_engine), *form]
    environment = os.environ | {"FAKE_FAULTS": "silent-start"}
    with forked.start(*serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        while not any(entry.first.state == "loading" for entry in list_entries()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        output, result = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert output == ('{"state": "stopped"}\n' if form else "")
    assert ("Stopped before the server was ready.\n" in result) is not bool(form)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("state", "pause_s"),
    [
        ("Preparing", 0.0),
        ("Loading the model", 0.0),
        ("Loading the model", 0.02),
        ("Warming up", 0.02),
        ("Ready", 0.0),
    ],
)
def test_two_interrupts_at_any_moment_of_a_start_end_it_without_a_traceback(state: str, pause_s: float) -> None:
    with forked.start("serve", "--model", "demo", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(state):
                break
        started = [ProcessId.from_pid(child.pid) for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        time.sleep(pause_s)  # meanwhile the first signal has begun to end the command
        process.send_signal(signal.SIGINT)
        result = process.stderr.read()
        assert process.wait(120) in (0, 130)  # 0 if the first signal had ended the command already
    assert "Traceback" not in result
    assert end_within(20, *filter(None, started))
    assert servers() == []


def test_a_second_interrupt_ends_the_process_at_once_and_its_engine_too(fake_engine: Path, demo_model: Path) -> None:
    serve = ["serve", "--model", str(demo_model), "--engine", str(fake_engine), "--json"]
    environment = os.environ | {"FAKE_FAULTS": "ignores-term"}
    with forked.start(*serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        engine = ProcessId.from_pid(json.loads(process.stdout.readline())["pid"])
        assert engine is not None
        process.send_signal(signal.SIGINT)
        while (entry := list_entries()[0]).first.state == "ready":  # until the program has noticed the first signal
            time.sleep(0.02)
        assert entry.first.state == "stopping"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert end_within(20, engine)
    assert servers() == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_server_under_nohup_survives_its_terminal() -> None:
    with subprocess.Popen(
        ["nohup", *COMMAND, "serve", "demo", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert [each["state"] for each in servers()] == ["ready"]
        process.terminate()
        assert process.wait(60) == 0
