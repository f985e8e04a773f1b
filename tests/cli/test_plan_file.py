"""`mtp-launcher plan` for a file on this computer, whether or not the catalogue has it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.base.paths import models_dir
from launcher.models.catalogue_load import shipped_models
from tests.cli.test_plan import KEYS, PARTS, answer, run
from tests.conftest import Hub
from tests.models.tiny_models import write_bert, write_decoder
from tools.sparse_models.models import model
from tools.sparse_models.write import write

NINE = next(entry for entry in shipped_models() if entry.id == "qwen3.5-9b-mtp")
FILE = next(file for file in NINE.files if file.quant == "Q4_K_M")
CARD = ("--gpu-memory", "12")

pytestmark = pytest.mark.usefixtures("no_engine_here")


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


@pytest.fixture
def unlisted_path(tmp_path: Path) -> Path:
    """A 9B model that is not in the catalogue."""
    path = tmp_path / "my nine-Q4_K_M.gguf"
    write(path, "Nine", model("qwen35-9b-q4_k_m"))
    return path


def first_plan(*arguments: str) -> dict[str, Any]:
    plan: dict[str, Any] = answer(*arguments)["plans"][0]
    return plan


def test_a_file_is_planned_from_its_header_like_a_catalogue_model(unlisted_path: Path) -> None:
    (plan,) = answer(str(unlisted_path), *CARD)["plans"]
    assert plan.keys() == first_plan("qwen3.5-9b-mtp", *CARD).keys() >= KEYS
    assert plan["parts"].keys() == PARTS
    assert (plan["model"], plan["quant"], plan["path"]) == (str(unlisted_path), "Q4_K_M", str(unlisted_path))
    assert (plan["status"], plan["weights_exact"]) == ("FITS", True)
    assert plan["draft"] > 0
    assert plan["argv"][plan["argv"].index("--model") + 1] == str(unlisted_path)
    assert plan == first_plan("--model", str(unlisted_path), *CARD)
    assert run(str(unlisted_path), "--model", str(unlisted_path)).returncode == 2


def test_the_context_is_the_longest_that_fits(unlisted_path: Path) -> None:
    found = {gib: first_plan(str(unlisted_path), "--gpu-memory", gib) for gib in ("6", "8", "12", "16", "24")}
    contexts = [plan["ctx"] for plan in found.values()]
    assert contexts == sorted(contexts)
    assert contexts[0] < 32_768 < contexts[2]
    assert contexts[-1] == 262_144  # the whole length that the model was trained for
    for plan in found.values():
        assert plan["needed_mib"] + plan["margin_mib"] // 2 <= plan["free_mib"]
        assert plan["kv"] in ("f16", "q8_0")
    assert first_plan(str(unlisted_path), "--backend", "cpu")["ctx"] == 32_768
    assert first_plan(str(unlisted_path), *CARD, "--ctx", "8K")["ctx"] == 8_192
    longest = f"A context of {found['8']['ctx']:,} tokens is the longest that "
    assert any(each.startswith(longest) for each in found["8"]["reasons"])


def test_a_file_without_a_head_is_planned_without_mtp(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    write(path, "Plain", model("qwen35-9b-q4_k_m-nomtp"))
    plan = first_plan(str(path), *CARD)
    assert plan["draft"] == 0
    assert "This file has no MTP head." in plan["reasons"]
    assert answer(str(path), *CARD, "--draft", "3", code=1)["error"]["code"] == "model_has_no_mtp_head"


def test_a_catalogue_file_has_the_same_plan_under_any_name() -> None:
    assert NINE.repo
    path = models_dir() / NINE.repo / FILE.file
    path.parent.mkdir(parents=True)
    write(path, "Qwen3.5 9B", model("qwen35-9b-q4_k_m"))
    by_id = first_plan("qwen3.5-9b-mtp:Q4_K_M", *CARD)
    assert by_id["path"] is None  # the file's size differs from the catalogue's, so it is another file
    assert by_id == first_plan("qwen3.5-9b-mtp", "--quant", "Q4_K_M", *CARD)
    by_path = first_plan(str(path), *CARD)
    assert (by_path["model"], by_path["quant"]) == ("qwen3.5-9b-mtp", "Q4_K_M")
    assert by_path["ctx"] == by_id["ctx"]
    assert first_plan(f"{NINE.repo}:{FILE.file}", *CARD)["model"] == "qwen3.5-9b-mtp"


def test_another_model_with_a_catalogue_file_name_is_planned_as_itself(demo_model: Path) -> None:
    assert NINE.repo
    path = models_dir() / NINE.repo / FILE.file
    path.parent.mkdir(parents=True)
    shutil.copy(demo_model, path)
    plan = first_plan(str(path), *CARD)
    assert (plan["model"], plan["bytes"]) == (str(path), demo_model.stat().st_size)


def test_a_downloaded_hub_file_is_planned(demo_model: Path) -> None:
    path = models_dir() / "someone" / "Demo-GGUF" / "demo-F16.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(demo_model, path)
    assert first_plan("someone/Demo-GGUF:demo-F16.gguf", *CARD)["path"] == str(path)


def test_a_missing_or_invalid_file_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    for name, code in (
        (str(tmp_path / "none.gguf"), "model_missing"),
        (str(broken), "model_broken"),
        ("qwen3.5-9b-mtq", "model_unknown"),
        ("never heard of", "model_unknown"),
        (str(tmp_path), "model_missing"),
        ("https://example.com/some/model", "bad_option"),
    ):
        assert answer(name, *CARD, code=1)["error"]["code"] == code


class TestImpossiblePlans:
    SMALL = ("--gpu-memory", "6", "--host-memory", "16")

    def test_a_plan_without_a_named_model_proposes_models_that_fit(self) -> None:
        result = answer(*self.SMALL)
        assert result["smaller"] is None
        assert [plan["status"] for plan in result["plans"]].count("TOO BIG") == 0
        assert not any(plan["host_short"] for plan in result["plans"])

    def test_a_named_model_that_is_too_big_has_a_smaller_one_beside_it(self) -> None:
        result = answer("qwen3.6-35b-a3b-mtp:UD-Q4_K_M", *self.SMALL, code=1)
        (plan,) = result["plans"]
        assert (plan["status"], plan["host_short"]) == ("TOO BIG", True)
        smaller = result["smaller"]
        assert (
            first_plan(f"{smaller['model']}:{smaller['quant']}", *self.SMALL)["status"]
            == smaller["status"]
            != "TOO BIG"
        )
        text = " ".join(run("qwen3.6-35b-a3b-mtp:UD-Q4_K_M", *self.SMALL).stdout.split())
        assert "cannot work well here: there is too little host memory. What fits: " in text
        assert f"{smaller['name']}, {smaller['quant']}, {smaller['bytes'] / 2**30:.1f} GiB" in text

    def test_a_local_file_that_is_too_big_has_a_smaller_model_beside_it(self, tmp_path: Path) -> None:
        path = tmp_path / "large.gguf"
        write(path, "Large", model("qwen35moe-35b-q3_k_xl"))
        result = answer(str(path), "--gpu-memory", "6", "--host-memory", "8", code=1)
        assert result["plans"][0]["status"] == "TOO BIG"
        assert result["smaller"]["bytes"] < result["plans"][0]["bytes"]


class TestOnTheHub:
    @pytest.fixture(autouse=True)
    def _repository(self, hub: Hub, demo_model: Path) -> None:
        folder = hub.folder / "someone" / "Planned-GGUF"
        folder.mkdir(parents=True, exist_ok=True)
        for quant in ("Q8_0", "Q4_K_M", "IQ2_M"):
            shutil.copy(demo_model, folder / f"planned-{quant}.gguf")

    def test_a_repository_is_planned_from_its_headers(self, hub: Hub) -> None:
        result = answer("someone/Planned-GGUF", *CARD)
        assert result["plans"][0]["quant"] in ("Q8_0", "Q4_K_M")  # the same bytes: as fast, and as good
        assert {plan["quant"] for plan in result["plans"]} == {"Q8_0", "Q4_K_M", "IQ2_M"}
        plan = result["plans"][0]
        assert (plan["repo"], plan["path"], plan["weights_exact"]) == ("someone/Planned-GGUF", None, True)
        assert plan["estimated_by"] == "formula"
        named = first_plan("someone/Planned-GGUF:q8_0", *CARD)
        assert named == first_plan(f"{hub.url}/someone/Planned-GGUF/blob/main/planned-Q8_0.gguf", *CARD)
        assert named["quant"] == "Q8_0"
        text = run("someone/Planned-GGUF:Q8_0", *CARD).stdout
        assert "`mtp-launcher pull someone/Planned-GGUF:Q8_0` downloads it" in " ".join(text.split())

    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("someone/Planned-GGUF:Q5_K_M", "model_missing"),
            ("someone/Planned-GGUF:other.gguf", "model_missing"),
            ("someone/nothing", "refused"),
        ],
    )
    def test_a_missing_repository_is_reported(self, name: str, code: str) -> None:
        assert answer(name, *CARD, code=1)["error"]["code"] == code

    def test_a_missing_network_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert answer("someone/Planned-GGUF", *CARD, code=1)["error"]["code"] == "unreachable"

    def test_a_repository_of_the_catalogue_is_planned_as_its_entry(self, hub: Hub) -> None:
        assert NINE.repo
        assert first_plan(NINE.repo, *CARD) == first_plan(NINE.id, *CARD)
        assert hub.requests() == []


class TestEstimateSource:
    def test_a_model_without_a_formula_is_planned_by_the_engine(self, tmp_path: Path) -> None:
        path = tmp_path / "bert.gguf"
        write_bert(path)
        plan = first_plan(str(path))
        assert plan["estimated_by"].startswith("built-in ")
        assert (plan["status"], plan["draft"], plan["compute_exact"]) == ("FITS", 0, True)
        assert plan["parts"]["weights"] > 0
        assert plan["reasons"][0].startswith(
            f"The memory figures are the engine's own ({plan['estimated_by']}), because"
        )
        described = first_plan(str(path), *CARD)
        assert not described["compute_exact"]  # the engine that was asked computes on the processor
        assert described["low_mib"] < described["high_mib"]

    def test_the_engine_is_asked_about_an_unknown_graph(self, tmp_path: Path) -> None:
        path = tmp_path / "stable.gguf"
        write_decoder(path)
        plan = first_plan(str(path))
        assert plan["estimated_by"].startswith("built-in ")
        assert plan["exact"]
        described = first_plan(str(path), *CARD)
        assert (described["estimated_by"], described["compute_exact"]) == ("formula", False)
        assert any("the formula is not exact" in text for text in described["cautions"])

    def test_the_formula_is_used_for_a_known_graph(self, unlisted_path: Path) -> None:
        assert first_plan(str(unlisted_path))["estimated_by"] == "formula"


def test_an_embedding_model_has_a_reading_speed_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "embedding.gguf"
    write_decoder(path, architecture="qwen3", embedding=True)
    plan = first_plan(str(path), *CARD)
    assert (plan["draft"], plan["expected"], plan["limit_tokens_per_second"]) == (0, None, None)
    assert plan["expected_unknown"] == "An embedding model generates no text."
    assert 0 < plan["reading"]["low"] < plan["reading"]["tokens_per_second"] < plan["reading"]["high"]
    assert "generates no text" in run(str(path), *CARD).stdout
