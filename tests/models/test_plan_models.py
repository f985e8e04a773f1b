"""Which model is recommended: by its score, its speed and what fits, in no fixed order."""

from dataclasses import replace

import pytest

from launcher.models.catalogue import Catalogue
from launcher.models.memory import kv_bits
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent, Score
from launcher.models.ranking import lack_of_score
from launcher.models.situation import describe_machine, describe_unified_machine
from tests.models.planned import CATALOGUE

MOE, PLAIN, DENSE, OLDER = "qwen3.6-35b-a3b-mtp", "qwen3.6-35b-a3b", "qwen3.8-27b", "qwen3.5-35b-a3b-mtp"


def plans(size: float, intent: Intent = "balanced", host_gib: float | None = 32) -> tuple[Plan, ...]:
    return make_plans(CATALOGUE, describe_machine(size, host_gib=host_gib), PlanCriteria(intent=intent))


@pytest.mark.parametrize("size", [16, 20, 24, 32, 48, 80, 96])
def test_the_best_quality_is_the_dense_model(size: int) -> None:
    first = plans(size, "best-quality")[0]
    assert first.entry.id == DENSE
    assert first.file.bits is None or first.file.bits <= 8


@pytest.mark.parametrize("intent", ["balanced", "best-quality"])
def test_large_machines_use_what_they_have(intent: Intent) -> None:
    for size in (80, 96):
        assert plans(size, intent)[0].entry.id in (DENSE, "qwen3.5-122b-a10b-mtp", "qwen3.5-122b-a10b")
    first = make_plans(CATALOGUE, describe_unified_machine(128), PlanCriteria(intent=intent))[0]
    assert first.needed_mib > 64 * 1_024


def test_the_order_follows_the_scores() -> None:
    """With another score another model comes first: nothing else in the catalogue orders models."""
    changed = []
    for entry in CATALOGUE.models:
        score = {MOE: 40.0, PLAIN: 40.0}.get(entry.id)
        changed.append(replace(entry, score=Score(value=score, source="a test")) if score else entry)
    before, after = (
        make_plans(catalogue, describe_machine(12, host_gib=32), PlanCriteria())[0].entry.id
        for catalogue in (CATALOGUE, Catalogue(tuple(changed)))
    )
    assert before == MOE
    assert after != MOE


def test_a_model_without_a_score_is_not_preferred_to_one_with_the_least() -> None:
    scores = [entry for entry in CATALOGUE.models if entry.score]
    worst = max(lack_of_score(entry) for entry in scores)
    assert lack_of_score(CATALOGUE.find("gemma-4-e2b")) >= worst


@pytest.mark.parametrize("intent", ["balanced", "agents", "best-quality"])
@pytest.mark.parametrize("size", [4, 6, 8, 12, 24])
def test_an_older_model_of_the_same_shape_is_not_listed_beside_a_better_one(size: int, intent: Intent) -> None:
    listed = {plan.entry.id for plan in plans(size, intent)}
    assert not listed & {OLDER, "qwen3.5-35b-a3b", "qwen3.6-27b", "qwen3.6-27b-mtp", "qwen3.5-27b-mtp"}


def test_4_gb_has_no_small_model_of_3_bits_with_a_cache_of_4_for_agents() -> None:
    assert plans(4)[0].entry.family == "Qwen3.6-35B-A3B"
    first = plans(4, "agents")[0]
    assert kv_bits(first.setting.kv) >= 8
    assert lack_of_score(first.entry) < lack_of_score(CATALOGUE.find("qwen3.5-4b-mtp"))


class TestFilesWithoutHead:
    """With MTP off the files of the same model without its head are in the same list."""

    def test_16_gb_for_agents_has_more_context_and_room_without_the_head(self) -> None:
        own, *_ = make_plans(CATALOGUE, describe_machine(16, host_gib=32), PlanCriteria(model=MOE, intent="agents"))
        assert own.entry.id == PLAIN
        assert own.status is Status.FITS
        assert own.setting.context >= 98_304
        assert own == plans(16, "agents")[0]

    def test_none_is_listed_where_mtp_is_on(self) -> None:
        found = make_plans(CATALOGUE, describe_machine(24), PlanCriteria(model=MOE))
        assert found[0].setting.draft
        assert {plan.entry.id for plan in found} == {MOE}

    def test_sentences_name_a_file_of_the_other_entry_in_full(self) -> None:
        found = make_plans(CATALOGUE, describe_machine(16, host_gib=32), PlanCriteria(model=MOE, intent="agents"))
        others = [plan for plan in found[1:] if plan.entry.id != found[0].entry.id]
        assert others
        for plan in others:
            assert f"ranks below {found[0].entry.id}:{found[0].file.quant}: " in plan.reasons[0]

    def test_a_chosen_quantisation_is_that_of_the_named_model(self) -> None:
        criteria = PlanCriteria(model=MOE, intent="agents", quant="UD-IQ3_S")
        (plan,) = make_plans(CATALOGUE, describe_machine(16, host_gib=32), criteria)
        assert plan.entry.id == MOE


