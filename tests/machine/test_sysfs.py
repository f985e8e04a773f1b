"""AMD and Intel GPUs, and what sleeps, read from trees like those of real kernels."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.machine.amd import AmdGpus
from launcher.machine.gpu import ASLEEP, GONE, READINGS, TOO_SHORT, Gpu, Reading
from launcher.machine.intel import IntelGpus
from launcher.machine.sysfs import has_small_bar, list_pci_gpus
from tests.machine.conftest import pci_card, write

GIB, MIB = 2**30, 2**20
RX_7900, PHOENIX, ARC_B580, ARC_A770, IRIS = 0x744C, 0x15BF, 0xE20B, 0x56A0, 0x46A6
PCI_IDS = """\
# a list
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t15bf  Phoenix1
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]
\t\t1002 0e3b  a subsystem
10de  NVIDIA Corporation
\t744c  not AMD's
8086  Intel Corporation
\te20b  Battlemage G21 [Arc B580]
"""
CARD = {
    "mem_info_vram_total": str(24 * GIB),
    "mem_info_vram_used": str(2 * GIB),
    "mem_info_gtt_total": str(31 * GIB),
    "mem_info_gtt_used": str(MIB),
    "gpu_busy_percent": "37",
    "gpu_metrics": struct.pack("<HBB", 120, 1, 3) + bytes(116),
    "hwmon/hwmon5/temp1_input": "61000",
    "hwmon/hwmon5/power1_average": "303000000",
    "hwmon/hwmon5/power1_cap": "339000000",
    "hwmon/hwmon5/freq1_input": "2305000000",
    "hwmon/hwmon5/freq2_input": "1249000000",
    "drm/card1/card1-DP-1/enabled": "enabled",
    "drm/card1/card1-DP-2/enabled": "disabled",
}
APU = {
    "mem_info_vram_total": str(GIB),
    "mem_info_vram_used": str(GIB // 2),
    "mem_info_gtt_total": str(14 * GIB),
    "mem_info_gtt_used": str(GIB),
    "gpu_metrics": struct.pack("<HBB", 264, 3, 0) + bytes(260),
    "hwmon/hwmon2/power1_input": "9000000",
}
ARC = {
    "drm/card0/card0-HDMI-A-1/enabled": "disabled",
    "hwmon/hwmon3/energy1_input": "5000000",
    "hwmon/hwmon3/energy1_label": "card",
    "hwmon/hwmon3/energy2_input": "1000000",
    "hwmon/hwmon3/energy2_label": "pkg",
    "hwmon/hwmon3/temp2_input": "48000",
    "hwmon/hwmon3/temp2_label": "pkg",
    "hwmon/hwmon3/temp3_input": "52000",
    "hwmon/hwmon3/temp3_label": "vram",
    "hwmon/hwmon3/power1_max": "190000000",
    "tile0/gt0/freq0/act_freq": "2850",
    "tile0/physical_vram_size_bytes": hex(12 * GIB),
}


def amd(root: Path, *, wake: bool = False) -> AmdGpus:
    return AmdGpus([card for card in list_pci_gpus(root) if card.vendor == "amd"], wake=wake)


def intel(root: Path, times: Sequence[float] = (0.0,)) -> IntelGpus:
    clock = iter(times)
    return IntelGpus([card for card in list_pci_gpus(root) if card.vendor == "intel"], clock=lambda: next(clock))


def known_fields(gpu: Gpu) -> dict[str, object]:
    """Return the fields that have a value; each of the others must have a reason."""
    fields = {name: getattr(gpu, name) for name in Gpu.__slots__ if name != "absent"}
    unknown = {name for name, value in fields.items() if value is None}
    assert set(gpu.absent) == unknown
    assert all(reason.endswith(".") for reason in gpu.absent.values())
    return {name: value for name, value in fields.items() if value is not None}


class TestBus:
    def test_only_gpus_of_three_makers_are_listed(self, root: Path) -> None:
        pci_card(root, "0000:00:01.0", (0x1234, 0x1111), "bochs-drm")  # a virtual machine's display
        pci_card(root, "0000:00:1f.3", (0x8086, 0x7AD0), "snd_hda_intel", kind="0x040300")  # sound
        pci_card(root, "0000:00:0b.0", (0x8086, 0x7D1D), "intel_vpu", kind="0x120000")  # an NPU
        pci_card(root, "0000:83:00.0", (0x1002, 0x74A1), "amdgpu", kind="0x120000")  # an Instinct
        pci_card(root, "0000:01:00.0", (0x10DE, 0x2684), None, kind="0x030200")  # a card without outputs
        assert [(card.vendor, card.address) for card in list_pci_gpus(root)] == [
            ("nvidia", "0000:01:00.0"),
            ("amd", "0000:83:00.0"),
        ]

    def test_names_come_from_the_pci_id_database(self, root: Path) -> None:
        write(root, {"usr/share/misc/pci.ids": PCI_IDS})
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu")
        pci_card(root, "0000:04:00.0", (0x1002, PHOENIX), "amdgpu")
        pci_card(root, "0000:05:00.0", (0x8086, ARC_B580), "xe")
        pci_card(root, "0000:06:00.0", (0x8086, 0x1234), "xe")
        assert [card.name for card in list_pci_gpus(root)] == [
            "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M",
            "AMD Phoenix1",
            "Intel Arc B580",
            "Intel GPU 0x1234",
        ]

    def test_without_a_pci_bus_nothing_is_listed(self, root: Path) -> None:
        assert list_pci_gpus(root) == ()
        assert amd(root).no_gpu_reason == "The kernel lists no AMD GPU with the amdgpu driver."
        assert intel(root).no_gpu_reason == "The kernel lists no Intel GPU with the i915 or xe driver."

    @pytest.mark.parametrize(
        "broken", [{"class": "no number"}, {"device": ""}, {"vendor": "0x"}], ids=["class", "device", "vendor"]
    )
    def test_a_device_without_an_id_is_skipped(self, root: Path, broken: dict[str, str | bytes]) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", broken)
        assert list_pci_gpus(root) == ()


class TestAmd:
    def test_host_memory_used_by_a_dedicated_card_is_reported(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD)
        pci_card(root, "0000:c4:00.0", (0x1002, PHOENIX), "amdgpu", APU)
        source = amd(root)
        assert [source.sample_slow_readings(gpu) for gpu in source.read_gpus()] == [{"gtt_used_mib": Reading(1.0)}, {}]

    def test_a_card_is_described(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD)
        source = amd(root)
        assert (source.no_gpu_reason, source.failures) == (None, ())
        (gpu,) = source.read_gpus()
        assert known_fields(gpu) == {
            "vendor": "amd",
            "index": 0,
            "name": "AMD GPU 0x744c",
            "id": "0000:03:00.0",
            "memory_bytes": 24 * GIB,
            "used_bytes": 2 * GIB,
            "free_bytes": 22 * GIB,
            "driver": "amdgpu",
            "bus_id": "0000:03:00.0",
            "unified": False,
            "carve_out_free_bytes": 0,
            "small_bar": False,
            "asleep": False,
            "display_active": True,
        }
        assert gpu.absent["cuda_version"] == "Only NVIDIA GPUs have one."

    def test_a_card_is_read(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD)
        source = amd(root)
        assert source.sample(source.read_gpus()[0]) == {
            "gpu_temperature_c": Reading(61.0),
            "gpu_power_w": Reading(303.0),
            "gpu_power_limit_w": Reading(339.0),
            "gpu_clock_mhz": Reading(2305.0),
            "gpu_memory_clock_mhz": Reading(1249.0),
            "vram_used_mib": Reading(2048.0),
            "gpu_use_percent": Reading(37.0),
        }

    def test_an_apu_has_its_reserved_memory_and_its_share_of_host_memory(self, root: Path) -> None:
        pci_card(root, "0000:c4:00.0", (0x1002, PHOENIX), "amdgpu", APU)
        source = amd(root)
        (gpu,) = source.read_gpus()
        assert (gpu.unified, gpu.memory_bytes, gpu.free_bytes) == (True, 15 * GIB, 15 * GIB - 3 * GIB // 2)
        assert gpu.carve_out_free_bytes == GIB // 2
        readings = source.sample(gpu)
        assert readings["gpu_power_w"] == Reading(9.0)
        assert readings["gpu_temperature_c"] == Reading.unknown("The amdgpu driver does not report it.")

    @pytest.mark.parametrize("vram_gib", [0, 128], ids=["no memory of its own", "all of the host's"])
    def test_an_mi300a_has_what_it_may_use_of_the_hosts_memory(self, root: Path, vram_gib: int) -> None:
        sizes = {"mem_info_vram_total": str(vram_gib * GIB), "mem_info_vram_used": "0"}
        sizes |= {"mem_info_gtt_total": str(126 * GIB), "mem_info_gtt_used": str(GIB)}
        metrics = {"gpu_metrics": struct.pack("<HBB", 120, 1, 6) + bytes(116)}
        pci_card(root, "0000:01:00.0", (0x1002, 0x74A0), "amdgpu", sizes | metrics, kind="0x120000")
        (gpu,) = AmdGpus(list_pci_gpus(root)).read_gpus()
        assert (gpu.unified, gpu.carve_out_free_bytes) == (True, 0)
        assert (gpu.memory_bytes, gpu.free_bytes) == (126 * GIB, 125 * GIB)

    def test_an_old_apu_is_recognised_by_its_second_voltage(self, root: Path) -> None:
        files = {name: content for name, content in APU.items() if name != "gpu_metrics"}
        pci_card(root, "0000:05:00.0", (0x1002, 0x15D8), "amdgpu", files | {"hwmon/hwmon2/in1_label": "vddnb"})
        assert amd(root).read_gpus()[0].unified is True

    def test_the_name_stored_on_the_card_comes_first(self, root: Path) -> None:
        write(root, {"usr/share/hwdata/pci.ids": PCI_IDS})
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", {"product_name": "Radeon PRO W7900"})
        pci_card(root, "0000:04:00.0", (0x1002, RX_7900), "amdgpu", {"product_name": ""})
        assert [gpu.name for gpu in amd(root).read_gpus()] == [
            "AMD Radeon PRO W7900",
            "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M",
        ]

    def test_values_that_the_driver_does_not_show_are_unknown(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", {"mem_info_vram_total": str(24 * GIB)})
        source = amd(root)
        (gpu,) = source.read_gpus()
        assert (gpu.memory_bytes, gpu.used_bytes, gpu.free_bytes, gpu.unified) == (24 * GIB, None, None, None)
        assert known_fields(gpu)
        assert {reading.value for reading in source.sample(gpu).values()} == {None}

    def test_a_sleeping_card_is_listed_without_reading_its_driver_files(self, root: Path) -> None:
        folder = pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD, status="suspended", control="auto")
        for name in ("mem_info_vram_total", "gpu_metrics", "gpu_busy_percent", "hwmon/hwmon5/temp1_input"):
            (folder / name).unlink()
            (folder / name).mkdir()  # a folder: reading it would fail with another reason
        source = amd(root)
        (gpu,) = source.read_gpus()
        assert gpu.asleep
        assert gpu.absent["memory_bytes"] == ASLEEP
        assert set(source.sample(gpu)) == set(READINGS)
        assert set(source.sample(gpu).values()) == {Reading.unknown(ASLEEP)}
        assert known_fields(gpu)

    def test_a_sleeping_card_is_read_on_request(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD, status="suspended", control="auto")
        source = amd(root, wake=True)
        assert source.read_gpus()[0].memory_bytes == 24 * GIB
        assert source.sample(source.read_gpus()[0])["gpu_temperature_c"] == Reading(61.0)

    def test_a_card_with_another_driver_is_not_listed(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "vfio-pci", CARD)
        assert amd(root).read_gpus() == ()

    def test_a_removed_card_is_reported_as_gone(self, root: Path) -> None:
        pci_card(root, "0000:03:00.0", (0x1002, RX_7900), "amdgpu", CARD)
        (gpu,) = amd(root).read_gpus()
        assert set(AmdGpus([]).sample(gpu).values()) == {Reading.unknown(GONE)}


class TestIntel:
    def test_a_card_with_the_xe_driver_is_read(self, root: Path) -> None:
        write(root, {"usr/share/misc/pci.ids": PCI_IDS})
        pci_card(root, "0000:03:00.0", (0x8086, ARC_B580), "xe", ARC)
        (gpu,) = intel(root).read_gpus()
        assert known_fields(gpu) == {
            "vendor": "intel",
            "index": 0,
            "name": "Intel Arc B580",
            "id": "0000:03:00.0",
            "memory_bytes": 12 * GIB,
            "driver": "xe",
            "bus_id": "0000:03:00.0",
            "unified": False,
            "carve_out_free_bytes": 0,
            "small_bar": False,
            "asleep": False,
            "display_active": False,
        }
        assert gpu.absent["free_bytes"] == "The xe driver does not report it."

    def test_power_is_derived_from_the_energy_counter(self, root: Path) -> None:
        folder = pci_card(root, "0000:03:00.0", (0x8086, ARC_B580), "xe", ARC)
        source = intel(root, (10.0, 10.01, 12.0, 14.0))
        (gpu,) = source.read_gpus()
        first = source.sample(gpu)
        assert first["gpu_power_w"] == Reading.unknown(TOO_SHORT)
        assert first["gpu_temperature_c"] == Reading(48.0)  # the package's, not the memory's
        assert first["gpu_power_limit_w"] == Reading(190.0)
        assert first["gpu_clock_mhz"] == Reading(2850.0)
        assert first["vram_used_mib"] == Reading.unknown("The xe driver does not report it.")
        write(folder, {"hwmon/hwmon3/energy1_input": "245000000"})
        assert source.sample(gpu)["gpu_power_w"] == Reading.unknown(TOO_SHORT)  # 10 ms later
        assert source.sample(gpu)["gpu_power_w"] == Reading(pytest.approx(120.0))  # 240 J in 2 s
        write(folder, {"hwmon/hwmon3/energy1_input": "1000"})
        assert source.sample(gpu)["gpu_power_w"] == Reading.unknown(TOO_SHORT)  # the counter started over

    def test_a_card_with_the_i915_driver_is_read(self, root: Path) -> None:
        files: dict[str, str | bytes] = {
            "drm/card1/lmem_total_bytes": str(16 * GIB),
            "drm/card1/lmem_avail_bytes": str(15 * GIB),
            "drm/card1/gt_act_freq_mhz": "2400",
        }
        pci_card(root, "0000:03:00.0", (0x8086, ARC_A770), "i915", files)
        source = intel(root)
        (gpu,) = source.read_gpus()
        assert (gpu.memory_bytes, gpu.used_bytes, gpu.free_bytes) == (16 * GIB, GIB, 15 * GIB)
        readings = source.sample(gpu)
        assert readings["vram_used_mib"] == Reading(1024.0)
        assert readings["gpu_clock_mhz"] == Reading(2400.0)
        assert readings["gpu_power_w"] == Reading.unknown("The i915 driver does not report it.")

    def test_an_integrated_gpu_shares_host_memory(self, root: Path) -> None:
        pci_card(root, "0000:00:02.0", (0x8086, IRIS), "i915")
        source = intel(root)
        (gpu,) = source.read_gpus()
        assert gpu.unified is True
        assert gpu.absent["memory_bytes"] == "It shares system memory."
        assert source.sample(gpu)["vram_used_mib"] == Reading.unknown("It shares system memory.")
        assert source.read_activity(gpu).absent["processes"] == "The i915 driver does not report it."
        assert known_fields(gpu)


def regions(*sizes: int) -> str:
    """The file `resource` for regions of these sizes, of which the kernel maps none of size 0, and for the ROM."""
    lines = [f"{2**40 * (at + 1):#018x} {2**40 * (at + 1) + size - 1:#018x} 0x14220c" for at, size in enumerate(sizes)]
    none = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
    lines = [line if size else none for line, size in zip(lines, sizes, strict=True)]
    return "\n".join([*lines, *[none] * (6 - len(sizes)), f"{2**50:#018x} {2**50 + 2**17 - 1:#018x} 0x46200"])


@pytest.mark.parametrize(("sizes", "small"), [((2**28, 0, 2**21), True), ((2**35, 0, 2**21), False), ((), False)])
def test_resizable_bar_is_derived_from_the_region_size(root: Path, sizes: tuple[int, ...], small: bool) -> None:
    files = {"resource": regions(*sizes)} if sizes else {}
    pci_card(root, "0000:03:00.0", (0x1002, 0x744C), "amdgpu", CARD | files)
    pci_card(root, "0000:04:00.0", (0x8086, 0xE20B), "xe", ARC | files)
    found = [
        *amd(root).read_gpus(),
        *IntelGpus([card for card in list_pci_gpus(root) if card.vendor == "intel"]).read_gpus(),
    ]
    assert [gpu.small_bar for gpu in found] == [small, small]
    assert has_small_bar(root) == small


def test_an_older_nvidia_card_cannot_resize_its_region(root: Path) -> None:
    folder = pci_card(root, "0000:01:00.0", (0x10DE, 0x1B06), "nvidia", {"resource": regions(2**24, 2**28)})
    (card,) = list_pci_gpus(root)
    assert not card.has_small_bar
    (folder / "resource1_resize").write_text("00000000000000c0")
    assert card.has_small_bar
    (folder / "resource").write_text("no regions")
    assert not card.has_small_bar
