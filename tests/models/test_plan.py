"""Plans for machines of every size: the right one comes first, and each status is true."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.machine.gpu import Gpu
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.plan import Plan, PlanCriteria, Status, estimate_argument
from launcher.models.preset import Intent
from launcher.models.read_situation import make_situation
from launcher.models.situation import Situation, describe_machine
from tests.models.planned import make_shipped_plans

GIB = 2**30
MOE, PLAIN, DENSE = "qwen3.6-35b-a3b-mtp", "qwen3.6-35b-a3b", "qwen3.8-27b"
SIZES = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality", "as-published")


def plans(situation: Situation, criteria: PlanCriteria | None = None) -> tuple[Plan, ...]:
    return make_shipped_plans(situation, criteria or PlanCriteria())


BALANCED = {
    # By the ranking (tests/models/test_ranking.py), with a desktop, for a typical card: models and bits per weight.
    8: ((MOE,), 4),
    10: ((MOE,), 4),
    12: ((MOE,), 4),
    16: ((MOE,), 3),
    20: ((MOE,), 3),
    24: ((MOE, DENSE), 4),
    32: ((DENSE,), 5),
    40: ((MOE, DENSE), 6),
    48: ((MOE, DENSE), 8),
    80: ((DENSE,), 8),
}


@pytest.mark.parametrize("size", BALANCED)
def test_the_default_model_for_each_size(size: int) -> None:
    first = plans(describe_machine(size, host_gib=32))[0]
    models, bits = BALANCED[size]
    assert first.entry.id in models
    assert (first.file.bits or 0) >= bits
    assert first.setting.context >= (131_072 if size < 16 or size >= 24 else 32_768)
    assert (first.status is Status.OFFLOADS) == (size < 16)
    assert first.setting.ubatch == 512
    assert first.setting.draft
    assert first.required_mib + first.margin_mib // 2 <= first.free_mib


PUBLISHED = {
    # The articles' machines: quant, context, KV, draft, layers with experts on the host.
    12: [(MOE, "UD-Q4_K_XL", 131_072, "q8_0", 2, 30)],
    16: [(MOE, "UD-IQ3_S", 65_536, "q4_0", 2, 0), (PLAIN, "UD-IQ3_S", 262_144, "q4_0", 0, 0)],
    24: [(MOE, "UD-Q3_K_XL", 262_144, "q4_0", 3, 0)],
    32: [(MOE, "UD-Q4_K_XL", 65_536, "f16", 2, 0)],
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_as_published_uses_the_published_settings(size: int) -> None:
    found = plans(describe_machine(size), PlanCriteria(intent="as-published"))
    received = [
        (
            each.entry.id,
            each.file.quant,
            each.setting.context,
            each.setting.kv,
            each.setting.draft,
            each.setting.n_cpu_moe,
        )
        for each in found
    ]
    assert received[: len(PUBLISHED[size])] == PUBLISHED[size]
    assert all(each.status is not Status.TOO_BIG for each in found)
    assert all(each.mark == "measured" for each in found)


def test_as_published_does_not_shrink_settings() -> None:
    first = plans(describe_machine(8), PlanCriteria(intent="as-published"))[0]
    assert (first.status, first.setting.n_cpu_moe, first.setting.context) == (Status.TOO_BIG, 30, 131_072)
    assert any("can start it anyway" in caution for caution in first.cautions)


@pytest.mark.cases(10)
@pytest.mark.parametrize("intent", INTENTS)
@pytest.mark.parametrize("size", SIZES)
def test_each_status_is_true(size: int, intent: Intent) -> None:
    for headless in (False, True):
        for plan in plans(describe_machine(size, headless=headless), PlanCriteria(intent=intent)):
            fits, required = plan.required_mib <= plan.free_mib, plan.required_mib
            assert fits == (plan.status is not Status.TOO_BIG)
            if fits:
                assert (plan.setting.n_cpu_moe > 0) == (plan.status is Status.OFFLOADS)
            if plan.status is Status.FITS:
                assert required + plan.margin_mib <= plan.free_mib
                assert plan.estimate.high <= plan.free_mib * 2**20
            if plan.status is Status.TIGHT:
                most = max(required + plan.margin_mib, plan.estimate.high / 2**20)
                assert required <= plan.free_mib < most
            assert required == -(-plan.estimate.parts.total // 2**20)


@pytest.mark.parametrize("size", SIZES)
def test_plans_are_unique_and_proposed_ones_come_first(size: int) -> None:
    for intent in INTENTS:
        found = plans(describe_machine(size), PlanCriteria(intent=intent))
        received = [(plan.entry.id, plan.file.quant, plan.setting) for plan in found]
        assert len(received) == len(set(received))
        if intent != "as-published":
            assert [plan.group for plan in found] == sorted(plan.group for plan in found)
        named = [
            plan for plan in plans(describe_machine(size), PlanCriteria(intent=intent, model=MOE)) if plan.group < 2
        ]
        assert {plan.entry.family for plan in named} <= {"Qwen3.6-35B-A3B"}


class TestFreeMemory:
    def test_a_half_used_card_gets_the_plan_of_a_smaller_one(self) -> None:
        first = plans(describe_machine(24, free_mib=12_000))[0]
        assert first.entry.id == MOE
        assert first.status is Status.OFFLOADS

    def test_a_file_that_fits_comes_before_a_larger_one_with_experts_on_the_host(self) -> None:
        found = plans(describe_machine(24, free_mib=16_000), PlanCriteria(model=MOE))
        assert found[0].status in (Status.FITS, Status.TIGHT)
        larger = [plan for plan in found if plan.file.bits and plan.file.bits >= 4]
        assert {plan.status for plan in larger} == {Status.OFFLOADS}

    @settings(deadline=None, derandomize=True, max_examples=60)
    @example(size=80, intent="as-published", share=(0.25, 0.125))
    @given(
        size=st.sampled_from(SIZES),
        intent=st.sampled_from(INTENTS),
        share=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
    )
    def test_with_more_free_memory_the_same_file_never_fits_worse(
        self, size: int, intent: Intent, share: tuple[float, float]
    ) -> None:
        less, more = sorted(int(size * 1_024 * each) for each in share)
        rank = {Status.TOO_BIG: 0, Status.OFFLOADS: 1, Status.TIGHT: 2, Status.FITS: 2}

        def best_ranks(free_mib: int) -> dict[tuple[str, str], int]:
            found: dict[tuple[str, str], int] = {}
            for plan in plans(describe_machine(size, free_mib=free_mib), PlanCriteria(intent=intent, model=MOE)):
                key = plan.entry.id, plan.file.quant
                found[key] = max(found.get(key, 0), rank[plan.status])
            return found

        before, after = best_ranks(less), best_ranks(more)
        # With "as-published", more memory may change the best file, while the published plan stays in the list.
        if intent != "as-published":
            assert all(after[key] >= before[key] for key in before.keys() & after.keys())
        assert max(after.values()) >= max(before.values())

    def test_without_free_memory_plans_are_too_big(self) -> None:
        for plan in plans(describe_machine(24, free_mib=0)):
            assert plan.status is Status.TOO_BIG
            assert any(f"{plan.required_mib:,} MiB are missing" in reason for reason in plan.reasons)
            assert "can start it anyway" in plan.cautions[0]


class TestHostMemory:
    def test_little_host_memory_prefers_a_smaller_file_or_another_model(self) -> None:
        sizes = [plans(describe_machine(12, host_gib=host))[0].file.size_bytes or 0 for host in (64, 24, 16)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]
        first = plans(describe_machine(12, host_gib=8))[0]
        assert first.entry.id != MOE
        assert first.status in (Status.FITS, Status.TIGHT)

    def test_too_little_host_memory_is_explained(self) -> None:
        short = plans(describe_machine(12, host_gib=8), PlanCriteria(model=MOE, quant="UD-Q4_K_XL"))[0]
        assert short.host_short
        assert (short.status, short.group) == (Status.TOO_BIG, 2)
        (caution_text,) = [caution for caution in short.cautions if "Not enough host memory" in caution]
        assert "6,144 MiB are available" in caution_text
        assert "disk" in caution_text
        enough = plans(describe_machine(12, host_gib=128))[0]
        assert not enough.host_short
        assert not any("host" in caution.lower() for caution in enough.cautions)

    def test_unknown_host_memory_is_not_reported_as_short(self) -> None:
        first = plans(describe_machine(12))[0]
        assert not first.host_short
        assert any("is unknown" in caution for caution in first.cautions)

    def test_caches_are_limited_to_free_host_memory(self) -> None:
        first = plans(describe_machine(12, host_gib=32))[0]
        assert not first.host_short
        assert first.setting.cache_ram in (1_024, 2_048, 4_096)
        assert any("of cached prompts" in caution for caution in first.cautions)
        mine = plans(describe_machine(12, host_gib=32), PlanCriteria(cache_ram=8_192))[0]
        assert mine.setting.cache_ram == 8_192
        assert any("--cache-ram N limits" in caution for caution in mine.cautions)


class TestMachines:
    def test_without_a_gpu_the_context_is_limited_to_what_a_cpu_can_read(self) -> None:
        machine = Machine(replace(read_host(), available_bytes=40 * GIB), (), "No driver.", {}, (), ())
        first = plans(make_situation(machine))[0]
        assert (first.setting.backend, first.setting.context, first.setting.n_cpu_moe) == ("cpu", 32_768, 0)
        assert first.estimate.host.weights == 0
        assert first.evidence == ()
        assert any("Without a GPU" in caution for caution in first.cautions)
        assert not any("GPU memory" in reason for reason in first.reasons)

    def test_a_model_is_planned_over_two_gpus(self) -> None:
        card = Gpu("nvidia", 0, "NVIDIA GeForce RTX 3090", "GPU-0", 24 * GIB, free_bytes=23 * GIB, unified=False)
        machine = Machine(read_host(), (card, replace(card, index=1, id="GPU-1")), None, {}, (), ())
        first = plans(make_situation(machine, headless=True))[0]
        assert first.setting.gpus == 2
        assert first.entry.id in (MOE, DENSE)
        assert first.setting.context >= 131_072
        assert first.file.bits
        assert first.file.bits >= 5
        assert first.margin_mib == 1_024
        assert first.estimate.parts.overhead == 2 * 330 * 2**20
        assert any("The layers are split over 2 GPUs" in caution for caution in first.cautions)
        assert any(result.gpu == "2x RTX 3090" for result in first.evidence)

    def test_unified_memory_is_a_reason_to_measure_mtp(self) -> None:
        first = plans(replace(describe_machine(64, backend="vulkan"), unified=True))[0]
        assert any("share host memory" in caution for caution in first.cautions)

    @pytest.mark.cases(3)
    @pytest.mark.parametrize("size", [0.5, 1, 2, 4, 6, 7.75, 139.8, 4_096])
    def test_unusual_sizes_are_planned(self, size: float) -> None:
        for intent in INTENTS:
            assert plans(describe_machine(size), PlanCriteria(intent=intent))
        if size >= 2:
            assert plans(describe_machine(size))[0].group == 0


def test_the_name_of_a_planned_file_is_accepted_by_estimate() -> None:
    (plan,) = plans(describe_machine(24), PlanCriteria(model=MOE, quant="UD-Q3_K_XL"))
    assert estimate_argument(plan.entry, plan.file) == (
        "unsloth/Qwen3.6-35B-A3B-MTP-GGUF@5bc3e238d916f48a861bac2f8a1990a0e9b7e98d:Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf"
    )
    demo = plans(describe_machine(24), PlanCriteria(model="demo"))[0]
    assert estimate_argument(demo.entry, demo.file) == "mtp-demo.gguf"
