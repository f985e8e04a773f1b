"""Choices of plans: the best quality of each size, caches, host memory, and needless settings of the user."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.machine.cards import find_card
from launcher.models.catalogue import Catalogue, CompanionFile, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.file_size import expect_size
from launcher.models.gguf import read_header
from launcher.models.header_summary import read_draft_model, store_summary
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import PublishedRun
from launcher.models.situation import describe_machine
from tools.sparse_models.models import model
from tools.sparse_models.write import write

CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, DENSE, OLDER, SMALL = "qwen3.6-35b-a3b-mtp", "qwen3.8-27b", "qwen3.6-27b-mtp", "qwen3.5-9b-mtp"


def first_plan(size: float, criteria: PlanCriteria, **machine: object) -> Plan:
    return make_plans(CATALOGUE, describe_machine(size, **machine), criteria)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("model_id", [MOE, OLDER, DENSE, SMALL])
def test_a_larger_card_has_almost_never_a_worse_best_quality(model_id: str) -> None:
    """A card of another generation may be slower, and then a file of a few per cent fewer bits is better."""
    found = [first_plan(size, PlanCriteria(model=model_id, intent="best-quality")) for size in (24, 32, 40, 48, 80)]
    weights = [size.size_bytes for plan in found if (size := expect_size(plan.entry, plan.file))]
    assert len(weights) == len(found)
    assert all(larger >= 0.9 * smaller for smaller, larger in pairwise(weights))


class TestExpertsOnTheHost:
    def test_a_useless_move_of_experts_is_reported(self) -> None:
        found = first_plan(24, PlanCriteria(model=MOE, quant="UD-Q3_K_XL", n_cpu_moe=7, moe_cache_mib=0))
        (sentence,) = [reason for reason in found.reasons if "more layer" in reason]
        least = int(sentence.rsplit("--n-cpu-moe ", 1)[1].rstrip("."))
        assert f"experts of {7 - least} more layer" in sentence
        setting = found.setting
        same = PlanCriteria(model=MOE, quant="UD-Q3_K_XL", n_cpu_moe=least, context=setting.context, kv=setting.kv)
        enough = first_plan(24, replace(same, draft=setting.draft))
        assert enough.required_mib <= enough.free_mib - enough.margin_mib
        assert not any("more layer" in reason for reason in enough.reasons)
        assert not any("With MTP off the experts of" in caution for caution in found.cautions)  # MTP evicts none

    def test_a_needed_move_of_experts_is_not_reported(self) -> None:
        best = first_plan(12, PlanCriteria(model=MOE))
        found = first_plan(12, PlanCriteria(model=MOE, quant=best.file.quant, n_cpu_moe=best.setting.n_cpu_moe))
        assert not any("more layer" in reason for reason in found.reasons)

    @pytest.mark.parametrize(("model_id", "can_move"), [(MOE, True), (DENSE, False)])
    def test_experts_are_named_among_what_to_reduce_where_there_are_any(self, model_id: str, can_move: bool) -> None:
        found = first_plan(24, PlanCriteria(model=model_id))
        (sentence,) = [reason for reason in found.reasons if reason.startswith("If memory runs short")]
        assert ("experts to the CPU" in sentence) is can_move

    def test_more_layers_than_the_model_has_are_reported(self) -> None:
        found = first_plan(24, PlanCriteria(model=MOE, n_cpu_moe=1_000))
        assert found.setting.n_cpu_moe == 41
        assert any("--n-cpu-moe 1000 is reduced to 41" in reason for reason in found.reasons)


class TestHostMemory:
    def test_without_a_gpu_caches_are_named_and_counted(self) -> None:
        # 8,192 MiB are --cache-ram's default; 32 checkpoints of 62.8 MiB each. With 24 GB both are limited.
        for host_gib, cached, checkpoints in ((24, "1,024", "1,005"), (256, "8,192", "2,010")):
            found = first_plan(8, PlanCriteria(model=MOE, quant="UD-IQ3_XXS"), backend="cpu", host_gib=host_gib)
            spare = found.free_mib - found.required_mib
            (sentence,) = [caution for caution in found.cautions if "--cache-ram" in caution]
            assert f"{cached} MiB of cached prompts" in sentence
            assert f"{checkpoints} MiB of context checkpoints" in sentence
            assert sentence.endswith(f"; {spare:,} MiB stay free.")

    def test_host_memory_is_judged_without_offloaded_experts(self) -> None:
        assert (
            first_plan(24, PlanCriteria(model=MOE), host_gib=64).cautions
            == first_plan(24, PlanCriteria(model=MOE)).cautions
        )
        later = first_plan(24, PlanCriteria(model=MOE), host_gib=8)
        assert not later.host_short
        assert (later.setting.cache_ram, later.setting.ctx_checkpoints) == (2_048, None)
        (sentence,) = [caution for caution in later.cautions if caution.startswith("Long use may need up to 4,058 MiB")]
        assert sentence.endswith("The prompt cache is limited to the free memory.")
        own = first_plan(24, PlanCriteria(model=MOE, cache_ram=2_048), host_gib=8)
        (sentence,) = [caution for caution in own.cautions if caution.startswith("Long use may need up to 4,058 MiB")]
        assert sentence.endswith("of context checkpoints.")
        short = first_plan(24, PlanCriteria(model=MOE), host_gib=2)
        assert (short.status, short.host_short, short.group) == (Status.TOO_BIG, True, 2)
        assert any("Not enough host memory" in each and "1,536 MiB are available" in each for each in short.cautions)

    def test_the_usable_host_memory_is_explained(self) -> None:
        for backend in ("cuda", "cpu"):
            notes = describe_machine(24, host_gib=32, backend=backend).notes  # type: ignore[arg-type]
            assert "The plan uses up to 24,576 MiB of 32 GiB host memory and leaves the rest to the system." in notes


@pytest.mark.parametrize(("kv", "slow"), [("q5_1", True), ("q5_0", True), ("q4_1", True), ("q8_0", False)])
def test_cache_types_without_a_fast_kernel_on_cuda_are_refused(kv: str, slow: bool) -> None:
    def warns_of_attention(backend: str) -> bool:
        cautions = first_plan(24, PlanCriteria(model=MOE, kv=kv), backend=backend).cautions
        return any("no fast attention" in caution for caution in cautions)

    assert (warns_of_attention("cuda"), warns_of_attention("rocm"), warns_of_attention("vulkan")) == (slow, slow, False)


def test_a_separate_draft_is_counted_exactly_once_its_header_is_known(tmp_path: Path) -> None:
    """Gemma 4's assistant: 118.50 MiB of buffers for 32,768 tokens on CUDA (recorded from b11434), no cache."""
    for name in ("gemma4-31b-iq4_xs", "gemma4-31b-draft-q8_0"):
        write(tmp_path / f"{name}.gguf", name, model(name))
    target, draft = (tmp_path / f"{name}.gguf" for name in ("gemma4-31b-iq4_xs", "gemma4-31b-draft-q8_0"))
    entry = replace(
        CATALOGUE.find("gemma-4-31b"),
        repo=None,
        files=(ModelFile(quant="IQ4_XS", file=str(target), size_bytes=target.stat().st_size),),
        draft=CompanionFile(file=str(draft), size_bytes=draft.stat().st_size),
    )
    criteria = PlanCriteria(model=entry.id, context=32_768, kv="f16", ubatch=512, draft=3)
    found = make_plans(Catalogue((entry,)), describe_machine(32), criteria)[0]
    assert found.estimate.parts.draft_compute / 2**20 == pytest.approx(118.50, abs=0.02)
    assert found.estimate.parts.draft_kv == 0
    assert found.estimate.exact
    assert not any("its header is not read" in caution for caution in found.cautions)

    unread = replace(entry, draft=replace(entry.draft, repo="someone/else", sha256="ab" * 32))
    before = make_plans(Catalogue((unread,)), describe_machine(32), criteria)[0]
    assert before.estimate.parts.draft_compute == 0
    assert not before.estimate.compute_exact
    assert any("not its cache and buffers" in caution for caution in before.cautions)
    store_summary("ab" * 32, read_header(draft))
    assert read_draft_model(unread) == read_draft_model(entry)
    assert json.dumps(
        make_plans(Catalogue((unread,)), describe_machine(32), criteria)[0].estimate.parts.as_dict()
    ) == json.dumps(found.estimate.parts.as_dict())


