"""Vision projectors in `plan` and `estimate` as a user types them, in separate processes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import Hub
from tools.sparse_models.models import model
from tools.sparse_models.write import write

MOE = "qwen3.6-35b-a3b-mtp"
F16_BYTES, ENCODER_MIB = 899_283_584, 500


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def answer(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.returncode == code, result.stderr + result.stdout
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def plan(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = answer("plan", "--gpu-memory", "24", *arguments)["plans"][0]
    return found


class TestPlan:
    def test_the_projector_is_counted_and_named_in_the_command(self) -> None:
        same = "--model", f"{MOE}:UD-Q3_K_XL", "--ctx", "131072", "--kv", "q8_0"
        without, seeing = plan(*same), plan(*same, "--vision")
        assert (without["parts"]["mmproj"], without["mmproj"], seeing["mmproj"]) == (0, None, "mmproj-F16.gguf")
        assert seeing["parts"]["mmproj"] == pytest.approx(F16_BYTES / 2**20 + ENCODER_MIB, abs=0.1)
        argv = seeing["argv"]
        at = argv.index("--mmproj")
        assert argv[at + 1] == "mmproj-F16.gguf"
        assert [*argv[:at], *argv[at + 2 :]] == without["argv"]
        assert any("are a guess" in caution for caution in seeing["cautions"])
        text = run("plan", "--gpu-memory", "24", "--vision").stdout
        assert "MTP-GGUF:mmproj-F16.gguf" in text
        assert "--mmproj mmproj-F16.gguf" in " ".join(text.split())

    def test_models_without_a_projector_are_left_out_or_refused_by_name(self) -> None:
        found = answer("plan", "--gpu-memory", "24", "--vision")["plans"]
        assert {MOE, "gemma-4-31b"} <= {each["model"] for each in found}
        assert not {"qwen3.5-9b-mtp", "gpt-oss-20b"} & {each["model"] for each in found}
        error = answer("plan", "--gpu-memory", "24", "--vision", "--model", "qwen3.5-9b-mtp", code=1)["error"]
        assert (error["code"], error["message"]) == ("bad_option", "No vision projector of qwen3.5-9b-mtp is known.")

    @pytest.mark.parametrize("size", ["", ", size_bytes = 1_000_000"])
    def test_a_projector_of_the_user_is_counted(self, home: Path, size: str) -> None:
        folder = home / "config" / "models"
        folder.mkdir(parents=True)
        write(folder / "own.gguf", "own", model("qwen35-9b-q4_k_m"))
        (folder / "own.toml").write_text(
            "[[models]]\nid = 'own'\nname = 'My own'\nfiles = [{ quant = 'Q', file = 'own.gguf' }]\n"
            f"mmproj = [{{ file = 'eye.gguf'{size} }}]\npresets = [{{ quant = 'Q', ctx = 65_536, draft = 0 }}]\n"
        )
        result = answer("plan", "--gpu-memory", "24", "--vision", "--model", "own", code=0 if size else 1)
        if size:
            assert f"--mmproj {folder / 'eye.gguf'} " in " ".join(result["plans"][0]["argv"])
        else:
            assert [each["reason"] for each in result["unplanned"]] == ["the size of its vision projector is unknown"]
            assert str(folder / "eye.gguf") in result["unplanned"][0]["remedy"]


class TestEstimate:
    def test_a_projector_on_this_disk_or_on_the_hub_is_counted(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "somebody" / "vision"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mmproj.gguf").write_bytes(demo_model.read_bytes())
        machine = ("--gpu-memory", "24")
        without = answer("estimate", demo_model, *machine)
        for projector in (str(demo_model), "somebody/vision:mmproj.gguf"):
            result = answer("estimate", demo_model, *machine, "--mmproj", projector)
            wanted = demo_model.stat().st_size / 2**20 + ENCODER_MIB
            assert result["parts"]["mmproj"] == pytest.approx(wanted, abs=0.1)
            assert result["total_mib"] - without["total_mib"] == pytest.approx(wanted, abs=0.2)
            assert {name for name in result["parts"] if result["parts"][name] != without["parts"][name]} == {"mmproj"}
        text = run("estimate", demo_model, *machine, "--mmproj", demo_model).stdout
        assert f"{ENCODER_MIB} MiB of the vision projector's memory are a guess" in text

    @pytest.mark.parametrize("name", ["none.gguf", "~nobody-of-that-name/mm.gguf"])
    def test_a_missing_projector_is_reported(self, demo_model: Path, name: str) -> None:
        error = answer("estimate", demo_model, "--gpu-memory", "24", "--mmproj", name, code=1)["error"]
        assert (error["code"], name in error["message"]) == (
            "model_missing",
            True,
        )
