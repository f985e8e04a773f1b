"""The three plans for a model: recommended, faster, and of better quality, on described machines."""

from dataclasses import replace

import pytest

from launcher.models.catalogue import Catalogue
from launcher.models.memory import KV_TYPES
from launcher.models.plan import Plan, PlanCriteria, Status
from launcher.models.plan_stops import (
    PlanStop,
    StopName,
    expect_rate,
    keep_running_settings,
    make_stops,
    plan_recommended,
)
from launcher.models.ranking import expect_bits, expect_other_tokens
from launcher.models.situation import Situation, describe_machine
from tests.models.planned import CATALOGUE, make_shipped_plans

MOE, DENSE, SMALL, ONE_QUANT = "qwen3.6-35b-a3b-mtp", "qwen3.8-27b", "qwen3.5-4b-mtp", "gpt-oss-20b"
DESKTOP = describe_machine(24, host_gib=64)
NOTEBOOK = describe_machine(8, host_gib=32)
PROCESSOR = describe_machine(8, backend="cpu", host_gib=32)
SERVER = describe_machine(80, host_gib=256)


def stops_of(model: str, situation: Situation, catalogue: Catalogue = CATALOGUE) -> dict[StopName, PlanStop]:
    found = make_stops(catalogue, situation, PlanCriteria(model=model))
    assert [each.name for each in found] == list(StopName)
    return {each.name: each for each in found}


def lost_tokens(plan: Plan) -> float:
    return expect_other_tokens(plan.entry, plan.file)


def kv_bits(plan: Plan) -> float:
    elements, size_bytes = KV_TYPES[plan.setting.kv]
    return size_bytes / elements


@pytest.mark.parametrize("situation", [DESKTOP, NOTEBOOK, PROCESSOR, SERVER], ids=["24", "8", "cpu", "80"])
@pytest.mark.parametrize("model", [MOE, DENSE, SMALL, ONE_QUANT, "gemma-4-31b", "qwen3-8b", "demo"])
def test_each_choice_keeps_its_promise_or_says_why_there_is_none(model: str, situation: Situation) -> None:
    faster, recommended, better = stops_of(model, situation).values()
    plan = recommended.plan
    assert plan == plan_recommended(CATALOGUE, situation, PlanCriteria(model=model))
    for each in (faster, better):
        assert bool(each.lack) == (each.plan == plan)
        assert each.lack or (each.plan.status is not Status.TOO_BIG and each.plan.group <= plan.group)
    if not faster.lack:
        before, now = expect_rate(plan), expect_rate(faster.plan)
        assert before is not None
        assert now is not None
        assert now >= 1.05 * before
        assert faster.plan.setting.context >= min(32_768, plan.setting.context)
        assert lost_tokens(faster.plan) <= max(7.0, lost_tokens(plan))
    if not better.lack:
        is_finer = better.plan.file == plan.file and kv_bits(better.plan) > kv_bits(plan)
        assert is_finer or lost_tokens(better.plan) < lost_tokens(plan)


def test_a_dense_model_has_three_files_to_choose_from() -> None:
    found = stops_of(SMALL, NOTEBOOK)
    bits = [expect_bits(found[name].plan.entry, found[name].plan.file) for name in StopName]
    assert bits == sorted(set(bits))
    best = make_shipped_plans(NOTEBOOK, PlanCriteria(model=SMALL, intent="best-quality"))[0]
    assert found[StopName.BETTER_QUALITY].plan == best


def test_a_shorter_context_moves_experts_back_to_the_card() -> None:
    found = stops_of(ONE_QUANT, replace(NOTEBOOK, has_expert_cache=False))
    faster, recommended = found[StopName.FASTER].plan, found[StopName.RECOMMENDED].plan
    assert recommended.setting.n_cpu_moe > faster.setting.n_cpu_moe
    assert recommended.setting.context > faster.setting.context == 32_768


def test_a_model_with_one_file_has_one_choice() -> None:
    found = stops_of("gpt-oss-20b-mxfp4", DESKTOP)
    assert found[StopName.FASTER].lack == "Recommended is already the fastest plan with enough quality and context."
    assert found[StopName.BETTER_QUALITY].lack == "Recommended is the best that fits."


def test_without_a_forecast_nothing_is_called_faster() -> None:
    found = stops_of(DENSE, PROCESSOR)
    assert found[StopName.FASTER].lack == "The speed of this model is not known here."
    assert not found[StopName.BETTER_QUALITY].lack


def test_a_model_that_does_not_fit_has_no_choice() -> None:
    found = stops_of("deepseek-v3.2", NOTEBOOK)
    assert {each.lack for each in found.values()} == {"No file of this model fits into the memory that is free."}


def test_drafts_of_a_preset_that_do_not_pay_are_left_out_of_the_faster_plan() -> None:
    demo = CATALOGUE.find("demo")
    slow = replace(demo, presets=(replace(demo.presets[0], draft=8),))
    found = stops_of("demo", DESKTOP, Catalogue((slow,)))
    faster, recommended = found[StopName.FASTER].plan, found[StopName.RECOMMENDED].plan
    assert (recommended.setting.draft, faster.setting.draft) == (8, 0)
    assert recommended.forecast is not None
    assert recommended.forecast.without_mtp > recommended.forecast.tokens_per_second


def test_tuned_settings_are_not_corrected_by_a_forecast() -> None:
    demo = CATALOGUE.find("demo")
    slow = Catalogue((replace(demo, presets=(replace(demo.presets[0], draft=8),)),))
    criteria = PlanCriteria(model="demo")
    tuned = plan_recommended(slow, DESKTOP, criteria)
    assert tuned is not None
    faster, recommended, _ = make_stops(slow, DESKTOP, criteria, tuned=tuned)
    assert recommended.plan is tuned
    assert faster.lack
    unknown = replace(tuned, forecast=None)
    assert make_stops(slow, DESKTOP, criteria, tuned=unknown)[0].lack == (
        "Recommended has the settings that a tune found to be the fastest."
    )


def test_a_plan_that_runs_stays_recommended_when_free_memory_moved_its_context_by_one_step() -> None:
    criteria, less = PlanCriteria(model=DENSE), replace(DESKTOP, free_mib=DESKTOP.free_mib - 2_200)
    running = plan_recommended(CATALOGUE, less, criteria)
    assert running is not None
    now = stops_of(DENSE, DESKTOP)[StopName.RECOMMENDED]
    assert (running.setting.context, now.plan.setting.context) == (98_304, 114_688)
    kept = keep_running_settings(now, running.setting, CATALOGUE, DESKTOP, criteria)
    assert kept.plan.setting.context == 98_304
    assert replace(kept.plan.setting, context=114_688) == now.plan.setting
    assert kept.plan.reasons[0] == now.plan.reasons[0]
    assert kept.plan.forecast is not None
    for other in (replace(running.setting, context=81_920), replace(running.setting, draft=3), now.plan.setting):
        assert keep_running_settings(now, other, CATALOGUE, DESKTOP, criteria) is now


def test_experts_on_the_host_may_have_moved_by_one_layer() -> None:
    now = stops_of(MOE, NOTEBOOK)[StopName.RECOMMENDED]
    criteria, count = PlanCriteria(model=MOE), now.plan.setting.n_cpu_moe
    for moved in (count - 2, count - 1, count, count + 1):
        running = replace(now.plan.setting, n_cpu_moe=moved)
        kept = keep_running_settings(now, running, CATALOGUE, NOTEBOOK, criteria)
        expected = moved if abs(moved - count) <= 1 else count
        assert kept.plan.setting.n_cpu_moe == expected
