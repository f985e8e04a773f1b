"""Fitting settings into memory: the order in which they shrink, by estimates of the catalogue's models."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.fitting import (
    CONTEXTS,
    LEAST_CONTEXT,
    FitResult,
    choose_host_limits,
    fit_settings,
    host_need_mib,
)
from launcher.models.geometry import Geometry
from launcher.models.memory import KV_TYPES, MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.weights import Weights, weights_by_rules

MIB = 2**20
CATALOGUE = Catalogue(tuple(shipped_models()))
MODELS = {"moe": ("qwen3.6-35b-a3b-mtp", "UD-Q3_K_XL"), "dense": ("qwen3.8-27b", "UD-Q4_K_M")}
SHRUNK_IN_TURN = [
    # From the least to the greatest harm; experts move to the host after all of these.
    "ubatch",
    "KV cache q8_0",
    "context",
    "draft",
    "KV cache q4_0",
]


@cache
def model(kind: str) -> tuple[Geometry, Weights]:
    entry = CATALOGUE.find(MODELS[kind][0])
    file = entry.file(MODELS[kind][1])
    assert file is not None
    assert entry.geometry is not None
    weights = weights_by_rules(entry, file, entry.geometry)
    assert weights is not None
    return entry.geometry, weights


@cache
def estimate_model(kind: str, setting: PlanSettings) -> MemoryEstimate:
    return estimate_memory(*model(kind), setting)


def fit_model(
    kind: str, setting: PlanSettings, free_mib: int, margin_mib: int = 1_024, fixed: frozenset[str] = frozenset()
) -> FitResult:
    budgets = [free_mib - margin_mib, free_mib - margin_mib // 2]
    layers = model(kind)[1].expert_layers(mtp=setting.draft > 0)
    return fit_settings(setting, budgets, fixed, layers, lambda candidate: estimate_model(kind, candidate))


def required_mib(kind: str, setting: PlanSettings) -> int:
    return -(-estimate_model(kind, setting).parts.total // MIB)


WHOLE = PlanSettings(262_144, "f16", draft=3, ubatch=1_024)


def test_settings_that_fit_are_kept() -> None:
    found = fit_model("moe", WHOLE, 40_000)
    assert (found.setting, found.given_up) == (WHOLE, ())
    assert found.estimate.required_mib == required_mib("moe", WHOLE)


def test_settings_shrink_in_the_order_of_least_harm() -> None:
    seen = set()
    for free_mib in range(26_000, 17_000, -20):
        found = fit_model("moe", WHOLE, free_mib)
        if found.setting.n_cpu_moe:
            break
        steps = [next(step for step in SHRUNK_IN_TURN if each.startswith(step)) for each in found.given_up]
        assert steps == SHRUNK_IN_TURN[: len(steps)]
        seen.add(len(steps))
    assert seen == set(range(6))


def test_settings_shrink_no_more_than_needed() -> None:
    """No step of shrinking is skipped: a result one step larger does not fit."""
    found = fit_model("moe", replace(WHOLE, draft=2, kv="q8_0", ubatch=256), 19_500).setting
    assert LEAST_CONTEXT < found.context < WHOLE.context
    larger = CONTEXTS[CONTEXTS.index(found.context) - 1]
    assert required_mib("moe", found) <= 19_500 - 1_024 < required_mib("moe", replace(found, context=larger))


def test_experts_go_to_the_host_last_and_no_more_than_needed() -> None:
    found = fit_model("moe", PlanSettings(262_144, "q8_0", ubatch=256), 14_000)
    assert found.given_up[0] == "the experts of some layers on the CPU"
    assert (found.setting.context, found.setting.kv) == (262_144, "q8_0")
    fewer = replace(found.setting, n_cpu_moe=found.setting.n_cpu_moe - 1)
    assert found.estimate.required_mib <= 14_000 - 1_024 < required_mib("moe", fewer)


def test_a_draft_of_two_tokens_is_not_shortened() -> None:
    found = fit_model("dense", replace(WHOLE, draft=2), 1_000)
    assert found.setting.draft == 2
    assert found.given_up
    assert not any("draft" in each for each in found.given_up)


def test_with_all_experts_on_the_host_other_settings_shrink() -> None:
    found = fit_model("moe", PlanSettings(262_144, "f16", ubatch=512), 5_000)
    assert found.estimate.required_mib <= 5_000 - 1_024
    assert found.setting.n_cpu_moe > 30
    assert found.setting.context < 262_144


def test_experts_return_to_the_gpu_where_there_is_room() -> None:
    found = fit_model("moe", PlanSettings(131_072, "q8_0", n_cpu_moe=30), 40_000)
    assert (found.setting.n_cpu_moe, found.given_up) == (0, ())


def test_a_model_that_never_fits_gets_the_smallest_settings() -> None:
    found = fit_model("dense", WHOLE, 4_000)
    assert found.setting == PlanSettings(LEAST_CONTEXT, "q4_0", draft=2, ubatch=256)
    assert found.estimate.required_mib > 4_000
    assert len(found.given_up) == 5


def test_half_the_margin_is_used_before_experts_move() -> None:
    least = required_mib("moe", PlanSettings(LEAST_CONTEXT, "q4_0", ubatch=256))
    tight = fit_model("moe", PlanSettings(65_536, "q8_0"), least + 600)
    assert tight.setting.n_cpu_moe == 0
    assert least <= tight.estimate.required_mib <= least + 600 - 512
    assert fit_model("moe", PlanSettings(65_536, "q8_0"), least + 500).setting.n_cpu_moe > 0


SETTINGS = st.builds(
    PlanSettings,
    context=st.sampled_from([4_096, 32_768, 65_536, 100_000, 262_144]),
    kv=st.sampled_from(["f16", "q8_0", "q4_0", "q5_1"]),
    draft=st.integers(0, 4),
    ubatch=st.sampled_from([64, 256, 512, 1_000, 2_048]),
    slots=st.sampled_from([1, 4]),
)
FIELDS = ("context", "kv", "draft", "ubatch", "n_cpu_moe")


@pytest.mark.parametrize("kind", MODELS)
@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_settings_of_the_user_stay_and_nothing_grows(kind: str, data: st.DataObject) -> None:
    wanted = data.draw(SETTINGS)
    if kind == "moe":
        wanted = replace(wanted, n_cpu_moe=data.draw(st.sampled_from([0, 0, 7, 41])))
    fixed = frozenset(data.draw(st.sets(st.sampled_from(FIELDS))))
    found = fit_model(kind, wanted, data.draw(st.integers(0, 60_000)), data.draw(st.sampled_from([512, 1_024])), fixed)
    for name in fixed:
        assert getattr(found.setting, name) == getattr(wanted, name)
    for name in ("context", "draft", "ubatch"):
        assert getattr(found.setting, name) <= getattr(wanted, name)
    assert found.setting.slots == wanted.slots
    assert bits(found.setting.kv) <= bits(wanted.kv)
    assert found.estimate == estimate_model(kind, found.setting)


def bits(kv: str) -> float:
    per_block, block_bytes = KV_TYPES[kv]
    return 8 * block_bytes / per_block


def rank_result(kind: str, found: FitResult, free_mib: int) -> tuple[float, ...]:
    """Order of results: that it fits, that experts stay on the GPU, then what hurts most to lose first."""
    setting, spare = found.setting, free_mib - found.estimate.required_mib
    fits = 2 if spare >= 1_024 else 1 if spare >= 512 else 0
    on_gpu = setting.n_cpu_moe == 0
    return (
        fits > 0,
        on_gpu,
        fits,
        setting.kv != "q4_0",
        setting.draft,
        setting.context,
        bits(setting.kv),
        setting.ubatch,
        -setting.n_cpu_moe,
    )


@pytest.mark.parametrize("kind", MODELS)
@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_more_free_memory_never_gives_a_worse_fit(kind: str, data: st.DataObject) -> None:
    wanted = data.draw(SETTINGS.filter(lambda setting: setting.kv != "q5_1"))
    less, more = sorted(data.draw(st.lists(st.integers(2_000, 60_000), min_size=2, max_size=2)))
    assert rank_result(kind, fit_model(kind, wanted, more), more) >= rank_result(
        kind, fit_model(kind, wanted, less), less
    )


@settings(deadline=None, derandomize=True)
@given(free_mib=st.integers(1_500, 30_000), wanted=SETTINGS)
def test_no_expert_that_fits_on_the_gpu_is_on_the_host(free_mib: int, wanted: PlanSettings) -> None:
    found = fit_model("moe", wanted, free_mib).setting
    if found.n_cpu_moe:
        budget = free_mib - (1_024 if required_mib("moe", found) <= free_mib - 1_024 else 512)
        assert required_mib("moe", replace(found, n_cpu_moe=found.n_cpu_moe - 1)) > budget


@given(st.integers(4_000, 20_000), st.sampled_from([1, 4]))
def test_limits_keep_a_server_within_the_free_memory_of_the_host(spare_mib: int, slots: int) -> None:
    estimate = estimate_memory(*model("moe"), PlanSettings(context=65_536, slots=slots))
    limits = choose_host_limits(estimate, host_need_mib(estimate) + spare_mib)
    usual = {"ctx_checkpoints": 32, "cache_ram": 8_192}
    checkpoints, cache_mib = (int(str((usual | limits)[name])) for name in usual)
    each_mib = estimate.host.checkpoint * slots / MIB
    assert bool(limits) is (32 * each_mib + 8_192 > spare_mib)
    assert (
        not limits
        or checkpoints * each_mib <= spare_mib / 2 < (32 if checkpoints == 32 else 2) * checkpoints * each_mib
    )
    assert checkpoints * each_mib + cache_mib <= spare_mib
