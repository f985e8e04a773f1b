"""Headers that were read once: plans take a file's own geometry and weights in place of the catalogue's rules."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import pytest

from launcher.fetch.hub import HubFile
from launcher.models import header_summary
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import load_catalogue, shipped_models
from launcher.models.geometry import read_geometry
from launcher.models.gguf import GgufHeader, read_header
from launcher.models.gguf_remote import read_remote_model
from launcher.models.header_summary import HeaderSummary, apply_header, load_summary, store_summary
from launcher.models.memory import estimate_memory
from launcher.models.plan import PlanCriteria, list_unplanned, make_plans
from launcher.models.situation import describe_machine
from launcher.models.weights import read_weights
from tools.sparse_models.models import model as sparse_model
from tools.sparse_models.write import write

SHA256 = "5e" * 32
MODELS = {model.id: model for model in shipped_models()}


class Hub(Protocol):
    folder: Path
    requests: Callable[[], list[dict[str, str]]]


@pytest.fixture
def header(tmp_path: Path) -> Callable[[str], GgufHeader]:
    """Return the header of a model with true geometry and types."""

    def read(name: str) -> GgufHeader:
        path = tmp_path / f"{name}.gguf"
        write(path, name, sparse_model(name))
        return read_header(path)

    return read


def kept_file(home: Path) -> Path:
    (path,) = (home / "cache" / "header-summaries").iterdir()
    return path


def model_with(model_id: str, quant: str, **changes: object) -> ModelEntry:
    """A shipped model that has one file only, with some fields of that changed."""
    model = MODELS[model_id]
    file = model.file(quant)
    assert file
    changed: ModelFile = replace(file, **changes)  # type: ignore[arg-type]
    return replace(model, files=(changed,))


class TestKeptSummary:
    @pytest.mark.parametrize(
        ("name", "has_head"),
        [
            ("qwen35moe-35b-q3_k_xl", True),
            ("qwen35moe-35b-q4_k_m-nomtp", False),
            ("qwen35-27b-q4_k_m", True),
            ("llama-8b-q4_k", False),
        ],
    )
    def test_a_summary_has_the_figures_of_its_header(
        self, header: Callable[[str], GgufHeader], name: str, has_head: bool
    ) -> None:
        read = header(name)
        store_summary(SHA256, read)
        geometry = read_geometry(read)
        assert load_summary(SHA256) == HeaderSummary(read.file_bytes, has_head, geometry, read_weights(read, geometry))
        assert load_summary("00" * 32) is None

    def test_no_summary_is_stored_for_a_model_without_a_formula(
        self, header: Callable[[str], GgufHeader], home: Path
    ) -> None:
        read = header("llama-8b-q4_k")
        store_summary(SHA256, replace(read, metadata={**read.metadata, "llama.attention.kv_lora_rank": 512}))
        assert load_summary(SHA256) is None
        assert not home.exists()

    def test_a_header_that_claims_millions_of_layers_is_handled_quickly(
        self, header: Callable[[str], GgufHeader], home: Path
    ) -> None:
        read = header("llama-8b-q4_k")
        store_summary(SHA256, replace(read, metadata={**read.metadata, "llama.block_count": 2**31 - 1}))
        store_summary(SHA256, replace(read, metadata={**read.metadata, "llama.block_count": 293}))
        assert not home.exists()

    def test_every_flipped_bit_and_every_truncation_is_detected(
        self, header: Callable[[str], GgufHeader], home: Path
    ) -> None:
        store_summary(SHA256, header("llama-8b-q4_k"))
        path = kept_file(home)
        sound = path.read_bytes()
        for place in range(0, len(sound), 37):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
            assert load_summary(SHA256) is None
            path.write_bytes(sound[:place])
            assert load_summary(SHA256) is None
        path.write_bytes(sound)
        assert load_summary(SHA256)

    def test_another_version_of_the_program_reads_the_header_again(
        self, header: Callable[[str], GgufHeader], home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store_summary(SHA256, header("llama-8b-q4_k"))
        data = json.loads(kept_file(home).read_bytes().split(b"\n", 1)[1])
        for spoilt in (
            {name: value for name, value in data.items() if name != "weights"},
            data | {"weights": data["weights"] | {"from_later": 1}},
            data | {"geometry": {name: data["geometry"][name] for name in list(data["geometry"])[:-1]}},
        ):
            body = json.dumps(spoilt).encode()
            kept_file(home).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            assert load_summary(SHA256) is None
        store_summary(SHA256, header("llama-8b-q4_k"))
        assert load_summary(SHA256)
        monkeypatch.setattr(header_summary, "__version__", "99.0")
        assert load_summary(SHA256) is None


class TestPlans:
    def test_plans_use_the_weights_of_the_file(self, header: Callable[[str], GgufHeader]) -> None:
        catalogue = Catalogue((model_with("qwen3.6-35b-a3b-mtp", "UD-Q3_K_XL", sha256=SHA256),))
        situation, criteria = describe_machine(24), PlanCriteria(quant="UD-Q3_K_XL")
        (by_rules, *_) = make_plans(catalogue, situation, criteria)
        read = header("qwen35moe-35b-q3_k_xl")
        store_summary(SHA256, read)
        (best, *_) = make_plans(catalogue, situation, criteria)
        geometry = read_geometry(read)
        assert best.estimate == estimate_memory(geometry, read_weights(read, geometry), best.setting)
        assert best.setting == by_rules.setting
        assert best.estimate.parts != by_rules.estimate.parts
        assert best.estimate.parts.total == pytest.approx(by_rules.estimate.parts.total, rel=0.01)

    def test_a_geometry_from_the_header_makes_a_plan_possible(self, header: Callable[[str], GgufHeader]) -> None:
        model = replace(model_with("qwen3.8-27b", "UD-Q4_K_S", sha256=SHA256), geometry=None, weights=None)
        situation, criteria = describe_machine(24), PlanCriteria(model=model.id, quant="UD-Q4_K_S")
        assert {each.reason for each in list_unplanned(Catalogue((model,)), situation, criteria)} == {
            "its layout is unknown"
        }
        store_summary(SHA256, header("qwen35-27b-q4_k_s"))
        assert list_unplanned(Catalogue((model,)), situation, criteria) == ()
        (best, *_) = make_plans(Catalogue((model,)), situation, criteria)
        known = make_plans(Catalogue(tuple(MODELS.values())), situation, criteria)[0]
        assert (best.setting, best.status) == (known.setting, known.status)

    def test_a_size_from_the_header_makes_a_plan_possible(self, header: Callable[[str], GgufHeader]) -> None:
        model = replace(model_with("qwen3.8-27b", "UD-Q4_K_S", sha256=SHA256, size_bytes=None), parameters_b=None)
        criteria = PlanCriteria(model=model.id, quant="UD-Q4_K_S")
        assert make_plans(Catalogue((model,)), describe_machine(24), criteria) == ()
        read = header("qwen35-27b-q4_k_s")
        store_summary(SHA256, read)
        assert make_plans(Catalogue((model,)), describe_machine(24), criteria)[0].file.size_bytes == read.file_bytes

    def test_the_header_decides_whether_there_is_a_head(self, header: Callable[[str], GgufHeader]) -> None:
        model = model_with("qwen3.6-35b-a3b-mtp", "UD-Q4_K_M", sha256=SHA256)
        criteria = PlanCriteria(quant="UD-Q4_K_M")
        assert make_plans(Catalogue((model,)), describe_machine(32), criteria)[0].setting.draft > 0
        store_summary(SHA256, header("qwen35moe-35b-q4_k_m-nomtp"))
        assert make_plans(Catalogue((model,)), describe_machine(32), criteria)[0].setting.draft == 0

    def test_a_file_without_a_checksum_is_planned_by_rules(self, header: Callable[[str], GgufHeader]) -> None:
        store_summary(SHA256, header("qwen35moe-35b-q3_k_xl"))
        model = model_with("qwen3.6-35b-a3b-mtp", "UD-Q3_K_XL", sha256=None)
        entry, file, weights = apply_header(model, model.files[0])
        assert (entry, file) == (model, model.files[0])
        assert weights
        assert not weights.exact


class TestFilesOnThisDisk:
    def test_the_documented_model_is_planned_by_its_header(self, tmp_path: Path) -> None:
        docs = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
        (example,) = re.findall(r"```toml\n(\[\[models]].*?)```", docs, re.DOTALL)
        write(tmp_path / "my.gguf", "qwen35-27b-q4_k_m", sparse_model("qwen35-27b-q4_k_m"))
        (tmp_path / "models").mkdir()
        own = example.replace("~/models/my-27b-Q5_K_M.gguf", (tmp_path / "my.gguf").as_posix())
        (tmp_path / "models" / "my.toml").write_text(own, "utf-8")
        catalogue = load_catalogue(tmp_path, hub_figures=False)
        assert not catalogue.problems
        criteria = PlanCriteria(model="my-27b")
        assert list_unplanned(catalogue, describe_machine(24), criteria) == ()
        read = read_header(tmp_path / "my.gguf")
        (best, *_) = make_plans(catalogue, describe_machine(24), criteria)
        geometry = read_geometry(read)
        assert best.estimate == estimate_memory(geometry, read_weights(read, geometry), best.setting)
        assert best.file.size_bytes == read.file_bytes

    def test_a_replaced_file_is_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gguf"
        model = replace(model_with("qwen3.5-9b-mtp", "Q4_K_M", file=str(path)), repo=None, geometry=None)
        layers = []
        for name in ("qwen35-9b-q4_k_m", "llama-8b-q4_k"):
            write(path, name, sparse_model(name))
            geometry = apply_header(model, model.files[0])[0].geometry
            layers.append(geometry and geometry.architecture)
        assert layers == ["qwen35", "llama"]


class TestSource:
    def test_a_header_read_from_the_hub_is_summarised_and_rebuilt_from_the_cache(
        self, hub: Hub, demo_model: Path, home: Path
    ) -> None:
        folder = hub.folder / "someone" / "summary"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.gguf").write_bytes(demo_model.read_bytes())
        sha256 = hashlib.sha256(demo_model.read_bytes()).hexdigest()
        remote = read_remote_model(HubFile("someone/summary", "demo.gguf"))
        first = load_summary(sha256)
        assert first
        assert asdict(first.geometry) == asdict(read_geometry(remote.model))
        kept_file(home).unlink()
        read_remote_model(HubFile("someone/summary", "demo.gguf"))
        assert load_summary(sha256) == first

    def test_an_unwritable_summary_causes_no_second_download(self, hub: Hub, demo_model: Path, home: Path) -> None:
        folder = hub.folder / "someone" / "summary"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "demo.gguf").write_bytes(demo_model.read_bytes())
        (home / "cache").mkdir(parents=True)
        (home / "cache" / "header-summaries").write_text("no folder")
        read_remote_model(HubFile("someone/summary", "demo.gguf"))
        hub.requests()
        read_remote_model(HubFile("someone/summary", "demo.gguf"))
        assert [request["method"] for request in hub.requests()] == ["HEAD"]
