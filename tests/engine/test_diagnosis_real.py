"""The diagnosis on the built-in engine itself, made to fail on purpose in every way that needs no GPU."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from launcher.engine import builtin
from launcher.engine.diagnosis.explain import Diagnosis, diagnose_log
from tests.engine.test_builtin import free_port
from tools.diagnosis_score.files import make_broken_models

MTP = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "2"]
Run = Callable[..., tuple[Diagnosis | None, str]]


@pytest.fixture(scope="module")
def broken_models(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """A folder of models that are broken in one way each."""
    folder = tmp_path_factory.mktemp("broken")
    make_broken_models(demo_model, folder)
    return folder


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def run(*arguments: str, limit_mib: int = 0) -> tuple[Diagnosis | None, str]:
    """Run the engine to its end, and diagnose what it wrote."""

    def limit() -> None:
        if limit_mib:
            resource.setrlimit(resource.RLIMIT_AS, (limit_mib << 20, limit_mib << 20))

    command = [sys.executable, "-P", str(Path(builtin.__file__)), "--port", "0", *arguments]
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=limit,
        env={name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")},
    )
    assert ended.returncode
    text = (ended.stdout + ended.stderr).decode(errors="replace")
    return diagnose_log(text, exit_code=ended.returncode), text


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("page.gguf", "not_gguf", 'begins with "<!DO"'),
        ("pointer.gguf", "not_gguf", 'begins with "vers"'),
        ("empty.gguf", "not_gguf", "empty.gguf is not a model"),
        ("two-thirds.gguf", "model_truncated", "two-thirds.gguf is damaged or incomplete"),
        ("last-bytes-missing.gguf", "model_truncated", "last-bytes-missing.gguf"),
        ("header-only.gguf", "model_truncated", "damaged or incomplete"),
        ("version-1.gguf", "gguf_version", "GGUFv1"),
        ("version-9.gguf", "gguf_version", "(9, it knows 3)"),
        ("new-architecture.gguf", "architecture_unknown", "qwen95moe"),
        ("new-tokenizer.gguf", "tokenizer_unknown", "qwen95"),
        ("new-quant.gguf", "quant_unknown", "type 97"),
        ("tensor-renamed.gguf", "tensors_wrong", "blk.2.ffn_gate_inp.weight"),
        ("alone-00001-of-00003.gguf", "split_incomplete", "alone-00002-of-00003.gguf"),
        ("second-00002-of-00003.gguf", "split_incomplete", "second-00002-of-00003.gguf"),
        ("mmproj.gguf", "projector_as_model", "mmproj.gguf"),
        ("gone.gguf", "model_unreadable", "No such file or directory"),
    ],
)
def test_a_damaged_file_is_diagnosed(broken_models: Path, name: str, code: str, words: str) -> None:
    found, text = run("--model", str(broken_models / name), *MTP)
    assert found is not None, text
    assert found.code == code
    assert words in found.title


def test_a_model_without_a_head_is_diagnosed(headless_model: Path) -> None:
    found, text = run("--model", str(headless_model), *MTP)
    assert found is not None, text
    assert (found.code, found.actions[0].kind) == ("no_mtp_head", "draft_off")


def test_a_port_in_use_is_diagnosed(demo_model: Path, busy_port: int) -> None:
    found, text = run("--model", str(demo_model), "--port", str(busy_port))
    assert found is not None, text
    assert found.code == "port_busy"
    assert found.facts["port"] == busy_port
    assert found.actions[0].parameters == {"port": busy_port}


def test_an_unknown_flag_is_diagnosed(demo_model: Path) -> None:
    found, text = run("--model", str(demo_model), "--warp-speed", "9")
    assert found is not None, text
    assert (found.code, found.actions[0].parameters) == ("unknown_flag", {"flag": "--warp-speed"})


def test_an_invalid_value_is_diagnosed(demo_model: Path) -> None:
    for arguments in (["--spec-type", "mtp"], ["--cache-type-k", "q3_0"], ["--ctx-size", "many"]):
        found, text = run("--model", str(demo_model), *arguments)
        assert found is not None, text
        assert found.code == "bad_value"


def test_a_quantised_cache_without_flash_attention_is_diagnosed(demo_model: Path) -> None:
    found, text = run("--model", str(demo_model), "--cache-type-v", "q8_0", "--flash-attn", "off")
    assert found is not None, text
    assert found.code == "kv_types"


def test_a_context_that_does_not_fit_is_diagnosed(demo_model: Path) -> None:
    found, text = run("--model", str(demo_model), "--ctx-size", "3000000", "--fit", "off", limit_mib=2_200)
    assert found is not None, text
    assert found.code in ("kv_cache_too_big", "compute_buffer_too_big")
    assert int(found.facts["mib"]) > 500
    assert found.actions[0].kind in ("smaller_context", "smaller_ubatch")


PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]


@pytest.mark.parametrize(("content", "status", "code"), [("hi", 200, None), (PICTURE, 500, "no_projector")])
def test_a_serving_engine_is_sound_until_it_refuses_a_request(
    demo_model: Path, tmp_path: Path, content: object, status: int, code: str | None
) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-P", str(Path(builtin.__file__)), "--model", str(demo_model), "--port", str(port)]
    pipe = subprocess.PIPE
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [*command, *MTP], stdin=pipe, stdout=pipe, stderr=stderr, env=os.environ | {"LLAMA_SERVER_ROUTER_PORT": "1"}
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            while b'"state":"ready"' not in (line := process.stdout.readline()):
                assert line, "the engine ended before it was ready"
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            assert httpx.post(url, json=body, trust_env=False, timeout=60).status_code == status
            process.stdin.write(b"cmd_router_to_child:exit\n")
            process.stdin.flush()
            process.wait(60)
        finally:
            process.kill()
    found = diagnose_log(log.read_text("utf-8", "replace"))
    assert (found.code if found else None) == code
