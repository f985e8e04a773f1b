"""Models that other programs have on this machine, as a user of the commands sees them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.cli.test_json_keys import read_documented_keys

BLOB = "sha256-" + "a" * 64


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "OLLAMA_MODELS", "JAN_DATA_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def ollama(user: Path, demo_model: Path) -> Path:
    """Ollama's store with tiny:1b."""
    root = user / ".ollama" / "models"
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    for path in (manifest, root / "blobs" / BLOB):
        path.parent.mkdir(parents=True)
    shutil.copy(demo_model, root / "blobs" / BLOB)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}", "size": 1}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    return root


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked.run(*arguments)
    assert done.returncode == code, done.stderr
    return done


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stdout.splitlines()[-1])
    return result


def test_models_names_found_models_with_their_store(ollama: Path) -> None:
    result = answer("models")
    assert result["found"] == [{"name": "tiny:1b", "path": str(ollama / "blobs" / BLOB), "store": "ollama"}]
    assert read_documented_keys("models")["each of `found`"] == result["found"][0].keys()
    text = run("models").stdout
    assert "in other programs' folders, used in place" in text
    assert "tiny:1b  Ollama" in text
    assert "found" not in answer("models", "demo")


def test_models_list_includes_found_models(ollama: Path) -> None:
    (model,) = answer("models", "list")["models"]
    assert (model["name"], model["place"], model["store"], model["mtp_head"]) == (
        "tiny:1b",
        "store",
        "ollama",
        "present",
    )
    assert "Ollama" in run("models", "list").stdout
    assert answer("models", "verify", "tiny:1b", code=1)["verified"][0]["outcome"] == "changed"


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_plan_and_estimate_accept_names_of_found_models(ollama: Path, command: str) -> None:
    arguments = ["--gpu-memory", "16"]
    result = answer(command, "tiny:1b", *arguments)
    there = str(ollama / "blobs" / BLOB)
    if command == "plan":
        assert there in result["plans"][0]["argv"]
        assert "tiny:1b, F16" in run("plan", "tiny:1b", *arguments).stdout
    else:
        assert result["architecture"] == "qwen35moe"


@pytest.mark.thorough
def test_serve_accepts_names_of_found_models_and_shows_them(ollama: Path) -> None:
    command = [*forked.COMMAND, "serve", "tiny:1b", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        running = json.loads(forked.run("status", "--json").stdout)
        process.terminate()
        process.wait(120)
    assert ready["state"] == "ready"
    assert running[0]["model"] == "tiny:1b"


def test_found_models_are_not_removed(ollama: Path) -> None:
    error = answer("models", "remove", "tiny:1b", "--yes", code=1)["error"]
    assert "tiny:1b belongs to Ollama and is not deleted here" in error["message"]
    assert "Note: 1 of other programs stays." in run("models", "remove", "all", "--yes", code=1).stderr
    assert (ollama / "blobs" / BLOB).is_file()


def test_adding_the_folder_of_a_store_names_the_store(ollama: Path, tmp_path: Path) -> None:
    output = run("models", "folders", "add", str(ollama)).stdout
    assert "searched already." in output
    assert "It is Ollama's: its model is used in place and never changed." in output
    moved = tmp_path / "disk"
    ollama.rename(moved)
    output = run("models", "folders", "add", str(moved)).stdout
    assert "added.\nIt is Ollama's" in output
    assert "  tiny:1b\n" in output
    assert [each["name"] for each in answer("models", "list")["models"]] == ["tiny:1b"]
    assert {"path": str(moved), "kind": "added", "there": True} in answer("models", "folders")["folders"]


def test_an_unreadable_store_is_a_note(ollama: Path) -> None:
    (ollama / "blobs" / BLOB).unlink()
    done = run("models", "list")
    assert "Note: Ollama's tiny:1b is incomplete. `ollama pull tiny:1b` completes it." in done.stderr
    assert "Note:" not in run("models", "folders").stderr
    assert "is incomplete" in run("models").stderr
