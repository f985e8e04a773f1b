"""Every model of the catalogue has a plan for every card, or is named as too big; and its figures are in order."""

import itertools

import pytest

from launcher.models.catalogue import Catalogue, ModelEntry
from launcher.models.catalogue_load import shipped_models
from launcher.models.file_size import bits_per_weight, expect_size
from launcher.models.plan import PlanCriteria, Status, list_unplanned, make_plans
from launcher.models.situation import describe_machine
from launcher.models.weights import weights_by_rules

MIB, GIB = 2**20, 2**30
CATALOGUE = Catalogue(tuple(shipped_models()))
MODELS = [model for model in CATALOGUE.models if model.id != "demo" and model.geometry]
UNREAD = [model for model in CATALOGUE.models if not model.geometry]
CARDS = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 80, 96)


def smallest_and_usual(model: ModelEntry) -> list[str]:
    """The smallest file, and one of about four bits: planning all would take minutes."""
    kept = [file.quant for file in model.files if not file.withdrawn]
    usual = next((quant for quant in ("UD-Q4_K_XL", "Q4_K_M", "Q4_K_S") if quant in kept), kept[-1])
    return list(dict.fromkeys([kept[0], usual]))


@pytest.mark.thorough
def test_every_model_is_planned_or_too_big_for_every_card() -> None:
    for model in MODELS:
        for card in CARDS:
            for quant in smallest_and_usual(model):
                criteria = PlanCriteria(model=model.id, quant=quant)
                plans = make_plans(CATALOGUE, describe_machine(card, host_gib=64), criteria)
                assert plans, (model.id, card, quant)
                for plan in plans:
                    estimate = plan.estimate
                    assert 0 < estimate.low <= estimate.parts.total <= estimate.high, (model.id, card, quant)
                    too_big = plan.needed_mib > plan.free_mib or plan.host_short
                    assert (plan.status is Status.TOO_BIG) == too_big, (model.id, card, quant)


def test_a_model_whose_shape_is_unknown_has_no_plan_and_says_how_to_get_one() -> None:
    for model in UNREAD:
        criteria, card = PlanCriteria(model=model.id), describe_machine(24, host_gib=64)
        assert not make_plans(CATALOGUE, card, criteria)
        missing = list_unplanned(CATALOGUE, card, criteria)
        assert {each.reason for each in missing} == {"its layout is unknown"}
        assert all("estimate" in each.remedy for each in missing)
        assert all(expect_size(model, file) for file in model.files), model.id
    assert {"glm-5.3-flash", "deepseek-v4-flash", "laguna-s-2.1"} <= {model.id for model in UNREAD}


def test_every_score_has_a_source_and_is_the_same_for_files_of_one_model() -> None:
    scores = {model.family: model.score for model in CATALOGUE.models}
    for model in CATALOGUE.models:
        assert model.score == scores[model.family], model.id
    known = [model.score for model in CATALOGUE.models if model.score]
    assert len(known) > 35
    assert all(40 < each.value < 80 and each.source for each in known)


def test_a_draft_is_no_part_of_a_models_size() -> None:
    """The hub's metadata added the size of Gemma's heads to Q8_0 and BF16, and listed one as the projector."""
    for name in ("gemma-4-26b-a4b", "gemma-4-12b", "gemma-4-e4b", "gemma-4-e2b", "gemma-4-31b"):
        model = CATALOGUE.find(name)
        assert model.draft
        assert model.draft.expected_bytes
        assert model.projector
    for model in MODELS:
        for file in model.files:
            if file.quant == "BF16" and file.size_bytes and model.parameters_b:
                assert file.size_bytes / 2e9 == pytest.approx(model.parameters_b, rel=0.012), model.id


def test_every_file_has_a_size_or_an_estimate_of_it() -> None:
    for model in MODELS:
        assert model.geometry, model.id
        for file in model.files:
            size = expect_size(model, file)
            assert size, (model.id, file.quant)
            assert (size.tolerance == 0) == (file.size_bytes is not None), (model.id, file.quant)
            weights = weights_by_rules(model, file, model.geometry)
            assert weights, (model.id, file.quant)
            assert len(weights.blocks) == model.geometry.layers, (model.id, file.quant)
            assert sum(1 for block in weights.blocks if block.experts) == model.geometry.expert_layers, model.id
            together = weights.on_device(0, mtp=True) + weights.on_host(0, mtp=True)
            copied = weights.embedding if model.weights and model.weights.tied_output else 0
            assert 0.9 * size.size_bytes < together <= size.size_bytes + copied, (model.id, file.quant)


def test_most_listed_sizes_are_within_the_range_that_bits_per_weight_give() -> None:
    """Without the listed sizes, nearly all files are within their estimated range, and few far from its middle."""
    inside, errors = 0, []
    for model in MODELS:
        if model.parameters_b is None or model.parameters_b < 8 or "gpt-oss" in model.id:
            continue
        if model.weights and model.weights.host_mib:
            continue
        for file in model.files:
            if file.size_bytes and (bits := bits_per_weight(file.quant)):
                found = file.size_bytes * 8 / (model.parameters_b * 1e9)
                inside += bits[0] * 0.98 <= found <= bits[2] * 1.02
                errors.append(abs(found / bits[1] - 1))
    assert len(errors) > 400
    assert inside / len(errors) > 0.9
    assert sorted(errors)[len(errors) // 2] < 0.04


def test_files_are_sorted_and_every_shape_is_possible() -> None:
    for model in MODELS:
        assert model.geometry, model.id
        assert not list(model.geometry.contradictions()), model.id
        assert model.native_context == model.geometry.trained_context or model.id in {"command-a-plus"}, model.id
        sizes = [size.size_bytes for file in model.files if (size := expect_size(model, file))]
        ratios = [later / earlier for earlier, later in itertools.pairwise(sizes)]
        assert all(ratio > 0.93 for ratio in ratios), f"{model.id}: smallest first, as far as sizes are known"


def test_a_withdrawn_file_is_planned_only_by_name() -> None:
    gone = [(model, file) for model in MODELS for file in model.files if file.withdrawn]
    assert {file.quant for _, file in gone} == {"Q3_K_M", "IQ4_XS", "Q4_K_M", "Q6_K"}
    for model, file in gone:
        assert file.note
        assert make_plans(CATALOGUE, describe_machine(24), PlanCriteria(model=model.id, quant=file.quant))


def test_sampling_is_advised_where_anybody_published_advice() -> None:
    """Add a new model to `unknown` if nobody has published sampling values for it."""
    unknown = {"command-a-plus", "hy3", "llama-3.3-70b", "step-3.7-flash"}
    assert {model.id for model in MODELS if model.sampling is None} == unknown
    thinking = {model.id for model in MODELS if model.thinking == "on" and model.sampling}
    assert {model.id for model in MODELS if model.sampling and model.sampling.thinking} >= thinking - {"glm-4.5-air"}
    off = [model for model in MODELS if model.thinking == "off" and model.sampling]
    assert all(model.sampling and model.sampling.no_thinking for model in off)
