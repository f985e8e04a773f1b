"""`models folders`, what downloads have left, and `logs --report` as a user types them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.base.paths import models_dir
from launcher.engine.server.logs import LogBook
from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_folder_is_added_listed_and_removed(tmp_path: Path, demo_model: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(demo_model, folder / "mine-F16.gguf")
    assert "added." in run("models", "folders", "add", str(folder)).stdout
    assert "searched already" in run("models", "folders", "add", str(folder)).stdout
    folders = answer("models", "folders")["folders"]
    assert {"path": str(folder), "kind": "added", "there": True} in folders
    (model,) = answer("models", "list")["models"]
    assert (model["quant"], model["place"], model["used_s"]) == ("F16", "elsewhere", None)
    assert "stay" in run("models", "folders", "remove", str(folder)).stdout
    assert answer("models", "list")["models"] == []
    assert run("models", "folders", "remove", str(folder)).returncode == 1
    assert run("models", "folders", "add").returncode == 1


def test_leftovers_of_downloads_are_listed_and_removed() -> None:
    bad = models_dir() / "m.gguf.bad"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"x" * 5_000)
    bad.with_name("m.gguf.bad.txt").write_text("It is another file.\n")
    output = run("models", "list").stdout
    assert "not what it should be" in output
    assert "It is another file." in output
    (left,) = answer("models", "list")["leftovers"]
    assert (left["path"], left["kind"]) == (str(bad), "bad")
    assert run("models", "remove", "leftovers").returncode != 0
    assert bad.exists()
    assert answer("models", "remove", "leftovers", "--yes")["freed_bytes"] > 0
    assert list(models_dir().iterdir()) == []
    assert "nothing to remove" in run("models", "remove", "leftovers", "--yes").stdout


def test_a_bug_report_is_made_from_a_log() -> None:
    book = LogBook.for_port(9_100)
    book.add("srv load_model: --api-key abcdef0123 was given")
    book.close()
    result = run("logs", "--report")
    assert result.returncode == 0, result.stderr
    assert "### Versions" in result.stdout
    assert "abcdef0123" not in result.stdout
    (file,) = answer("logs", "--files")["files"]
    assert (file["port"], file["age"]) == (9_100, 0)
    assert "abcdef0123" in run("logs", "--file", file["path"]).stdout
    assert "abcdef0123" not in run("logs", "--file", file["path"], "--report").stdout
    assert run("logs", "--report", "--follow").returncode == 1


def test_a_file_whose_end_is_missing_is_listed_as_incomplete(demo_model: Path) -> None:
    cut = models_dir() / "cut-F16.gguf"
    cut.parent.mkdir(parents=True)
    cut.write_bytes(demo_model.read_bytes()[:-1_000])
    output = run("models", "list").stdout
    assert " incomplete " in output
    assert "bytes are missing. Download it again" in " ".join(output.split())
    (model,) = answer("models", "list")["models"]
    assert (model["state"], model["paths"]) == ("incomplete", [str(cut)])
    assert 0 < model["missing_bytes"] <= 1_000
    assert "is incomplete" in model["problem"]
