"""Side files: a head in a file of its own and projectors are paired with their model by headers, not by names."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFWriter

from launcher.app.planning.planner import options_for_plan
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.base.errors import ModelUnexpected
from launcher.base.paths import models_dir
from launcher.engine.serve_options import ServeOptions
from launcher.models.catalogue import Catalogue
from launcher.models.geometry import read_geometry
from launcher.models.gguf import isolate_head, read_model
from launcher.models.library import list_library
from launcher.models.locate import select_model
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.side_files import find_side_files, is_head_of
from launcher.models.situation import describe_machine
from tools.sparse_models.models import Model
from tools.sparse_models.models import model as make_sparse_model
from tools.sparse_models.write import write

NOTHING = Catalogue(())
WHOLE = make_sparse_model("qwen35-27b-q4_k_m")
HEAD = Model(
    WHOLE.architecture,
    WHOLE.metadata,
    {name: its for name, its in WHOLE.tensors.items() if name.startswith("blk.64.") or not name.startswith("blk.")},
)
TRUNK = WHOLE.without_head()


@pytest.fixture(autouse=True)
def _no_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[str, Model], Path]:
    """Write a model into a folder."""

    def make(name: str, model: Model) -> Path:
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, path.stem, model)
        return path

    return make


def projector(path: Path, width: int, key: str = "clip.vision.projection_dim") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "clip")
    writer.add_uint32(key, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def head_beside(trunk: Path) -> Path | None:
    heads = [each for each in find_side_files(read_model(trunk)).drafts if each.speculation == "draft-file"]
    return Path(heads[0].file) if heads else None


Put = Callable[[str, Model], Path]


def test_a_head_in_a_file_beside_its_model_is_used(write_model: Put) -> None:
    trunk, head = write_model("trunk-Q4_K_M.gguf", TRUNK), write_model("mtp-trunk-Q4_0.gguf", HEAD)
    chosen = select_model(str(trunk), NOTHING)
    assert (chosen.entry.speculation, chosen.entry.draft and chosen.entry.draft.file) == ("draft-file", str(head))
    (plan,) = make_plans(chosen.catalogue, describe_machine(24), PlanCriteria(model=chosen.entry.id))
    assert plan.setting.draft == 2
    assert plan.estimate.drafts_counted
    options = options_for_plan(plan)
    assert (options.draft_file, options.spec_type) == (head, "draft-mtp")
    started = make_unresolved_options(str(trunk), ServeOptions)
    assert (started.draft_file, started.spec_type) == (head, "draft-mtp")


def test_a_separate_head_needs_the_memory_of_an_included_one(write_model: Put) -> None:
    """The separate head has copies of the embedding and of the output matrix in addition."""
    write_model("mtp-trunk.gguf", HEAD)
    criteria = PlanCriteria(context=32_768, draft=3)

    def plan_file(path: Path) -> dict[str, int]:
        chosen = select_model(str(path), NOTHING)
        (plan,) = make_plans(chosen.catalogue, describe_machine(32), replace(criteria, model=chosen.entry.id))
        return plan.estimate.parts.as_dict()

    apart, inside = plan_file(write_model("trunk.gguf", TRUNK)), plan_file(write_model("whole/whole.gguf", WHOLE))
    assert apart["draft_kv"] == inside["draft_kv"]
    assert apart["recurrent"] == inside["recurrent"]
    output = read_model(write_model("whole/whole.gguf", WHOLE))
    of_output = sum(each.n_bytes or 0 for each in output.tensors if each.name.startswith("output"))
    assert apart["weights"] - inside["weights"] == of_output


@pytest.mark.parametrize(
    "wrong",
    [
        {"embedding_length": 4_096},
        {"vocab_size": 1_000},
        {"block_count": 49},
    ],
)
def test_a_head_of_another_model_is_not_used(write_model: Put, wrong: dict[str, int]) -> None:
    blocks = wrong.get("block_count", 65)
    tensors = {name.replace("blk.64.", f"blk.{blocks - 1}."): its for name, its in HEAD.tensors.items()}
    write_model("mtp-trunk-Q8_0.gguf", Model(HEAD.architecture, {**HEAD.metadata, **wrong}, tensors))
    assert head_beside(write_model("trunk.gguf", TRUNK)) is None


def test_side_files_are_matched_by_content_and_not_by_name(write_model: Put) -> None:
    head = write_model("one.gguf", HEAD)
    trunk = write_model("two.gguf", TRUNK)
    write_model("three.gguf", make_sparse_model("llama-8b-q4_k"))
    assert head_beside(trunk) == head
    assert not is_head_of(read_model(trunk), read_model(trunk))


def test_a_model_with_its_own_head_uses_no_other(write_model: Put) -> None:
    write_model("mtp-whole.gguf", HEAD)
    assert head_beside(write_model("whole.gguf", WHOLE)) is None


def test_the_head_with_the_quantisation_of_the_model_comes_first(write_model: Put) -> None:
    usual, own = write_model("mtp-x-Q8_0.gguf", HEAD), write_model("mtp-x-Q4_K_M.gguf", HEAD)
    write_model("mtp-x-BF16.gguf", HEAD)
    trunk = write_model("x-Q4_K_M.gguf", TRUNK)
    assert head_beside(trunk) == own
    own.unlink()
    assert head_beside(trunk) == usual


def test_the_assistant_model_of_gemma_is_used(write_model: Put) -> None:
    draft = write_model("gemma-assistant.gguf", make_sparse_model("gemma4-31b-draft-q8_0"))
    assert head_beside(write_model("gemma.gguf", make_sparse_model("gemma4-31b-iq4_xs"))) == draft
    assert head_beside(write_model("other/gemma3.gguf", make_sparse_model("gemma3-12b-q4_k"))) is None


def test_side_files_in_subfolders_of_a_repository_are_found() -> None:
    folder = models_dir() / "owner" / "Some-GGUF"
    for name, model in (("UD/x-Q4_K_M.gguf", TRUNK), ("MTP/mtp-x.gguf", HEAD)):
        (folder / name).parent.mkdir(parents=True)
        write(folder / name, "x", model)
    other = projector(folder / "mmproj-F16.gguf", 5_120)
    found = find_side_files(read_model(folder / "UD" / "x-Q4_K_M.gguf"))
    assert [Path(each.file) for each in found.drafts] == [folder / "MTP" / "mtp-x.gguf"]
    assert [Path(each.file) for each in found.projectors] == [other]


def test_projectors_are_matched_by_the_hidden_size(write_model: Put) -> None:
    trunk = write_model("x.gguf", TRUNK)
    right = projector(trunk.with_name("mmproj-x-BF16.gguf"), 5_120)
    better = projector(trunk.with_name("mmproj-x-F16.gguf"), 5_120)
    projector(trunk.with_name("mmproj-y-F16.gguf"), 4_096)
    chosen = select_model(str(trunk), NOTHING)
    assert [Path(each.file) for each in chosen.entry.mmproj] == [right, better]
    (plan,) = make_plans(
        chosen.catalogue, describe_machine(32), PlanCriteria(model=chosen.entry.id, vision=True, context=8_192)
    )
    assert options_for_plan(plan).mmproj == better


def test_side_files_are_not_listed_as_models(write_model: Put) -> None:
    head = write_model("mtp-x.gguf", HEAD)
    with pytest.raises(ModelUnexpected, match="is an MTP head without its model"):
        select_model(str(head), NOTHING)
    with pytest.raises(ModelUnexpected, match="is a vision projector"):
        select_model(str(projector(head.with_name("v.gguf"), 8)), NOTHING)


def test_the_library_recognises_a_head_by_its_tensors() -> None:
    path = models_dir() / "something.gguf"
    path.parent.mkdir(parents=True)
    write(path, "x", HEAD)
    (local,) = list_library(NOTHING).models
    assert local.record.kind == "draft"


def test_a_head_alone_is_a_model_of_its_own_layers(write_model: Put) -> None:
    geometry = read_geometry(isolate_head(read_model(write_model("mtp-x.gguf", HEAD))))
    assert (geometry.layers, geometry.attention_layers, geometry.mtp_layers) == (1, 1, 0)
    whole = read_model(write_model("whole.gguf", WHOLE))
    assert isolate_head(whole) is whole


def test_damaged_side_files_are_skipped(write_model: Put) -> None:
    trunk = write_model("x.gguf", TRUNK)
    trunk.with_name("mtp-x.gguf").write_bytes(b"GGUF, but cut")
    assert head_beside(trunk) is None
