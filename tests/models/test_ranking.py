"""The ranking of files and settings: choices of experts, and rules that hold for every model and machine."""

import re
from dataclasses import replace
from itertools import pairwise, takewhile
from math import inf

import pytest

from launcher.models.catalogue import Catalogue, ModelEntry
from launcher.models.file_size import expect_size
from launcher.models.fitting import CONTEXTS
from launcher.models.memory import PlanSettings
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.ranking import desktop_share_mib, other_tokens, rank_files
from launcher.models.situation import Situation, describe_machine, describe_unified_machine
from launcher.models.speed import forecast_speed
from launcher.models.weights import weights_by_rules
from tests.models.planned import CATALOGUE, make_shipped_plans
from tools.plan_table import DOCUMENT, format_document

MOE, PLAIN, DENSE, SMALL = "qwen3.6-35b-a3b-mtp", "qwen3.6-35b-a3b", "qwen3.8-27b", "qwen3.5-9b-mtp"
MACHINES = (4, 6, 8, 12, 16, 24, 32, 48, 80, 96)


def plans(situation: Situation, model: str | None = None, intent: Intent = "balanced", **chosen: object) -> list[Plan]:
    return list(make_shipped_plans(situation, PlanCriteria(model=model, intent=intent, **chosen)))  # type: ignore[arg-type]


def first_plan(size: float, model: str | None = None, intent: Intent = "balanced", **machine: object) -> Plan:
    return plans(describe_machine(size, **machine), model, intent)[0]  # type: ignore[arg-type]


def bits(plan: Plan) -> float:
    size = expect_size(plan.entry, plan.file)
    assert size
    assert plan.entry.parameters_b
    return size.size_bytes * 8 / (plan.entry.parameters_b * 1e9)


def test_agents_compare_speeds_with_a_filled_context() -> None:
    """A long session's speed decides for agents: what a chat at a short context reaches does not."""
    entry = CATALOGUE.find(DENSE)
    file = entry.file("UD-Q4_K_XL")
    assert file is not None
    assert entry.geometry is not None
    weights = weights_by_rules(entry, file, entry.geometry)
    assert weights is not None
    here, base = describe_machine(48), PlanSettings(131_072)
    chat, agents = (rank_files([(entry, file, weights)], here, intent, base)[0] for intent in ("balanced", "agents"))
    fixed = PlanSettings(agents.context, agents.kv, agents.draft)
    forecast = forecast_speed(file, entry.geometry, weights, fixed, here)
    assert forecast is not None
    assert agents.rate == pytest.approx(forecast.when_filled)
    assert chat.rate is not None
    assert agents.rate is not None
    assert agents.rate < 0.95 * chat.rate


