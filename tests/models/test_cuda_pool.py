"""CUDA's pool: what ggml's operators hold at once, counted by hand from their source, and its range."""

from dataclasses import replace

import pytest

from launcher.machine.cards import find_card
from launcher.models.cuda_pool import PoolBytes, pool_bytes
from launcher.models.memory import PlanSettings, estimate_memory
from launcher.models.weights import Block, Weights
from tests.models.test_memory import DENSE, MOE, geometry_of

MIB = 2**20
H100, RTX_3090 = find_card("H100 80GB HBM3"), find_card("3090")
GRAPHS = 5 * MIB


def dense(tokens: int, **changes: int) -> PoolBytes:
    return pool_bytes(replace(geometry_of(DENSE), **changes), tokens, "cuda", H100, floats=False)


def test_a_dense_model_holds_its_widest_batch_and_the_sums_of_partial_tiles() -> None:
    # 512 rows of 17,408 values as q8_1 (36 bytes for 32) with a tile of padding, and 132 tiles of 128 x 128 floats.
    held = 512 * 17_408 * 36 // 32 + 128 * 144 + 132 * 128 * 128 * 4
    assert dense(512).usual == -(-held // (2 * MIB)) * 2 * MIB + GRAPHS
    assert dense(512, ffn=2 * 17_408).usual > dense(512).usual
    assert dense(2_048).usual > dense(512).usual >= dense(64).usual


def test_an_expert_model_holds_the_batch_once_for_each_expert_used() -> None:
    geometry = geometry_of(MOE)

    def pool(tokens: int, used: int) -> int:
        return pool_bytes(replace(geometry, experts_used=used), tokens, "cuda", H100, floats=False).usual

    # 2,048 tokens for 8 experts of 2,048 values as q8_1 are 36 MiB.
    assert 36 * MIB < pool(2_048, 8) - GRAPHS <= 40 * MIB
    assert pool(2_048, 16) - pool(2_048, 8) == 36 * MIB


def test_matrices_of_floats_bring_the_workspaces_of_cublas() -> None:
    geometry = geometry_of(MOE)

    def added_mib(card: str, tokens: int = 512) -> float:
        found = find_card(card)
        with_floats = pool_bytes(geometry, tokens, "cuda", found, floats=True)
        return (with_floats.usual - pool_bytes(geometry, tokens, "cuda", found, floats=False).usual) / MIB

    assert added_mib("H100 80GB HBM3") == 96
    assert added_mib("L4") == 12
    assert added_mib("L4", tokens=16) == 0, "few rows are multiplied by ggml's own kernel"


def test_a_pool_that_no_card_has_proved_has_a_wider_range() -> None:
    geometry = geometry_of(MOE)
    proven = pool_bytes(geometry, 512, "cuda", H100, floats=True)
    other = pool_bytes(geometry, 512, "cuda", find_card("5090"), floats=True)
    unknown = pool_bytes(geometry, 512, "cuda", None, floats=True)
    widths = [pool.high - pool.low for pool in (proven, other, unknown)]
    assert widths == sorted(widths)
    assert widths[0] < 20 * MIB
    volta = pool_bytes(geometry_of(DENSE), 512, "cuda", find_card("V100-SXM2-32GB"), floats=False)
    assert volta.high > 2 * 17_408 * 5_120, "it may multiply an F16 copy of the largest matrix"


@pytest.mark.parametrize("backend", ["vulkan", "metal", "cpu"])
def test_other_backends_have_none(backend: str) -> None:
    assert pool_bytes(geometry_of(MOE), 512, backend, None, floats=True) == PoolBytes()  # type: ignore[arg-type]


def test_hip_keeps_each_buffer() -> None:
    found = pool_bytes(geometry_of(DENSE), 512, "rocm", find_card("7900 XTX"), floats=False)
    assert found.low == 0 < found.usual < found.high


@pytest.mark.parametrize("split", [None, "tensor"])
def test_each_gpu_has_the_target_s_pool_and_the_last_one_the_head_s(split: str | None) -> None:
    geometry, cards = geometry_of(DENSE), (H100, RTX_3090)
    weights = Weights(0, 2_000 * MIB, (Block(300 * MIB),) * 64, (Block(300 * MIB),), exact=True)
    plain = PlanSettings(8_192, draft=0, gpus=2, cards=cards, split_mode=split)
    of_target = [pool_bytes(geometry, 512, "cuda", card, floats=False).usual for card in cards]
    of_head = pool_bytes(geometry, 512, "cuda", RTX_3090, floats=False, head=True).usual
    found, drafting = (estimate_memory(geometry, weights, replace(plain, draft=draft)) for draft in (0, 2))
    assert found.parts.pool == sum(of_target)
    assert drafting.parts.pool == sum(of_target) + of_head
    assert sum(found.by_gpu) == found.parts.total
    other_cards = estimate_memory(geometry, weights, replace(plain, cards=(RTX_3090, RTX_3090)))
    assert found.by_gpu[0] - other_cards.by_gpu[0] == of_target[0] - of_target[1]
