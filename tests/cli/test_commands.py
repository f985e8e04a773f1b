"""The command as a user types it, in separate processes, on the real engine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher import __version__
from launcher.base.identity import ProcessId
from tests import forked
from tests.cli import in_process

NO_DISPLAY = "No display is available for the window: neither DISPLAY nor WAYLAND_DISPLAY is set."


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the terminal, without a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, env=os.environ | environment)


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr + result.stdout
    return json.loads(result.stdout)


def complaint(*arguments: str) -> dict[str, Any]:
    """Run a command that must fail; return its error from --json. The text output must contain it, too."""
    result = run(*arguments, "--json")
    assert result.returncode == 1
    error: dict[str, Any] = json.loads(result.stdout)["error"]
    in_text = run(*arguments)
    assert in_text.returncode == 1
    assert error["message"] in in_text.stderr
    assert "Traceback" not in in_text.stderr + result.stderr
    return error


@contextmanager
def serve_model(*arguments: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    with forked.start("serve", *arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        try:
            yield process, ready
        finally:
            process.terminate()
            process.wait(120)


def end_within(seconds: float, *identities: ProcessId) -> bool:
    deadline = time.monotonic() + seconds
    while any(identity.is_running() for identity in identities):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"mtp-launcher {__version__}\n"


def test_without_a_verb_and_a_display_the_help_is_printed() -> None:
    result = run()
    assert result.returncode == 2
    assert "doctor" in result.stdout
    assert result.stderr == f"{NO_DISPLAY}\n"


def test_options_without_a_verb_are_passed_to_the_window() -> None:
    result = run("--theme", "dark", "--page", "models")
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: {NO_DISPLAY}\n")
    assert "mtp-launcher gui: error: argument --theme" in run("--theme", "pink").stderr


def test_an_unknown_verb_is_wrong_usage() -> None:
    assert run("fly").returncode == 2


@pytest.mark.thorough
def test_the_demo_reports_its_measurements() -> None:
    report = answer("demo", "--headless")
    assert report["engine"]["name"] == "built-in"
    assert report["engine"]["version"].startswith("xllamacpp ")
    assert report["model"]
    assert 0 < report["ready_s"] < 60
    assert report["predicted_n"] > 100
    assert report["tokens_per_second"] > 0
    assert 0 < report["draft_n_accepted"] < report["draft_n"]
    assert report["acceptance"] == pytest.approx(report["draft_n_accepted"] / report["draft_n"], abs=1e-3)
    assert 0.6 < report["acceptance"] < 0.97
    assert 20 < len(report["text"]) <= 200
    assert report["samples"] > 0


@pytest.mark.thorough
def test_the_demo_runs_for_the_requested_seconds() -> None:
    report = answer("demo", "--headless", "--seconds", "1")
    assert report["samples"] >= 8


def test_without_a_display_the_demo_runs_in_the_terminal() -> None:
    result = run("demo")
    assert result.returncode == 0
    assert "There is no display" in result.stdout
    assert "Drafts accepted:" in result.stdout
    assert "not a speed-up" in result.stdout
    assert "Ready" in result.stderr


def test_a_server_is_served_listed_asked_and_stopped() -> None:
    with serve_model("--model", "demo") as (process, ready):
        assert ready["state"] == "ready"
        engine = ProcessId.from_pid(ready["pid"])
        assert engine is not None
        key = {"Authorization": f"Bearer {ready['api_key']}"}
        models = httpx.get(f"{ready['url']}/v1/models", headers=key, trust_env=False).json()
        assert models["data"][0]["id"] == "demo"
        (listed,) = answer("status")
        assert (listed["url"], listed["state"], listed["problem"]) == (ready["url"], "ready", None)
        assert (listed["pid"], listed["launcher_pid"]) == (ready["pid"], ready["launcher_pid"])
        reply = answer("chat", "What is acceptance?", "--max-tokens", "60", "--no-think")
        assert reply["text"]
        assert reply["reasoning"] == ""
        assert reply["draft_n_accepted"] > 0
        thought = answer("chat", "What is acceptance?", "--think", "--url", f"{ready['url']}/v1")
        assert thought["reasoning"]
        assert answer("stop")["stopped"] == ready["url"]
        assert process.wait(120) == 0
        assert end_within(1, engine)
    assert run("status").returncode == 1
    assert complaint("stop")["code"] == "server_not_found"


def test_serve_prints_its_settings() -> None:
    options = ["--kv", "q8_0", "--ubatch", "128", "--ctx", "300K"]
    with forked.start(
        "serve", "--model", "demo", *options, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "Ctrl-C stops it.\n")
        result = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
        process.terminate()
        assert process.wait(120) == 0
    assert result["settings"] == "MTP on, draft length 2, context 307200, 1 slot\n"
    assert result["memory"] == "KV cache q8_0, ubatch 128\n"
    assert result["note"].startswith("The model was trained for 262,144 tokens.")


def test_address_and_key_are_the_same_after_a_restart() -> None:
    with serve_model("--model", "demo") as (_, first):
        pass
    with serve_model("--model", "demo", "--draft", "0") as (_, second):
        assert (first["url"], first["api_key"]) == (second["url"], second["api_key"])


def find_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def test_a_second_serve_loads_its_model_in_the_first_server_until_it_ends(demo_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied.gguf"
    shutil.copy(demo_model, copy)
    with serve_model("--model", "demo") as (_, first):
        command = ["serve", str(copy), "--threads", "1", "--ctx", "4K", "--json"]
        with forked.start(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            second = json.loads(process.stdout.readline())
            names = ("url", "api_key", "state", "model", "server_pid", "launcher_pid")
            result = tuple(second[name] for name in names)
            assert result == (first["url"], first["api_key"], "ready", "copied", first["launcher_pid"], process.pid)
            rows = answer("status")
            assert [(row["model"], row["url"], row["by_request"]) for row in rows] == [
                ("demo", first["url"], False),
                ("copied", first["url"], False),
            ]
            assert [row["pid"] for row in rows] == [first["pid"], second["pid"]]
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        while len(answer("status")) > 1:
            time.sleep(0.05)
        with forked.start(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["state"] == "ready"
            assert answer("stop", "copied") == {"stopped": first["url"], "model": "copied"}
            assert json.loads(process.stdout.readline()) == {"state": "stopped", "error": None}
            assert process.wait(120) == 0
        assert [row["model"] for row in answer("status")] == ["demo"]
        assert complaint("stop", "copied")["code"] == "model_missing"


@pytest.mark.thorough
def test_several_servers_run_side_by_side_and_are_distinguished() -> None:
    with (
        serve_model("--model", "demo") as (_, first),
        serve_model("--model", "demo", "--port", find_port()) as (_, second),
    ):
        assert first["url"] != second["url"]
        assert len(answer("status")) == 2
        for verb in (["chat", "Hello"], ["stop"]):
            error = complaint(*verb)
            assert error["code"] == "several_servers"
            assert "--url" in error["hint"]
        assert answer("chat", "Hello", "--max-tokens", "8", "--url", second["url"])["predicted_n"] == 8
        assert answer("stop", "--url", second["url"])["stopped"] == second["url"]
        assert [server["url"] for server in answer("status")] == [first["url"]]


def test_a_reply_is_streamed_to_the_terminal_with_its_figures() -> None:
    with serve_model("--model", "demo"):
        result = run("chat", "What is MTP?", "--no-think", "--temperature", "0")
        assert result.returncode == 0
        assert len(result.stdout) > 50
        assert "of drafts accepted" in result.stderr
        for dash in (["-"], []):
            piped = forked.run("chat", *dash, "--no-think", input=b"Hello")
            assert piped.returncode == 0
            assert piped.stdout.strip()


def test_a_healthy_server_is_diagnosed_as_such() -> None:
    with serve_model("--model", "demo") as (_, ready):
        for options in ([], ["--url", ready["url"]]):
            result = run("diagnose", *options)
            assert result.returncode == 0
            assert result.stdout.startswith(f"The server at {ready['url']} is healthy.\n  Checked: it answers (state: ")
            assert "its log shows no failure" in result.stdout
        report = answer("diagnose", "--url", ready["url"])
        assert (report["code"], report["actions"], report["health"]) == (None, [], [])


class Terminal(StringIO):
    """Standard input of a person."""

    def isatty(self) -> bool:
        return True


def test_a_question_is_asked_for_where_none_comes_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    asked = in_process.run("chat")
    assert asked.returncode == 2
    assert "what to ask is missing" in asked.stderr


@pytest.mark.parametrize("verb", [["chat", "Hello"], ["stop"], ["chat", "Hello", "--url", "http://127.0.0.1:9"]])
def test_a_verb_that_needs_a_server_reports_that_none_is_running(verb: list[str]) -> None:
    assert "mtp-launcher serve" in complaint(*verb)["hint"]


def test_bad_models_end_with_one_sentence(tmp_path: Path, demo_model: Path, headless_model: Path, home: Path) -> None:
    page, cut = tmp_path / "page.gguf", tmp_path / "cut.gguf"
    page.write_text("<html>Not found</html>")
    cut.write_bytes(demo_model.read_bytes()[:-10])
    for model, code in (
        (tmp_path / "none.gguf", "model_missing"),
        (tmp_path, "model_missing"),
        (page, "model_broken"),
        (cut, "model_broken"),
    ):
        assert complaint("serve", "--model", str(model))["code"] == code
    assert complaint("serve", "--model", str(headless_model), "--draft", "3")["code"] == "model_has_no_mtp_head"
    assert not (home / "state" / "endpoints.json").exists()


@pytest.mark.parametrize("words", [[], ["--draft", "0"]])
def test_a_model_without_a_head_is_served_with_mtp_off(headless_model: Path, words: list[str]) -> None:
    with serve_model("--model", str(headless_model), *words) as (_, ready):
        received = [notice["text"] for notice in ready.get("notices", [])]
        assert received == ([] if words else ["headless.gguf has no MTP head, so MTP is off."])
        reply = answer("chat", "Hello", "--max-tokens", "8")  # hardly trained, it may end a reply at any token
        assert 1 <= reply["predicted_n"] <= 8
        assert (reply["draft_n"], reply["acceptance"]) == (0, None)


def test_a_file_name_that_begins_with_a_dash_is_served(tmp_path: Path, demo_model: Path) -> None:
    model = tmp_path / "-dash.gguf"
    model.symlink_to(demo_model)
    with serve_model(f"--model={model}") as (_, ready):
        assert ready["state"] == "ready"


@pytest.mark.parametrize(
    "arguments",
    [["chat", "hi", "--temperature", "nan"], ["chat", ""], ["chat", "-"], ["demo", "--seconds", "inf"]],
)
def test_an_invalid_value_is_wrong_usage(arguments: list[str]) -> None:
    result = forked.run(*arguments, input=b"")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_commands_work_with_closed_outputs_and_write_private_files(home: Path) -> None:
    for closed in ("umask 000; exec >&-; ", "exec >&- 2>&-; "):
        line = f'{closed}"{sys.executable}" -m launcher demo --headless --seconds 0.1'
        assert subprocess.run(["/bin/sh", "-c", line], check=False, capture_output=True).returncode == 0
    assert not [path for path in home.rglob("*") if path.stat().st_mode & 0o077]
    result = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m launcher demo --json --seconds 0.1 >/dev/full'],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr


def test_bad_options_end_with_one_sentence(tmp_path: Path) -> None:
    engine = tmp_path / "llama-server"
    engine.write_text("")
    for options, code in (
        (["--draft", "99"], "bad_option"),
        (["--ctx", "1"], "bad_option"),
        (["--port", "99999"], "bad_option"),
        (["--engine", str(engine)], "engine_missing"),
        (["--engine", "/bin/echo"], "engine_unsuitable"),
    ):
        assert complaint("serve", "--model", "demo", *options)["code"] == code
    assert prints_empty_list("status")


def prints_empty_list(verb: str) -> bool:
    result = run(verb, "--json")
    return result.returncode == 1 and json.loads(result.stdout) == []


def test_a_port_in_use_is_named_and_the_other_program_is_not_changed() -> None:
    with serve_model("--model", "demo") as (_, first):
        port = first["url"].rsplit(":", 1)[1]
        assert complaint("serve", "--model", "demo", "--port", port)["code"] == "port_busy"
        assert answer("status")[0]["state"] == "ready"


@pytest.mark.thorough
def test_a_llama_server_given_by_path_is_used(real_engine: Path, demo_model: Path) -> None:
    with serve_model("--model", str(demo_model), "--engine", str(real_engine), "--ctx", "1024") as (_, _ready):
        (listed,) = answer("status")
        assert listed["engine"] == "llama-server"
        assert answer("chat", "Hello", "--max-tokens", "20")["draft_n"] > 0


@pytest.mark.thorough
def test_an_engine_that_crashes_is_restarted_at_the_same_address() -> None:
    with forked.start("serve", "--model", "demo", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not process.stdout.readline().startswith("Ctrl-C"):
            pass
        (before,) = answer("status")
        os.kill(before["engine_pid"], signal.SIGKILL)
        result = next(
            line for line in process.stderr if line.startswith("The engine was killed by the system or another program")
        )
        assert result.endswith("Restarting in 0.5 s (1 of 3).\n")
        assert any(line.strip() == "Ready" for line in process.stderr)
        assert answer("chat", "Hello", "--max-tokens", "8")["predicted_n"] == 8
        (after,) = answer("status")
        assert (after["url"], after["api_key"]) == (before["url"], before["api_key"])
        assert after["engine_pid"] != before["engine_pid"]
        process.terminate()
        assert process.wait(120) == 0
    assert prints_empty_list("status")


def test_the_engine_ends_within_two_seconds_after_kill_9_of_the_program() -> None:
    with serve_model("--model", "demo") as (process, ready):
        engine = ProcessId.from_pid(ready["pid"])
        assert engine is not None
        process.kill()
        process.wait()
        assert end_within(2, engine)
    assert prints_empty_list("status")


def test_a_closed_pipe_ends_the_demo_silently() -> None:
    with forked.start("demo", "--seconds", "60", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        result = process.stderr.read()
        assert process.wait(120) == 141
    assert "Traceback" not in result


def test_doctor_lists_the_machine() -> None:
    report = answer("doctor")
    assert report["demo_can_run"] is True
    assert report["engines"][0]["place"] == "built-in"
    assert report["host"]["memory_bytes"] > 2**28
    result = run("doctor")
    assert result.returncode == 0
    assert "The demo can run." in result.stdout


def test_doctor_reports_what_is_missing(tmp_path: Path) -> None:
    """An unwritable home stands for a machine on which the demo cannot run."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    result = run("doctor", MTP_LAUNCHER_HOME=str(blocked))
    assert result.returncode == 1
    assert "Cannot unpack" in result.stdout
    assert "The demo cannot run yet." in result.stdout


def test_an_unwritable_home_is_reported_in_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    result = run("demo", "--headless", MTP_LAUNCHER_HOME=str(blocked))
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: MTP_LAUNCHER_HOME is {blocked}, but {blocked} is not a folder.")
    assert "Traceback" not in result.stderr