class TestFixedPoints:
    """The choices that experts with these cards have settled on."""

    def test_24_gb_with_a_desktop_takes_four_bits_and_half_of_the_context(self) -> None:
        plan = first_plan(24, MOE)
        assert plan.file.quant in ("UD-IQ4_XS", "UD-IQ4_NL")
        assert (plan.setting.context, plan.setting.kv) == (131_072, "f16")
        assert plan.status is Status.FITS
        assert plan.setting.draft

    def test_16_gb_takes_three_bits_on_the_gpu_rather_than_experts_on_the_host(self) -> None:
        for machine in ({}, {"headless": True}, {"host_gib": 32}, {"host_gib": 64}):
            plan = first_plan(16, **machine)
            assert (plan.entry.id, plan.setting.n_cpu_moe) == (MOE, 0)
            assert plan.file.quant in ("UD-IQ3_XXS", "UD-IQ3_S")
            assert bits(plan) >= 3
            assert plan.setting.context >= 32_768
            assert plan.setting.kv == "q8_0"

    def test_24_gb_without_a_desktop_takes_a_better_file(self) -> None:
        plan = first_plan(24, MOE, headless=True)
        assert bits(plan) > bits(first_plan(24, MOE))
        assert plan.setting.context >= 98_304

    @pytest.mark.parametrize("size", [80, 96])
    def test_large_cards_take_5_to_9_bits_with_the_whole_context(self, size: int) -> None:
        for model in (MOE, DENSE, "qwen3.6-27b-mtp"):
            plan = first_plan(size, model)
            assert 5 <= bits(plan) <= 9, plan.file.quant
            assert plan.setting.context == 262_144
            assert plan.setting.kv in ("f16", "q8_0")

    @pytest.mark.parametrize("memory_gib", [96, 119, 128])
    def test_large_unified_memory_takes_5_to_9_bits(self, memory_gib: int) -> None:
        plan = plans(describe_unified_machine(memory_gib), MOE)[0]
        assert 5 <= bits(plan) <= 9
        assert plan.setting.context == 262_144

    def test_no_experts_move_to_host_memory_that_the_gpu_shares(self) -> None:
        for entry in CATALOGUE.models:
            if entry.id != "demo" and entry.geometry:
                plan = plans(describe_unified_machine(96), entry.id)[0]
                assert plan.setting.n_cpu_moe == 0, entry.id
                assert not any("experts to the CPU" in reason for reason in plan.reasons)

    def test_32_gb_has_no_q4_0_cache_beside_free_memory(self) -> None:
        for model in (MOE, DENSE, "gemma-4-31b"):
            assert first_plan(32, model).setting.kv in ("f16", "q8_0")

    def test_mtp_is_off_where_the_nearest_comparison_was_slower_with_it(self) -> None:
        """An RTX 5080 made 74 tokens/s with MTP and 97 without, with experts in host memory."""
        situation = replace(describe_machine(16, host_gib=64), has_expert_cache=False)
        plan = plans(situation, MOE, "best-quality")[0]
        assert plan.setting.n_cpu_moe
        assert plan.setting.draft == 0
        assert (
            "MTP is off: the nearest published run was slower with it, 74 t/s on the RTX 5080 and 97 without."
            in plan.reasons
        )
        assert first_plan(12, MOE, host_gib=64).setting.draft  # a 3060 gained

    def test_6_gb_with_little_host_memory_gets_a_smaller_model(self) -> None:
        plan = first_plan(6, host_gib=16)
        assert plan.entry.id != MOE
        assert plan.group < 2
        assert not plan.host_short


_FIGURES = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: bits a weight)? instead of (\d[\d,]*(?:\.\d+)?)")


class TestAlternatives:
    @pytest.mark.parametrize("size", [12, 24])
    def test_what_another_file_loses_is_less_than_here(self, size: float) -> None:
        clauses = [
            re.split(r" but |: ", each)[-1]
            for model in (MOE, DENSE)
            for plan in plans(describe_machine(size), model)
            for each in plan.reasons
            if "has more bits a weight" in each or each.startswith("Next is") or " ranks below " in each
        ]
        figures = [found for each in clauses for found in _FIGURES.findall(each)]
        assert len(figures) > 3
        assert [each for each in figures if float(each[0].replace(",", "")) >= float(each[1].replace(",", ""))] == []

    def test_the_recommended_plan_names_its_alternatives(self) -> None:
        output = first_plan(24, MOE).reasons
        assert any("has more bits a weight" in each for each in output)
        assert any(each.startswith("Without a desktop on the GPU, UD-Q4_K_") for each in output)
        assert any(each.startswith("For the best quality, UD-Q4_K_") for each in output)

    def test_alternatives_named_in_reasons_equal_their_own_plans(self) -> None:
        result = " ".join(first_plan(24, MOE).reasons)
        alone, best = first_plan(24, MOE, headless=True), first_plan(24, MOE, "best-quality")
        for plan in (alone, best):
            assert (
                f"{plan.file.quant} is recommended, with a context of {plan.setting.context:,} and KV {plan.setting.kv}"
                in result
            )

    def test_equal_figures_are_not_reported_as_a_difference(self) -> None:
        """An example of what must not occur is "about 42 instead of 42 t/s"."""
        for size in MACHINES:
            for plan in plans(describe_machine(size, host_gib=32), MOE):
                for reason in plan.reasons:
                    assert not re.search(r"\b([\d.,]+) instead of \1\b(?![\d.,])", reason), reason

    def test_other_files_of_a_named_model_say_why_they_rank_below(self) -> None:
        best, *others = plans(describe_machine(24), MOE)
        assert others
        for plan in others:
            assert plan.reasons[0].startswith(f"{plan.file.quant} ranks below {best.file.quant}: ")

    def test_a_chosen_file_is_called_the_choice_of_the_user_and_names_no_other(self) -> None:
        (plan,) = plans(describe_machine(24), MOE, quant="UD-IQ4_XS")
        assert plan.reasons[0] == "UD-IQ4_XS is your choice."
        assert not any("would be" in each for each in plan.reasons)

    def test_a_headless_machine_gets_no_text_about_headless_plans(self) -> None:
        assert not any("Without a desktop" in each for each in first_plan(24, headless=True).reasons)


