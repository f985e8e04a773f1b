"""Compose, systemd, llama-swap and the router: each file is read by its own language's parser."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from launcher.base.errors import BadOption
from launcher.export.compose import compose_file
from launcher.export.monitoring import prometheus_config
from launcher.export.proxies import llama_swap_config, router_preset
from launcher.export.recipe import ExportRecipe
from launcher.export.systemd import systemd_unit
from tests.export.conftest import KEY, NASTY, recipe_with, words


def read_compose(text: str) -> dict[str, Any]:
    """Parse a compose file and undo what interpolation undoes; a lone dollar sign would be a variable."""

    def undo_escapes(value: Any) -> Any:  # noqa: ANN401 -- any YAML value
        if isinstance(value, dict):
            return {key: undo_escapes(each) for key, each in value.items()}
        if isinstance(value, list):
            return [undo_escapes(each) for each in value]
        if isinstance(value, str):
            assert "$" not in value.replace("$$", "")
            return value.replace("$$", "$")
        return value

    read: dict[str, Any] = undo_escapes(yaml.safe_load(text))
    return read


@settings(max_examples=100, deadline=None)
@given(words, words)
def test_compose_reads_every_word_back(one: str, two: str) -> None:
    recipe = replace(recipe_with(one, two), model=f"/folder {one.replace('/', '')}/x.gguf")
    service = read_compose(compose_file(recipe))["services"]["llama-server"]
    command = service["command"]
    assert command[command.index("--alias") + 1] == one
    assert command[command.index("--option-0") + 1] == two
    assert command[1] == "/models/x.gguf"
    assert service["volumes"][0]["source"] == f"/folder {one.replace('/', '')}"


def test_prometheus_scrapes_the_server_with_its_key(recipe: ExportRecipe) -> None:
    (job,) = yaml.safe_load(prometheus_config(recipe))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:20001"]}]
    assert job["authorization"] == {"credentials_file": "llama-api-key"}
    (job,) = yaml.safe_load(prometheus_config(replace(recipe, api_key=KEY)))["scrape_configs"]
    assert job["authorization"] == {"credentials": KEY}


def test_the_compose_port_is_local_and_needs_a_key(recipe: ExportRecipe) -> None:
    result = read_compose(compose_file(recipe))
    service = result["services"]["llama-server"]
    assert service["ports"] == ["127.0.0.1:20001:8080"]
    assert service["command"][-2:] == ["--api-key-file", "/run/secrets/llama-api-key"]
    assert service["secrets"] == ["llama-api-key"]
    assert result["secrets"] == {"llama-api-key": {"file": "./llama-api-key"}}
    assert service["healthcheck"]["test"][:2] == ["CMD", "curl"]
    assert service["healthcheck"]["test"][-1].endswith(":8080/health")
    assert service["volumes"][0]["read_only"] is True


@pytest.mark.parametrize(
    ("backend", "tag", "has"),
    [
        ("cuda", "server-cuda", "deploy"),
        ("rocm", "server-rocm", "devices"),
        ("vulkan", "server-vulkan", "devices"),
        ("cpu", "server", "command"),
    ],
)
def test_compose_has_the_image_and_devices_of_the_backend(
    recipe: ExportRecipe, backend: str, tag: str, has: str
) -> None:
    service = read_compose(compose_file(replace(recipe, backend=backend)))["services"]["llama-server"]
    assert service["image"] == f"ghcr.io/ggml-org/llama.cpp:{tag}"
    assert has in service
    assert ("deploy" in service) == (backend == "cuda")
    assert ("devices" in service) == (backend in ("rocm", "vulkan"))
    if backend == "cuda":
        reserved = service["deploy"]["resources"]["reservations"]["devices"]
        assert reserved == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    if backend == "rocm":
        assert service["devices"] == ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]


def test_compose_mounts_each_folder_once(recipe: ExportRecipe) -> None:
    more = replace(recipe, options=(("--mmproj", "/m/p.gguf"), ("--spec-draft-model", "/other/d.gguf")))
    service = read_compose(compose_file(more))["services"]["llama-server"]
    assert service["volumes"] == [
        {"type": "bind", "source": source, "target": target, "read_only": True}  # docker-compose 1.29 refuses more
        for source, target in (("/m", "/models"), ("/other", "/models-2"))
    ]
    assert "/models/p.gguf" in service["command"]
    assert "/models-2/d.gguf" in service["command"]


def test_a_missing_model_has_its_own_folder_in_compose(recipe: ExportRecipe) -> None:
    service = read_compose(compose_file(replace(recipe, model="x.gguf")))["services"]["llama-server"]
    assert service["volumes"][0]["source"] == "./models"  # the folder of the model, not that of the key


def test_metal_has_no_image(recipe: ExportRecipe) -> None:
    with pytest.raises(BadOption, match="metal"):
        compose_file(replace(recipe, backend="metal"))


@pytest.mark.parametrize("render", [compose_file, systemd_unit])
def test_the_key_is_included_on_request_only(render: Any) -> None:  # noqa: ANN401 -- a function of a recipe
    assert KEY not in render(recipe_with(NASTY))
    assert KEY in render(recipe_with(NASTY, api_key=KEY))


def read_exec_start(unit: str) -> list[str]:
    """Read ExecStart= as systemd does: quotes, escapes, $$ and %% (systemd.service(5), systemd.syntax(7))."""
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    found = []
    for quoted, bare in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line):
        text = quoted or bare
        raw = re.sub(rb"\\x([0-9a-f]{2})|\\(.)", _unescape_match, text.encode())
        found.append(raw.decode().replace("%%", "%").replace("$$", "$"))
    return found


def _unescape_match(found: "re.Match[bytes]") -> bytes:
    return bytes.fromhex(found[1].decode()) if found[1] else found[2]


@settings(max_examples=200, deadline=None)
@given(words, words)
def test_systemd_reads_every_word_back(one: str, two: str) -> None:
    recipe = recipe_with(one, two)
    result = read_exec_start(systemd_unit(recipe))
    assert result[:-2] == ["llama-server", *recipe.build_arguments()]
    assert result[-2:] == ["--api-key-file", "%d/llama-api-key"]


def read_unit(text: str) -> dict[str, str]:
    """Read a unit's settings; a line that ends in a backslash goes on in the next one (systemd.syntax(7))."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pairs = (line.partition("=") for line in "\n".join(lines).replace("\\\n", " ").splitlines())
    return {name: value for name, equals, value in pairs if equals}


