"""Published measurements near a plan, and the limit that memory bandwidth sets."""

import re
from dataclasses import replace

import pytest

from launcher.base.messages import Message
from launcher.models.catalogue import ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.memory import PlanSettings
from launcher.models.preset import PublishedRun
from launcher.models.situation import Situation, describe_machine, describe_unified_machine
from launcher.models.speed import (
    _same_gpu,
    bandwidth_limit,
    bytes_per_token,
    comparable_rate,
    describe_run,
    nearest_runs,
)
from launcher.models.weights import Weights, weights_by_rules

CATALOGUE = load_catalogue()
MOE = CATALOGUE.find("qwen3.6-35b-a3b-mtp")
DENSE = CATALOGUE.find("qwen3.8-27b")
ON_24 = PlanSettings(262_144, "q8_0", draft=2, ubatch=256)


def situation_with(name: str | None, gigabytes: float, **more: object) -> Situation:
    return replace(describe_machine(gigabytes), gpu_name=name, **more)  # type: ignore[arg-type]


def weights(entry: ModelEntry, quant: str) -> Weights:
    file = entry.file(quant)
    assert file is not None
    assert entry.geometry is not None
    found = weights_by_rules(entry, file, entry.geometry)
    assert found is not None
    return found


def gpus(results: tuple[PublishedRun, ...]) -> list[str]:
    return [result.gpu for result in results]


@pytest.mark.parametrize(
    ("gigabytes", "quant", "setting", "nearest_gpu"),
    [
        # By hand from the catalogue's table: the run with the same file, memory class and experts' place.
        (24, "UD-Q3_K_XL", ON_24, "RTX 5090 Mobile"),
        (24, "UD-IQ4_XS", PlanSettings(131_072, "q8_0"), "RTX 4090"),
        (24, "UD-IQ4_NL", PlanSettings(131_072, "f16"), "RTX 3090"),
        (16, "UD-IQ3_S", PlanSettings(49_152, "q4_0", ubatch=256), "RTX 5060 Ti"),
        (16, "UD-Q4_K_XL", PlanSettings(131_072, "q8_0", n_cpu_moe=21), "RTX 5080"),
        (12, "UD-Q4_K_XL", PlanSettings(131_072, "q8_0", n_cpu_moe=30), "RTX 4070 SUPER"),
        (8, "UD-Q4_K_M", PlanSettings(131_072, "q8_0", n_cpu_moe=38), "RTX 2060 SUPER"),
        (96, "UD-Q3_K_XL", ON_24, "RTX PRO 6000"),
    ],
)
def test_the_run_with_the_same_file_and_memory_comes_first(
    gigabytes: float, quant: str, setting: PlanSettings, nearest_gpu: str
) -> None:
    assert gpus(nearest_runs(MOE, quant, setting, situation_with(None, gigabytes)))[0] == nearest_gpu


def test_the_name_of_a_computer_is_ignored() -> None:
    """The runs of "Radeon 8060S (Strix Halo)" are runs of this GPU."""
    entry = CATALOGUE.find("qwen3.6-35b-a3b-mtp")
    found = nearest_runs(entry, "Q8_0", PlanSettings(262_144, draft=2), describe_unified_machine(128))
    assert found[0].gpu == "Radeon 8060S (Strix Halo)"


def test_a_run_on_this_gpu_comes_first() -> None:
    for setting in (ON_24, PlanSettings(32_768, "f16"), PlanSettings(65_536, "q4_0", draft=3)):
        found = nearest_runs(MOE, "UD-Q3_K_XL", setting, situation_with("NVIDIA GeForce RTX 4090", 23.99))
        assert found[0].gpu == "RTX 4090"


@pytest.mark.parametrize("gigabytes", [6, 8, 10, 12, 16, 20, 24, 32, 48, 80, 96])
@pytest.mark.parametrize("n_cpu_moe", [0, 20])
def test_runs_with_experts_elsewhere_are_not_used(gigabytes: float, n_cpu_moe: int) -> None:
    for quant in ("UD-IQ3_S", "UD-Q3_K_XL", "UD-Q4_K_XL", "Q8_0"):
        for result in nearest_runs(
            MOE, quant, PlanSettings(65_536, n_cpu_moe=n_cpu_moe), situation_with(None, gigabytes)
        ):
            if result.n_cpu_moe is not None:
                assert bool(result.n_cpu_moe) == bool(n_cpu_moe)
            file = MOE.file(result.quant or "")
            if file and file.size_bytes and result.gpu_memory_gb and result.n_cpu_moe is None:
                assert (file.size_bytes > result.gpu_memory_gb * 2**30) == bool(n_cpu_moe), result