@pytest.mark.parametrize("size", MACHINES)
def test_a_q4_0_cache_is_the_last_resort(size: int) -> None:
    situation = describe_machine(size, host_gib=64)
    for plan in plans(situation):
        if plan.setting.kv == "q4_0" and plan.status is not Status.TOO_BIG and not plan.setting.n_cpu_moe:
            (with_q8,) = plans(situation, plan.entry.id, quant=plan.file.quant, kv="q8_0")
            assert with_q8.status is Status.TOO_BIG or with_q8.setting.context < 32_768, plan.entry.id


@pytest.mark.parametrize("size", [24, 32, 48, 80, 96])
def test_a_better_file_comes_before_an_emptier_card(size: int) -> None:
    """If a card would stay half empty, a file of 6 bits and more is taken unless that is slow."""
    half_empty = 0
    for plan in plans(describe_machine(size, host_gib=64)):
        files = [(expect_size(plan.entry, file), file) for file in plan.entry.files if not file.withdrawn]
        free_bytes = (plan.free_mib - plan.needed_mib) * 2**20
        now = expect_size(plan.entry, plan.file)
        assert now
        better = [size.size_bytes for size, _ in files if size and 1.1 < size.size_bytes / now.size_bytes < 1.6]
        if not better or plan.setting.n_cpu_moe or free_bytes < plan.free_mib * 2**19 or plan.forecast is None:
            continue
        half_empty += 1
        fast = plan.forecast.tokens_per_second * now.size_bytes / min(better) > 45
        assert bits(plan) >= 6 or not fast, plan.entry.id
    assert half_empty or size == 24


@pytest.mark.cases(3)
@pytest.mark.parametrize("size", MACHINES)
def test_every_model_has_a_plan_or_is_too_big(size: int) -> None:
    situation = describe_machine(size, host_gib=32)
    recommended = plans(situation)[0]
    assert recommended.group < 2
    for entry in CATALOGUE.models:
        if entry.id == "demo" or entry.geometry is None:
            continue
        best = plans(situation, entry.id)[0]
        fits = best.needed_mib <= best.free_mib and not best.host_short
        assert fits == (best.status is not Status.TOO_BIG), entry.id
        if best.status is Status.TIGHT and best.loss != inf:
            assert best.free_mib - best.needed_mib >= best.margin_mib // 2, entry.id


@pytest.mark.parametrize("size", MACHINES)
def test_with_more_memory_a_model_never_fits_worse(size: int) -> None:
    ranks = {Status.TOO_BIG: 0, Status.OFFLOADS: 1, Status.TIGHT: 2, Status.FITS: 2}
    for model in (MOE, DENSE, SMALL):
        less, more = first_plan(size, model, host_gib=64), first_plan(size * 2, model, host_gib=64)
        assert ranks[more.status] >= ranks[less.status]


class TestContext:
    """Between the longest context that fits and room for a desktop there is a choice."""

    @pytest.mark.parametrize(
        ("size", "model"), [(20, MOE), (10, "gemma-4-12b"), (12, SMALL), (20, "qwen3.5-27b-mtp"), (16, PLAIN)]
    )
    def test_the_margin_is_left_where_hardly_any_context_is_lost(self, size: int, model: str) -> None:
        assert first_plan(size, model, host_gib=32).status is Status.FITS

    def test_a_quantised_cache_with_more_context_comes_before_f16_with_little(self) -> None:
        plan = first_plan(24, "devstral-small-2-24b")
        assert plan.setting.kv == "q8_0"
        assert plan.setting.context >= 65_536
        assert (plan.file.bits or 0) >= 4

    def test_the_limit_of_the_context_is_explained(self) -> None:
        def explain_limit(size: float, model: str, **machine: object) -> str:
            return next(
                each for each in first_plan(size, model, **machine).reasons if " tokens " in each and "ontext" in each
            )

        assert explain_limit(16, MOE) == "A context of 65,536 tokens is the longest that leaves the margin free."
        longer = first_plan(20, MOE).setting.context
        longer = min(each for each in CONTEXTS if each > longer)
        assert explain_limit(20, MOE) == (
            f"A context of {longer:,} tokens would fit, too, but leave a desktop and its programs less memory "
            f"(--ctx {longer})."
        )
        assert (
            explain_limit(8, MOE, host_gib=32)
            == "A context longer than 131,072 tokens would move more experts to the CPU."
        )

    @pytest.mark.parametrize("size", MACHINES)
    def test_the_context_called_the_longest_is_the_longest_that_fits(self, size: int) -> None:
        situation = describe_machine(size, host_gib=64)
        for plan in plans(situation):
            claim = f"A context of {plan.setting.context:,} tokens is the longest that"
            if any(each.startswith(claim) for each in plan.reasons):
                longer = min(each for each in CONTEXTS if each > plan.setting.context)
                same = {name: getattr(plan.setting, name) for name in ("kv", "draft", "ubatch", "n_cpu_moe")}
                (other,) = plans(situation, plan.entry.id, quant=plan.file.quant, context=longer, **same)
                assert other.status in (Status.TIGHT, Status.TOO_BIG), plan.entry.id


