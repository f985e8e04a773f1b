"""What plans choose and say: the best quality of each size, caches, host memory, and what a user fixes needlessly."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.models.catalogue import Catalogue, CompanionFile, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.gguf import read_header
from launcher.models.header_summary import read_draft_model, store_summary
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.preset import Intent
from launcher.models.situation import describe_machine
from tools.sparse_models.models import model
from tools.sparse_models.write import write

CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, DENSE, OLDER, SMALL = "qwen3.6-35b-a3b-mtp", "qwen3.8-27b", "qwen3.6-27b-mtp", "qwen3.5-9b-mtp"
SIZES = (8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
INTENTS: tuple[Intent, ...] = ("balanced", "long-context", "best-quality")


def first(size: float, wish: PlanCriteria, **machine: object) -> Plan:
    return make_plans(CATALOGUE, describe_machine(size, **machine), wish)[0]  # type: ignore[arg-type]


BEST = {
    (OLDER, 20): ("UD-Q4_K_XL", 32_768, "q8_0"),
    (OLDER, 24): ("UD-Q4_K_XL", 98_304, "q8_0"),
    (OLDER, 32): ("Q8_0", 65_536, "q8_0"),
    (OLDER, 40): ("Q8_0", 131_072, "f16"),
    (OLDER, 48): ("Q8_0", 262_144, "f16"),
    (OLDER, 80): ("Q8_0", 262_144, "f16"),
    (DENSE, 20): ("UD-Q4_K_M", 49_152, "q8_0"),
    (DENSE, 24): ("UD-Q4_K_XL", 98_304, "q8_0"),
    (DENSE, 32): ("UD-Q4_K_XL", 262_144, "q8_0"),
    (DENSE, 40): ("UD-Q4_K_XL", 262_144, "f16"),
    (DENSE, 80): ("UD-Q4_K_XL", 262_144, "f16"),
    (SMALL, 8): ("Q4_K_M", 32_768, "q8_0"),
    (SMALL, 12): ("Q4_K_M", 98_304, "f16"),
    (SMALL, 20): ("Q4_K_M", 262_144, "f16"),
    (MOE, 12): ("UD-Q5_K_XL", 131_072, "q8_0"),
    (MOE, 24): ("UD-IQ4_XS", 131_072, "f16"),
    (MOE, 32): ("UD-Q5_K_XL", 131_072, "f16"),
    (MOE, 80): ("BF16", 262_144, "f16"),
}


@pytest.mark.parametrize(("model_id", "size"), BEST, ids=str)
def test_the_best_quality_of_a_model_on_a_card(model_id: str, size: int) -> None:
    found = first(size, PlanCriteria(model=model_id, intent="best-quality"))
    assert (found.file.quant, found.setting.context, found.setting.kv) == BEST[model_id, size]
    assert found.status in (Status.FITS, Status.OFFLOADS)


@pytest.mark.parametrize("model_id", [MOE, OLDER, DENSE, SMALL])
def test_the_best_quality_never_falls_with_a_larger_card(model_id: str) -> None:
    sizes = SIZES if model_id == SMALL else (20, 24, 32, 40, 48, 80)  # below, experts may lie on the host
    found = [first(size, PlanCriteria(model=model_id, intent="best-quality")) for size in sizes]
    weights = [plan.file.size_bytes or 0 for plan in found]
    assert weights == sorted(weights)


@pytest.mark.parametrize("intent", INTENTS)
def test_dense_plans_take_q4_0_only_where_q8_0_costs_context_or_it_was_measured(intent: Intent) -> None:
    for size in SIZES:
        for model_id in (OLDER, DENSE):
            for plan in make_plans(CATALOGUE, describe_machine(size), PlanCriteria(model=model_id, intent=intent)):
                if plan.setting.kv == "q4_0" and plan.status is Status.FITS and plan.mark != "measured":
                    larger = replace(plan.setting, kv="q8_0")
                    wish = PlanCriteria(model_id, quant=plan.file.quant, kv="q8_0", context=larger.context)
                    wish = replace(wish, ubatch=larger.ubatch, draft=larger.draft)
                    assert first(size, wish).status is not Status.FITS
                if plan.setting.kv == "q4_0" and plan.mark == "measured" and size > 16:
                    assert any("q4_0, as in the measurement; q8_0 would also fit" in each for each in plan.reasons) or (
                        plan.setting.context == 262_144 and size == 24
                    )


def test_a_tight_plan_says_why_it_comes_before_one_that_fits() -> None:
    found = first(16, PlanCriteria())
    assert (found.file.quant, found.status) == ("UD-IQ3_S", Status.TIGHT)
    spare = found.free_mib - found.required_mib
    (told,) = [reason for reason in found.reasons if reason.startswith("It is ranked above UD-IQ3_XXS")]
    assert f"{spare:,} MiB free is enough" in told
    assert "--quant UD-IQ3_XXS" in told
    assert not any("It is ranked above" in reason for reason in first(16, PlanCriteria(quant="UD-IQ3_S")).reasons)


def test_a_larger_file_that_fits_too_is_named() -> None:
    found = first(24, PlanCriteria(intent="best-quality"))
    (told,) = [reason for reason in found.reasons if "is larger and also fits" in reason]
    assert told.startswith("UD-Q4_K_S")
    assert "65,536 instead of 131,072" in told


class TestExpertsOnTheHost:
    def test_layers_that_would_fit_the_gpu_are_told(self) -> None:
        found = first(24, PlanCriteria(model=MOE, n_cpu_moe=7))
        (told,) = [reason for reason in found.reasons if "more layer" in reason]
        least = int(told.rsplit("--n-cpu-moe ", 1)[1].rstrip("."))
        assert f"experts of {7 - least} more layer" in told
        enough = first(24, PlanCriteria(model=MOE, n_cpu_moe=least))
        assert enough.required_mib <= enough.free_mib - enough.margin_mib
        assert not any("more layer" in reason for reason in enough.reasons)
        assert not any("With MTP off the experts of" in caution for caution in found.cautions)  # MTP evicts none

    def test_layers_that_must_be_there_are_not(self) -> None:
        needed = first(12, PlanCriteria(model=MOE)).setting.n_cpu_moe
        found = first(12, PlanCriteria(model=MOE, n_cpu_moe=needed))
        assert not any("more layer" in reason for reason in found.reasons)

    def test_more_layers_than_there_are_is_said(self) -> None:
        found = first(24, PlanCriteria(model=MOE, n_cpu_moe=1_000))
        assert found.setting.n_cpu_moe == 41
        assert any("--n-cpu-moe 1000 is reduced to 41" in reason for reason in found.reasons)


class TestHostMemory:
    def test_on_a_processor_what_long_use_adds_is_named_and_judged(self) -> None:
        # 8,192 MiB are --cache-ram's default; 32 checkpoints of 62.8 MiB each. With 24 GB both are limited.
        for host_gib, cached, checkpoints in ((24, "2,048", "1,005"), (256, "8,192", "2,010")):
            found = first(8, PlanCriteria(model=MOE, quant="UD-IQ3_XXS"), backend="cpu", host_gib=host_gib)
            spare = found.free_mib - found.required_mib
            (told,) = [caution for caution in found.cautions if "--cache-ram" in caution]
            assert f"{cached} MiB of cached prompts" in told
            assert f"{checkpoints} MiB of context checkpoints" in told
            assert told.endswith(f"; {spare:,} MiB stay free.")

    def test_it_is_judged_where_nothing_is_offloaded_too(self) -> None:
        assert first(24, PlanCriteria(model=MOE), host_gib=64).cautions == first(24, PlanCriteria(model=MOE)).cautions
        later = first(24, PlanCriteria(model=MOE), host_gib=8)
        assert not later.host_short
        assert (later.setting.cache_ram, later.setting.ctx_checkpoints) == (2_048, None)
        (told,) = [caution for caution in later.cautions if caution.startswith("Long use may need up to 4,058 MiB")]
        assert told.endswith("The prompt cache is limited to the free memory.")
        own = first(24, PlanCriteria(model=MOE, cache_ram=2_048), host_gib=8)
        (told,) = [caution for caution in own.cautions if caution.startswith("Long use may need up to 4,058 MiB")]
        assert told.endswith("of context checkpoints.")
        short = first(24, PlanCriteria(model=MOE), host_gib=2)
        assert (short.status, short.host_short, short.group) == (Status.TOO_BIG, True, 2)
        assert any("Not enough host memory" in each and "1,536 MiB are available" in each for each in short.cautions)

    def test_how_it_is_counted_is_said(self) -> None:
        for backend in ("cuda", "cpu"):
            notes = describe_machine(24, host_gib=32, backend=backend).notes  # type: ignore[arg-type]
            assert "The plan uses up to 24,576 MiB of 32 GiB host memory and leaves a quarter to the system." in notes


@pytest.mark.parametrize(("kv", "slow"), [("q5_1", True), ("q5_0", True), ("q4_1", True), ("q8_0", False)])
def test_caches_without_a_fast_kernel_on_cuda(kv: str, slow: bool) -> None:
    def warned(backend: str) -> bool:
        cautions = first(24, PlanCriteria(model=MOE, kv=kv), backend=backend).cautions
        return any("no fast attention" in caution for caution in cautions)

    assert (warned("cuda"), warned("rocm"), warned("vulkan")) == (slow, slow, False)


def test_a_draft_of_its_own_is_counted_whole_once_its_header_is_known(tmp_path: Path) -> None:
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
    wish = PlanCriteria(model=entry.id, context=32_768, kv="f16", ubatch=512, draft=3)
    found = make_plans(Catalogue((entry,)), describe_machine(32), wish)[0]
    assert found.estimate.parts.draft_compute / 2**20 == pytest.approx(118.50, abs=0.02)
    assert found.estimate.parts.draft_kv == 0
    assert found.estimate.exact
    assert not any("its header is not read" in caution for caution in found.cautions)

    unread = replace(entry, draft=replace(entry.draft, repo="someone/else", sha256="ab" * 32))
    before = make_plans(Catalogue((unread,)), describe_machine(32), wish)[0]
    assert before.estimate.parts.draft_compute == 0
    assert not before.estimate.compute_exact
    assert any("not its cache and buffers" in caution for caution in before.cautions)
    store_summary("ab" * 32, read_header(draft))
    assert read_draft_model(unread) == read_draft_model(entry)
    assert json.dumps(
        make_plans(Catalogue((unread,)), describe_machine(32), wish)[0].estimate.parts.as_dict()
    ) == json.dumps(found.estimate.parts.as_dict())
