"""Sentences of plans: reasons and cautions are true, and the mark tells whether the settings were measured."""

from dataclasses import replace
from functools import cache

import pytest

from launcher.models.catalogue import Catalogue, CompanionFile
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.situation import Situation, describe_machine
from tests.models.planned import CATALOGUE, make_shipped_plans

MOE, NINE = "qwen3.6-35b-a3b-mtp", "qwen3.5-9b-mtp"
SIZES = (2, 12, 16, 24, 48)
MACHINES: tuple[dict[str, object], ...] = ({}, {"host_gib": 16.0, "backend": "vulkan"}, {"headless": True})
INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality", "as-published")


def plans(situation: Situation, criteria: PlanCriteria | None = None) -> tuple[Plan, ...]:
    return make_shipped_plans(situation, criteria or PlanCriteria())


class TestTexts:
    @staticmethod
    @cache
    def make_all_plans() -> list[Plan]:
        found = [
            plan
            for size in SIZES
            for intent in INTENTS
            for more in MACHINES
            for plan in plans(describe_machine(size, **more), PlanCriteria(intent=intent))  # type: ignore[arg-type]
        ]
        assert len(found) > 200
        return found

    @pytest.mark.thorough
    def test_each_reason_is_a_sentence_and_unique(self) -> None:
        for plan in self.make_all_plans():
            texts = [*plan.reasons, *plan.cautions]
            assert len(texts) == len(set(texts))
            for text in texts:
                assert text[0].isupper() or text[0].isdigit(), text
                assert text.endswith("."), text
                assert "  " not in text, text
                assert ".." not in text, text
                assert "None" not in text, text

    @pytest.mark.thorough
    def test_weak_quantisations_and_caches_carry_a_note_on_quality(self) -> None:
        for plan in self.make_all_plans():
            quality = [caution for caution in plan.cautions if "Source: " in caution]
            weak = any(name in plan.file.quant for name in ("IQ2", "IQ3", "Q2_K", "Q3_K"))
            if plan.entry.id == MOE:
                assert len(quality) == weak + (plan.setting.kv == "q4_0"), plan.file.quant

    def test_q4_0_is_called_the_only_cache_that_fits_only_if_that_is_true(self) -> None:
        for plan in self.make_all_plans():
            if "Only a q4_0 KV cache leaves room for this context." in plan.reasons:
                criteria = PlanCriteria(
                    model=plan.entry.id, quant=plan.file.quant, kv="q8_0", context=plan.setting.context
                )
                criteria = replace(criteria, draft=plan.setting.draft, ubatch=plan.setting.ubatch, n_cpu_moe=0)
                larger = make_plans(CATALOGUE, describe_machine(4_096, backend=plan.setting.backend), criteria)[0]
                assert larger.required_mib > plan.free_mib - plan.margin_mib // 2

    def test_the_draft_length_is_explained_by_published_runs(self) -> None:
        first = plans(describe_machine(48), PlanCriteria(model="qwen3.6-27b-mtp"))[0]
        draft = first.setting.draft
        (sentence,) = [reason for reason in first.reasons if reason.startswith(f"Draft {draft} was used in ")]
        runs = {
            (result.gpu, result.quant, result.source, result.draft)
            for result in first.entry.measurements
            if result.draft and result.tokens_per_second and result.trust == "good" and not result.speculation
        }
        same = [run for run in runs if run[3] == draft]
        assert sentence == f"Draft {draft} was used in {len(same)} of the {len(runs)} published runs of this model."

    @pytest.mark.parametrize(("fives", "is_named"), [(3, True), (2, False)])
    def test_a_draft_length_that_most_published_runs_used_is_named(self, fives: int, is_named: bool) -> None:
        entry = CATALOGUE.find("qwen3.6-27b-mtp")
        known = next(run for run in entry.measurements if run.draft and run.trust == "good" and not run.speculation)
        drafts = [5] * fives + [6] * 2
        runs = tuple(replace(known, gpu=f"GPU {number}", draft=draft) for number, draft in enumerate(drafts))
        catalogue = replace(CATALOGUE, models=(replace(entry, measurements=runs),))
        (first, *_) = make_plans(catalogue, describe_machine(48), PlanCriteria(model=entry.id))
        assert 0 < first.setting.draft < 5
        assert ("Most published runs of this model used draft 5: measure both." in first.reasons) is is_named

    @pytest.mark.parametrize(("rate", "wins"), [(71.5, True), (90.0, False)])
    @pytest.mark.parametrize("has_file", [False, True])
    def test_a_plan_names_its_drafter_and_what_it_was_compared_with(
        self, rate: float, wins: bool, has_file: bool
    ) -> None:
        """By the nearest machine on which somebody ran both; the other is offered if it was faster and is at hand."""
        entry = CATALOGUE.find("qwen3.8-27b")
        known = next(run for run in entry.measurements if run.spec_type == "draft-dspark")
        measured = tuple(
            replace(run, tokens_per_second=rate) if run == known else run
            for run in entry.measurements
            if run.source == known.source
        )
        file = CompanionFile(file="dspark.gguf", size_bytes=2_000_000_000, speculation="dspark")
        entry = replace(entry, measurements=measured, drafts=(file,) if has_file else ())
        catalogue = replace(CATALOGUE, models=(entry,))
        (first, *_) = make_plans(catalogue, describe_machine(24), PlanCriteria(model=entry.id))
        assert first.setting.drafter.spec_type == "draft-mtp"
        (sentence,) = [reason for reason in first.reasons if " where DSpark " in reason]
        text = f"MTP with draft 2 gave 76 t/s where DSpark with draft 3 gave {rate:g} (RTX 3090, {known.source})."
        offer = " --drafter draft-dspark tries that." if has_file and not wins else ""
        assert f"{sentence}" == text + offer
        (first, *_) = make_plans(
            catalogue, describe_machine(24, backend="cpu", host_gib=64), PlanCriteria(model=entry.id)
        )
        assert not any(" where DSpark " in reason for reason in first.reasons)

    def test_reductions_are_reported(self) -> None:
        """With all experts on the GPU, as the user chose, even the smallest file does not fit after all reductions."""
        first = plans(describe_machine(8), PlanCriteria(model=MOE, n_cpu_moe=0))[0]
        assert first.status is Status.TOO_BIG
        assert any(reason.startswith("It does not fit even with ") for reason in first.reasons)


