"""`mtp-launcher export` and `attach` as a user types them, on the real engine."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.base.paths import models_dir
from launcher.cli.given_key import read_api_key
from launcher.export.formats import FORMATS
from tests import forked
from tests.conftest import FAKES


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, env=os.environ | environment)


def run_text(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def usual_engine(no_engine_here: None) -> None:
    """A computer with the built-in engine only and without a GPU."""


@pytest.fixture
def running_demo() -> Iterator[dict[str, Any]]:
    """The demo, served by a process of its own."""
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(120)


def test_a_running_server_is_exported_as_it_runs(running_demo: dict[str, Any]) -> None:
    line = run_text("export", "command", "--shell", "bash")
    assert f"--port {running_demo['url'].rpartition(':')[2]} " in line
    assert "--spec-type draft-mtp" in line
    for kind in FORMATS:
        assert running_demo["api_key"] not in run_text("export", kind)
    with_key = run("export", "curl", "--with-key")
    assert running_demo["api_key"] in with_key.stdout
    assert "anyone who reads it" in with_key.stderr


def test_curl_and_bash_speak_with_the_engine(running_demo: dict[str, Any]) -> None:
    text = run_text("export", "curl")
    environment = os.environ | {"LLAMA_API_KEY": running_demo["api_key"]}
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.rstrip().endswith("data: [DONE]")


def test_clients_get_the_context_that_the_server_reports(running_demo: dict[str, Any]) -> None:
    limits = json.loads(run_text("export", "opencode"))["provider"]["mtp"]["models"]["demo"]["limit"]
    request = urllib.request.Request(
        f"{running_demo['url']}/props", headers={"Authorization": f"Bearer {running_demo['api_key']}"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        reported = json.load(reply)["default_generation_settings"]["n_ctx"]
    assert limits["context"] == reported


def test_all_models_of_this_computer_are_in_one_file(
    running_demo: dict[str, Any], demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):
        (models_dir() / folder).mkdir(parents=True)
        shutil.copyfile(demo_model, models_dir() / folder / "same name.gguf")
    (models_dir() / "broken.gguf").write_bytes(b"GGUF no more")
    done = run("export", "llama-swap")
    models = yaml.safe_load(done.stdout)["models"]
    assert set(models) == {"demo", "same name", "one/same name"} or set(models) == {
        "demo",
        "same name",
        "two/same name",
    }
    listed = json.loads(run_text("models", "list", "--json"))
    assert len(listed["models"]) >= 2
    assert "Left out" in done.stderr
    got = json.loads(run_text("export", "router-ini", "--json"))
    assert got["models"] == list(models)
    assert got["url"] == f"{running_demo['url']}/v1"
    assert [each["error"]["code"] for each in got["left_out"]]
    assert "[same name]" in got["text"]
    only = yaml.safe_load(run_text("export", "llama-swap", "--model", "demo"))["models"]
    assert list(only) == ["demo"]


def test_running_gateways_are_exported_to_a_router(running_demo: dict[str, Any]) -> None:
    read = yaml.safe_load(run_text("export", "litellm"))
    (model,) = read["model_list"]
    assert (model["model_name"], model["litellm_params"]["api_base"]) == ("demo", f"{running_demo['url']}/v1")
    peers = yaml.safe_load(run_text("export", "llama-swap", "--peers"))["peers"]
    assert peers["gateway-1"] == {
        "proxy": running_demo["url"],
        "apiKey": "${env.LLAMA_API_KEY_1}",
        "models": ["demo"],
    }
    got = json.loads(run_text("export", "gpustack", "--peers", running_demo["url"], "--with-key", "--json"))
    assert got["gateways"] == [{"url": running_demo["url"], "key_variable": "LLAMA_API_KEY_1", "models": ["demo"]}]
    assert running_demo["api_key"] in got["text"]


def test_the_gateway_of_another_computer_needs_its_key(running_demo: dict[str, Any], tmp_path: Path) -> None:
    peers = ("export", "litellm", "--peers", f"{running_demo['url']}/v1,{running_demo['url']}")
    other = {"MTP_LAUNCHER_HOME": str(tmp_path / "other"), "LLAMA_API_KEY_1": running_demo["api_key"]}
    refused = run(*peers, **other)
    assert (refused.returncode, "Set LLAMA_API_KEY_2 to the key" in refused.stderr) == (1, True)
    both = run(*peers, LLAMA_API_KEY_2=running_demo["api_key"], **other)
    assert [each["model_name"] for each in yaml.safe_load(both.stdout)["model_list"]] == ["demo", "demo"]
    assert run("export", "litellm", "--peers", "http://127.0.0.1:9", **other).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("curl", "--peers"), "--peers does not apply to curl"),
        (("litellm",), "No server is running"),
        (("litellm", "--model", "demo"), "--model does not apply"),
        (("litellm", "--ctx", "4096"), "--ctx needs --model"),
        (("router-ini", "--ctx", "4096"), "--ctx needs --model"),
    ],
)
def test_impossible_exports_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    done = run("export", *arguments)
    assert done.returncode == 1
    assert reason in done.stderr


def test_settings_need_a_model(running_demo: dict[str, Any]) -> None:
    done = run("export", "command", "--ctx", "4096")
    assert done.returncode == 1
    assert "--ctx needs --model" in done.stderr


def test_without_a_server_and_a_model_an_export_is_refused() -> None:
    done = run("export", "command")
    assert done.returncode == 1
    assert "No server is running" in done.stderr


def test_a_plan_is_exported_as_it_is_planned() -> None:
    plan = json.loads(
        run_text("plan", "--model", "qwen3.6-35b-a3b-mtp", "--gpu-memory", "24", "--kv", "q8_0", "--json")
    )["plans"][0]
    text = run_text("export", "compose", "--model", "qwen3.6-35b-a3b-mtp", "--gpu-memory", "24", "--kv", "q8_0")
    service = yaml.safe_load(text)["services"]["llama-server"]
    command = service["command"]
    assert service["image"].endswith(":server-cuda")
    for flag, value in (
        ("--ctx-size", plan["ctx"]),
        ("--cache-type-k", plan["kv"]),
        ("--spec-draft-n-max", plan["draft"]),
    ):
        assert command[command.index(flag) + 1] == str(value)
    assert command[1] == f"/models/{plan['file']}"


def test_one_file_of_a_model_can_be_named() -> None:
    text = run_text(
        "export", "router-ini", "--model", "qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", "--gpu-memory", "48", "--ctx", "8K"
    )
    assert "model = Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf" in text
    assert "ctx-size = 8192" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("demo", "--gpu-memory", "24"), "--gpu-memory does not apply to a model file"),
        (("demo", "--vision"), "--vision does not apply to a model file"),
        (("demo", "--quant", "Q4_0"), "--quant does not apply to a model file"),
        (
            ("qwen3.6-35b-a3b-mtp", "--engine", "built-in", "--host-memory", "64"),
            "--host-memory and --engine cannot be combined",
        ),
    ],
)
def test_options_that_choose_a_plan_are_refused_without_a_choice(arguments: tuple[str, ...], reason: str) -> None:
    done = run("export", "command", "--model", *arguments)
    assert done.returncode == 1
    assert reason in done.stderr


def test_a_file_is_exported_for_the_backend_and_the_quantisation_that_are_named(
    demo_model: Path, tmp_path: Path
) -> None:
    engine = tmp_path / "llama-server"
    fake = shlex.join([sys.executable, str(FAKES / "llama_server.py")])
    engine.write_text(f'#!/bin/sh\n[ "$1" = --help ] && echo "--device DEV"\nexec {fake} "$@"\n')
    engine.chmod(0o755)
    line = ("command", "--shell", "bash", "--engine", str(engine))
    assert "--device none" in run_text("export", *line, "--model", str(demo_model), "--backend", "cpu")
    missing = run("export", *line, "--model", "qwen3.6-35b-a3b-mtp", "--quant", "UD-Q4_K_XL")
    assert "UD-Q4_K_XL" in missing.stderr


def test_rpc_workers_and_extra_arguments_are_in_every_export() -> None:
    wanted = ("--model", "qwen3.6-35b-a3b-mtp", "--gpu-memory", "24", "--rpc", "10.0.0.2:50052")
    text = run_text("export", "command", "--shell", "bash", *wanted, "--", "--jinja")
    assert "--rpc 10.0.0.2:50052" in text
    assert text.rstrip().endswith("--jinja")


def test_a_plan_that_does_not_fit_is_not_exported() -> None:
    done = run("export", "command", "--model", "qwen3.6-35b-a3b-mtp", "--gpu-memory", "1", "--host-memory", "1")
    assert done.returncode == 1
    assert "does not fit this computer" in done.stderr


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "serve it.sh"
    assert "Wrote" in run_text("export", "script", "--shell", "bash", "--model", "demo", "--out", str(target))
    assert target.stat().st_mode & 0o777 == 0o755
    again = run("export", "script", "--shell", "bash", "--model", "demo", "--out", str(target))
    assert again.returncode == 1
    assert "already exists" in again.stderr
    run_text("export", "script", "--shell", "bash", "--model", "demo", "--out", str(target), "--force", "--with-key")
    assert target.stat().st_mode & 0o777 == 0o700


def test_json_has_the_text_and_the_notes() -> None:
    got = json.loads(run_text("export", "llama-swap", "--model", "qwen3.6-35b-a3b-mtp", "--gpu-memory", "24", "--json"))
    assert yaml.safe_load(got["text"])["models"]
    assert got["missing"].endswith(".gguf")
    assert got["with_key"] is False


class TestAttach:
    def test_a_server_of_another_program_is_inspected_watched_and_measured(
        self, running_demo: dict[str, Any], tmp_path: Path
    ) -> None:
        other = {"MTP_LAUNCHER_HOME": str(tmp_path / "other"), "THE_KEY": running_demo["api_key"]}
        url = f"{running_demo['url']}/v1"
        seen = json.loads(run("attach", url, "--once", "--json", "--api-key-env", "THE_KEY", **other).stdout)
        assert seen["kind"] == "llama-server"
        assert seen["models"] == ["demo"]
        assert seen["speculative"] is True
        assert seen["not_offered"] == {}
        key_file = tmp_path / "key"
        key_file.write_text(f"{running_demo['api_key']}\n")
        reply = run("chat", "What is MTP?", "--url", url, "--key-file", str(key_file), "--json", **other)
        assert json.loads(reply.stdout)["draft_n"] > 0
        watched = run("attach", url, "--seconds", "0.5", "--api-key-env", "THE_KEY", **other)
        assert watched.stdout.splitlines()[-1].startswith("ready")

    def test_our_own_server_needs_no_key_option(self, running_demo: dict[str, Any]) -> None:
        assert "llama-server" in run_text("attach", running_demo["url"], "--once")

    def test_a_wrong_and_a_missing_key_are_reported(self, running_demo: dict[str, Any], tmp_path: Path) -> None:
        other = {"MTP_LAUNCHER_HOME": str(tmp_path / "other"), "THE_KEY": "wrong-key"}
        refused = run("attach", running_demo["url"], "--once", "--api-key-env", "THE_KEY", **other)
        assert "rejected the API key" in refused.stderr
        assert "wrong-key" not in refused.stderr
        assert "--api-key-env" in run("attach", running_demo["url"], "--once", **other).stderr

    def test_an_unset_variable_is_reported(self) -> None:
        assert "holds no API key" in run("attach", "http://127.0.0.1:1", "--api-key-env", "NOT_SET").stderr

    @pytest.mark.parametrize(("url", "warned"), [("http://192.0.2.1:1", True), ("http://127.0.0.1:1", False)])
    def test_a_key_without_https_is_warned_about(
        self, url: str, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("THE_KEY", "k" * 20)
        assert read_api_key(url, argparse.Namespace(api_key_env="THE_KEY", key_file=None)) == "k" * 20
        assert ("Without https" in capsys.readouterr().err) == warned

    def test_status_shows_the_key_on_request(self, running_demo: dict[str, Any]) -> None:
        assert running_demo["api_key"] not in run_text("status")
        assert "--show-key" in run_text("status")
        assert running_demo["api_key"] in run_text("status", "--show-key")

    def test_the_model_served_last_is_served_again(self, running_demo: dict[str, Any]) -> None:
        run_text("stop")
        with forked.start("serve", "--last", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            again = json.loads(process.stdout.readline())
            process.terminate()
            process.wait(120)
        assert (again["url"], again["api_key"]) == (running_demo["url"], running_demo["api_key"])


def test_unreadable_and_unwritable_files_are_reported(tmp_path: Path) -> None:
    nowhere = tmp_path / "misspelled" / "x"
    refused = run("export", "script", "--model", "demo", "--out", str(nowhere))
    assert (refused.returncode, f"There is no folder {nowhere.parent}." in refused.stderr) == (1, True)
    assert not nowhere.parent.exists()
    ignored = run("export", "systemd", "--model", "demo", "--shell", "powershell")
    assert (ignored.returncode, "--shell does not apply to systemd." in ignored.stderr) == (1, True)
    no_key = run("attach", "http://127.0.0.1:1", "--key-file", str(nowhere))
    assert (no_key.returncode, f"--key-file {nowhere} cannot be read" in no_key.stderr) == (1, True)