class TestLargerCards:
    @pytest.mark.parametrize("model", [MOE, DENSE, "qwen3.6-27b-mtp", "gemma-4-31b", SMALL, "devstral-small-2-24b"])
    def test_no_card_from_16_gb_on_gets_fewer_bits_than_a_smaller_one(self, model: str) -> None:
        found = [bits(first_plan(size, model, host_gib=32)) for size in (16, 20, 24, 32, 96)]
        assert all(more >= 0.97 * less for less, more in pairwise(found)), found

    def test_a_fast_card_takes_the_better_file(self) -> None:
        """Beyond 120 tokens/s more speed hardly counts, but BF16 doubles the download without a visible gain."""
        for size in (80, 96):
            assert 8 <= bits(first_plan(size, MOE)) <= 9
        assert bits(first_plan(24, "gemma-4-e4b")) > 7
        assert bits(first_plan(24, SMALL)) > 7


@pytest.mark.parametrize("model", ["mimo-v2.5", "glm-5.2"])
def test_mtp_is_off_where_the_only_report_found_it_slower(model: str) -> None:
    plan = plans(describe_unified_machine(512), model)[0]
    assert plan.setting.draft == 0
    note = CATALOGUE.find(model).slower_with_mtp
    assert note
    assert f"MTP is off. {note.text}" in plan.reasons
    assert plans(describe_unified_machine(512), model, draft=2)[0].setting.draft == 2


def test_experts_in_only_some_layers_are_counted() -> None:
    """The first three layers of DeepSeek-V3.2 are dense."""
    output = plans(describe_machine(24, host_gib=512), "deepseek-v3.2")[0].reasons
    assert any("run on the CPU and need" in each for each in output)
    assert not any("size of its experts is unknown" in each for each in output)


def test_a_model_without_a_working_plan_is_not_recommended() -> None:
    """If host memory is unknown, 176 GB of experts are not assumed to fit there."""
    assert "deepseek-v3.2" not in {plan.entry.id for plan in plans(describe_machine(24))}
    assert plans(describe_machine(24), "deepseek-v3.2")[0].group


class TestIntents:
    @pytest.mark.parametrize("size", [12, 16, 24, 32])
    def test_agents_get_65536_tokens_and_a_cache_of_8_bits(self, size: int) -> None:
        plan = first_plan(size, MOE, "agents", host_gib=64)
        assert plan.setting.context >= 65_536
        assert plan.setting.kv in ("f16", "q8_0")

    def test_a_long_context_is_the_trained_one_even_beyond_262144(self) -> None:
        assert first_plan(24, MOE, "long-context").setting.context == 262_144
        assert first_plan(16, MOE, "long-context", host_gib=64).setting.context == 262_144
        beyond = first_plan(96, "nemotron-cascade-2-30b-a3b", "long-context")
        assert beyond.setting.context > 262_144
        assert first_plan(96, "nemotron-cascade-2-30b-a3b").setting.context == 262_144

    @pytest.mark.parametrize("size", [16, 24, 32, 48])
    @pytest.mark.parametrize("model", [MOE, DENSE, "qwen3.6-27b-mtp"])
    def test_the_best_quality_has_no_fewer_bits_than_balanced(self, model: str, size: int) -> None:
        assert bits(first_plan(size, model, "best-quality", host_gib=64)) >= bits(first_plan(size, model, host_gib=64))

    def test_as_published_without_a_published_setting_is_balanced(self) -> None:
        assert first_plan(24, DENSE, "as-published").setting == first_plan(24, DENSE).setting