class TestMarksAndNotes:
    def test_a_file_with_a_run_on_such_a_card_counts_as_measured(self) -> None:
        assert plans(describe_machine(24))[0].mark == "measured"
        assert plans(describe_machine(48))[0].mark == "derived"

    @pytest.mark.parametrize("size_gb", [8, 12, 24])
    def test_the_memory_in_a_text_is_that_of_this_machine(self, size_gb: int) -> None:
        plan = plans(describe_machine(size_gb), PlanCriteria(model="qwen3.5-9b-mtp"))[0]
        assert plan.reasons[0] == (
            f"{plan.file.quant} is the best balance of quality, context and speed in {size_gb} GB."
        )

    def test_a_published_setting_has_its_note_until_it_is_changed(self) -> None:
        for change, kept in (({}, True), ({"kv": "q8_0"}, False), ({"draft": 2}, False), ({"ubatch": 256}, False)):
            criteria = PlanCriteria(MOE, intent="as-published", quant="UD-Q3_K_XL", **change)  # type: ignore[arg-type]
            plan = plans(describe_machine(24), criteria)[0]
            notes = {preset.note for preset in plan.entry.presets if preset.note}
            assert bool(notes & set(plan.reasons)) == kept, change
            assert (plan.mark == "measured") == kept


class TestTrainedLength:
    """A model without recommended settings, which was trained for 32,768 tokens."""

    def make_plan(self, size_gb: float, **criteria: int | bool) -> Plan:
        entry = replace(CATALOGUE.find(NINE), presets=(), native_context=32_768)
        return make_plans(Catalogue((entry,)), describe_machine(size_gb), PlanCriteria(model=NINE, **criteria))[0]  # type: ignore[arg-type]

    def test_each_slot_has_the_whole_trained_context(self) -> None:
        found = self.make_plan(48, slots=4)
        assert found.setting.context == 4 * 32_768
        text = "Each slot has the full trained context of 32,768 tokens."
        assert text in found.reasons
        assert not any("RoPE" in caution for caution in found.cautions)

    def test_a_unified_cache_is_as_long_as_one_slot(self) -> None:
        found = self.make_plan(48, slots=4, kv_unified=True)
        assert found.setting.context == 32_768
        assert not any("tokens for each" in reason for reason in found.reasons)
        longer = self.make_plan(48, slots=4, kv_unified=True, context=65_536)
        assert any("add `-- --rope-scaling yarn`" in caution for caution in longer.cautions)

    def test_a_plan_that_is_too_big_names_no_longest_context(self) -> None:
        found = self.make_plan(2)
        assert found.status is Status.TOO_BIG
        assert not any("longest that fits" in reason for reason in found.reasons)


def test_one_layer_is_named_in_the_singular() -> None:
    (sentence,) = [
        reason
        for reason in plans(describe_machine(24), PlanCriteria(model=MOE, n_cpu_moe=1))[0].reasons
        if "run on the CPU" in reason
    ]
    assert sentence.startswith("The experts of 1 layer run on the CPU")