@pytest.mark.parametrize(
    ("card_name", "names"), [("RTX 3090", ["mtp", "dflash", "none"]), ("H100", ["dflash", "mtp", "none"])]
)
def test_a_drafter_is_chosen_by_runs_on_such_a_card_else_by_its_acceptance(card_name: str, names: list[str]) -> None:
    """Whoever ran both on an RTX 3090 was faster with MTP; of an H100 only the accepted drafts are known."""
    entry, card = CATALOGUE.find("qwen3.8-27b"), find_card(card_name, None)
    file = CompanionFile(file=str(Path("dflash.gguf").absolute()), size_bytes=1_000_000_000, speculation="dflash")
    catalogue = replace(CATALOGUE, models=(replace(entry, drafts=(file,)),))
    situation = describe_machine(card.memory_gb, card=card)
    plan = make_plans(catalogue, situation, PlanCriteria(model=entry.id))[0]
    assert [way.drafter.name for way in plan.ways] == names
    assert plan.setting.drafter.name == names[0]
    assert plan.setting.chosen_drafter == (None if names[0] == "mtp" else "draft-dflash")
    newer = replace(situation, spec_types=frozenset({"draft-mtp"}))  # an engine that lacks it
    assert make_plans(catalogue, newer, PlanCriteria(model=entry.id))[0].ways == ()
    listed = replace(entry, drafts=(replace(file, file="dflash.gguf", repo="someone/else"),))  # is not here
    assert make_plans(replace(CATALOGUE, models=(listed,)), situation, PlanCriteria(model=entry.id))[0].ways == ()


