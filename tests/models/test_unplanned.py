"""Files and models that cannot be planned because a figure is unknown, and their sentences."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from launcher.base.errors import BadOption, ModelUnknown
from launcher.models.catalogue import Catalogue, CompanionFile, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.hub_figures import fill_from_hub_cache, refresh_figures
from launcher.models.plan import PlanCriteria, Status, UnplannedFile, list_unplanned, make_plans
from launcher.models.situation import describe_machine

COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
SHA256 = "3c" * 32
SHIPPED = Catalogue(tuple(shipped_models()))


class Hub(Protocol):
    folder: Path


def changed_catalogue(model_id: str, **changes: object) -> Catalogue:
    return Catalogue((replace(SHIPPED.find(model_id), **changes),))


@pytest.mark.cases(2)
@pytest.mark.parametrize("gib", [8, 12, 16, 24, 48])
def test_each_model_is_planned_or_listed_as_unplanned(gib: int) -> None:
    situation = describe_machine(gib, host_gib=64)
    for model in SHIPPED.models:
        criteria = PlanCriteria(model=model.id)
        plans, left_out = make_plans(SHIPPED, situation, criteria), list_unplanned(SHIPPED, situation, criteria)
        assert plans or left_out, model.id
        assert not {plan.file.quant for plan in plans} & {no.quant for no in left_out}, model.id


def test_a_file_of_unknown_size_is_estimated_by_parameters_or_listed() -> None:
    criteria = PlanCriteria(model="qwen3.8-27b", quant="Q3_K_M")
    assert list_unplanned(SHIPPED, describe_machine(16), criteria) == ()
    (guessed, *_) = make_plans(SHIPPED, describe_machine(16), criteria)
    assert guessed.file.size_bytes is None
    assert guessed.estimate.low < guessed.estimate.parts.total < guessed.estimate.high
    left_out = list_unplanned(changed_catalogue("qwen3.8-27b", parameters_b=None), describe_machine(16), criteria)
    assert {(each.model, each.quant, each.reason) for each in left_out} == {
        ("qwen3.8-27b", "Q3_K_M", "its size is unknown")
    }
    assert "--refresh" in left_out[0].remedy


def test_a_file_is_planned_once_its_size_is_known(hub: Hub) -> None:
    moe = SHIPPED.find("qwen3.6-35b-a3b-mtp")
    size = 17_227_569_440
    file = ModelFile(quant="UD-Q3_K_XL", file="a.gguf", token_embd_type="Q8_0")
    model = replace(moe, repo="someone/size", revision=None, parameters_b=None, files=(file,))
    situation, criteria = describe_machine(24), PlanCriteria(model=model.id)
    left_out = list_unplanned(Catalogue((model,)), situation, criteria)
    assert left_out == (
        UnplannedFile(
            model.id,
            "UD-Q3_K_XL",
            "its size is unknown",
            "`mtp-launcher models qwen3.6-35b-a3b-mtp --refresh` updates it from Hugging Face.",
        ),
    )
    assert make_plans(Catalogue((model,)), situation, criteria) == ()
    (hub.folder / "someone" / "size").mkdir(parents=True, exist_ok=True)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{SHA256}\nsize {size}\n"
    (hub.folder / "someone" / "size" / "a.gguf").write_text(pointer)
    refresh_figures(model)
    known = Catalogue((fill_from_hub_cache(model),))
    assert list_unplanned(known, situation, criteria) == ()
    best = make_plans(known, situation, criteria)[0]
    assert (best.file.size_bytes, best.file.sha256, best.entry.revision) == (size, SHA256, COMMIT)
    shipped = make_plans(SHIPPED, situation, replace(criteria, quant="UD-Q3_K_XL"))[0]
    assert (best.setting, best.status) == (shipped.setting, shipped.status)


def test_an_unknown_layout_suggests_to_read_the_header() -> None:
    catalogue = changed_catalogue("qwen3.5-9b-mtp", geometry=None, revision="abc")
    assert make_plans(catalogue, describe_machine(24), PlanCriteria()) == ()
    (left_out,) = list_unplanned(catalogue, describe_machine(24), PlanCriteria(quant="Q4_K_M"))
    command = f"mtp-launcher estimate {catalogue.models[0].repo}@abc:Qwen3.5-9B-Q4_K_M.gguf"
    assert (left_out.reason, left_out.remedy) == ("its layout is unknown", f"`{command}` reads its header.")
    file = catalogue.models[0].file("Q4_K_M")
    assert file
    catalogue = changed_catalogue("qwen3.5-9b-mtp", geometry=None, revision="abc", files=(replace(file, sha256=None),))
    (left_out,) = list_unplanned(catalogue, describe_machine(24), PlanCriteria(quant="Q4_K_M"))
    ask_hub = "`mtp-launcher models qwen3.5-9b-mtp --refresh` updates it from Hugging Face."
    assert left_out.remedy == f"{ask_hub} `{command}` reads its header."


def test_a_local_file_is_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "my models" / "a.gguf"
    file = ModelFile(quant="Q4_K_M", file=str(path))
    for content in (None, b"GGUF and no more"):
        if content:
            path.parent.mkdir()
            path.write_bytes(content)
        catalogue = changed_catalogue("qwen3.5-9b-mtp", repo=None, parameters_b=None, files=(file,))
        (left_out,) = list_unplanned(catalogue, describe_machine(24), PlanCriteria(model="qwen3.5-9b-mtp"))
        assert left_out.remedy == f"`mtp-launcher estimate '{path}'` explains the problem."


def test_a_draft_of_unknown_size_is_not_counted_as_0() -> None:
    draft = CompanionFile(repo="someone/small", file="small.gguf")
    catalogue = changed_catalogue("qwen3.5-9b-mtp", speculation="draft-model", draft=draft)
    model, situation = "qwen3.5-9b-mtp", describe_machine(24)
    assert make_plans(catalogue, situation, PlanCriteria(model=model)) == ()
    left_out = list_unplanned(catalogue, situation, PlanCriteria(model=model))
    assert {each.reason for each in left_out} == {"the size of its draft is unknown"}
    assert all("--refresh" in each.remedy for each in left_out)
    assert make_plans(catalogue, situation, PlanCriteria(model=model, draft=0))
    assert list_unplanned(catalogue, situation, PlanCriteria(model=model, draft=0)) == ()
    local = changed_catalogue(model, repo=None, speculation="draft-model", draft=replace(draft, repo=None))
    assert all("small.gguf" in each.remedy for each in list_unplanned(local, situation, PlanCriteria(model=model)))


def test_a_model_without_presets_is_planned() -> None:
    nine = SHIPPED.find("qwen3.5-9b-mtp")
    files = [replace(file, about_bytes=None) for file in nine.files if file.quant in ("UD-IQ3_XXS", "Q4_K_M")]
    catalogue = changed_catalogue("qwen3.5-9b-mtp", presets=(), parameters_b=None, files=tuple(files))
    criteria = PlanCriteria(model="qwen3.5-9b-mtp")
    for chosen in (criteria, PlanCriteria()):
        (only,) = make_plans(catalogue, describe_machine(12), chosen)
        assert (only.file.quant, only.status) == ("Q4_K_M", Status.FITS)
        (left_out,) = list_unplanned(catalogue, describe_machine(12), chosen)
        assert (left_out.quant, left_out.reason) == ("UD-IQ3_XXS", "its size is unknown")


def test_both_functions_report_the_same_errors() -> None:
    for ask in (make_plans, list_unplanned):
        with pytest.raises(ModelUnknown, match="gemma-4-31b has no Q9"):
            ask(SHIPPED, describe_machine(24), PlanCriteria(model="gemma-4-31b", quant="Q9"))
        with pytest.raises(ModelUnknown, match="No model has Q9"):
            ask(SHIPPED, describe_machine(24), PlanCriteria(quant="Q9"))
        with pytest.raises(BadOption, match="--ctx"):
            ask(SHIPPED, describe_machine(24), PlanCriteria(context=1))


def test_a_quantisation_alone_chooses_among_the_models_that_have_it() -> None:
    plans = make_plans(SHIPPED, describe_machine(24), PlanCriteria(quant="ud-iq3_s"))
    assert {plan.file.quant for plan in plans} == {"UD-IQ3_S"}
    assert "qwen3.6-35b-a3b-mtp" in {plan.entry.id for plan in plans}
