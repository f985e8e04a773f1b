"""Published runs as they are read: which count, and of which model."""

import csv
from itertools import pairwise

import pytest

from launcher.base.paths import shipped_file
from launcher.models.catalogue_load import shipped_models
from launcher.models.drafters import DRAFTERS, LONGEST_DRAFT
from launcher.models.evidence import (
    ACCEPTANCE_FILE,
    accepted_shares,
    family_key,
    has_spilled,
    is_other_engine,
    read_acceptance,
    read_published_runs,
    read_rows,
    tokens_per_pass,
)
from launcher.models.memory import PlanSettings
from launcher.models.situation import describe_machine
from launcher.models.speed import nearest_runs
from tools.speed_accuracy.runs import read_runs


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvidia_Nemotron-Cascade-2-30B-A3B", "nemotron-cascade-2-30b-a3b"),
        ("NVIDIA-Nemotron-3-Nano-4B-BF16", "nemotron-3-nano-4b"),
        ("Gemma-4-26B-A4B-it (as the thread reads)", "gemma-4-26b-a4b"),
        ("gemma-4-12B-it-qat", "gemma-4-12b"),
        ("Gemma 4 31B it", "gemma-4-31b"),
        ("Qwen3.6-27B", "qwen3.6-27b"),
    ],
)
def test_a_family_has_one_name(name: str, family: str) -> None:
    assert family_key(name) == family


def test_few_rows_reach_no_model() -> None:
    known = {family_key(entry.family) for entry in shipped_models()}
    lost = [row["model"] for row in read_rows() if family_key(row["model"]) not in known]
    assert not [name for name in lost if "nemotron-cascade" in name.casefold()]
    assert len(lost) < 40


@pytest.mark.parametrize(
    ("engine", "backend", "other"),
    [
        (None, "CUDA", False),
        ("b10450", "CUDA 13.3", False),
        ("PR #26704 branch, self-built", None, False),
        ("lucebox-hub b6ffab4a9", "CUDA", True),
        ("beellama fork", "CUDA", True),
        ("ik_llama.cpp cu13", "CUDA", True),
        (None, "vLLM-XPU (not llama.cpp)", True),
        ("LM Studio Metal 2.29.0 (dd1ea52)", "Metal", True),
        ("Atomic TurboQuant fork 514e600c8", None, True),
    ],
)
def test_other_engines_are_told_from_builds_of_llama_cpp(engine: str | None, backend: str | None, other: bool) -> None:
    assert is_other_engine(engine, backend) is other


def test_a_run_that_spilled_is_no_nearest_run() -> None:
    """An RTX 5060 Ti that reached 26.3 tokens/s by spilling was shown as the nearest run."""
    assert has_spilled("The GPU's memory spilled into the host's.", drafts=False)
    assert has_spilled("driver paging with MTP: PCIe 11-14 GB/s", drafts=True)
    assert not has_spilled("driver paging with MTP: PCIe 11-14 GB/s | run without MTP", drafts=False)
    here = describe_machine(16)
    for entry in shipped_models():
        for quant in ("UD-IQ3_XXS", "UD-Q3_K_XL", "UD-Q4_K_XL", "Q4_K_M"):
            for draft in (0, 2):
                for run in nearest_runs(entry, quant, PlanSettings(32_768, "q8_0", draft=draft), here):
                    assert not has_spilled(run.note, drafts=draft > 0)
                    assert not is_other_engine(run.engine, run.backend)


def test_no_run_without_drafts_is_above_what_its_card_can_read() -> None:
    """140 tokens/s of a 27B on a 3090 Ti (58 are possible) were believed: the board has no field for DFlash."""
    runs, _ = read_runs()
    assert len(runs) > 400
    for run in runs:
        limit = run.card.bandwidth_gb_s * 1e9 / run.work.gpu_bytes
        assert run.rate < limit * (1 + run.draft), run.row


def test_the_withdrawn_row_is_shown_but_never_used() -> None:
    withdrawn = [run for run in read_published_runs()["qwen3.6-27b"] if run.tokens_per_second == 140.28]
    assert [run.trust for run in withdrawn] == ["low"]


def test_acceptance_is_known_by_drafter_length_and_kind_of_text() -> None:
    """Files of DFlash2 and DFlash are of one kind, so that both are told; what nobody published is unknown."""
    (coding,) = [each for each in read_acceptance("Qwen3.8-27B", DRAFTERS["mtp"]) if each.workload == "coding"]
    assert (coding.draft, coding.share) == (7, pytest.approx(1.86 / 7, abs=0.001))
    blocks = read_acceptance("Qwen3.8-27B", DRAFTERS["dflash"])
    assert {(each.drafter, each.draft) for each in blocks} == {("dflash2", 3), ("dflash2", 5), ("dflash2", 7)}
    assert {each.drafter for each in read_acceptance("Muse-Glimmer-30B", DRAFTERS["dflash2"])} == {"dflash", "dflash2"}
    assert all(0 < each.share < 1 and each.source and each.date for each in blocks)
    assert read_acceptance("Qwen3.8-27B", DRAFTERS["eagle3"]) == ()
    assert read_acceptance("", DRAFTERS["mtp"]) == ()


def test_the_expected_acceptance_of_a_drafter_is_held_against_mtps_of_the_same_source() -> None:
    """Texts differ more than drafters: where DFlash2 had more accepted than MTP, it is expected to have more here."""
    of_mtp, blocks = (accepted_shares(DRAFTERS[name], "Qwen3.8-27B") for name in ("mtp", "dflash"))
    assert len(of_mtp) == len(blocks) == LONGEST_DRAFT
    assert of_mtp == accepted_shares(DRAFTERS["draft-file"], "any other model")
    assert all(more > less for more, less in zip(blocks, of_mtp, strict=True))
    assert all(longer < shorter for shorter, longer in pairwise(blocks[:8]))
    alone = accepted_shares(DRAFTERS["dflash"], "Muse-Glimmer-30B")
    assert tokens_per_pass(alone, 15) == pytest.approx(3.69, abs=0.1)  # about the mean of its own rows, not DFlash2's
    assert accepted_shares(DRAFTERS["eagle3"], "Qwen3.8-27B") == accepted_shares(DRAFTERS["dflash"]) == ()


def test_each_model_with_known_acceptance_is_in_the_catalogue() -> None:
    families = {family_key(each.family) for each in shipped_models()}
    with shipped_file(*ACCEPTANCE_FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {family_key(row["model"]) for row in rows} <= families | {""}  # those without a model are medians
    assert all(row["drafter"] in DRAFTERS and bool(row["share"]) != bool(row["tokens_per_pass"]) for row in rows)
