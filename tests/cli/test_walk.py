"""A start that fails, its diagnosis and its fix on the real engine, by running the commands that are printed."""

import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.cli.test_commands import find_port

MEMORY_LIMIT_MIB = 2_800
"""A limit of address space: enough for the demo with a usual context, but not for three million tokens."""


@pytest.fixture(autouse=True)
def command_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put `mtp-launcher` on PATH, as an installation does."""
    program = tmp_path / "bin" / "mtp-launcher"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked.COMMAND)} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def limit_memory(*words: str) -> list[str]:
    return ["prlimit", f"--as={MEMORY_LIMIT_MIB << 20}", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    if words[0] == "mtp-launcher":
        return forked.run(*words[1:])
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serve_by_command(command: str, *before: str) -> Iterator[dict[str, Any]]:
    """Run a command as a shell does; yield the entry of `status` once it serves."""
    words, pipe = shlex.split(command), subprocess.PIPE
    assert words[0] == "mtp-launcher"
    with (
        subprocess.Popen([*before, *words], stdout=pipe, stderr=pipe, text=True)
        if before
        else forked.start(*words[1:], stdout=pipe, stderr=pipe)
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("Ctrl-C"):
                    break
            (result,) = json.loads(run("mtp-launcher", "status", "--json").stdout)
            yield result
        finally:
            process.terminate()
            process.wait(120)


def find_command(text: str) -> str:
    """Return the command below the first "To do"."""
    lines = [line.strip() for line in text.splitlines()]
    return lines[next(number for number, line in enumerate(lines) if line.startswith("To do: ")) + 1]


def test_an_argument_that_the_engine_refuses_is_explained() -> None:
    failed = run("mtp-launcher", "serve", "demo", "--ctx", "4K", "--", "--warp-speed", "9")
    assert failed.returncode == 1
    assert "The engine does not support the flag --warp-speed." in failed.stderr
    result = run("mtp-launcher", "diagnose")
    assert result.returncode == 0
    assert result.stdout.startswith("The engine does not support the flag --warp-speed.\n")
    assert find_command(result.stdout) == find_command(failed.stderr) == "mtp-launcher serve demo --ctx 4096"
    with serve_by_command(find_command(result.stdout)) as status:
        assert status["settings"]["ctx"] == 4_096
    # The error of an earlier run is not reported for the last one, which was stopped.
    after = run("mtp-launcher", "diagnose")
    assert after.returncode == 0
    assert after.stdout.startswith("No server runs. The last one was stopped, and its log shows no failure.\n")


@pytest.mark.thorough
def test_a_context_that_does_not_fit_is_explained() -> None:
    serve = ("mtp-launcher", "serve", "demo", "--ctx", "3000000")
    failed = run(*limit_memory(*serve))
    assert failed.returncode == 1
    assert "Not enough memory for the " in failed.stderr
    answer = json.loads(run("mtp-launcher", "diagnose", "--json").stdout)
    assert answer["code"] in ("kv_cache_too_big", "compute_buffer_too_big")
    first = answer["actions"][0]
    context = first["parameters"]["context"]
    assert first["kind"] == answer["action"]["kind"] == "smaller_context"
    assert first["command"] == find_command(failed.stderr) == f"mtp-launcher serve demo --ctx {context}"
    with serve_by_command(first["command"], *limit_memory()) as status:
        assert status["settings"]["ctx"] == context < 3_000_000


def test_with_fix_the_suggested_fix_is_applied_and_reported() -> None:
    serve = ["mtp-launcher", "serve", "demo", "--ctx", "3000000", "--fix", "--json", "--", "--warp-speed", "9"]
    with subprocess.Popen(limit_memory(*serve), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["state"] == "ready"
        process.terminate()
        process.wait(120)
        result = process.stderr.read()
    assert "Fixed by: Start without --warp-speed.\n" in result
    assert "Fixed by: Use a context of " in result


def test_at_most_three_fixes_are_applied() -> None:
    bad = ["--warp", "--warq", "--warr", "--wars"]
    failed = run("mtp-launcher", "serve", "demo", "--fix", "--", *bad)
    assert failed.returncode == 1
    assert failed.stderr.count("Fixed by: ") == 3
    assert "--fix tries 3 changes at most, and all were tried.\n" in failed.stderr
    assert "Error: The engine does not support the flag --wars." in failed.stderr


@pytest.mark.thorough
def test_a_restart_that_fails_suggests_working_settings() -> None:
    with serve_by_command("mtp-launcher serve demo --ctx 4096", *limit_memory()) as before:
        failed = run("mtp-launcher", "restart", "--set", "ctx=3000000", "--set", "draft=1")
        assert failed.returncode == 1
        assert "so the previous ones were restored" in failed.stderr
        command = find_command(failed.stderr)
        assert re.fullmatch(r"mtp-launcher restart --set ctx=\d+ --set draft=1", command)
        fixed = run(*shlex.split(command))
        assert fixed.returncode == 0, fixed.stderr
        (after,) = json.loads(run("mtp-launcher", "status", "--json").stdout)
        assert before["settings"]["ctx"] < after["settings"]["ctx"] < 3_000_000
        assert after["settings"]["draft"] == 1


@pytest.mark.thorough
def test_a_restart_with_an_argument_that_the_engine_refuses_suggests_a_valid_one() -> None:
    with serve_by_command("mtp-launcher serve demo --ctx 4096"):
        failed = run("mtp-launcher", "restart", "--set", "extra=--cache-ram nonsense --no-warmup", "--set", "ctx=2K")
        assert failed.returncode == 1
        command = find_command(failed.stderr)
        assert command == "mtp-launcher restart --set ctx=2048 --set extra=--no-warmup"
        assert run(*shlex.split(command)).returncode == 0
        answer = json.loads(run("mtp-launcher", "restart", "--set", "extra=--warp 9", "--json").stdout)["error"]
        first, second = answer["actions"]
        assert (first["kind"], first["command"]) == ("remove_flag", "mtp-launcher restart --set extra=default")
        assert (second["command"], second["link"]) == ("mtp-launcher engine install", None)
        run(*shlex.split(first["command"]))
        (status,) = json.loads(run("mtp-launcher", "status", "--json").stdout)
        assert (status["settings"]["ctx"], status["settings"]["extra"]) == (2_048, [])
        failed = run("mtp-launcher", "restart", "--set", "extra=--warp 9", "--url", status["url"])
        assert "To do: Start without --warp (the server runs this way already)\n" in failed.stderr


def test_a_port_in_use_is_explained() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        failed = run("mtp-launcher", "serve", "demo", "--port", str(port), "--json")
        (action,) = json.loads(failed.stdout)["error"]["actions"]
        assert action["command"] == "mtp-launcher serve demo"
        with serve_by_command(action["command"]) as status:
            assert status["port"] != port


@pytest.mark.thorough
def test_a_broken_file_is_reported_before_an_engine_starts(tmp_path: Path, demo_model: Path) -> None:
    # This earlier failure has nothing to do with the broken file.
    run("mtp-launcher", "serve", "demo", "--", "--warp-speed", "9")
    model = tmp_path / "cut.gguf"
    whole = demo_model.read_bytes()
    model.write_bytes(whole[:-1_000])
    failed = run("mtp-launcher", "serve", str(model))
    assert failed.returncode == 1
    assert "cut.gguf is incomplete: 1,000 of " in failed.stderr
    assert "Download it again" not in failed.stderr.split("To do")[1]  # nobody knows where the file came from
    assert find_command(failed.stderr) == "mtp-launcher models"
    result = run("mtp-launcher", "diagnose")
    assert result.returncode == 0
    assert result.stdout.startswith("The last start failed before an engine was run.\n  Why: cut.gguf is incomplete: ")
    assert find_command(result.stdout) == "mtp-launcher models"
    answer = json.loads(run("mtp-launcher", "diagnose", "--json").stdout)
    assert (answer["code"], answer["severity"], answer["log"]) == ("model_broken", "fatal", None)
    assert answer["cause"].startswith("cut.gguf is incomplete: ")
    assert answer["action"]["kind"] == "other_model"
    model.write_bytes(whole)
    with serve_by_command(f"mtp-launcher serve {model}"):
        assert run("mtp-launcher", "diagnose").returncode == 0


def test_a_file_of_a_newer_format_is_not_suggested_for_download_again(tmp_path: Path) -> None:
    model = tmp_path / "new.gguf"
    model.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(100))
    failed = run("mtp-launcher", "serve", str(model), "--json")
    error = json.loads(failed.stdout)["error"]
    assert "which is too new" in error["message"]
    assert [each["kind"] for each in error["actions"]] == ["other_model"]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("nonexist", "`mtp-launcher models` lists all, `mtp-launcher models list` those that are here."),
        ("https://evil.example/x.gguf", "`mtp-launcher pull https://evil.example/x.gguf`"),
    ],
)
def test_a_missing_model_is_reported_with_the_download_command(model: str, sentence: str) -> None:
    failed = run("mtp-launcher", "serve", model)
    assert model in failed.stderr.splitlines()[0]
    assert sentence in failed.stderr
    assert model in run("mtp-launcher", "diagnose").stdout


def test_a_damaged_record_of_the_last_start_leaves_its_log(home: Path) -> None:
    run("mtp-launcher", "serve", "demo", "--", "--warp-speed", "9")
    for path in (home / "state").glob("last-start.json*"):
        path.write_text("{")
    result = run("mtp-launcher", "diagnose")
    assert result.stdout.startswith("The engine does not support the flag --warp-speed.\n")
    assert "The record of the last start was damaged" in result.stderr


def test_the_server_that_was_stopped_last_is_diagnosed_and_one_that_still_runs_before_it() -> None:
    with serve_by_command("mtp-launcher serve demo") as first:
        port = find_port()
        with forked.start("serve", "demo", "--json", "--port", port, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            second = json.loads(process.stdout.readline())
            run("mtp-launcher", "stop", "--url", second["url"])
            process.wait(120)
        running = run("mtp-launcher", "diagnose")
        assert running.stdout.startswith(f"The server at {first['url']} is healthy.\n")
    ended = run("mtp-launcher", "diagnose")
    assert ended.returncode == 0
    assert ended.stdout.startswith("No server runs. The last one was stopped")
    assert f"engine-{first['url'].rpartition(':')[2]}.log" in ended.stdout.replace("\n", "")


def test_one_of_two_servers_must_be_named() -> None:
    with (
        serve_by_command("mtp-launcher serve demo") as first,
        forked.start("serve", "demo", "--json", "--port", find_port(), stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["state"] == "ready"
        result = run("mtp-launcher", "diagnose")
        named = json.loads(run("mtp-launcher", "diagnose", "--url", first["url"], "--json").stdout)
        process.terminate()
        process.wait(120)
    assert result.returncode == 1
    assert "2 servers are running" in result.stderr
    assert "Choose one with --url." in result.stderr
    assert named["log"].endswith(f"engine-{first['port']}.log")


def test_warnings_of_a_server_that_loads_are_not_reported_as_its_failure(home: Path) -> None:
    with serve_by_command("mtp-launcher serve demo") as status:
        log = home / "state" / "logs" / f"engine-{status['port']}.log"
        run_so_far = log.read_text().split("model loaded")[0]
        assert "failed to fit params" not in run_so_far
        (note,) = home.rglob(f"server-{status['port']}.json")
        note.write_text(note.read_text().replace('"state":"ready"', '"state":"loading"'))
        notice = "0.00.100.000 W common_fit_params: failed to fit params to free device memory: abort\n"
        log.write_text(f"mtp-launcher starts an engine: x\n{notice}")
        answer = json.loads(run("mtp-launcher", "diagnose", "--json").stdout)
    assert (answer["code"], answer["action"]) == (None, None)
    assert answer["title"] == f"The server at {status['url']} is loading, and its log shows no failure."


def test_diagnose_without_a_log_reports_that() -> None:
    result = run("mtp-launcher", "diagnose")
    assert result.returncode == 1
    assert "No server has run yet" in result.stderr
