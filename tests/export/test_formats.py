"""The table of formats: each is rendered, and those for other programs are read by parsers of their languages."""

import json
import os
import re
import subprocess
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from launcher.base.errors import BadOption
from launcher.export import client_files, client_variables
from launcher.export.formats import FORMATS, Subject, render_export
from launcher.export.recipe import ExportRecipe
from launcher.export.served_models import GatewayModels, OfferedModel
from tests.export.conftest import KEY, NASTY, recipe_with, words

URL = "http://127.0.0.1:20001/v1"


def with_context(recipe: ExportRecipe, context: int) -> ExportRecipe:
    return replace(recipe, options=(("--ctx-size", str(context)),))


def test_no_format_has_the_key_by_default(recipe: ExportRecipe) -> None:
    gateways = (GatewayModels("http://127.0.0.1:20001", "KEY_1", (OfferedModel("m"),)),)
    for each in FORMATS.values():
        usual: Any = {Subject.SERVER: recipe, Subject.LIBRARY: (recipe,), Subject.GATEWAYS: gateways}[each.subject]
        text = render_export(each, usual)
        assert text.endswith("\n")
        if each.name in ("grafana", "router-ini"):  # these formats have no place for a key
            continue
        with_key = replace(usual, api_key=KEY) if usual is recipe else (replace(usual[0], api_key=KEY),)
        assert KEY not in text
        assert KEY in render_export(each, with_key), each.name
        if each.takes_peers:
            assert KEY in render_export(each, (replace(gateways[0], api_key=KEY),), peers=True)


@settings(max_examples=100, deadline=None)
@given(words)
def test_codex_reads_every_name_back(name: str) -> None:
    for key in (None, NASTY):
        read = tomllib.loads(client_files.codex_config(with_context(recipe_with(name, api_key=key), 60_000)))
        assert (read["model"], read["model_context_window"]) == (name, 60_000)
        assert read["model_auto_compact_token_limit"] == 45_000
        provider = read["model_providers"][read["model_provider"]]
        assert provider["base_url"] == URL
        if key is None:
            assert provider["env_key"] == "LLAMA_API_KEY"
        else:
            assert provider["experimental_bearer_token"] == key


@settings(max_examples=100, deadline=None)
@given(words.filter(lambda word: "${{" not in word))  # refused: the beginning of a placeholder of Continue
def test_json_and_yaml_are_read_back(name: str) -> None:
    recipe = with_context(recipe_with(name), 8192)
    ((agent,),) = (json.loads(client_files.opencode_config(recipe))["provider"].values(),)
    assert agent["models"][name]["limit"] == {"context": 8192, "output": 2048}
    assert agent["options"]["baseURL"] == URL
    ((editor,),) = (group["models"] for group in json.loads(client_files.vscode_models(recipe)))
    assert (editor["id"], editor["url"]) == (name, f"{URL}/chat/completions")
    assert editor["maxInputTokens"] + editor["maxOutputTokens"] == 8192
    result = yaml.safe_load(client_files.aider_config(recipe))
    assert (result["model"], result["openai-api-base"]) == (f"openai/{name}", URL)
    comment = next(line for line in client_files.aider_config(recipe).splitlines() if line.startswith("# {"))
    assert json.loads(comment[2:])[f"openai/{name}"]["max_input_tokens"] == 8192
    (model,) = yaml.safe_load(client_files.continue_config(recipe))["models"]
    assert (model["model"], model["apiBase"]) == (name, URL)
    assert model["defaultCompletionOptions"] == {"contextLength": 8192, "maxTokens": 2048}


def test_names_with_placeholders_of_the_program_are_refused() -> None:
    with pytest.raises(BadOption, match="opencode replaces"):
        client_files.opencode_config(recipe_with("{env:HOME}"))
    with pytest.raises(BadOption, match="Continue replaces"):
        client_files.continue_config(recipe_with("${{ secrets.X }}"))


