"""What plans say: reasons and cautions that hold, and marks that a setting deserves."""

from dataclasses import replace

import pytest

from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.situation import Situation, describe_machine

CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, NINE = "qwen3.6-35b-a3b-mtp", "qwen3.5-9b-mtp"
SIZES = (2, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality", "as-published")


def plans(situation: Situation, wish: PlanCriteria | None = None) -> tuple[Plan, ...]:
    return make_plans(CATALOGUE, situation, wish or PlanCriteria())


class TestTexts:
    def every(self) -> list[Plan]:
        found = [
            plan
            for size in SIZES
            for intent in INTENTS
            for more in ({}, {"host_gib": 16.0}, {"headless": True}, {"backend": "vulkan"})
            for plan in plans(describe_machine(size, **more), PlanCriteria(intent=intent))  # type: ignore[arg-type]
        ]
        assert len(found) > 200
        return found

    def test_each_is_a_sentence_and_none_is_told_twice(self) -> None:
        for plan in self.every():
            texts = [*plan.reasons, *plan.cautions]
            assert len(texts) == len(set(texts))
            for text in texts:
                assert text[0].isupper() or text[0].isdigit(), text
                assert text.endswith("."), text
                assert "  " not in text, text
                assert ".." not in text, text
                assert "None" not in text, text

    def test_weak_quantisations_and_caches_carry_a_note_on_quality(self) -> None:
        for plan in self.every():
            quality = [caution for caution in plan.cautions if "Source: " in caution]
            weak = any(name in plan.file.quant for name in ("IQ2", "IQ3", "Q2_K", "Q3_K"))
            if plan.entry.id == MOE:
                assert len(quality) == weak + (plan.setting.kv == "q4_0"), plan.file.quant

    def test_q4_0_is_called_the_only_cache_that_fits_only_where_it_is(self) -> None:
        for plan in self.every():
            if "Only a q4_0 KV cache leaves room for this context." in plan.reasons:
                wish = PlanCriteria(model=plan.entry.id, quant=plan.file.quant, kv="q8_0", context=plan.setting.context)
                wish = replace(wish, draft=plan.setting.draft, ubatch=plan.setting.ubatch, n_cpu_moe=0)
                larger = make_plans(CATALOGUE, describe_machine(4_096, backend=plan.setting.backend), wish)[0]
                assert larger.required_mib > plan.free_mib - plan.margin_mib // 2

    def test_a_larger_cache_that_would_fit_tightly_does(self) -> None:
        found = [plan for plan in self.every() if any("would also fit, but" in reason for reason in plan.reasons)]
        assert found
        for plan in found:
            wish = PlanCriteria(plan.entry.id, quant=plan.file.quant, kv="q8_0", context=plan.setting.context)
            wish = replace(wish, draft=plan.setting.draft, ubatch=plan.setting.ubatch, n_cpu_moe=0)
            same = describe_machine(
                80, free_mib=plan.free_mib, backend=plan.setting.backend, headless=plan.margin_mib == 512
            )
            larger = plans(replace(same, overheads_mib=plan.setting.overheads_mib), wish)[0]
            assert larger.status is Status.TIGHT
            spare = larger.free_mib - larger.required_mib
            assert any(f"leave only {spare:,} MiB free" in reason for reason in plan.reasons)

    def test_the_draft_is_explained_by_what_people_ran(self) -> None:
        first = plans(describe_machine(24))[0]
        (told,) = [reason for reason in first.reasons if reason.startswith("Draft 2 was used in ")]
        runs = {
            (result.gpu, result.quant, result.source, result.draft)
            for result in first.entry.measurements
            if result.draft and result.tokens_per_second and result.trust == "good" and not result.speculation
        }
        twos = [run for run in runs if run[3] == 2]
        assert told == f"Draft 2 was used in {len(twos)} of the {len(runs)} published runs of this model."
        other = plans(describe_machine(32), PlanCriteria(model="qwen3.6-27b-mtp"))[0]
        assert other.setting.draft == 4
        assert "Most published runs of this model used draft 3: measure both." in other.reasons

    def test_what_was_given_up_is_told(self) -> None:
        (first, *_) = plans(
            describe_machine(16, free_mib=15_680, headless=True), PlanCriteria(model=MOE, quant="UD-IQ3_S")
        )
        assert "Reduced to fit: context 49,152 instead of 65,536." in first.reasons


class TestMarks:
    def test_a_preset_that_is_left_as_it_was_keeps_its_mark(self) -> None:
        assert plans(describe_machine(24))[0].mark == "measured"
        assert plans(describe_machine(48))[0].mark == "guess"
        assert (
            plans(describe_machine(8))[0].mark == "measured"
        )  # run with 37 layers' experts on the host; 37 or so here

    def test_what_was_shrunk_or_changed_was_run_by_nobody(self) -> None:
        shrunk = plans(describe_machine(16, free_mib=15_680, headless=True))[0]
        assert (shrunk.setting.context, shrunk.mark) == (49_152, "derived")
        assert "(from the memory estimate)" in shrunk.reasons[0]
        assert plans(describe_machine(24), PlanCriteria(draft=3))[0].mark == "derived"
        assert plans(describe_machine(24, free_mib=16_000), PlanCriteria(quant="UD-Q3_K_XL"))[0].mark == "derived"

    def test_a_model_without_a_preset_for_the_intent_is_planned_by_another_and_says_which(self) -> None:
        (first, *_) = plans(describe_machine(8), PlanCriteria(model="qwen3.5-9b-mtp", intent="as-published"))
        assert first.reasons[0] == "Q4_K_M balances quality, context and speed in 8 GB (a guess)."
        assert (
            plans(describe_machine(6.8), PlanCriteria(model="qwen3.5-9b-mtp", intent="as-published"))[0].status
            is Status.TIGHT
        )

    @pytest.mark.parametrize("size_gb", [6, 7, 8, 11])
    def test_the_memory_that_is_named_is_this_machine_s(self, size_gb: int) -> None:
        plan = plans(describe_machine(size_gb), PlanCriteria(model="qwen3.5-9b-mtp", quant="Q4_K_M"))[0]
        told = " ".join(plan.reasons)
        if plan.status is Status.TOO_BIG:
            assert plan.reasons[0] == f"Q4_K_M is the catalogue's choice for 8 GB; this computer has {size_gb} GB."
        else:
            assert plan.reasons[0].startswith(f"Q4_K_M balances quality, context and speed in {size_gb} GB")
            assert size_gb == 8 or " 8 GB" not in told

    def test_a_preset_s_note_is_told_while_its_setting_is_left_as_it_was(self) -> None:
        for change, kept in (({}, True), ({"kv": "q4_0"}, False), ({"draft": 3}, False), ({"ubatch": 512}, False)):
            plan = plans(describe_machine(24), PlanCriteria(MOE, quant="UD-Q3_K_XL", **change))[0]  # type: ignore[arg-type]
            notes = {preset.note for preset in plan.entry.presets if preset.note}
            assert bool(notes & set(plan.reasons)) == kept, change


class TestTrainedLength:
    """A model that nobody recommends a context for, and that was trained for 32,768 tokens."""

    def planned(self, size_gb: float, **wish: int | bool) -> Plan:
        entry = replace(CATALOGUE.find(NINE), presets=(), native_context=32_768)
        return make_plans(Catalogue((entry,)), describe_machine(size_gb), PlanCriteria(model=NINE, **wish))[0]  # type: ignore[arg-type]

    def test_each_slot_gets_it(self) -> None:
        found = self.planned(48, slots=4)
        assert found.setting.context == 4 * 32_768
        told = "Each slot has the full trained context of 32,768 tokens."
        assert told in found.reasons
        assert not any("RoPE" in caution for caution in found.cautions)

    def test_one_cache_for_all_slots_is_no_longer(self) -> None:
        found = self.planned(48, slots=4, kv_unified=True)
        assert found.setting.context == 32_768
        assert not any("tokens for each" in reason for reason in found.reasons)
        longer = self.planned(48, slots=4, kv_unified=True, context=65_536)
        assert any("add `-- --rope-scaling yarn`" in caution for caution in longer.cautions)

    def test_what_is_too_big_has_no_longest_context_that_fits(self) -> None:
        found = self.planned(2)
        assert found.status is Status.TOO_BIG
        assert not any("longest that fits" in reason for reason in found.reasons)


def test_one_layer_is_one_layer() -> None:
    (told,) = [
        reason
        for reason in plans(describe_machine(24), PlanCriteria(model=MOE, n_cpu_moe=1))[0].reasons
        if "run on the CPU" in reason
    ]
    assert told.startswith("The experts of 1 layer run on the CPU")