class TestDesktop:
    def test_its_share_grows_with_the_card_and_is_at_least_the_margin(self) -> None:
        shares = [desktop_share_mib(describe_machine(size)) for size in (4, 8, 16, 24, 48)]
        assert shares == sorted(shares)
        assert shares[0] == describe_machine(4).margin_mib
        assert desktop_share_mib(describe_machine(24)) == int(0.115 * 24 * 1_024)

    def test_the_share_stops_growing_at_24_gb(self) -> None:
        assert desktop_share_mib(describe_machine(96)) == desktop_share_mib(describe_machine(24))

    def test_memory_used_by_the_desktop_counts_towards_its_share(self) -> None:
        """With 22,500 MiB free, a desktop uses a 24 GB card already. So the plan is that for 24 GB with a desktop."""
        situation = describe_machine(24, free_mib=22_500)
        whole = desktop_share_mib(describe_machine(24))
        assert desktop_share_mib(situation) == whole - (describe_machine(24).free_mib - 22_500)
        plan = plans(situation, MOE)[0]
        bare = first_plan(24, MOE)
        assert (plan.file.quant, plan.setting.context, plan.status) == (
            bare.file.quant,
            bare.setting.context,
            Status.FITS,
        )
        assert desktop_share_mib(describe_machine(24, free_mib=9_000)) == situation.margin_mib

    def test_without_a_gpu_more_than_the_margin_stays_free(self) -> None:
        plan = plans(describe_machine(24, backend="cpu", host_gib=30), MOE)[0]
        assert plan.status is Status.FITS

    def test_a_headless_machine_has_no_desktop_share(self) -> None:
        for situation in (describe_machine(24, headless=True), describe_unified_machine(128)):
            assert desktop_share_mib(situation) == situation.margin_mib


def test_fewer_bits_change_more_tokens() -> None:
    shares = [other_tokens(each / 10) for each in range(10, 170)]
    assert shares == sorted(shares, reverse=True)
    assert other_tokens(2.2) == pytest.approx(23.1)
    assert other_tokens(16) == other_tokens(32) == 0


def test_a_legacy_quantisation_ranks_below_a_k_quant_of_the_same_size() -> None:
    entry = CATALOGUE.find(MOE)
    q4 = entry.file("UD-Q4_K_M")
    assert q4
    twin = replace(q4, quant="MXFP4_MOE", file="twin.gguf", expert_layer_mib=None)
    pair = replace(entry, files=(twin, replace(q4, expert_layer_mib=None)))
    best = make_plans(Catalogue((pair,)), describe_machine(32), PlanCriteria(model=MOE))[0]
    assert best.file.quant == "UD-Q4_K_M"


@pytest.mark.parametrize("model", [MOE, DENSE, "gemma-4-31b", "glm-4.7-flash"])
@pytest.mark.parametrize("size", [16, 24, 48])
def test_the_approximate_memory_of_the_ranking_is_near_the_exact_one(model: str, size: int) -> None:
    """Had the ranking been far off, the exact fit would have shrunk a plan without experts on the host."""
    for plan in plans(describe_machine(size), model):
        if not plan.setting.n_cpu_moe and plan.status is not Status.TOO_BIG:
            assert plan.setting.ubatch == 512
            assert not any(each.startswith("Reduced to fit") for each in plan.reasons), plan.reasons


def test_a_file_without_figures_is_ranked_by_its_name() -> None:
    entry: ModelEntry = replace(CATALOGUE.find(MOE), parameters_b=None)
    best = make_plans(Catalogue((entry,)), describe_machine(24), PlanCriteria(model=MOE))[0]
    assert best.status is Status.FITS
    assert best.setting.context >= 131_072


def test_gpt_oss_in_f16_is_the_original() -> None:
    """Its experts are MXFP4 from the start, so that F16 has 4.5 bits a weight and loses nothing."""
    assert first_plan(48, "gpt-oss-120b", host_gib=64).file.quant == "F16"
    assert first_plan(8, "gpt-oss-20b", host_gib=32).file.quant == "F16"


def test_the_table_of_plans_is_current() -> None:
    """`python -m tools.plan_table --write` writes it; here its first part, the recommended models, is compared."""
    fresh = list(takewhile(lambda line: not line.startswith("\n## "), format_document()))
    assert DOCUMENT.read_text(encoding="utf-8").startswith("\n".join(fresh) + "\n")