@settings(max_examples=100, deadline=None)
@given(words)
def test_no_name_changes_another_line_of_the_unit(name: str) -> None:
    usual = read_unit(systemd_unit(recipe_with("usual", "usual")))
    for last in (name, f"{name}\\"):
        result = read_unit(systemd_unit(recipe_with(last, last)))
        assert result.keys() == usual.keys()
        changed = {setting for setting in result if result[setting] != usual[setting]}
        assert changed <= {"Description", "ExecStart"}


ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.parametrize("name", ["model", NASTY])
def test_systemd_verify_accepts_the_unit(name: str, tmp_path: Path) -> None:
    unit = tmp_path / "llama-server.service"
    unit.write_text(systemd_unit(recipe_with(name, NASTY, program=("/bin/true",))), "utf-8")
    if ANALYZE is None:
        assert unit.read_text("utf-8").startswith("# ~/.config/systemd/user/")
        return
    result = subprocess.run(
        [ANALYZE, "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert "llama-server.service" not in result.stderr, result.stderr
    assert result.returncode == 0, result.stderr


@settings(max_examples=150, deadline=None)
@given(words, words)
def test_llama_swap_reads_every_word_back(one: str, two: str) -> None:
    recipe = recipe_with(one, two)
    if "\n" in one + two or "${" in one:
        with pytest.raises(BadOption):
            llama_swap_config((recipe,), windows=False)
        return
    text = llama_swap_config((recipe,), windows=False)
    result = yaml.safe_load(text)
    command = result["models"][one]["cmd"]
    assert set(re.findall(r"\$\{([a-zA-Z0-9_-]+)\}", command)) == {"PORT"}
    assert shlex.split(command.replace("${PORT}", "20001")) == ["llama-server", *recipe.build_arguments()]


def test_llama_swap_gets_the_key_by_a_variable(recipe: ExportRecipe) -> None:
    result = yaml.safe_load(llama_swap_config((recipe,), windows=False))
    assert result["apiKeys"] == ["${env.LLAMA_SWAP_API_KEY}"]
    assert result["models"]["qwen"]["proxy"] == "http://127.0.0.1:${PORT}"
    assert yaml.safe_load(llama_swap_config((replace(recipe, api_key=KEY),), windows=False))["apiKeys"] == [KEY]


def read_preset(text: str) -> dict[str, dict[str, str]]:
    """Read a preset by the grammar of llama.cpp's common/preset.cpp."""
    read: dict[str, dict[str, str]] = {"default": {}}
    section = "default"
    for line in re.split(r"\r\n|\n|\r", text):
        if re.fullmatch(r"[ \t]*([;#].*)?", line):
            continue
        header = re.fullmatch(r"\[[ \t]*([^]]+)[ \t]*\][ \t]*([;#].*)?", line)
        if header:
            section = header[1]
            read[section] = {}
            continue
        pair = re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_.-]*)[ \t]*=[ \t]*((?:(?![ \t]*([;#]|$)).)*)[ \t]*([;#].*)?", line)
        assert pair, line
        read[section][pair[1]] = pair[2]
    return read


@settings(max_examples=200, deadline=None)
@given(words, words)
def test_the_router_reads_values_unchanged_or_they_are_refused(one: str, two: str) -> None:
    recipe = recipe_with(one, two)
    cut = re.search(r"[;#\r\n]", one + two) or one != one.strip() or two != two.strip()
    if cut or "]" in one or one == "*":
        with pytest.raises(BadOption, match="cannot be exported"):
            router_preset((recipe,))
        return
    result = read_preset(router_preset((recipe,)))[one]
    assert result == {"model": recipe.model, "option-0": two}


def test_options_of_the_router_itself_are_on_its_command_line(recipe: ExportRecipe) -> None:
    more = replace(
        recipe, options=(*recipe.options, ("--metrics", None), ("--jinja", None), ("--spec-type", "ngram-mod"))
    )
    text = router_preset((more,))
    result = read_preset(text)["qwen"]
    assert result["spec-type"] == "draft-mtp,ngram-mod"
    assert result["jinja"] == "on"
    assert not {"metrics", "host", "port", "alias", "api-key"} & result.keys()
    assert "--port 20001 --metrics" in text.splitlines()[0]


def test_several_models_are_in_one_file() -> None:
    recipes = (recipe_with("one"), recipe_with("two", "value"))
    result = yaml.safe_load(llama_swap_config(recipes, windows=False))
    assert list(result["models"]) == ["one", "two"]
    assert "--option-0 value" in result["models"]["two"]["cmd"]
    presets = read_preset(router_preset(recipes))
    assert presets["one"] == {"model": "/models/one.gguf"}
    assert presets["two"] == {"model": "/models/two.gguf", "option-0": "value"}