def test_another_drafter_is_used_where_a_run_with_the_head_was_slower() -> None:
    entry, card = CATALOGUE.find("qwen3.8-27b"), find_card("RTX 3090", None)
    file = CompanionFile(file=str(Path("dflash.gguf").absolute()), size_bytes=1_000_000_000, speculation="dflash")
    situation = describe_machine(card.memory_gb, card=card)

    criteria = PlanCriteria(model=entry.id, quant="IQ4_XS")  # it leaves room for both

    def plan_with(*measurements: PublishedRun) -> Plan:
        listed = replace(entry, drafts=(file,), measurements=measurements)
        return make_plans(replace(CATALOGUE, models=(listed,)), situation, criteria)[0]

    usual = plan_with(*entry.measurements)
    assert usual.setting.drafter.name == "mtp"
    compared = PublishedRun(
        gpu="RTX 3090",
        gpu_memory_gb=24,
        quant=usual.file.quant,
        ctx=usual.setting.context,
        kv=usual.setting.kv,
        draft=usual.setting.draft,
        tokens_per_second=30,
        baseline=40,
        source="these tests",
    )
    plan = plan_with(compared, *entry.measurements)
    assert plan.setting.drafter.name == "dflash"
    assert [way.drafter.name for way in plan.ways] == ["dflash", "none"]
    assert any(reason.startswith("Ways to draft, and the tokens/s") for reason in plan.reasons)


def test_a_presets_length_is_not_that_of_a_drafter_of_which_nothing_is_known() -> None:
    entry = next(each for each in CATALOGUE.models if each.drafter.uses_head and any(row.draft for row in each.presets))
    preset = next(row for row in entry.presets if row.draft)
    file = CompanionFile(file=str(Path("small.gguf").absolute()), size_bytes=1_000_000_000, speculation="draft-model")
    headless = tuple(replace(each, has_head=False) for each in entry.files)
    listed = replace(entry, files=headless, drafts=(file,), family="unheard of").with_drafter("draft-simple")
    catalogue, situation = replace(CATALOGUE, models=(listed,)), describe_machine(80)
    criteria = PlanCriteria(entry.id, intent=preset.intents[0], quant=preset.quant)
    assert make_plans(catalogue, situation, criteria)[0].setting.draft == 0
    asked = replace(criteria, chosen_drafter="draft-simple", draft=3)
    assert make_plans(catalogue, situation, asked)[0].setting.draft == 3


def test_the_states_that_drafts_keep_are_counted_before_the_drafts_header_is_read() -> None:
    entry = CATALOGUE.find("qwen3.8-27b")
    file = CompanionFile(file="dflash.gguf", size_bytes=1_000_000_000, speculation="dflash")
    catalogue = replace(CATALOGUE, models=(replace(entry, drafts=(file,)),))
    recurrent = [
        make_plans(catalogue, describe_machine(32), PlanCriteria(entry.id, chosen_drafter=each, draft=3))[
            0
        ].estimate.parts.recurrent
        for each in ("draft-mtp", "draft-dflash")
    ]
    assert recurrent[0] == recurrent[1] > 0


def test_the_speed_with_a_drafter_of_which_nobody_published_runs_is_unknown() -> None:
    card = find_card("RTX 4090", None)
    situation = describe_machine(24, card=card)
    for drafter, is_known in (("draft-eagle3", False), ("ngram-mod", False), ("draft-dflash", True)):
        criteria = PlanCriteria("qwen3.6-27b", chosen_drafter=drafter, draft=3)
        plan = make_plans(CATALOGUE, situation, criteria)[0]
        assert plan.setting.drafter.spec_type == drafter
        assert (plan.forecast is not None) == is_known
        assert all(run.spec_type == drafter for run in plan.evidence), "a run with MTP is none of this plan"
    plan = make_plans(CATALOGUE, situation, PlanCriteria("qwen3.6-27b-mtp", draft=3))[0]
    assert plan.forecast
    assert plan.evidence


def test_the_logits_of_a_draft_count_before_its_header_is_read() -> None:
    """llama.cpp keeps them for each token of a batch, twice: for a large vocabulary that is 1 GiB."""
    entry = CATALOGUE.find("qwen3.6-27b")
    assert entry.geometry is not None
    for drafter, is_counted in (("draft-dflash", True), ("draft-eagle3", True), ("ngram-mod", False)):
        plan = make_plans(CATALOGUE, describe_machine(48), PlanCriteria(entry.id, chosen_drafter=drafter, draft=3))[0]
        logits = 4 * plan.setting.ubatch * entry.geometry.vocabulary
        assert (plan.estimate.parts.draft_compute == 2 * logits) == is_counted
        if is_counted:
            assert plan.estimate.high - plan.estimate.parts.total >= 0.3 * 2 * logits
            assert any("not its cache and buffers besides the logits of its batches" in each for each in plan.cautions)
