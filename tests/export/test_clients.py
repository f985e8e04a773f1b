"""Snippets for clients: run against a real engine in tests/cli, read by their languages here."""

import ast
import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from launcher.export import clients
from tests.export.conftest import KEY, recipe_with, words


@settings(max_examples=100, deadline=None)
@given(words)
def test_names_reach_python_and_curl(name: str) -> None:
    recipe = recipe_with(name)
    tree = ast.parse(clients.python_program(recipe))
    assert name in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    before, _, _ = clients.curl_request(recipe).partition(" <<EOF")
    command = shlex.split(before)
    assert json.loads(command[command.index("--data") + 1])["model"] == name
    assert command[-1] == "http://127.0.0.1:20001/v1/chat/completions"


@settings(max_examples=100, deadline=None)
@given(words)
def test_names_reach_typescript(name: str) -> None:
    line = next(line for line in clients.typescript_program(recipe_with(name)).splitlines() if "model: " in line)
    assert ast.literal_eval(line.strip().removeprefix("model: ").rstrip(",")) == name


def test_a_reranker_is_asked_for_ranks() -> None:
    recipe = replace(recipe_with("m"), options=(("--reranking", None),))
    before, _, _ = clients.curl_request(recipe).partition(" <<EOF")
    assert shlex.split(before)[-1] == "http://127.0.0.1:20001/v1/rerank"
    assert "client.post('/rerank', cast_to=object, body=body)" in ast.unparse(ast.parse(clients.python_program(recipe)))
    assert 'client.post("/rerank", {' in clients.typescript_program(recipe)


def test_an_embedding_model_is_asked_for_a_vector() -> None:
    recipe = replace(recipe_with("m"), options=(("--embeddings", None),))
    before, _, _ = clients.curl_request(recipe).partition(" <<EOF")
    assert shlex.split(before)[-1] == "http://127.0.0.1:20001/v1/embeddings"
    program = ast.parse(clients.python_program(recipe))
    assert "client.embeddings.create(model='m', input=prompt)" in ast.unparse(program)
    assert "client.embeddings.create({" in clients.typescript_program(recipe)


def test_curl_keeps_the_key_out_of_its_arguments() -> None:
    command, _, body = clients.curl_request(recipe_with("m", api_key=KEY)).partition(" <<EOF\n")
    assert KEY not in command
    assert f"Authorization: Bearer {KEY}" in body
    assert "$" in clients.curl_request(recipe_with("m"))


@pytest.mark.skipif(os.name == "nt", reason="it is for a POSIX shell")
def test_curl_accepts_keys_with_any_characters(tmp_path: Path) -> None:
    key = "a$HOME`id`$(id)\\${x}'\"b%"
    shows = tmp_path / "curl"
    shows.write_text("#!/bin/sh\ncat\n")
    shows.chmod(0o755)
    text = clients.curl_request(recipe_with("m", api_key=key))
    result = subprocess.run(
        ["/bin/bash", "-c", text], capture_output=True, text=True, env={"PATH": f"{tmp_path}:/bin:/usr/bin"}
    )
    assert result.stdout == f"Authorization: Bearer {key}\n"