def test_a_dense_model_matches_without_experts() -> None:
    found = nearest_runs(
        DENSE, "UD-Q4_K_XL", PlanSettings(262_144, "q4_0", draft=4), situation_with("NVIDIA GeForce RTX 5090", 31.8)
    )
    assert (found[0].gpu, found[0].tokens_per_second) == ("RTX 5090", 179.7)


def test_runs_of_other_programs_or_untrusted_ones_are_not_used() -> None:
    for gigabytes in (16, 24, 32, 48):
        for quant in ("UD-IQ3_S", "UD-Q4_K_XL", "Q8_0"):
            for result in nearest_runs(
                MOE, quant, PlanSettings(98_304, "q4_0"), situation_with("NVIDIA GeForce RTX 5060 Ti", gigabytes)
            ):
                assert result.trust == "good"
                assert "fork" not in (result.engine or "")
                assert result.engine not in ("vLLM", "ik_llama.cpp")
                assert result.tokens_per_second is not None


def test_each_report_is_used_once() -> None:
    found = nearest_runs(
        MOE, "UD-IQ3_S", PlanSettings(65_536, "q4_0"), situation_with("NVIDIA GeForce RTX 5060 Ti", 15.9)
    )
    assert gpus(found).count("RTX 5060 Ti") == 1
    assert found[0].filled == 0
    drafts = nearest_runs(
        MOE, "UD-Q6_K_XL", PlanSettings(32_768, "q8_0", draft=3), situation_with("NVIDIA GeForce RTX 3090", 48, gpus=2)
    )
    received = [(result.gpu, result.quant, result.source) for result in drafts]
    assert drafts[0].gpu == "2x RTX 3090"
    assert drafts[0].draft == 3
    assert len(received) == len(set(received))


def test_a_plan_without_mtp_gets_rates_without_it() -> None:
    off = PlanSettings(65_536, "q4_0", draft=0)
    found = nearest_runs(MOE, "UD-IQ3_S", off, situation_with("NVIDIA GeForce RTX 5060 Ti", 15.9))
    assert comparable_rate(found[0], off) == 98
    assert all(result.baseline is not None or result.draft == 0 for result in found)
    plain = CATALOGUE.find("qwen3.6-35b-a3b")
    (best, *_) = nearest_runs(
        plain, "UD-IQ3_S", PlanSettings(262_144, "q4_0", draft=0), situation_with("NVIDIA GeForce RTX 5060 Ti", 15.9)
    )
    assert comparable_rate(best, off) == 98
    assert comparable_rate(best, replace(off, draft=2)) is None


def test_gpu_runs_are_not_used_for_a_processor() -> None:
    assert nearest_runs(MOE, "UD-Q3_K_XL", ON_24, situation_with(None, 24, backend="cpu")) == ()


def test_without_a_similar_run_none_is_returned() -> None:
    assert nearest_runs(MOE, "BF16", PlanSettings(262_144, draft=3), situation_with(None, 64)) == ()
    assert nearest_runs(CATALOGUE.find("demo"), "F16", PlanSettings(8_192), situation_with(None, 8)) == ()


@pytest.mark.parametrize(
    ("published", "driver", "gigabytes", "count", "same"),
    [
        ("RTX 4090", "NVIDIA GeForce RTX 4090", 23.99, 1, True),
        ("RTX 4090", "NVIDIA GeForce RTX 4090 D", 23.99, 1, False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU", 16, 1, False),
        ("RTX 5090 Mobile", "NVIDIA GeForce RTX 5090 Laptop GPU", 23.9, 1, True),
        ("RTX 5090 Mobile", "NVIDIA GeForce RTX 5090", 31.8, 1, False),
        ("RTX 4070", "NVIDIA GeForce RTX 4070 SUPER", 12, 1, False),
        ("RTX 5060 Ti", "NVIDIA GeForce RTX 5060 Ti", 15.9, 1, True),
        ("RTX 5060 Ti", "NVIDIA GeForce RTX 5060 Ti", 8, 1, False),
        ("2x RTX 3090", "NVIDIA GeForce RTX 3090", 48, 2, True),
        ("2x RTX 3090", "NVIDIA GeForce RTX 3090", 24, 1, False),
        ("RTX 3090", "NVIDIA GeForce RTX 3090", 48, 2, False),
        ("RX 9070 XT", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16, 1, True),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.6, 1, True),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 95.6, 1, False),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB", 79.3, 1, True),
        ("RTX 4090", None, 24, 1, False),
    ],
)
def test_a_gpu_is_recognised_by_the_name_that_its_driver_reports(
    published: str, driver: str | None, gigabytes: float, count: int, same: bool
) -> None:
    result = next(result for result in MOE.measurements if result.gpu == published and result.trust == "good")
    assert _same_gpu(result, situation_with(driver, gigabytes, gpus=count)) is same


