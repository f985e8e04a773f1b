"""`mtp-launcher preset` as a user types it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.tuning.tuned_settings import load_tuned_settings
from tests.cli.in_process import run
from tests.tuning.measured import ENVIRONMENT, MODEL
from tests.tuning.test_tuned_settings import saved_tune, store_tune


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run("preset", *arguments, "--json").stdout)


def test_an_empty_list_names_the_command_that_saves_tuned_settings(home: Path) -> None:
    assert "`mtp-launcher tune --apply` saves some." in run("preset").stdout
    assert answer() == {"presets": []}


def test_tuned_settings_are_listed_with_what_has_changed(home: Path) -> None:
    saved_tune()
    result = " ".join(run("preset").stdout.split())
    assert result.startswith("Qwen3.6-35B-A3B UD-Q3_K_XL draft 2, kv q8_0, p-min 0.5 (1.4 times as fast")
    assert "measured under other conditions:" in result  # the saved tune is of another computer
    (listed,) = answer("list")["presets"]
    assert listed["verified"]
    assert listed["evidence"]["environment"]["model"]["sha256"] == list(MODEL.sha256)
    assert listed["changed"]


def test_tuned_settings_are_exported_and_imported(home: Path, tmp_path: Path) -> None:
    preset = saved_tune()
    file = tmp_path / "preset.json"
    assert answer("export", "q3_k", "--to", str(file)) == {"model": preset.model.label_with_quant, "path": str(file)}
    assert "already exists" in run("preset", "export", "q3_k", "--to", str(file)).stderr
    assert "they were measured here" in run("preset", "import", str(file)).stderr
    assert run("preset", "forget", "qwen").stdout == "Deleted the tuned settings for Qwen3.6-35B-A3B UD-Q3_K_XL.\n"
    assert load_tuned_settings() == ()
    assert "used once `mtp-launcher tune` confirms them here" in " ".join(
        run("preset", "import", str(file)).stdout.split()
    )
    (taken,) = load_tuned_settings()
    assert not taken.verified
    assert "not used until measurements here confirm them" in run("preset").stdout
    # The file was exported here, but its measurements are not in this history.
    assert answer("import", str(file))["verified"] is False


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"extra": "--log-file /etc/passwd"}, "extra is not a server setting"),
        ({"draft": -1}, "draft"),
        ({"draft": 1.5}, "1.5 is not a value for draft"),
        ({"model": "x"}, "model is not a server setting"),
    ],
)
def test_unknown_settings_are_not_imported(home: Path, tmp_path: Path, settings: dict[str, Any], what: str) -> None:
    file = tmp_path / "preset.json"
    exported = json.loads(saved_tune().export_text())
    run("preset", "forget", "qwen")
    file.write_text(json.dumps(exported | {"settings": settings}))
    result = run("preset", "import", str(file))
    assert result.returncode == 1
    assert what in result.stderr
    assert load_tuned_settings() == ()


def test_unknown_names_and_files_are_reported(home: Path, tmp_path: Path) -> None:
    saved_tune()
    store_tune(environment=replace(ENVIRONMENT, model=replace(MODEL, name="Another")))
    for words, what in (
        (("forget", "gemma"), "There are no tuned settings for gemma."),
        (("import", str(tmp_path / "none.json")), "There is no file"),
    ):
        result = run("preset", *words)
        assert result.returncode == 1
        assert what in result.stderr
