"""The bandwidth of host memory, from udev's record and from a firmware's table."""

import struct
from pathlib import Path

import pytest

from launcher.machine.memory_modules import (
    MemoryModule,
    parse_smbios,
    parse_udev,
    read_host_bandwidth,
    sum_bandwidth,
)


def udev_record(*modules: tuple[str, str, int, int]) -> str:
    lines = ["I:3456789", "E:MEMORY_ARRAY_NUM_DEVICES=4"]
    for number, (bank, place, width, rate) in enumerate(modules):
        key = f"E:MEMORY_DEVICE_{number}_"
        lines += [f"{key}BANK_LOCATOR={bank}", f"{key}LOCATOR={place}", f"{key}TYPE=DDR5"]
        lines += [f"{key}DATA_WIDTH={width}", f"{key}SPEED_MTS=5600", f"{key}CONFIGURED_SPEED_MTS={rate}"]
    return "\n".join([*lines, "E:MEMORY_DEVICE_9_PRESENT=0", "E:MEMORY_DEVICE_9_LOCATOR=DIMM 1"])


@pytest.mark.parametrize(
    ("modules", "gb_s"),
    [
        # Two channels of DDR5-5600, with one module or two for each; one channel; and names that tell nothing.
        ((("P0 CHANNEL A", "DIMM 0", 64, 5_600), ("P0 CHANNEL B", "DIMM 0", 64, 5_600)), 89.6),
        (tuple((f"P0 CHANNEL {channel}", f"DIMM {slot}", 64, 3_600) for channel in "AB" for slot in "01"), 57.6),
        ((("BANK 0", "ChannelA-DIMM0", 64, 2_133), ("BANK 2", "ChannelB-DIMM0", 64, 2_133)), 34.128),
        ((("", "DIMM_A2", 64, 3_200),), 25.6),
        ((("BANK 0", "Slot 0", 64, 3_200), ("BANK 1", "Slot 1", 64, 3_200)), 51.2),
        (tuple(("BANK 0", f"Controller{at}-Channel{name}", 16, 7_500) for at in "01" for name in "ABCD"), 120.0),
        # An EPYC with six of its eight channels filled.
        (tuple((f"P0_Node0_Channel{at}_Dimm0", f"DIMM {at}", 64, 2_933) for at in range(6)), 140.784),
        (tuple(("", f"P1-DIMM{at}", 64, 2_666) for at in range(8)), 170.624),
    ],
)
def test_channels_add_up_and_modules_of_one_channel_do_not(
    modules: tuple[tuple[str, str, int, int], ...], gb_s: float, tmp_path: Path
) -> None:
    record = tmp_path / "run/udev/data/+dmi:id"
    record.parent.mkdir(parents=True)
    record.write_text(udev_record(*modules))
    assert len(list(parse_udev(record.read_text()))) == len(modules)
    assert read_host_bandwidth(tmp_path) == pytest.approx(gb_s)


def test_without_a_record_the_bandwidth_is_unknown(tmp_path: Path) -> None:
    assert read_host_bandwidth(tmp_path) is None
    assert sum_bandwidth(parse_udev("E:MEMORY_DEVICE_0_LOCATOR=DIMM 0\nE:MEMORY_DEVICE_0_DATA_WIDTH=64")) is None


def smbios_module(size: int, width: int, rate: int, place: str, bank: str) -> bytes:
    fixed = bytearray(0x22)
    struct.pack_into("<BBH", fixed, 0, 17, len(fixed), 0x42)
    struct.pack_into("<HHH", fixed, 0x08, width, width, size)
    fixed[0x10], fixed[0x11] = 1, 2
    struct.pack_into("<H", fixed, 0x15, 6_400)
    struct.pack_into("<H", fixed, 0x20, rate)
    return bytes(fixed) + place.encode() + b"\0" + bank.encode() + b"\0\0"


def test_the_firmwares_table_lists_modules_and_empty_places() -> None:
    other, end = bytes([1, 4, 0, 0]) + b"Vendor\0\0", bytes([127, 4, 0, 0, 0, 0])
    table = (
        other
        + smbios_module(16_384, 64, 6_000, "DIMM_A2", "P0 CHANNEL A")
        + smbios_module(0, 0, 0, "DIMM_B1", "P0 CHANNEL B")
        + smbios_module(16_384, 64, 6_000, "DIMM_B2", "P0 CHANNEL B")
        + end
    )
    modules = list(parse_smbios(table))
    assert modules[0] == MemoryModule(64, 6_000, "P0 CHANNEL A DIMM_A2")
    assert sum_bandwidth(modules) == pytest.approx(96.0)
    for cut in range(len(table)):  # a damaged table yields what is before the damage
        assert len(list(parse_smbios(table[:cut]))) <= len(modules)
