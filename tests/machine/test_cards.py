"""Graphics cards by name: what people write, and what drivers report."""

import pytest

from launcher.base.errors import BadOption
from launcher.machine.cards import find_card, list_cards, match_card, typical_card


@pytest.mark.parametrize(
    ("written", "name", "memory_gb"),
    [
        ("4090", "NVIDIA GeForce RTX 4090", 24),
        ("rtx 4070", "NVIDIA GeForce RTX 4070", 12),
        ("4070 ti super", "NVIDIA GeForce RTX 4070 Ti SUPER", 16),
        ("5060 Ti", "NVIDIA GeForce RTX 5060 Ti", 16),
        ("5060ti 8GB", "NVIDIA GeForce RTX 5060 Ti", 8),
        ("3080", "NVIDIA GeForce RTX 3080", 10),
        ("3080 12 GB", "NVIDIA GeForce RTX 3080", 12),
        ("5090 laptop", "NVIDIA GeForce RTX 5090 Laptop GPU", 24),
        ("7900 xtx", "AMD Radeon RX 7900 XTX", 24),
        ("b580", "Intel Arc B580", 12),
        ("GB10", "NVIDIA GB10", 128),
        ("DGX Spark", "NVIDIA GB10", 128),
        ("AI Max 395", "AMD Radeon 8060S", 128),
        ("Ryzen AI Max+ 395", "AMD Radeon 8060S", 128),
        ("strix halo", "AMD Radeon 8060S", 128),
        ("Orin", "NVIDIA Orin", 64),
        ("jetson agx orin 32GB", "NVIDIA Orin", 32),
        ("Orin Nano", "NVIDIA Orin", 8),
        ("Thor", "NVIDIA Thor", 128),
        ("GTX 1070 Ti", "NVIDIA GeForce GTX 1070 Ti", 8),
        ("GTX 1070", "NVIDIA GeForce GTX 1070", 8),
        ("A770", "Intel Arc A770", 16),
        ("A770 8GB", "Intel Arc A770", 8),
    ],
)
def test_a_part_of_the_name_is_enough(written: str, name: str, memory_gb: int) -> None:
    card = find_card(written)
    assert (card.name, card.memory_gb) == (name, memory_gb)


@pytest.mark.parametrize(
    ("written", "near"),
    [("A100", "NVIDIA A100 80GB PCIe"), ("RTX 4095", "NVIDIA GeForce RTX 4090"), ("5080 Ti", "RTX 5080")],
)
def test_unknown_names_are_refused_with_the_nearest(written: str, near: str) -> None:
    with pytest.raises(BadOption) as failure:
        find_card(written)
    assert near in str(failure.value.hint)


def test_a_meaningless_name_is_refused_without_suggestions() -> None:
    with pytest.raises(BadOption, match='No graphics card "\\?\\?" is known') as failure:
        find_card("??")
    assert failure.value.hint == "Describe it by its memory: --gpu-memory."


def test_an_unknown_name_is_repeated_as_it_was_written() -> None:
    with pytest.raises(BadOption, match='No graphics card "Foo XYZ 24GB" is known'):
        find_card("Foo XYZ 24GB")


@pytest.mark.parametrize(("written", "sizes"), [("2x RTX 3090", "24+24"), ("3 x 5060 Ti 16GB", "16+16+16")])
def test_several_cards_are_described_by_their_memory(written: str, sizes: str) -> None:
    with pytest.raises(BadOption, match="a single card") as failure:
        find_card(written)
    assert f"--gpu-memory {sizes}." in failure.value.hint


@pytest.mark.parametrize(
    ("reported", "memory_gb", "name"),
    [
        ("NVIDIA GeForce RTX 4090", 23.99, "NVIDIA GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 15.99, "NVIDIA GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 5060 Ti", 7.96, "NVIDIA GeForce RTX 5060 Ti"),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 24, "AMD Radeon RX 7900 XTX"),
        ("AMD Radeon 8060S Graphics", 62.4, "AMD Radeon 8060S"),
        ("Intel(R) Arc(TM) B580 Graphics", 11.9, "Intel Arc B580"),
        ("NVIDIA RTX 6000 Ada Generation", 47.99, "NVIDIA RTX 6000 Ada Generation"),
    ],
)
def test_the_name_that_a_driver_reports_is_recognised(reported: str, memory_gb: float, name: str) -> None:
    card = match_card(reported, memory_gb)
    assert card is not None
    assert card.name == name


@pytest.mark.parametrize(
    ("reported", "memory_gb", "size_gb"),
    [
        ("Intel(R) Arc(TM) A770 Graphics", 7.9, 8),
        ("Intel(R) Arc(TM) A770 Graphics", 15.9, 16),
        ("Orin", 61.3, 64),
        ("Orin (nvgpu)", 29.8, 32),
        ("Orin", 15.3, 16),
        ("Orin", 7.4, 8),
        ("Intel(R) Arc(TM) A770 Graphics", None, None),
    ],
)
def test_memory_decides_between_variants(reported: str, memory_gb: float | None, size_gb: int | None) -> None:
    card = match_card(reported, memory_gb)
    assert (card and card.memory_gb) == size_gb


@pytest.mark.parametrize(
    ("reported", "memory_gb"), [("NVIDIA Graphics Device", 24), (None, 24), ("NVIDIA GeForce RTX 4090", 48)]
)
def test_an_unknown_card_is_not_matched(reported: str | None, memory_gb: float) -> None:
    assert match_card(reported, memory_gb) is None


def test_each_usual_size_has_a_typical_card() -> None:
    for size in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 80, 96):
        card = typical_card(size)
        assert card is not None
        assert card.memory_gb == size
        assert not card.unified
    shared = {size: typical_card(size, unified=True) for size in (8, 16, 32, 64, 96, 128, 256)}
    assert all(card is not None and card.unified for card in shared.values())
    names = [card.name for card in shared.values() if card]
    assert names == ["AMD Radeon 890M"] * 4 + ["AMD Radeon 8060S"] * 3
    assert typical_card(64) is None


def test_cards_are_distinguished_and_have_complete_figures() -> None:
    cards = list_cards()
    assert len({(card.name, card.memory_gb) for card in cards}) == len(cards)
    for card in cards:
        assert find_card(f"{card.name} {card.memory_gb}GB") == card
        assert 80 <= card.bandwidth_gb_s <= 10_000
        assert 2 <= card.tflops <= 200
        assert 25 <= card.watts <= 1_400
