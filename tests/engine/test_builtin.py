"""The built-in engine as a command: flags, answers to a probe, key, ways to end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
import xllamacpp

from tests.conftest import BUILT_IN

KEY = "a-key-for-the-tests"


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(BUILT_IN), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serve_model(model: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    port = free_port()
    command = [sys.executable, "-P", str(BUILT_IN), "--model", str(model), "--port", str(port), "-c", "2048", "-t", "1"]
    environment = os.environ | {"LLAMA_API_KEY": KEY, "LLAMA_SERVER_ROUTER_PORT": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, *arguments], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            while b'"state":"ready"' not in (line := process.stdout.readline()):
                assert line, "the engine ended before it was ready"
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
                yield process, client
        finally:
            process.kill()


def test_the_built_in_engine_answers_a_probe_like_a_llama_server() -> None:
    result = ask("--version")
    assert result.stderr.startswith(f"version: xllamacpp {version('xllamacpp')}")
    assert ask("--list-devices").stdout == "Available devices:\n  (none)\n"
    assert "--spec-draft-n-max" in ask("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--no-such-flag"], "error: invalid argument: --no-such-flag"),
        (["--model", "x.gguf", "--spec-type", "mtp"], 'argument "--spec-type": unknown speculative type: mtp'),
        (["--model", "x.gguf", "--api-key-file", "/no/such/file"], 'argument "--api-key-file"'),
        (["--model", "x.gguf", "--port", "many"], "invalid int value"),
        (["--metrics"], "needs --model"),
    ],
)
def test_a_wrong_command_line_ends_it_with_a_sentence(arguments: list[str], sentence: str) -> None:
    result = ask(*arguments)
    assert result.returncode == 1
    assert sentence in result.stderr


def test_a_file_that_cannot_be_loaded_ends_it_with_exit_code_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    result = ask("--model", str(broken), "--port", str(free_port()))
    assert result.returncode == 1
    assert "failed to load model" in result.stderr


def test_the_key_from_the_environment_protects_everything_except_health(demo_model: Path) -> None:
    with serve_model(demo_model, "--metrics") as (_, client):
        assert client.get("/health").status_code == 200
        for path in ("/slots", "/props", "/metrics", "/v1/models"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_requests_of_foreign_web_pages_are_refused(demo_model: Path) -> None:
    with serve_model(demo_model, "--cors-origins", "localhost") as (_, client):
        foreign = client.get("/health", headers={"Origin": "https://example.org"})
        assert foreign.headers.get("Access-Control-Allow-Origin") != "https://example.org"


@pytest.mark.parametrize(
    "flags",
    [
        ["-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0", "-b", "512", "-ub", "128", "-tb", "1", "-ngl", "auto"],
        ["--spec-type", "draft-mtp", "--spec-draft-n-max", "1", "--spec-draft-type-k", "f16", "-np", "2"],
        ["--spec-type", "none", "-lm", "none", "-cram", "0", "-fit", "off", "-n", "32", "--no-warmup", "-a", "name"],
        ["--spec-type", "draft-mtp,ngram-mod", "--spec-draft-sampling", "probabilistic", "-fitt", "512", "-lv", "4"],
    ],
)
def test_flags_of_llama_server_are_accepted(demo_model: Path, flags: list[str]) -> None:
    with serve_model(demo_model, *flags) as (_, client):
        slots = client.get("/slots", headers={"Authorization": f"Bearer {KEY}"}).json()
        assert slots[0]["speculative"] is any("draft" in flag for flag in flags if not flag.startswith("-"))
        assert len(slots) == (2 if "-np" in flags else 1)


def test_the_sampling_of_requests_that_set_none_follows_the_flags(demo_model: Path) -> None:
    wanted = {"temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "presence_penalty": 0.75}
    flags = ["--temp", "0.25", "--top-k", "7", "--top-p", "0.5", "--min-p", "0.125", "--presence-penalty", "0.75"]
    with serve_model(demo_model, *flags) as (_, client):
        properties = client.get("/props", headers={"Authorization": f"Bearer {KEY}"}).json()
    used = properties["default_generation_settings"]["params"]
    assert {name: used[name] for name in wanted} == pytest.approx(wanted)


def stream_forever(client: httpx.Client) -> httpx.Response:
    body = {"prompt": "A", "n_predict": 100_000, "stream": True, "ignore_eos": True}
    request = client.build_request("POST", "/completion", json=body, headers={"Authorization": f"Bearer {KEY}"})
    response = client.send(request, stream=True)
    next(response.iter_lines())
    return response


@pytest.mark.parametrize("streaming", [False, True], ids=["idle", "streaming"])
@pytest.mark.parametrize("way", ["SIGTERM", "exit line", "end of input"])
def test_the_built_in_engine_ends_without_a_delay(demo_model: Path, way: str, streaming: bool) -> None:
    with serve_model(demo_model) as (process, client):
        assert process.stdin is not None
        response = stream_forever(client) if streaming else None
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        elif way == "exit line":
            process.stdin.write(b"cmd_router_to_child:exit\n")
            process.stdin.flush()
        else:
            process.stdin.close()
        # The server may answer a moment before its constructor returns; until then a signal has its default effect.
        by_default = {-signal.SIGTERM} if way == "SIGTERM" else set()
        assert process.wait(120) in {1 if way == "end of input" else 0} | by_default
        if response is not None:
            response.close()


def test_the_built_in_engine_lists_all_drafters_of_its_wheel() -> None:
    prefix = "COMMON_SPECULATIVE_TYPE_"
    known = {name.removeprefix(prefix) for name in dir(xllamacpp.common_speculative_type) if name.startswith(prefix)}
    listed = ask("--help").stdout.rpartition("--spec-type ")[2].split()[0].split(",")
    assert {name.upper().replace("-", "_") for name in listed} == known - {"COUNT"}