class TestSpeedBeforeContext:
    def test_12_gb_with_48_gb_of_host_memory_takes_131072_tokens_and_an_expert_cache(self) -> None:
        first = plans(12, host_gib=48)[0]
        assert (first.entry.id, first.setting.context) == (MOE, 131_072)
        assert first.setting.moe_cache_mib
        (longer,) = make_plans(
            CATALOGUE,
            describe_machine(12, host_gib=48),
            PlanCriteria(model=MOE, quant=first.file.quant, context=262_144),
        )
        assert first.forecast
        assert longer.forecast
        assert first.forecast.tokens_per_second > 1.05 * longer.forecast.tokens_per_second
        assert any("needs llama.cpp b11480 or newer" in reason for reason in first.reasons)

    @pytest.mark.parametrize("size", [8, 10, 12])
    def test_8_to_12_gb_take_no_more_than_131072_tokens(self, size: int) -> None:
        assert plans(size)[0].setting.context == 131_072
        assert plans(size, "long-context")[0].setting.context >= 262_144

    def test_20_gb_takes_a_better_file_before_a_longer_context(self) -> None:
        first = plans(20)[0]
        assert first.file.quant.startswith("UD-Q3_K")
        assert first.setting.context < 163_840

    def test_20_gb_gives_up_no_drafts_for_more_context(self) -> None:
        """Without its head a file has 114,688 tokens at 112 tokens/s, with it 81,920 at 156."""
        first = plans(20)[0]
        assert first.setting.draft
        assert first.setting.context >= 65_536
        assert first.forecast
        assert first.forecast.tokens_per_second > 140


def test_a_range_beyond_the_memory_is_no_safe_plan() -> None:
    """At 6 GB a file of estimated size left 653 MiB, less than its size may be off."""
    unsure = 0
    for size in (4, 6, 8, 10, 12):
        for plan in plans(size):
            if plan.estimate.high > plan.free_mib * 2**20:
                unsure += 1
                assert plan.status is not Status.FITS
                assert plan.group
    assert unsure


def test_an_expert_cache_is_not_planned_where_it_aborts() -> None:
    """llama.cpp b11480 to b12568: cohere2moe with a quantised KV cache (#32584)."""
    situation = describe_machine(24, host_gib=192)
    for kv in ("q8_0", "q4_0", "f16"):
        plans = make_plans(CATALOGUE, situation, PlanCriteria(model="command-a-plus", kv=kv))
        assert {bool(plan.setting.moe_cache_mib) for plan in plans} == {kv == "f16"}


@pytest.mark.parametrize("name", ["gemma-4-12b", "gemma-4-e2b"])
def test_gemma_drafts_with_its_assistant(name: str) -> None:
    first = make_plans(CATALOGUE, describe_machine(12), PlanCriteria(model=name))[0]
    assert first.setting.draft
    assert first.setting.draft_bytes


@pytest.mark.parametrize("size", [16, 24, 48])
def test_gpt_oss_as_published_comes_before_its_larger_f16_file(size: int) -> None:
    """Both have the same experts. What is beside them takes twice the time in F16."""
    published, copied = (
        make_plans(CATALOGUE, describe_machine(size, host_gib=32), PlanCriteria(model=model))[0]
        for model in ("gpt-oss-20b-mxfp4", "gpt-oss-20b")
    )
    assert published.order < copied.order
    assert published.forecast
    assert copied.forecast
    assert published.forecast.tokens_per_second > copied.forecast.tokens_per_second


def test_where_nothing_fits_the_model_that_lacks_least_comes_first() -> None:
    first, *others = make_plans(CATALOGUE, describe_machine(0.5), PlanCriteria())
    assert first.status is Status.TOO_BIG
    assert first.file.size_bytes < 2**30
    assert first.required_mib < min(each.required_mib for each in others)
