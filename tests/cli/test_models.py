"""`mtp-launcher models` as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "models", *arguments]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=30, check=False, env=environment
    )


def answer(*arguments: str) -> dict[str, Any]:
    told = run(*arguments, "--json")
    assert told.returncode == 0, told.stderr
    value: dict[str, Any] = json.loads(told.stdout)
    return value


@pytest.fixture
def bad_file(home: Path) -> Path:
    path = home / "config" / "models" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[[models]]\nid = "mine"\nname = "Mine"\nfiles = []\n', "utf-8")
    return path


def test_the_list_is_a_table() -> None:
    told = run()
    assert (told.returncode, told.stderr) == (0, "")
    head, *rows = told.stdout.splitlines()
    assert head.split() == ["ID", "NAME", "FILES", "SIZES", "DRAFTS", "BY", "LICENCE"]
    rows_by_id = {row.split()[0]: row for row in rows if row}
    assert "11.37 to 71.07 GB" in rows_by_id["qwen3.6-35b-a3b-mtp"]
    assert rows_by_id["demo"].endswith("MIT")
    assert rows_by_id["qwen3.8-27b"].endswith("–")  # noqa: RUF001 -- the sign for an unknown value
    assert len({row.index(row.split()[1]) for row in rows if "Qwen3.6-" in row}) == 1


def test_the_list_for_programs() -> None:
    told = answer()
    assert told["problems"] == []
    models = {model["id"]: model for model in told["models"]}
    files = {file["quant"]: file for file in models["qwen3.6-35b-a3b-mtp"]["files"]}
    assert files["UD-IQ3_S"]["size_bytes"] == 15_346_432_288
    assert files["UD-IQ3_S"]["sha256"] is None
    assert models["gemma-4-31b"]["geometry"] is None
    assert models["gemma-4-31b"]["draft"]["file"] == "mtp-gemma-4-31B-it.gguf"


def test_one_model_is_told_with_its_sources() -> None:
    told = run("qwen3.6-35b-a3b-mtp")
    assert (told.returncode, told.stderr) == (0, "")
    text = told.stdout
    assert "revision 5bc3e238d916f48a861bac2f8a1990a0e9b7e98d" in text
    assert "--spec-type draft-mtp" in text
    lines = text.splitlines()
    (preset,) = [line for line in lines if "UD-Q3_K_XL  262,144  q8_0" in line and "balanced" in line]
    number = preset.split()[-1]
    assert "20,472" in preset
    assert any(line.strip().startswith(number) and "qiip engine logs" in line for line in lines)
    assert "69 to 82" in text
    assert "Source: prismix." in text
    assert "four slots share the context" in text


@pytest.mark.parametrize("model", ["demo", "gemma-4-31b", "qwen3.5-9b-mtp", "qwen3.6-27b-mtp", "qwen3.8-27b"])
def test_every_other_model_can_be_told(model: str) -> None:
    told = run(model)
    assert told.returncode == 0
    assert f"({model})" in told.stdout.splitlines()[0]
    assert answer(model)["model"]["id"] == model
    assert "None" not in told.stdout


def test_a_model_that_is_not_there() -> None:
    told = run("qwen3.6-35b")
    assert told.returncode == 1
    assert 'no model "qwen3.6-35b"' in told.stderr
    assert "qwen3.6-35b-a3b" in told.stderr
    error = json.loads(run("qwen3.6-35b", "--json").stdout)["error"]
    assert error["code"] == "model_unknown"
    assert "qwen3.6-35b-a3b" in error["facts"]["near"]


def test_a_bad_file_of_the_users_is_told_beside_the_list(bad_file: Path) -> None:
    told = run()
    assert told.returncode == 0
    assert told.stderr == f"Left out: {bad_file}:4: models[0].files: has no entries\n"
    assert "qwen3.6-35b-a3b-mtp" in told.stdout
    (problem,) = answer()["problems"]
    assert problem == {"file": str(bad_file), "line": 4, "field": "models[0].files", "reason": "has no entries"}


def test_a_small_model_of_the_users_is_told_with_what_is_known(home: Path) -> None:
    path = home / "config" / "models" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[[models]]\nid = "mine"\nname = "Mine"\nfiles = [{ quant = "Q8_0", file = "a.gguf" }]\n', "utf-8")
    told = run("mine")
    assert told.returncode == 0
    assert "Context   unknown here" in told.stdout
    assert str(path.parent / "a.gguf") in told.stdout
    assert "Presets" not in told.stdout
    assert [
        line for line in run().stdout.splitlines() if line.startswith("mine") and "unknown" in line and "none" in line
    ]
