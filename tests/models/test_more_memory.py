"""Plans as memory grows: more of it never makes a plan worse, nor much slower without a reason."""

from itertools import pairwise

import pytest

from launcher.machine.cards import find_card
from launcher.models.plan import Plan, PlanCriteria, Status
from launcher.models.preset import Intent
from launcher.models.ranking import expect_other_tokens
from launcher.models.situation import Situation, describe_machine
from tests.models.planned import make_shipped_plans

MOE = "qwen3.6-35b-a3b-mtp"
HOSTS = (12, 16, 24, 32, 48, 64, 128)
ENOUGH_HOST = 32
"""GiB of host memory in which files of four bits and more fit; with less, more memory also buys bits."""


def first_plan(situation: Situation, model: str | None, intent: Intent) -> Plan | None:
    found = make_shipped_plans(situation, PlanCriteria(model=model, intent=intent))
    return found[0] if found and found[0].status is not Status.TOO_BIG and found[0].forecast else None


def rate(plan: Plan) -> float:
    assert plan.forecast
    return plan.forecast.tokens_per_second


def lost_tokens(plan: Plan) -> float:
    """Other tokens in 100, of which no fewer than those of Q8_0 are seen."""
    return max(1.2, expect_other_tokens(plan.entry, plan.file))


@pytest.mark.parametrize("card", ["GTX 1650", "RTX 2060", "RTX 4060", "RTX 3080", "RTX 4070 SUPER", "RTX 5060 Ti"])
@pytest.mark.parametrize("intent", ["balanced", "agents"])
def test_more_host_memory_never_costs_15_percent_of_the_speed(card: str, intent: Intent) -> None:
    """12 GB had 42 tokens/s with 48 GB of host memory and 49 with 32. Only more bits in a small host may cost it."""
    known = find_card(card, None)
    for model in (None, MOE, "gpt-oss-20b"):
        plans = [
            (host, first_plan(describe_machine(known.memory_gb, card=known, host_gib=host), model, intent))
            for host in HOSTS
        ]
        for (before, less), (_, more) in pairwise(plans):
            if less is None:
                continue
            assert more is not None
            gains_bits = before < ENOUGH_HOST and lost_tokens(more) < lost_tokens(less)
            other_model = more.entry.family != less.entry.family
            assert rate(more) >= 0.85 * rate(less) or gains_bits or other_model, (model, before)
            if other_model:
                assert more.order <= less.order + 0.05 or more.group < less.group, (model, before)


@pytest.mark.parametrize("card", ["RTX 3060", "RTX 4090"])
@pytest.mark.parametrize("model", [MOE, "qwen3.8-27b", "gemma-4-12b"])
def test_more_gpu_memory_is_slower_only_for_better_answers(card: str, model: str) -> None:
    known = find_card(card, None)
    sizes = (8, 10, 12, 16, 20, 24, 32, 48, 63)
    found = [first_plan(describe_machine(size, card=known, host_gib=32), model, "balanced") for size in sizes]
    plans = [plan for plan in found if plan is not None]
    for less, more in pairwise(plans):
        is_better = (
            lost_tokens(more) < lost_tokens(less)
            or more.setting.context > less.setting.context
            or (more.setting.kv == "f16") > (less.setting.kv == "f16")
        )
        assert rate(more) >= 0.95 * rate(less) or is_better
        assert more.group <= less.group


@pytest.mark.parametrize("intent", ["balanced", "agents"])
@pytest.mark.parametrize("size", [24, 32, 48, 80, 96])
def test_nothing_is_gained_beyond_q8(size: int, intent: Intent) -> None:
    for plan in make_shipped_plans(describe_machine(size, host_gib=64), PlanCriteria(intent=intent)):
        listed = [file.size_bytes for file in plan.entry.files if file.quant == "Q8_0" and file.size_bytes]
        if listed and plan.file.size_bytes and "gpt-oss" not in plan.entry.id and plan.entry.id != "gemma-4-e4b":
            assert plan.file.size_bytes <= 1.05 * listed[0], plan.entry.id
