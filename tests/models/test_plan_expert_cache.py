"""Plans with an expert cache: which engines have one, its size, the settings that it replaces, and its sentences."""

from dataclasses import replace

import pytest

from launcher.models.catalogue_load import load_catalogue
from launcher.models.memory import estimate_memory
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import Situation, describe_machine

MIB = 2**20
QUANT = PlanCriteria(model="qwen3.6-35b-a3b-mtp", quant="UD-Q4_K_M", context=131_072, kv="q8_0")


def machine(
    gpu_gib: float | tuple[float, ...] = 12, host_gib: float | None = 32, *, has_expert_cache: bool = True
) -> Situation:
    return replace(describe_machine(gpu_gib, host_gib=host_gib), has_expert_cache=has_expert_cache)


def plan(situation: Situation, criteria: PlanCriteria = QUANT) -> Plan:
    return make_plans(load_catalogue(), situation, criteria)[0]


def test_an_expert_cache_is_planned_where_it_is_faster_than_layers_on_the_gpu() -> None:
    without, cached = plan(machine(has_expert_cache=False)), plan(machine())
    assert (without.setting.moe_cache_mib, without.status) == (None, Status.OFFLOADS)
    assert (cached.setting.n_cpu_moe, cached.status) == (40, Status.OFFLOADS)
    cache_mib = cached.setting.moe_cache_mib
    assert cache_mib is not None
    assert cache_mib >= 4_096
    assert cached.estimate.parts.caches == cache_mib * MIB
    assert cached.needed_mib <= cached.free_mib - cached.margin_mib
    assert cached.estimate.host.weights > without.estimate.host.weights
    assert cached.forecast is not None
    assert without.forecast is not None
    before, after = without.forecast.tokens_per_second, cached.forecast.tokens_per_second
    assert after > 1.1 * before
    replaced = 40 - without.setting.n_cpu_moe
    assert cached.reasons[-1] == (
        f"An expert cache of {cache_mib:,} MiB on the GPU replaces the experts of {replaced} layers there: "
        f"{after:,.0f} instead of {before:,.0f} tokens/s are expected, but long prompts may be read more slowly. "
        "It needs llama.cpp b11480 or newer (--moe-cache-mib 0 turns it off)."
    )
    assert any("in this order: expert cache, " in reason for reason in cached.reasons)


def test_an_engine_without_an_expert_cache_gets_a_note() -> None:
    without, cached = plan(machine(has_expert_cache=False)), plan(machine())
    assert without.forecast is not None
    assert cached.forecast is not None
    before, after = without.forecast.tokens_per_second, cached.forecast.tokens_per_second
    assert without.reasons[-1] == (
        f"With an expert cache, which needs llama.cpp b11480 or newer, {after:,.0f} instead of {before:,.0f} tokens/s "
        f"are expected (--n-cpu-moe 40 --moe-cache-mib {cached.setting.moe_cache_mib})."
    )
    for situation in (machine(24, has_expert_cache=False), machine(12, 16, has_expert_cache=False)):
        assert not any("expert cache" in reason for reason in plan(situation).reasons)


def test_the_cache_uses_memory_left_by_a_choice_of_the_user() -> None:
    found = plan(machine(16), replace(QUANT, n_cpu_moe=40))
    assert found.setting.n_cpu_moe == 40
    assert (found.setting.moe_cache_mib or 0) > 8_192
    assert found.reasons[-1].startswith(f"An expert cache takes {found.setting.moe_cache_mib:,} MiB of GPU memory: ")


@pytest.mark.parametrize(
    ("situation", "criteria", "cache"),
    [
        (machine(24), QUANT, None),  # all experts are on the card
        (machine(12, 16), QUANT, None),  # the host has no memory for the experts of all layers
        (machine(), replace(QUANT, moe_cache_mib=0), 0),
        (machine(), replace(QUANT, moe_cache_mib=1_024), 1_024),
        (machine(), replace(QUANT, intent="as-published"), None),
        (replace(machine(), cards=()), QUANT, None),  # without a known card there is no forecast
        (machine(), PlanCriteria(model="qwen3.8-27b", quant="UD-Q4_K_XL"), None),  # a model without experts
        (replace(describe_machine((6, 6), host_gib=64), has_expert_cache=True), QUANT, None),
    ],
)
def test_no_expert_cache_is_planned_without_need(
    situation: Situation, criteria: PlanCriteria, cache: int | None
) -> None:
    assert plan(situation, criteria).setting.moe_cache_mib == cache


def test_a_cache_with_little_gain_is_left_out() -> None:
    found = plan(machine(6))
    assert found.status is Status.OFFLOADS
    assert found.setting.moe_cache_mib is None


def test_the_cache_is_on_the_first_card() -> None:
    entry = load_catalogue().find("qwen3.6-35b-a3b-mtp")
    pair = plan(machine((6, 6), 64, has_expert_cache=False))
    assert pair.setting.gpus == 2
    from launcher.models.weights import weights_by_rules

    assert entry.geometry is not None
    weights = weights_by_rules(entry, pair.file, entry.geometry)
    assert weights is not None
    cached = estimate_memory(entry.geometry, weights, replace(pair.setting, moe_cache_mib=1_024))
    assert cached.by_gpu[0] - pair.estimate.by_gpu[0] == 1_024 * MIB
    assert cached.by_gpu[1] == pair.estimate.by_gpu[1]


def test_runs_with_a_cache_are_cited_for_plans_with_one() -> None:
    here = replace(machine(), gpu_name="NVIDIA GeForce RTX 3060")
    cited = [[run.expert_cache for run in plan(replace(here, has_expert_cache=has)).evidence] for has in (True, False)]
    assert cited[0]
    assert all(cited[0])
    assert cited[1]
    assert not any(cited[1])
