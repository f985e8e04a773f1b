"""Several GPUs: which layers each of them gets, how much memory it needs for them, and whether all of them have it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.app.planning.planner import PlannedEngine, plan_arguments
from launcher.machine.cards import find_card
from launcher.machine.gpu import Gpu
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.catalogue import Catalogue, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_header
from launcher.models.memory import MemoryEstimate, PlanSettings, estimate_memory, split_layers
from launcher.models.overhead import expected_overhead_mib
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.read_situation import make_situation
from launcher.models.situation import Situation, describe_machine
from launcher.models.speed import forecast_speed
from launcher.models.weights import read_weights, weights_by_rules
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GIB = 2**30
CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, DENSE = "qwen3.6-35b-a3b-mtp", "qwen3.6-27b-mtp"
DRIVER_MIB = 330
CARD = Gpu("nvidia", 0, "NVIDIA GeForce RTX 3060", "GPU-0", 12 * GIB, free_bytes=11_888 * 2**20, unified=False)


def machine(*free_mib: int) -> Situation:
    cards = [
        replace(CARD, index=index, id=f"GPU-{index}", memory_bytes=-(-free // 1_024) * GIB, free_bytes=free * 2**20)
        for index, free in enumerate(free_mib)
    ]
    return make_situation(Machine(read_host(), tuple(cards), None, {}, (), ()), headless=True)


@pytest.mark.parametrize(
    ("count", "free", "shares"),
    [
        (41, (11_888,), (41,)),
        (41, (11_888, 11_888), (21, 20)),
        (41, (24_176, 11_888), (29, 12)),
        (65, (1, 1, 1), (22, 22, 21)),
        (48, (0, 0), (25, 23)),
        (4, (1, 0), (4, 0)),
    ],
)
def test_layers_are_split_by_free_memory_and_the_output_counts_as_one(
    count: int, free: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    assert split_layers(count, free) == shares


@pytest.mark.parametrize(
    ("name", "setting", "free", "expected"),
    [
        # Each card's buffers, with those of the MTP context, as b11669 reported them on two simulated Vulkan cards.
        ("qwen35moe-35b-q3_k_xl", PlanSettings(65_536, "q8_0"), (11_888, 11_888), (8_956, 9_026)),
        ("qwen35moe-35b-q3_k_xl", PlanSettings(262_144, "f16"), (11_888, 11_888), (11_943, 13_165)),
        ("qwen35moe-35b-q4_k_m", PlanSettings(131_072, "q8_0", n_cpu_moe=10), (11_888, 11_888), (7_184, 11_827)),
        ("qwen35-27b-q4_k_m", PlanSettings(131_072, "q4_0"), (11_888, 11_888), (9_698, 11_403)),
        ("qwen35-27b-q4_k_m", PlanSettings(131_072, "q4_0"), (24_176, 11_888), (12_923, 8_178)),
        ("qwen35moe-35b-q4_k_m", PlanSettings(131_072, "q8_0", n_cpu_moe=10), (24_176, 11_888), (11_508, 7_503)),
        ("gemma3-12b-q4_k", PlanSettings(65_536, "q8_0", draft=0), (24_176, 11_888), (5_974, 3_913)),
    ],
)
def test_each_card_has_the_memory_that_an_engine_reports(
    name: str, setting: PlanSettings, free: tuple[int, ...], expected: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path, "model", model(name))
    header = read_header(path)
    geometry = read_geometry(header)
    on_two_gpus = replace(setting, backend="vulkan", gpus=2, gpu_free_mib=free)
    found = estimate_memory(geometry, read_weights(header, geometry), on_two_gpus)
    assert sum(found.by_gpu) == found.parts.total
    assert [size / 2**20 - DRIVER_MIB for size in found.by_gpu] == pytest.approx(expected, abs=2)


def plan(situation: Situation, **criteria: int | str) -> Plan:
    wanted = PlanCriteria(model=MOE, quant="UD-Q3_K_XL", context=262_144, kv="f16", ubatch=512, n_cpu_moe=0, draft=2)
    return make_plans(CATALOGUE, situation, replace(wanted, **criteria))[0]


def test_a_model_that_fits_in_total_may_not_fit_the_last_card() -> None:
    """With a context of 262,144 at f16 as above, 25,108 MiB are needed, 13,165 of them on the second card."""
    free = 13_000
    found = plan(machine(free, free), kv="f16")
    assert found.required_mib < 2 * free
    assert found.status is Status.TOO_BIG
    assert max(found.estimate.by_gpu) / 2**20 > free
    lacking = -(-max(found.estimate.by_gpu) // 2**20) - free
    (sentence,) = [reason for reason in found.reasons if "missing" in reason]
    assert "GPU 2, the fullest" in sentence
    assert f"{lacking:,} MiB are missing" in sentence
    assert any("Without --gpu-layers" in caution for caution in found.cautions)
    roomy = plan(machine(free, free + lacking + 1_500), kv="f16")
    assert roomy.status is not Status.TOO_BIG
    assert not any("Without --gpu-layers" in caution for caution in roomy.cautions)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(first=st.integers(6_000, 30_000), second=st.integers(6_000, 30_000), draft=st.integers(0, 3))
def test_the_status_holds_for_each_card(first: int, second: int, draft: int) -> None:
    found = plan(machine(first, second), context=65_536, kv="q8_0", draft=draft)
    spare = min(
        free - need / 2**20 for need, free in zip(found.estimate.by_gpu, found.setting.gpu_free_mib, strict=True)
    )
    assert (spare < 0) == (found.status is Status.TOO_BIG) or abs(spare) < 1
    if found.status is Status.FITS:
        assert spare >= found.margin_mib / 2 - 1


def test_free_memory_given_by_the_user_is_split_in_proportion_to_the_measured_memory() -> None:
    cards = (replace(CARD, free_bytes=8_000 * 2**20), replace(CARD, index=1, id="GPU-1", free_bytes=4_000 * 2**20))
    found = make_situation(Machine(read_host(), cards, None, {}, (), ()), free_mib=18_000)
    assert (found.free_mib, found.gpu_free_mib) == (18_000, (12_000, 6_000))


def test_the_caution_names_each_card() -> None:
    found = plan(machine(24_000, 24_000), context=65_536, kv="q8_0")
    first, second = (f"{size / 2**20:,.0f}" for size in found.estimate.by_gpu)
    assert any(f"{first}, {second} MiB. The last GPU" in caution for caution in found.cautions)


DENSE_FILES = {"Q4_K_M": 17_106_775_008, "Q4-XYZ-v2": 15_064_569_440, "UD-Q4_K_XL": 17_923_394_624}


def split_27b(quant: str, setting: PlanSettings, cards: tuple[str, ...]) -> tuple[MemoryEstimate, float]:
    """Return the estimate of Qwen3.8-27B on several cards, and the forecast in tokens per second."""
    entry = CATALOGUE.find("qwen3.8-27b")
    assert entry.geometry is not None
    file = ModelFile(quant=quant, file=quant, size_bytes=DENSE_FILES[quant], has_head=True)
    weights = weights_by_rules(entry, file, entry.geometry)
    assert weights is not None
    found = tuple(map(find_card, cards))
    overheads = tuple(expected_overhead_mib("cuda", card) for card in found)
    setting = replace(setting, gpus=len(cards), overheads_mib=overheads)
    situation = replace(describe_machine([card.memory_gb for card in found]), cards=found)
    speed = forecast_speed(file, entry.geometry, weights, setting, situation)
    assert speed is not None
    return estimate_memory(entry.geometry, weights, setting), speed.tokens_per_second


@pytest.mark.parametrize(
    ("quant", "cards", "context", "draft", "published_mib", "rate"),
    [
        # sudoingX/qwen38-mtp PR #32 (Windows), PR #81, README (@plyra, the second card; the first has a desktop)
        ("Q4_K_M", ("5060 Ti 16GB", "5060 Ti 16GB"), 131_072, 0, 9_808, 38.3),
        ("Q4_K_M", ("5060 Ti 16GB", "5060 Ti 16GB"), 131_072, 3, 10_684, 76),
        ("Q4-XYZ-v2", ("3060 12GB", "3060 12GB"), 65_536, 0, 8_007, 34.2),
        ("Q4-XYZ-v2", ("3060 12GB", "3060 12GB"), 65_536, 3, 8_719, 59),
        ("Q4-XYZ-v2", ("3060 12GB", "3060 12GB"), 131_072, 4, 9_885, 58.9),
        ("UD-Q4_K_XL", ("5080", "3090"), 131_072, 0, 10_334, 55.6),
        ("UD-Q4_K_XL", ("5080", "3090"), 131_072, 2, 11_130, 92.9),
    ],
)
def test_tensors_are_split_equally_as_in_published_runs(
    quant: str, cards: tuple[str, ...], context: int, draft: int, published_mib: int, rate: float
) -> None:
    found, speed = split_27b(quant, PlanSettings(context, "q4_0", draft, split_mode="tensor"), cards)
    assert found.by_gpu[1] / 2**20 == pytest.approx(published_mib, rel=0.02)
    assert sum(found.by_gpu) == found.parts.total
    assert not found.compute_exact
    assert speed == pytest.approx(rate, rel=0.16)


def test_layer_split_is_sequential_and_tensor_split_parallel() -> None:
    pair = ("5060 Ti 16GB", "5060 Ti 16GB")
    layers, serial = split_27b("Q4_K_M", PlanSettings(131_072, "q4_0", 0, split_mode="layer"), pair)
    _, parallel = split_27b("Q4_K_M", PlanSettings(131_072, "q4_0", 0, split_mode="tensor"), pair)
    assert parallel > 1.4 * serial
    two_v100, _ = split_27b("Q4_K_M", PlanSettings(262_144, "q4_0", 0), ("V100 32GB", "V100 32GB"))
    assert two_v100.parts.total / 2**20 == pytest.approx(25_170, rel=0.005)  # README of 01b319c, with NVLink
    with_drafts, _ = split_27b("Q4_K_M", PlanSettings(262_144, "q4_0", 4), ("V100 32GB", "V100 32GB"))
    assert with_drafts.parts.total / 2**20 == pytest.approx(28_310, rel=0.005)
    assert layers.compute_exact


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_unequal_shares_are_counted(mode: str) -> None:
    setting = PlanSettings(65_536, "q4_0", 2, split_mode=mode, tensor_split="3,1")
    found, speed = split_27b("Q4_K_M", setting, ("3090", "3060 12GB"))
    equal, equal_speed = split_27b("Q4_K_M", replace(setting, tensor_split="1,1"), ("3090", "3060 12GB"))
    assert found.parts.total == equal.parts.total
    assert found.by_gpu[0] > 1.8 * found.by_gpu[1]
    assert equal.by_gpu[0] < 1.1 * equal.by_gpu[1]
    assert speed > equal_speed  # with 3:1 the faster card has more of the model


def test_without_a_split_one_card_must_hold_everything() -> None:
    found = plan(machine(30_000, 11_000), split_mode="none", context=65_536, kv="q8_0")
    assert found.estimate.by_gpu[1] == 0
    assert found.estimate.by_gpu[0] == found.estimate.parts.total
    assert found.status is not Status.TOO_BIG
    assert any(caution.startswith("Only the first GPU is used") for caution in found.cautions)
    assert plan(machine(11_000, 30_000), split_mode="none", context=65_536, kv="q8_0").status is Status.TOO_BIG


def test_the_caution_for_tensor_split_mentions_unequal_cards() -> None:
    def caution(*free: int, **criteria: str) -> str:
        found = plan(machine(*free), context=65_536, kv="q8_0", split_mode="tensor", **criteria)
        return next(each for each in found.cautions if each.startswith("Each tensor is split"))

    assert "equally over 2 GPUs" in caution(24_000, 24_000)
    assert "--tensor-split" not in caution(24_000, 24_000)
    assert caution(24_000, 12_000).endswith("--tensor-split 23,12 shares them by free memory.")
    assert "as you asked (2,1)" in caution(24_000, 12_000, tensor_split="2,1")
    layers = plan(machine(24_000, 24_000), context=65_536, kv="q8_0", tensor_split="2,1").cautions
    assert any("With --split-mode tensor the GPUs work at once" in each for each in layers)
    assert any("over 2 GPUs as you asked (2,1)" in each for each in layers)


def test_the_engine_gets_the_planned_split() -> None:
    found = plan(machine(24_000, 12_000), context=65_536, kv="q8_0", split_mode="tensor", tensor_split="2,1")
    arguments = plan_arguments(found, PlannedEngine(None, True))
    assert arguments[arguments.index("--split-mode") + 1] == "tensor"
    assert arguments[arguments.index("--tensor-split") + 1] == "2,1"
