"""`mtp-launcher models` as a user types it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from launcher.models.catalogue_load import load_catalogue, shipped_models
from launcher.models.gguf import part_names
from tests import forked

COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"


class Hub(Protocol):
    folder: Path


def run(*arguments: str, verb: str = "models") -> subprocess.CompletedProcess[str]:
    return forked.run(verb, *arguments)


def answer(*arguments: str, verb: str = "models", code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json", verb=verb)
    assert result.returncode == code, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.fixture
def bad_file(home: Path) -> Path:
    path = home / "config" / "models" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[[models]]\nid = "mine"\nname = "Mine"\nfiles = []\n', "utf-8")
    return path


def test_the_list_is_a_table() -> None:
    result = run()
    assert (result.returncode, result.stderr) == (0, "")
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["ID", "NAME", "FILES", "SIZES", "DRAFTS", "BY", "LICENCE"]
    rows_by_id = {row.split()[0]: row for row in rows if row}
    assert "11.37 to 71.07 GB" in rows_by_id["qwen3.6-35b-a3b-mtp"]
    assert rows_by_id["demo"].endswith("MIT")
    assert rows_by_id["qwen3.8-27b"].endswith("–")  # noqa: RUF001 -- the sign for an unknown value
    assert len({row.index(row.split()[1]) for row in rows if "Qwen3.6-" in row}) == 1


def test_the_list_as_json() -> None:
    result = answer()
    assert result["problems"] == []
    models = {model["id"]: model for model in result["models"]}
    files = {file["quant"]: file for file in models["qwen3.6-35b-a3b-mtp"]["files"]}
    assert files["UD-IQ3_S"]["size_bytes"] == 15_346_432_288
    assert files["UD-IQ3_S"]["sha256"] is None
    assert models["gemma-4-31b"]["geometry"]["window_layers"] == 50
    assert models["gemma-4-31b"]["draft"]["file"] == "mtp-gemma-4-31B-it.gguf"


def test_one_model_is_shown_with_its_sources() -> None:
    result = run("qwen3.6-35b-a3b-mtp")
    assert (result.returncode, result.stderr) == (0, "")
    text = result.stdout
    assert "revision 5bc3e238d916f48a861bac2f8a1990a0e9b7e98d" in text
    assert "--spec-type draft-mtp" in text
    lines = text.splitlines()
    (preset,) = [line for line in lines if "UD-Q3_K_XL  262,144  q4_0" in line and "as-published" in line]
    number = preset.split()[-1]
    assert "19,561" in preset
    note = text[text.index(f"\n  {number:>4} ") :]
    assert "RTX 5090 Mobile" in note[: note.index("\n  [", 8) if "\n  [" in note[8:] else None]
    words = " ".join(text.split())
    runs = len(load_catalogue().find("qwen3.6-35b-a3b-mtp").measurements)
    assert f"{runs} published runs" in words


def test_the_output_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("qwen3.6-35b-a3b-mtp").stdout
    figures = sorted(wide.split())
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        output = run("qwen3.6-35b-a3b-mtp").stdout
        long = [line for line in output.splitlines() if len(line) > columns and " " in line.strip().rpartition("  ")[2]]
        assert long == []
        assert sorted(output.split()) == figures


@pytest.mark.parametrize("model", ["demo", "gemma-4-31b", "qwen3.5-9b-mtp", "qwen3.6-27b-mtp", "qwen3.8-27b"])
def test_every_other_model_can_be_shown(model: str) -> None:
    result = run(model)
    assert result.returncode == 0
    assert f"({model})" in result.stdout.splitlines()[0]
    assert answer(model)["model"]["id"] == model
    assert "None" not in result.stdout


def test_an_unknown_model_is_reported() -> None:
    result = run("qwen3.6-35b")
    assert result.returncode == 1
    assert 'no model "qwen3.6-35b"' in result.stderr
    assert "qwen3.6-35b-a3b" in result.stderr
    error = json.loads(run("qwen3.6-35b", "--json").stdout)["error"]
    assert error["code"] == "model_unknown"
    assert "qwen3.6-35b-a3b" in error["facts"]["near"]


def test_an_invalid_file_of_the_user_is_reported_beside_the_list(bad_file: Path) -> None:
    result = run()
    assert result.returncode == 0
    assert result.stderr == f"Left out: {bad_file}:4: models[0].files: has no entries\n"
    assert "qwen3.6-35b-a3b-mtp" in result.stdout
    (problem,) = answer()["problems"]
    assert problem == {"file": str(bad_file), "line": 4, "field": "models[0].files", "reason": "has no entries"}


def test_an_incomplete_model_of_the_user_is_shown(home: Path) -> None:
    path = home / "config" / "models" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[[models]]\nid = "mine"\nname = "Mine"\nfiles = [{ quant = "Q8_0", file = "a.gguf" }]\n', "utf-8")
    result = run("mine")
    assert result.returncode == 0
    assert "Context   unknown" in result.stdout
    assert str(path.parent / "a.gguf") in result.stdout
    assert "Presets" not in result.stdout
    assert [
        line for line in run().stdout.splitlines() if line.startswith("mine") and "unknown" in line and "none" in line
    ]


class TestRefresh:
    """The hub has only Qwen3.8-27B, whose revision the catalogue leaves open."""

    LEARNED, REPLACED, GONE = (f"Qwen3.8-27B-{quant}.gguf" for quant in ("Q3_K_M", "UD-Q4_K_XL", "UD-Q2_K_XL"))
    SIZES: ClassVar = {LEARNED: 13_100_000_000, REPLACED: 17_923_394_624}

    @pytest.fixture(autouse=True)
    def uploaded(self, hub: Hub) -> None:
        folder = hub.folder / "unsloth" / "Qwen3.8-27B-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        (model,) = (model for model in shipped_models() if model.id == "qwen3.8-27b")
        for index, file in enumerate(model.files):
            size = self.SIZES.get(file.file) or file.size_bytes or 12_000_000_000
            sha256 = file.sha256 or f"{index:064x}"
            names = part_names(Path(file.file).name) or (Path(file.file).name,)
            for part, name in enumerate(names):
                share = 1 if part else size - len(names) + 1
                pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {share}\n"
                path = (folder / file.file).with_name(name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(pointer)
        (folder / self.GONE).unlink()

    def test_the_result_of_a_refresh_is_reported(self) -> None:
        result = run("qwen3.8-27b", "--refresh")
        assert (result.returncode, result.stderr) == (0, "")
        head, *lines = result.stdout.splitlines()
        assert head == f"qwen3.8-27b: unsloth/Qwen3.8-27B-GGUF at {COMMIT}"
        assert f"  new        {self.LEARNED}: 13,100,000,000 bytes, SHA-256 000000000000" in lines
        (differs,) = (line for line in lines if line.startswith("  differs"))
        assert self.REPLACED in differs
        assert "17,923,394,624 bytes on the hub now" in differs
        assert "the catalogue still has 17,559,178,144 bytes" in differs
        assert f"  missing    {self.GONE}" in lines
        assert run("qwen3.8-27b", "--refresh").stdout.count("known now") == 0

    def test_refreshed_figures_are_in_the_catalogue(self) -> None:
        assert answer("qwen3.8-27b")["model"]["revision"] is None
        run("qwen3.8-27b", "--refresh")
        model = answer("qwen3.8-27b")["model"]
        sizes = {file["file"]: file["size_bytes"] for file in model["files"]}
        assert model["revision"] == COMMIT
        assert sizes[self.LEARNED] == 13_100_000_000
        assert sizes[self.REPLACED] == 17_559_178_144
        text = run("qwen3.8-27b").stdout
        assert f"by the hub at {COMMIT[:12]}" in text
        assert "another file of this name" in text

    def test_a_plan_uses_refreshed_figures(self) -> None:
        options = ("--gpu-memory", "16", "--model", "qwen3.8-27b", "--quant", "Q3_K_M")
        result = " ".join(run(*options, verb="plan").stdout.split())
        assert "weights by bits per weight: its size is not listed" in result
        guessed = answer(*options, verb="plan")["plans"][0]
        assert (guessed["quant"], guessed["bytes"], guessed["exact"]) == ("Q3_K_M", None, False)
        assert guessed["low_mib"] < guessed["required_mib"] < guessed["high_mib"]
        run("qwen3.8-27b", "--refresh")
        after = answer(*options, verb="plan")
        assert after["unplanned"] == []
        best = after["plans"][0]
        assert (best["quant"], best["bytes"], best["revision"]) == ("Q3_K_M", 13_100_000_000, COMMIT)
        assert best["high_mib"] - best["low_mib"] < guessed["high_mib"] - guessed["low_mib"]

    @pytest.mark.thorough
    def test_one_model_that_fails_does_not_stop_the_others(self) -> None:
        result = run("--refresh")
        assert result.returncode == 1
        assert f"qwen3.8-27b: unsloth/Qwen3.8-27B-GGUF at {COMMIT}" in result.stdout
        failed = {line.split(":")[0] for line in result.stderr.splitlines()}
        assert failed == {model.id for model in shipped_models() if model.repo} - {"qwen3.8-27b"}
        assert answer("qwen3.8-27b")["model"]["revision"] == COMMIT

    def test_a_refresh_as_json(self) -> None:
        outcomes = {each["model"]: each for each in answer("--refresh", code=1)["refreshed"]}
        dense = outcomes["qwen3.8-27b"]
        assert (dense["revision"], dense["error"]) == (COMMIT, None)
        assert {"label": "Q3_K_M", "file": self.LEARNED, "figure": "size_bytes", "value": 13_100_000_000} in dense[
            "learned"
        ]
        assert [(each["file"], each["hub"]) for each in dense["differs"]] == [(self.REPLACED, 17_923_394_624)]
        assert [each["file"] for each in dense["missing"]] == [
            self.GONE,
            "Qwen3.8-27B-DFlash2-Q4_K_M.gguf",  # its repository is not there
            "mmproj-F16.gguf",
        ]
        gemma = outcomes["gemma-4-31b"]
        assert (gemma["repo"], gemma["learned"], gemma["error"]["code"]) == (
            "unsloth/gemma-4-31B-it-GGUF",
            [],
            "refused",
        )

    def test_a_model_and_an_invalid_file_of_the_user_are_refreshed(self, hub: Hub, home: Path) -> None:
        folder = hub.folder / "someone" / "mine"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.gguf").write_bytes(b"GGUF")
        models = home / "config" / "models"
        models.mkdir(parents=True)
        good = '[[models]]\nid = "mine"\nname = "M"\nrepo = "someone/mine"\nfiles = [{quant = "Q", file = "a.gguf"}]\n'
        (models / "good.toml").write_text(good)
        (models / "bad.toml").write_text("[[models]]\n")
        result = run("mine", "--refresh")
        assert result.returncode == 0
        assert "new        a.gguf: 4 bytes, SHA-256 " in result.stdout
        assert f"Left out: {models / 'bad.toml'}:1" in result.stderr
        assert answer("mine", "--refresh")["problems"][0]["file"] == str(models / "bad.toml")

    def test_a_model_without_any_figures_can_be_planned_after_a_refresh(
        self, hub: Hub, home: Path, demo_model: Path
    ) -> None:
        folder = hub.folder / "someone" / "unknown"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.gguf").write_bytes(demo_model.read_bytes())
        (home / "config" / "models").mkdir(parents=True)
        (home / "config" / "models" / "unknown.toml").write_text(
            '[[models]]\nid = "unknown"\nname = "U"\nrepo = "someone/unknown"\nspeculation = "mtp"\n'
            'files = [{ quant = "F16", file = "demo.gguf" }]\n'
            '[[models.presets]]\nquant = "F16"\nctx = 4096\nkv = "f16"\ndraft = 2\n'
        )
        options = ("--gpu-memory", "8", "--model", "unknown")
        (left_out,) = answer(*options, verb="plan", code=1)["unplanned"]
        assert left_out["reason"] == "its layout is unknown"
        ask_hub, read_header = re.findall("`mtp-launcher (.+?)`", left_out["remedy"])
        assert ask_hub == "models unknown --refresh"
        assert run("unknown", "--refresh").returncode == 0
        verb, address = read_header.split()
        setting = ("--gpu-memory", "8", "--ctx", "4096", "--kv", "f16", "--draft", "2")
        estimated = answer(address, *setting, verb=verb)
        planned = answer(*options, verb="plan")
        assert planned["unplanned"] == []
        (plan,) = planned["plans"]
        assert (plan["bytes"], plan["revision"]) == (demo_model.stat().st_size, COMMIT)
        assert plan["parts"] == estimated["parts"]

    def test_a_model_that_is_not_on_the_hub_is_reported(self) -> None:
        result = run("demo", "--refresh")
        assert result.returncode == 1
        assert "demo is not from the hub" in result.stderr
        assert answer("no-such", "--refresh", code=1)["error"]["code"] == "model_unknown"

    def test_an_error_common_to_all_models_is_reported_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        result = run("--refresh")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.count("HF_HUB_OFFLINE is set") == 1
        assert answer("--refresh", code=1)["error"]["code"] == "offline"
