"""Several GPUs: which layers each of them gets, what it then takes, and whether that fits the fullest."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.machine.gpu import Gpu
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_header
from launcher.models.memory import PlanSettings, estimate_memory, split_layers
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.read_situation import situation_of
from launcher.models.situation import Situation
from launcher.models.weights import read_weights
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
    return situation_of(Machine(read_host(), tuple(cards), None, {}, (), ()), headless=True)


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
def test_layers_go_by_what_is_free_and_the_output_counts_as_one(
    count: int, free: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    assert split_layers(count, free) == shares


@pytest.mark.parametrize(
    ("name", "setting", "free", "told"),
    [
        # Each card's buffers, the MTP context's among them, as b11669 told on two Vulkan cards that are not there.
        ("qwen35moe-35b-q3_k_xl", PlanSettings(65_536, "q8_0"), (11_888, 11_888), (8_956, 9_026)),
        ("qwen35moe-35b-q3_k_xl", PlanSettings(262_144, "f16"), (11_888, 11_888), (11_943, 13_165)),
        ("qwen35moe-35b-q4_k_m", PlanSettings(131_072, "q8_0", n_cpu_moe=10), (11_888, 11_888), (7_184, 11_827)),
        ("qwen35-27b-q4_k_m", PlanSettings(131_072, "q4_0"), (11_888, 11_888), (9_698, 11_403)),
        ("qwen35-27b-q4_k_m", PlanSettings(131_072, "q4_0"), (24_176, 11_888), (12_923, 8_178)),
        ("qwen35moe-35b-q4_k_m", PlanSettings(131_072, "q8_0", n_cpu_moe=10), (24_176, 11_888), (11_508, 7_503)),
        ("gemma3-12b-q4_k", PlanSettings(65_536, "q8_0", draft=0), (24_176, 11_888), (5_974, 3_913)),
    ],
)
def test_each_card_takes_what_an_engine_says(
    name: str, setting: PlanSettings, free: tuple[int, ...], told: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path, "model", model(name))
    header = read_header(path)
    geometry = read_geometry(header)
    asked = replace(setting, backend="vulkan", gpus=2, gpu_free_mib=free)
    found = estimate_memory(geometry, read_weights(header, geometry), asked)
    assert sum(found.by_gpu) == found.parts.total
    assert [size / 2**20 - DRIVER_MIB for size in found.by_gpu] == pytest.approx(told, abs=2)


def plan(situation: Situation, **wish: int | str) -> Plan:
    wanted = PlanCriteria(model=MOE, quant="UD-Q3_K_XL", context=262_144, kv="f16", ubatch=512, n_cpu_moe=0, draft=2)
    return make_plans(CATALOGUE, situation, replace(wanted, **wish))[0]


def test_what_fits_two_cards_together_may_be_too_much_for_the_last() -> None:
    """The run of 262,144 at f16 above: 25,108 MiB, of which the second card must hold 13,165."""
    free = 13_000
    found = plan(machine(free, free), kv="f16")
    assert found.required_mib < 2 * free
    assert found.status is Status.TOO_BIG
    assert max(found.estimate.by_gpu) / 2**20 > free
    lacking = -(-max(found.estimate.by_gpu) // 2**20) - free
    (told,) = [reason for reason in found.reasons if "missing" in reason]
    assert "GPU 2, the fullest" in told
    assert f"{lacking:,} MiB are missing" in told
    assert any("Without --gpu-layers" in caution for caution in found.cautions)
    roomy = plan(machine(free, free + lacking + 1_500), kv="f16")
    assert roomy.status is not Status.TOO_BIG
    assert not any("Without --gpu-layers" in caution for caution in roomy.cautions)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(first=st.integers(6_000, 30_000), second=st.integers(6_000, 30_000), draft=st.integers(0, 3))
def test_a_status_holds_for_each_card(first: int, second: int, draft: int) -> None:
    found = plan(machine(first, second), context=65_536, kv="q8_0", draft=draft)
    spare = min(
        free - need / 2**20 for need, free in zip(found.estimate.by_gpu, found.setting.gpu_free_mib, strict=True)
    )
    assert (spare < 0) == (found.status is Status.TOO_BIG) or abs(spare) < 1
    if found.status is Status.FITS:
        assert spare >= found.margin_mib / 2 - 1


def test_free_memory_that_is_told_is_shared_like_what_was_found() -> None:
    cards = (replace(CARD, free_bytes=8_000 * 2**20), replace(CARD, index=1, id="GPU-1", free_bytes=4_000 * 2**20))
    found = situation_of(Machine(read_host(), cards, None, {}, (), ()), free_mib=18_000)
    assert (found.free_mib, found.gpu_free_mib) == (18_000, (12_000, 6_000))


def test_the_caution_names_each_card() -> None:
    found = plan(machine(24_000, 24_000), context=65_536, kv="q8_0")
    first, second = (f"{size / 2**20:,.0f}" for size in found.estimate.by_gpu)
    assert any(f"{first}, {second} MiB. The last GPU" in caution for caution in found.cautions)
