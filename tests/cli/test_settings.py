"""`mtp-launcher settings` as a user types it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import forked

SECRET = "hf_abcdefghijklmnop"


@pytest.fixture(autouse=True)
def own_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autostart entries are in a folder of the test, and no token is set."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "MTP_LAUNCHER_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def run(*arguments: str, verb: str = "settings", **variables: str) -> subprocess.CompletedProcess[str]:
    result = forked.run(verb, *arguments, env=os.environ | variables)
    assert "Traceback" not in result.stderr
    return result


def answer(*arguments: str, **variables: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json", **variables).stdout)


def test_settings_are_listed_with_their_valid_values(home: Path) -> None:
    result = run()
    assert result.returncode == 0
    assert "window.theme = system" in result.stdout
    output = " ".join(result.stdout.split())
    assert "One of system, light, dark." in output
    assert "A whole number from 80 to 200 %." in output
    assert str(home / "config" / "settings.toml") in result.stdout
    assert "Hugging Face token: none." in result.stdout


def test_a_setting_is_set_read_and_reset(home: Path) -> None:
    output = run("set", "theme", "dark").stdout
    assert "window.theme is dark. It applies from now on; an open window uses it once it is reopened." in output
    assert run("get", "window.theme").stdout == "dark\n"
    assert "window.theme = dark (default system)" in run("list").stdout
    assert answer("get", "theme") == {
        "name": "window.theme",
        "kind": "choice",
        "value": "dark",
        "default": "system",
        "source": "file",
        "changed": True,
        "applies": "now",
        "choices": ["system", "light", "dark"],
    }
    assert answer("reset", "theme")["value"] == "system"
    assert answer("set", "text_scale", "125%")["value"] == 125


def test_invalid_values_are_explained(home: Path) -> None:
    result = run("set", "theme", "pink")
    assert result.returncode == 1
    assert "window.theme cannot be pink: it must be one of system, light, dark." in result.stderr
    assert answer("get", "window.colour")["error"]["code"] == "bad_option"
    assert not (home / "config" / "settings.toml").exists()


def test_notices_are_printed_and_included_in_json(home: Path) -> None:
    file = home / "config" / "settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[window]\ncolour = 'teal'\ntheme = 'pink'\n")
    result = run("list")
    assert "Note: window.colour is not a setting of this version" in result.stderr
    assert len(answer("list")["notices"]) == 2
    file.write_text("[[[")
    assert "was damaged" in run("list").stderr
    assert file.with_name("settings.toml.bad").exists()


def test_a_token_is_mentioned_but_never_shown(home: Path) -> None:
    for arguments in (("list",), ("list", "--json")):
        result = run(*arguments, HF_TOKEN=SECRET)
        assert SECRET not in result.stdout + result.stderr
    assert answer("list", HF_TOKEN=SECRET)["hub_token"] == "HF_TOKEN"
    assert answer("list")["hub_token"] is None


def test_other_verbs_use_the_folder_for_models(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models here"
    assert run("set", "models.folder", str(folder)).returncode == 0
    (folder / "nobody.gguf").write_bytes(b"no model")
    listed = run("list", "--json", verb="models").stdout
    assert str(folder) in listed
    theirs = run("set", "models.folder", str(folder), MTP_LAUNCHER_MODELS=str(tmp_path / "theirs"))
    assert "As long as MTP_LAUNCHER_MODELS is set, it overrides this." in theirs.stdout
