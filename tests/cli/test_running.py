"""restart, logs, stop and the kept settings, as a user types them."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from launcher.app.serving import running_servers
from launcher.base.paths import runtime_dir
from launcher.cli.main import main
from launcher.engine.server import registry
from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


@contextmanager
def serve_demo(*arguments: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    pipe = subprocess.PIPE
    with forked.start("serve", "demo", "--json", *arguments, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(120)


def status() -> dict[str, Any]:
    (result,) = json.loads(run("status", "--json").stdout)
    return dict(result)


@contextmanager
def hold_as_debugger(pid: int) -> Iterator[None]:
    """Hold a process as debuggers do (ptrace(2))."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach = 0x4206, 0x4207, 17
    assert ptrace(seize, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    assert ptrace(interrupt, pid, None, None) == 0
    os.waitpid(pid, 0)
    try:
        yield
    finally:
        assert ptrace(detach, pid, None, None) == 0


def test_a_server_is_restarted_followed_and_stopped_and_keeps_its_settings() -> None:
    with serve_demo("--ctx", "2K") as (process, ready):
        assert status()["settings"]["ctx"] == 2_048
        result = run("restart", "--set", "ctx=4096", "--set", "draft=3")
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"{ready['url']} is ready with ctx 4096, kv f16, draft 3,")
        assert "Restarting\n" in result.stderr
        following = forked.start("logs", "-f", "--lines", "2", stdout=subprocess.PIPE)
        assert following.stdout is not None
        assert following.stdout.readline()
        assert json.loads(run("stop", "--json").stdout)["stopped"] == ready["url"]
        assert process.wait(120) == 0
        following.stdout.read()
        assert following.wait(120) == 0
        following.stdout.close()
    assert len(run("logs", "--lines", "3").stdout.splitlines()) == 3
    with serve_demo():
        settings = status()["settings"]
        assert (settings["ctx"], settings["draft"]) == (4_096, 3)
    with serve_demo("--defaults"):
        settings = status()["settings"]
        assert (settings["ctx"], settings["draft"]) != (4_096, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is changed")
@pytest.mark.thorough
def test_status_works_on_a_full_disk() -> None:
    with serve_demo() as (process, _):
        assert status()["draft"] == 2
        program = psutil.Process(process.pid)
        before = program.rlimit(psutil.RLIMIT_FSIZE)
        program.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))  # each write into a file fails, as on a full disk
        result = run("restart", "--set", "draft=3", "--json")
        assert result.returncode == 0, result.stderr
        listed = status()
        assert (listed["state"], listed["draft"], listed["settings"]["draft"]) == ("ready", 3, 3)
        assert psutil.pid_exists(listed["pid"])
        assert "draft length 3" in run("status").stdout
        program.rlimit(psutil.RLIMIT_FSIZE, before)
        assert run("stop").returncode == 0
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read().count("The registry entry of this server cannot be written") == 1


@pytest.mark.thorough
def test_a_server_is_found_after_its_folder_was_deleted(home: Path) -> None:
    with serve_demo() as (process, ready):
        (folder,) = home.glob("state/run/*")
        shutil.rmtree(folder)
        while run("status", "--json").returncode:
            assert process.poll() is None
            time.sleep(0.05)
        assert status()["url"] == ready["url"]
        while not list(folder.glob("control-*")):
            assert process.poll() is None
            time.sleep(0.05)
        result = run("restart", "--set", "draft=3", "--json")
        assert result.returncode == 0, result.stdout
        for line in folder.glob("control-*"):
            line.unlink()
        while not list(folder.glob("control-*")):
            assert process.poll() is None
            time.sleep(0.05)
        assert run("stop").returncode == 0
        assert process.wait(120) == 0
    assert not list(folder.glob("server-*"))


def test_a_misspelt_setting_is_refused_with_a_suggestion() -> None:
    error = json.loads(run("restart", "--set", "drft=2", "--json").stdout)["error"]
    assert (error["code"], error["hint"]) == ("bad_option", "Did you mean draft or drafter?")
    assert run("restart", "--set", "draft").returncode == 2
    assert json.loads(run("restart", "--json").stdout)["error"]["code"] == "server_not_found"
    assert json.loads(run("logs", "--json").stdout)["error"]["code"] == "server_not_found"


def test_a_damaged_settings_file_is_reported_and_kept(home: Path) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "model-settings.json").write_text("{")
    with serve_demo() as (process, ready):
        assert ready["state"] == "ready"
        process.terminate()
        assert process.stderr is not None
        assert "The list of models' settings was damaged" in process.stderr.read()
    assert (home / "state" / "model-settings.json.bad").read_text() == "{"


def test_a_program_that_does_not_answer_is_stopped_by_a_signal(home: Path) -> None:
    with serve_demo() as (process, _):
        for path in home.glob("state/run/*/control-*"):
            path.unlink()
        assert run("stop").returncode == 0
        assert process.wait(120) == 0


def test_a_suspended_program_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(running_servers, "_ANSWER_TIMEOUT_S", 0.2)
    with serve_demo() as (process, _):
        process.send_signal(signal.SIGSTOP)
        try:
            restart = ["restart", "--set", "draft=1"]
            for arguments in (restart, [*restart, "--dry-run"], ["logs"]):
                assert main(arguments, lambda _: 0) == 1
                assert f"(process {process.pid}) does not respond." in capsys.readouterr().err
        finally:
            process.send_signal(signal.SIGCONT)


def test_a_suspended_engine_is_reported() -> None:
    with serve_demo() as (_, ready):
        os.kill(ready["pid"], signal.SIGSTOP)
        try:
            result = status()
            assert result["state"] == "not answering"
            assert f"`kill -CONT {ready['pid']}` resumes it" in result["problem"]
            assert result["problem"] in run("status").stdout
            error = json.loads(run("chat", "Hi", "--json").stdout)["error"]
            assert (error["code"], f"(process {ready['pid']}) is suspended" in error["message"]) == (
                "unreachable",
                True,
            )
        finally:
            os.kill(ready["pid"], signal.SIGCONT)


def test_a_server_with_a_suspended_program_is_reported_and_can_be_stopped() -> None:
    with serve_demo() as (process, _):
        process.send_signal(signal.SIGSTOP)
        result = status()
        assert result["state"] == "not answering"  # the gateway is in that process
        assert f"(process {process.pid}) is suspended" in result["problem"]
        assert run("stop").returncode == 0
        assert process.wait(120) == 0  # 0: the program was continued (SIGCONT) and could end by itself


def test_a_program_stopped_by_a_debugger_is_reported_with_its_pid(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_demo() as (process, _), hold_as_debugger(process.pid):
        assert main(["stop"], lambda _: 0) == 1
        output = capsys.readouterr().err
        assert "is suspended by a debugger" in output
        assert f"`kill -9 {process.pid}`" in output


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_a_lock_that_another_run_holds_is_named(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_LOCK_S", 0.01)
    runtime_dir().mkdir(mode=0o700, parents=True)
    with FileLock(runtime_dir() / "lock"):
        assert main([verb], lambda _: 0) == 1
    output = capsys.readouterr().err
    assert output.startswith(f"Error: Another instance of this program holds {runtime_dir() / 'lock'}")


def test_control_characters_in_a_log_are_made_visible(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"one\x1b]52;c;YQ==\x07\x1b[2J\x9b\ntwo\n")
    output = run("logs", "--file", str(log)).stdout
    assert output.splitlines()[1] == "two"
    assert output.replace("\n", "").isprintable()