def test_a_run_is_described_with_all_its_conditions() -> None:
    (sentence,) = [
        describe_run(MOE, result)
        for result in MOE.measurements
        if result.gpu == "RTX 5060 Ti" and result.filled == 0 and result.kv == "q4_0" and result.draft
    ]
    assert sentence.startswith(
        "RTX 5060 Ti, 16 GB: 144 t/s with UD-IQ3_S, context 65,536, KV q4_0, draft 2; 98 t/s without MTP; "
        "81 % of drafts accepted; 82 t/s (62 without MTP) with 55,000 tokens in the context."
    )
    assert sentence.endswith("Source: NJannasch, MTP on MoE: 144 t/s on a 16GB GPU, 2026-05.")


def test_missing_conditions_of_a_run_are_reported() -> None:
    result = next(result for result in MOE.measurements if result.source == "carteakey")
    assert describe_run(MOE, result) == (
        "RTX 4070, 12 GB: 67 t/s with quant unknown, draft length unknown; 51 t/s without MTP. Source: carteakey."
    )


def test_descriptions_have_ranges_and_experts_and_name_the_memory_once() -> None:
    received = [describe_run(MOE, result) for result in MOE.measurements if result.tokens_per_second]
    assert any("A100 80GB: 199 t/s" in each for each in received)
    assert any("69 to 82 t/s" in each and "69 to 95 % of drafts accepted" in each for each in received)
    assert any("experts of 37 layers on the host" in each for each in received)
    assert all(each.count("Source: ") == 1 and ".." not in each and "None" not in each for each in received)


class LettersDropped:
    """A translation of texts into their placeholders and signs."""

    def gettext(self, text: str) -> str:
        return re.sub(r"(\{[^}]*\})|[A-Za-z]+", lambda part: part[1] or "", text)

    def ngettext(self, one: str, many: str, n: int) -> str:
        return self.gettext(one if n == 1 else many)


def test_all_words_of_a_described_run_but_those_of_its_source_are_translated() -> None:
    result = next(each for each in MOE.measurements if each.gpu == "RTX 5060 Ti" and each.filled == 0 and each.draft)
    described = describe_run(MOE, replace(result, note="Warm."))
    assert isinstance(described, Message)
    rendered = described.render(LettersDropped())
    assert not re.search("context|draft|without|filled|Source|with", rendered)
    assert "Warm." in rendered
    assert result.source in rendered


def test_the_bytes_per_token_are_active_weights_and_filled_cache() -> None:
    moe, geometry = weights(MOE, "UD-Q4_K_M"), MOE.geometry
    assert geometry is not None
    # Per layer 8 of 256 routed experts, which take 464 MiB in all (a public report), and all other weights except the
    # input embedding.
    routed = 40 * int(464 * 2**20 * 8 / 256)
    rest = moe.output + sum(block.rest for block in moe.blocks)
    assert bytes_per_token(geometry, moe, PlanSettings(65_536)) == pytest.approx(routed + rest, rel=1e-6)
    for slots in (1, 4):  # a token reads only the cache of its own slot
        empty, full = (
            bytes_per_token(geometry, moe, PlanSettings(65_536, "q8_0", slots=slots), full=full)
            for full in (False, True)
        )
        assert full - empty == 65_536 // slots * 10_880
    dense = weights(DENSE, "UD-Q4_K_XL")
    assert DENSE.geometry is not None
    assert bytes_per_token(DENSE.geometry, dense, PlanSettings(65_536)) == dense.on_device(0, mtp=False)


def test_the_speed_limit_is_bandwidth_divided_by_bytes() -> None:
    found, geometry = weights(DENSE, "UD-Q4_K_XL"), DENSE.geometry
    assert geometry is not None
    card = situation_with("NVIDIA GeForce RTX 4090", 24, bandwidth_gb_s=1_008.0)
    limit = bandwidth_limit(geometry, found, PlanSettings(65_536), card)
    assert limit == pytest.approx(1_008e9 / found.on_device(0, mtp=False))
    # 47.7 t/s without MTP were measured on an RTX 4090: below the limit, as it must be.
    assert limit > 47.7
    full = bandwidth_limit(geometry, found, PlanSettings(65_536), card, full=True)
    assert full == pytest.approx(1_008e9 / (found.on_device(0, mtp=False) + 65_536 * 65_536))
    assert bandwidth_limit(geometry, found, PlanSettings(65_536), situation_with(None, 24, bandwidth_gb_s=None)) is None
    assert bandwidth_limit(geometry, found, PlanSettings(65_536, n_cpu_moe=3), card) is None
