"""GPU memory of driver and process: on cards with a published run, and on cards without one."""

from dataclasses import replace

import pytest

from launcher.machine.cards import find_card, list_cards
from launcher.models.overhead import USUAL_MIB, expected_overhead_mib, read_overheads
from launcher.models.situation import describe_machine, describe_unified_machine


def test_a_published_run_gives_the_overhead() -> None:
    card = find_card("5090")
    assert expected_overhead_mib("cuda", card) == 565
    assert expected_overhead_mib("cuda", card, system="linux", driver="595.97") == 530
    # No run with this driver is known.
    assert expected_overhead_mib("cuda", card, system="windows", driver="610.10") == 565
    r9700 = find_card("R9700")
    assert expected_overhead_mib("vulkan", r9700) == expected_overhead_mib("vulkan", r9700, system="linux") == 201
    assert expected_overhead_mib("vulkan", r9700, system="windows") == 126


def test_without_a_published_run_the_overhead_grows_with_the_card() -> None:
    sizes = [expected_overhead_mib("cuda", find_card(name)) for name in ("3060 12GB", "4070 Ti", "4090", "PRO 6000")]
    assert sizes == sorted(sizes)
    assert 120 < sizes[0] < 160
    assert 580 < sizes[-1] < 650
    assert expected_overhead_mib("cuda", None) == expected_overhead_mib("vulkan", find_card("9070 XT")) == 330
    assert expected_overhead_mib("cpu", find_card("5090")) == USUAL_MIB["cpu"] == 240


def test_every_row_is_for_a_known_card_and_near_the_formula() -> None:
    cards = {card.name: card for card in list_cards()}
    assert len(read_overheads()) >= 15
    for row in read_overheads():
        assert int(row["low_mib"]) <= int(row["overhead_mib"]) <= int(row["high_mib"]), row
        assert row["source"], row
        card = cards[row["gpu"]]
        if row["backend"] == "cuda":
            by_line = expected_overhead_mib("cuda", replace(card, name="unpublished"))
            most = 75 if card.generation == "volta" else 35
            assert by_line == pytest.approx(int(row["overhead_mib"]), abs=most), row


def test_every_nvidia_card_has_its_multiprocessors() -> None:
    for card in list_cards():
        assert (card.multiprocessors > 0) == card.name.startswith(("NVIDIA", "Tesla")), card.name


def test_a_described_machine_has_the_overhead_of_each_card() -> None:
    assert describe_machine(32, card=find_card("5090")).overheads_mib == (565,)
    assert describe_machine((24, 12)).overheads_mib == (330, 137)  # a 3090 and a 3060
    assert describe_machine(24, card=find_card("7900 XTX"), backend="rocm").overheads_mib == (622,)
    assert describe_unified_machine(128).overheads_mib == (570,)
    assert describe_machine(130).overheads_mib == (575,)
