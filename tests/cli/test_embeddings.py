"""Commands with an embedding model: it is served, and commands that need text refuse it in one sentence."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import forked
from tests.cli.test_commands import answer, complaint, serve_model
from tests.models.tiny_models import PoolingType, write_pooled

SENTENCE = "MTP demo is an embedding model: it turns texts into vectors, but generates none."


def vector(printed: str) -> list[float]:
    return [float(value) for value in json.loads(printed)["data"][0]["embedding"]]


def test_the_example_that_serve_prints_works(embedding_model: Path) -> None:
    with forked.start("serve", str(embedding_model), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        printed = []
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line, printed
            printed.append(line.rstrip("\n"))
        try:
            rows = dict(line.split(maxsplit=1) for line in printed if line.startswith("  "))
            assert "/v1/embeddings" in rows["example"]
            example = subprocess.run(shlex.split(rows["example"]), capture_output=True, text=True, check=True)
            assert any(vector(example.stdout))
            assert rows["settings"].startswith("embeddings, context ")
            assert rows["texts"].startswith("up to ")
            assert "MTP" not in "".join(rows.values())
            text = forked.run("export", "curl").stdout
            key = answer("status", "--show-key")[0]["api_key"]
            environment = os.environ | {"LLAMA_API_KEY": key}
            result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env=environment)
            assert any(vector(result.stdout))
        finally:
            process.terminate()
            process.wait(120)


def test_a_reranker_is_served(reranker: Path) -> None:
    with forked.start("serve", str(reranker), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        printed = []
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line, printed
            printed.append(line.rstrip("\n"))
        try:
            rows = dict(line.split(maxsplit=1) for line in printed if line.startswith("  "))
            assert rows["settings"].startswith("reranking, context ")
            example = subprocess.run(shlex.split(rows["example"]), capture_output=True, text=True, check=True)
            assert len(json.loads(example.stdout)["results"]) == 2
            server = answer("status", "--show-key")[0]
            assert server["reranking"]
            assert "  reranking  " in forked.run("status").stdout
            environment = os.environ | {"LLAMA_API_KEY": server["api_key"]}
            text = forked.run("export", "curl").stdout
            result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env=environment)
            assert len(json.loads(result.stdout)["results"]) == 2
            error = complaint("chat", "Hello")
            assert error["message"] == "reranker is a reranker: it ranks texts, but generates none."
        finally:
            process.terminate()
            process.wait(120)


def test_longer_texts_need_a_larger_ubatch_unless_the_last_token_counts(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mean.gguf"
    write_pooled(demo_model, path, PoolingType.MEAN)
    with forked.start(
        "serve", str(path), "--ctx", "1024", "--ubatch", "256", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("  texts"):
            assert line
        process.terminate()
        process.wait(120)
    assert line.split(maxsplit=1)[1].strip() == "up to 256 tokens each; --ubatch N allows longer ones"


def test_chat_is_refused_by_a_running_embedding_model(embedding_model: Path) -> None:
    with serve_model(str(embedding_model)):
        assert answer("status")[0]["embeddings"]
        assert "  embeddings  " in forked.run("status").stdout
        for command in (["chat", "Hello"], ["bench"]):
            error = complaint(*command)
            assert (error["code"], error["message"]) == (
                "model_writes_no_text",
                SENTENCE.replace("MTP demo", "embedding"),
            )


@pytest.mark.parametrize("command", [["bench"], ["tune", "--yes"], ["endure"], ["curve"]])
def test_an_embedding_model_is_not_measured(command: list[str], embedding_model: Path) -> None:
    error = complaint(*command, str(embedding_model))
    assert (error["code"], error["message"]) == ("model_writes_no_text", SENTENCE)


def test_a_first_start_ends_without_a_reply(embedding_model: Path) -> None:
    with forked.start("up", str(embedding_model), "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        events = []
        while not events or events[-1]["event"] != "ready":
            events.append(json.loads(process.stdout.readline()))
        process.terminate()
        assert process.wait(120) == 0
    assert (events[-1]["text"], events[-1]["first_token_s"]) == (None, None)
    (tested,) = (each for each in events if each.get("step") == "self-test" and each["stage"] == "done")
    assert tested["how"] == "working; generates no text"
