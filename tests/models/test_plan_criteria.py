"""Plans with settings that the user chose: they are kept, or refused by name."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import BadOption, ModelHasNoHead, ModelUnknown
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.memory import KV_TYPES
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.server_settings import to_fields
from launcher.models.situation import Situation, describe_machine

CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, PLAIN, DENSE = "qwen3.6-35b-a3b-mtp", "qwen3.6-35b-a3b", "qwen3.8-27b"
INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality", "as-published")


def plans(situation: Situation, criteria: PlanCriteria | None = None) -> tuple[Plan, ...]:
    return make_plans(CATALOGUE, situation, criteria or PlanCriteria())


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    criteria=st.builds(
        PlanCriteria,
        model=st.sampled_from([None, MOE, PLAIN, DENSE, "qwen3.5-9b-mtp", "demo"]),
        intent=st.sampled_from(INTENTS),
        context=st.none() | st.integers(256, 2**24),
        kv=st.none() | st.sampled_from(sorted(KV_TYPES)),
        draft=st.none() | st.integers(0, 16),
        ubatch=st.none() | st.integers(1, 2**16),
        n_cpu_moe=st.none() | st.integers(0, 1_024),
        slots=st.none() | st.integers(1, 64),
    ),
    size=st.sampled_from([0.5, 4, 8, 16, 24, 80, 4_096]),
    host=st.none() | st.sampled_from([1.0, 16.0, 256.0]),
    backend=st.sampled_from(["cuda", "vulkan", "metal", "cpu"]),
)
@pytest.mark.thorough
def test_settings_of_the_user_are_kept_with_all_other_criteria(
    criteria: PlanCriteria, size: float, host: float | None, backend: str
) -> None:
    if backend == "cpu":
        host = host or 64.0
    found = plans(describe_machine(size, host_gib=host, backend=backend), criteria)  # type: ignore[arg-type]
    for plan in found:
        for name, value in to_fields(criteria.chosen()).items():
            if name == "n_cpu_moe":
                geometry = plan.entry.geometry
                assert geometry is not None
                most = geometry.layers + geometry.mtp_layers if geometry.experts and backend != "cpu" else 0
                value = min(int(value), most)
            assert getattr(plan.setting, name) == value, name
        assert plan.reasons
        assert plan.required_mib > 0


def test_settings_of_the_user_are_not_reduced() -> None:
    criteria = PlanCriteria(model=MOE, quant="UD-Q3_K_XL", context=262_144, kv="f16", ubatch=2_048, n_cpu_moe=0)
    (only,) = plans(describe_machine(16), criteria)
    assert (only.status, only.setting.context, only.setting.kv) == (Status.TOO_BIG, 262_144, "f16")


def test_moving_experts_is_ignored_for_a_dense_model() -> None:
    first = plans(describe_machine(24), PlanCriteria(model=DENSE, n_cpu_moe=10))[0]
    assert (first.setting.n_cpu_moe, first.status) == (0, Status.FITS)
    assert "A dense model has no routed experts: --n-cpu-moe is ignored." in first.reasons
    on_cpu = plans(describe_machine(8, host_gib=64, backend="cpu"), PlanCriteria(model=MOE, n_cpu_moe=10))[0]
    assert (on_cpu.setting.n_cpu_moe, on_cpu.status) == (0, Status.FITS)
    assert any("--n-cpu-moe is ignored" in reason for reason in on_cpu.reasons)


def test_plans_without_mtp_need_less_memory() -> None:
    same = PlanCriteria(model=MOE, quant="UD-Q3_K_XL", context=262_144, kv="q8_0", ubatch=256)
    on, off = (plans(describe_machine(24), replace(same, draft=draft))[0] for draft in (2, 0))
    assert off.estimate.parts.draft_kv == off.estimate.parts.draft_compute == 0
    # MiB of the head's block, states, and the head's KV cache and compute buffer: a dry run of b11434. Then its pool.
    pool = (on.estimate.parts.pool - off.estimate.parts.pool) // 2**20
    assert on.required_mib - off.required_mib == pytest.approx(372 + 126 + 512 + 148 + pool, abs=5)
    assert pool > 20
    assert "MTP is off, as you chose." in off.reasons


def test_a_file_without_its_head_is_planned_without_drafts() -> None:
    first = plans(describe_machine(24), PlanCriteria(model=DENSE, quant="UD-IQ2_XXS"))[0]
    assert first.setting.draft == 0
    assert "This file has no MTP head." in first.reasons
    with pytest.raises(ModelHasNoHead, match="UD-IQ2_XXS has no MTP head"):
        plans(describe_machine(24), PlanCriteria(model=DENSE, quant="UD-IQ2_XXS", draft=2))
    unnamed = plans(describe_machine(24), PlanCriteria(quant="UD-IQ2_XXS", draft=2))
    assert DENSE not in {plan.entry.id for plan in unnamed}
    assert MOE in {plan.entry.id for plan in unnamed}
    with_drafts = plans(describe_machine(24), PlanCriteria(model=DENSE, draft=2))
    assert all(plan.entry.has_head(plan.file) for plan in with_drafts)


def test_slots_share_the_context_and_multiply_the_states() -> None:
    settings = {"quant": "UD-Q3_K_XL", "draft": 2}
    one, four = (plans(describe_machine(24), PlanCriteria(model=MOE, slots=n, **settings))[0] for n in (1, 4))
    assert four.estimate.parts.recurrent == 4 * one.estimate.parts.recurrent
    share = four.setting.context // 4
    assert share >= 32_768
    assert f"The 4 slots share the context: {share:,} tokens for each." in four.reasons


def test_the_requested_number_of_slots_is_planned() -> None:
    found = plans(describe_machine(80), PlanCriteria(model=MOE, slots=4))
    assert all(plan.setting.slots == 4 for plan in found)
    assert all(plan.setting.slots == 1 for plan in plans(describe_machine(80)))


def test_more_context_than_the_trained_one_is_warned_about() -> None:
    first = plans(describe_machine(80), PlanCriteria(model=DENSE, context=1_000_000))[0]
    assert any("trained for 262,144 tokens" in caution for caution in first.cautions)


def test_a_quantisation_selects_files_of_any_model() -> None:
    found = plans(describe_machine(24), PlanCriteria(quant="ud-q4_k_m"))
    assert {plan.entry.id for plan in found[:2]} == {MOE, DENSE}
    assert {plan.file.quant for plan in found} == {"UD-Q4_K_M"}


@pytest.mark.parametrize(
    ("criteria", "expected", "suggestion"),
    [
        (PlanCriteria(model="qwen3.6-35b"), 'no model "qwen3.6-35b"', "qwen3.6-35b-a3b-mtp"),
        (PlanCriteria(model=MOE, quant="UD-Q3_KXL"), f"{MOE} has no UD-Q3_KXL", "UD-Q3_K_XL"),
        (PlanCriteria(quant="UD-Q3_KXL"), "No model has UD-Q3_KXL", "UD-Q3_K_XL"),
    ],
)
def test_an_unknown_name_is_refused_with_similar_ones(criteria: PlanCriteria, expected: str, suggestion: str) -> None:
    with pytest.raises(ModelUnknown, match=expected) as wrong:
        plans(describe_machine(24), criteria)
    assert suggestion in wrong.value.hint


@pytest.mark.parametrize(("kv", "suggestion"), [("Q8_0", "q8_0"), ("q8", "q8_0"), ("fp16", "f16")])
def test_an_unknown_kv_type_is_refused_with_similar_ones(kv: str, suggestion: str) -> None:
    with pytest.raises(BadOption, match=f'no KV cache type "{kv}"') as wrong:
        plans(describe_machine(24), PlanCriteria(kv=kv))
    assert f"Did you mean {suggestion}?" in wrong.value.hint
    with pytest.raises(
        BadOption, match="iq4_nl cannot be used: flash attention on CUDA does not support it"
    ) as strange:
        plans(describe_machine(24), PlanCriteria(kv="iq4_nl"))
    assert "q4_0" in strange.value.hint


@pytest.mark.parametrize(
    "criteria",
    [
        PlanCriteria(context=255),
        PlanCriteria(context=2**24 + 1),
        PlanCriteria(draft=-1),
        PlanCriteria(draft=17),
        PlanCriteria(ubatch=0),
        PlanCriteria(n_cpu_moe=-1),
        PlanCriteria(slots=0),
        PlanCriteria(slots=65),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(criteria: PlanCriteria) -> None:
    ((name, value),) = to_fields(criteria.chosen()).items()
    with pytest.raises(BadOption, match=str(value)) as wrong:
        plans(describe_machine(24), criteria)
    assert "It goes from" in wrong.value.hint
    flag = {"context": "ctx", "n_cpu_moe": "n-cpu-moe"}.get(name, name)
    assert wrong.value.title.startswith(f"--{flag} ")