def test_an_unknown_context_is_left_out_and_reported() -> None:
    recipe = recipe_with("m")
    for kind in ("aider", "codex", "continue", "opencode", "vscode"):
        text = render_export(FORMATS[kind], recipe).lower()
        assert not re.search("context|max_?(in|out|tok)", text)
    for kind in ("env", "claude-code", "open-webui"):
        assert "The context is unknown" in render_export(FORMATS[kind], recipe, shell="bash")
        assert "MAX_CONTEXT" not in render_export(FORMATS[kind], recipe, shell="bash")


def read_bash(text: str, **environment: str) -> dict[str, str]:
    """Run lines for bash and return the variables that they leave."""
    ran = subprocess.run(
        ["/bin/bash", "-c", f"{text}\nenv -0"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **environment},
    )
    return dict(entry.split("=", 1) for entry in ran.stdout.split("\0") if entry)


@pytest.mark.parametrize("name", ["model", NASTY])
def test_the_bash_script_sets_the_variables(name: str) -> None:
    recipe = with_context(recipe_with(name), 131_072)
    for text, key in (
        (client_variables.claude_code_variables(recipe, shell="bash"), "from the shell"),
        (client_variables.claude_code_variables(replace(recipe, api_key=NASTY), shell="bash"), NASTY),
    ):
        read = read_bash(text, LLAMA_API_KEY="from the shell", ANTHROPIC_API_KEY="a person's own")
        assert read["ANTHROPIC_BASE_URL"] == URL.removesuffix("/v1")
        assert (read["ANTHROPIC_MODEL"], read["ANTHROPIC_AUTH_TOKEN"]) == (name, key)
        assert read["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
        assert read["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
        assert "ANTHROPIC_API_KEY" not in read
    read = read_bash(client_variables.sdk_variables(recipe, shell="bash"), LLAMA_API_KEY="k")
    assert (read["OPENAI_BASE_URL"], read["OPENAI_API_KEY"], read["OPENAI_MODEL"]) == (URL, "k", name)
    read = read_bash(client_variables.webui_variables(recipe, shell="bash"), LLAMA_API_KEY="k")
    assert (read["OPENAI_API_BASE_URL"], read["DEFAULT_MODELS"]) == (URL, name)


def test_without_the_key_the_script_asks_for_it() -> None:
    text = client_variables.sdk_variables(recipe_with("m"), shell="bash")
    ran = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, env={}, check=False)
    assert ran.returncode != 0
    assert "Set LLAMA_API_KEY to the API key" in ran.stderr


def test_powershell_quotes_by_its_rules() -> None:
    text = client_variables.sdk_variables(recipe_with("it's $HOME"), shell="powershell")
    assert "$env:OPENAI_MODEL = 'it''s $HOME'" in text
    assert "$env:OPENAI_API_KEY = $env:LLAMA_API_KEY" in text
    assert "throw" in text
    with_key = client_variables.sdk_variables(recipe_with("m", api_key="k'k"), shell="powershell")
    assert "$env:OPENAI_API_KEY = 'k''k'" in with_key
    assert "throw" not in with_key


def test_an_embedding_model_is_not_a_chat_model() -> None:
    recipe = replace(recipe_with("m"), options=(("--embeddings", None), ("--ctx-size", "512")))
    assert "ANTHROPIC" not in client_variables.sdk_variables(recipe, shell="bash")
    assert "RAG_EMBEDDING_MODEL=m" in client_variables.webui_variables(recipe, shell="bash")
    (model,) = yaml.safe_load(client_files.continue_config(recipe))["models"]
    assert model["roles"] == ["embed"]


def test_a_small_context_for_claude_code_is_warned_about() -> None:
    small = client_variables.claude_code_variables(with_context(recipe_with("m"), 32_768), shell="bash")
    assert "CLAUDE_CODE_SIMPLE=1" in small
    large = client_variables.claude_code_variables(with_context(recipe_with("m"), 65_536), shell="bash")
    assert "CLAUDE_CODE_SIMPLE=1" not in large
