"""`mtp-launcher plan` and engines: the plan's command line for the engine on PATH, and the dry run of --ask-engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.cli.conftest import add_own_model
from tests.conftest import Hub
from tools.sparse_models.models import model

pytestmark = pytest.mark.usefixtures("no_engine_here")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run("plan", *arguments, env=os.environ | environment)


def answer(*arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
    result = run(*arguments, "--json", **environment)
    assert result.returncode == code, result.stderr + result.stdout
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def first_plan(*arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
    plan: dict[str, Any] = answer(*arguments, code=code, **environment)["plans"][0]
    return plan


def llama_server(folder: Path, help_text: str) -> Path:
    """A program that answers a probe like a llama-server with those flags, and lists a GPU."""
    path = folder / "llama-server"
    path.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo 'version: 1 (old)' >&2;; --help) echo '{help_text}';;"
        " --list-devices) echo '  CUDA0: A card (24082 MiB, 23500 MiB free)';; esac\n"
    )
    path.chmod(0o755)
    return path


class TestInstalledEngine:
    FLAGS = (
        "--model --ctx-size --parallel --gpu-layers --cache-type-k --cache-type-v --flash-attn --ubatch-size"
        " --n-cpu-moe --device --spec-type --spec-draft-n-max --cache-ram --ctx-checkpoints"
    )

    def test_the_plan_uses_the_path_and_flags_of_the_engine(self, tmp_path: Path) -> None:
        engine = llama_server(tmp_path, self.FLAGS)
        plan = first_plan("--host-memory", "64", PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert plan["argv"][0] == str(engine)
        assert "--gpu-layers" in plan["argv"]
        plan = first_plan("--host-memory", "64", "--backend", "cpu", PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert plan["argv"][0] == str(engine)
        assert "--device none" in " ".join(plan["argv"])

    def test_an_engine_that_lists_no_gpu_is_not_used_for_the_plan(self, tmp_path: Path) -> None:
        engine = llama_server(tmp_path, self.FLAGS)
        engine.write_text(engine.read_text().replace("A card (24082", "A card (none"))
        plan = first_plan("--host-memory", "64", PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert plan["argv"][0] == sys.executable
        assert plan["argv"][2].endswith("builtin.py")
        assert plan["env"].keys() == {"XDG_CONFIG_HOME"}

    def test_an_engine_that_is_too_old_does_not_prevent_a_plan(self, tmp_path: Path) -> None:
        llama_server(tmp_path, "--model --ctx-size --parallel --flash-attn")
        plan = first_plan("--host-memory", "64", PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert plan["argv"][0] == "llama-server"
        (lack,) = [text for text in plan["cautions"] if "The engine in use cannot run this plan." in text]
        assert "--spec-type" in lack
        text = " ".join(run("--host-memory", "64", PATH=f"{tmp_path}:{os.environ['PATH']}").stdout.split())
        assert "The engine in use cannot run this plan." in text

    @pytest.mark.parametrize("has_cache", [True, False])
    def test_an_expert_cache_is_planned_if_the_engine_has_one(self, tmp_path: Path, has_cache: bool) -> None:
        engine = llama_server(tmp_path, self.FLAGS + (" --moe-cache-mib" if has_cache else ""))
        card = "NVIDIA GeForce RTX 3060 (12288 MiB, 11882"
        engine.write_text(engine.read_text().replace("A card (24082 MiB, 23500", card))
        path = f"{tmp_path}:{os.environ['PATH']}"
        plan = first_plan("qwen3.6-35b-a3b-mtp:UD-Q4_K_M", "--host-memory", "32", PATH=path)
        assert plan["status"] == "OFFLOADS"
        assert (plan["moe_cache_mib"] > 2_048) is has_cache
        assert ("--moe-cache-mib" in plan["argv"]) is has_cache
        assert (plan["expected"]["cache_hits"] is not None) is has_cache
        assert plan["expected"]["filled_tokens"] == min(65_536, plan["ctx"])
        assert 0 < plan["expected"]["tokens_per_second_filled"] < plan["expected"]["tokens_per_second"]
        assert plan["parts"]["caches"] == plan["moe_cache_mib"]
        text = " ".join(run("qwen3.6-35b-a3b-mtp:UD-Q4_K_M", "--host-memory", "32", PATH=path).stdout.split())
        assert (f"expert cache of {plan['moe_cache_mib']:,} MiB" in text) is has_cache
        assert "host memory is assumed to give " in text

    def test_a_described_machine_has_no_engine(self, tmp_path: Path) -> None:
        llama_server(tmp_path, "--model")
        assert first_plan("--gpu-memory", "24", PATH=f"{tmp_path}:{os.environ['PATH']}")["argv"][0] == "llama-server"


class TestAskEngine:
    @pytest.fixture
    def own_file(self, home: Path) -> Path:
        """A model of true geometry in the user's own catalogue."""
        return add_own_model(home, model("qwen35-9b-q4_k_m"))

    @pytest.mark.usefixtures("own_file")
    def test_the_first_plan_shows_the_figures_of_the_engine(self) -> None:
        plan = first_plan("--model", "own", "--gpu-memory", "16", "--ask-engine")
        assert plan["engine"].keys() >= {
            "model_mib", "context_mib", "compute_mib", "draft_context_mib", "draft_compute_mib", "seconds",
        }  # fmt: skip
        assert (plan["engine"]["host_mib"], plan["engine"]["free_mib"]) == (0, None)  # the engine uses no GPU
        assert plan["engine_error"] is None
        assert abs(plan["difference_percent"]) < 0.1
        assert plan["engine"]["draft_context_mib"] == plan["parts"]["draft_kv"]
        assert plan["engine"]["context_mib"] == int(plan["parts"]["kv"] + plan["parts"]["recurrent"])
        text = " ".join(run("--model", "own", "--gpu-memory", "16", "--ask-engine").stdout.split())
        assert "MiB by built-in xllamacpp" in text
        assert "the formula for cpu says" in text

    @pytest.mark.usefixtures("own_file")
    def test_plans_are_printed_if_the_engine_cannot_be_asked(self, home: Path) -> None:
        (home / "cache").mkdir()
        (home / "cache" / "twins").touch()  # a file in the folder's place, so that the folder cannot be made
        plan = first_plan("--model", "own", "--gpu-memory", "16", "--ask-engine", code=1)
        assert plan["engine"] is None
        assert plan["engine_error"]["code"] == "twin_impossible"
        assert (plan["status"], plan["difference_percent"]) == ("FITS", None)
        text = run("--model", "own", "--gpu-memory", "16", "--ask-engine")
        assert text.returncode == 1
        assert "could not be asked. " in " ".join(text.stdout.split())

    def test_the_header_is_read_from_the_hub_at_the_planned_revision(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "unsloth" / "Qwen3.6-35B-A3B-MTP-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf").write_bytes(demo_model.read_bytes())
        plan = first_plan("--gpu-memory", "24", "--model", "qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", "--ask-engine")
        assert (plan["engine_error"], abs(plan["difference_percent"]) < 3) == (None, True)
        assert 0 < plan["engine"]["model_mib"] < 10
        assert {request["method"] for request in hub.requests()} == {"HEAD", "GET"}

    @pytest.mark.usefixtures("hub")
    def test_a_file_missing_on_the_hub_does_not_prevent_a_plan(self) -> None:
        plan = first_plan("--gpu-memory", "16", "--ask-engine", code=1)
        assert plan["engine"] is None
        assert plan["engine_error"]["message"]
        assert plan["status"] == "FITS"
