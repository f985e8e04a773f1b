"""GPUs from all sources together, in processes with or without a fake NVML library."""

import struct
from pathlib import Path
from typing import Any

from launcher.machine.gpu import READINGS
from tests.machine.conftest import ask_driver, pci_card, write

GIB = 2**30
NOT_LOADED = 9
FIND = """
import json, os
from dataclasses import asdict
from pathlib import Path
from launcher.machine.gpus import find_gpus, read_gpu_states
root = Path(os.environ["STUB_ROOT"])
found = find_gpus(root=root)
states = read_gpu_states(found.gpus, root=root)
print(json.dumps(asdict(found) | {
    "none_because": found.no_gpu_reason,
    "inspected": {id_: [readings, asdict(activity)] for id_, (readings, activity) in states.items()},
}))
"""
WATCH = """
import ctypes, json, os
from pathlib import Path
from launcher.machine.gpus import GpuSensors
root = Path(os.environ["STUB_ROOT"])
status = next(iter(root.glob("sys/bus/pci/devices/*/power/runtime_status")), None)
opened = lambda: (
    ctypes.c_int.in_dll(ctypes.CDLL(os.environ["STUB_LIBRARY"]), "stub_open_count").value
    if os.environ["STUB_LIBRARY"] else None
)
sensors = GpuSensors(root)
samples = []
for runs in (False, True, True, False, True):
    samples.append([sensors.sample(engine_runs=runs), opened()])
sensors.close()
print(json.dumps({"samples": samples, "open": opened()}))
"""
NVIDIA, AMD, INTEL = (0x10DE, 0x2684), (0x1002, 0x744C), (0x8086, 0x46A6)
AMD_FILES: dict[str, str | bytes] = {
    "mem_info_vram_total": str(16 * GIB),
    "mem_info_vram_used": str(GIB),
    "gpu_metrics": struct.pack("<HBB", 120, 1, 3),
    "hwmon/hwmon1/temp1_input": "44000",
}
LEFT_ALONE = "Not read while no engine is running, so that the GPU can sleep."


def find(folder: Path, root: Path, **answers: object) -> dict[str, Any]:
    found: dict[str, Any] = ask_driver(FIND, folder, root, **answers)
    return found


class TestFind:
    def test_gpus_of_all_vendors_are_listed_with_integrated_ones_last(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:00:02.0", INTEL, "i915")
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia")
        pci_card(root, "0000:03:00.0", AMD, "amdgpu", AMD_FILES)
        found = find(driver, root)
        assert [(gpu["vendor"], gpu["index"], gpu["unified"]) for gpu in found["gpus"]] == [
            ("nvidia", 0, False),
            ("amd", 0, False),
            ("intel", 0, True),
        ]
        assert (found["absent"], found["failures"], found["unusable_cards"]) == ({}, [], [])
        assert found["none_because"] is None
        readings, activity = found["inspected"]["GPU-zero"]
        assert readings["gpu_power_w"] == [312.5, None]
        assert activity["throttled_by"] == []
        assert found["inspected"]["0000:03:00.0"][0]["gpu_temperature_c"] == [44.0, None]

    def test_without_any_gpu_the_reason_is_given(self, no_driver: Path, root: Path) -> None:
        found = find(no_driver, root)
        assert found["gpus"] == []
        assert found["none_because"] == "No NVIDIA driver is installed."
        assert set(found["absent"]) == {"nvidia", "amd", "intel"}

    def test_a_lost_card_is_reported_beside_one_that_answers(self, driver: Path, root: Path) -> None:
        found = find(driver, root, GPUS=2, LOST=1)
        assert [gpu["id"] for gpu in found["gpus"]] == ["GPU-zero"]
        assert found["failures"] == ["NVIDIA GPU 1: The GPU stopped answering: restart the computer."]


class TestUnusableCards:
    def test_an_nvidia_card_without_a_driver_is_reported(self, no_driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, None)
        found = find(no_driver, root)
        assert found["unusable_cards"] == [
            {
                "vendor": "nvidia",
                "name": "NVIDIA GPU 0x2684",
                "bus_id": "0000:01:00.0",
                "kernel_driver": None,
                "reason": "No driver is loaded for it.",
            }
        ]
        assert found["none_because"] == "The NVIDIA GPU 0x2684 cannot be used: No driver is loaded for it."

    def test_a_container_lists_only_its_own_cards(self, no_driver: Path, root: Path) -> None:
        write(root, {"run/.containerenv": "", "dev/dri/renderD129": ""})
        pci_card(root, "0000:00:02.0", INTEL, "i915", {"drm/renderD128/dev": "226:128"})
        pci_card(root, "0000:03:00.0", AMD, "amdgpu", AMD_FILES | {"drm/renderD129/dev": "226:129"})
        pci_card(root, "0000:04:00.0", AMD, "amdgpu", AMD_FILES | {"drm/renderD130/dev": "226:130"})
        found = find(no_driver, root)
        assert [gpu["id"] for gpu in found["gpus"]] == ["0000:03:00.0"]
        why = "This container was not given its device below /dev/dri."
        assert [(card["bus_id"], card["reason"]) for card in found["unusable_cards"]] == [
            ("0000:00:02.0", why),
            ("0000:04:00.0", why),
        ]
        assert found["absent"] == {"nvidia": "No NVIDIA driver is installed.", "intel": why}

    def test_cards_with_an_unsupported_driver_are_reported(self, no_driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nouveau")
        pci_card(root, "0000:03:00.0", AMD, "vfio-pci")
        assert [card["reason"] for card in find(no_driver, root)["unusable_cards"]] == [
            "It uses the driver nouveau, which no engine supports.",
            "It uses the driver vfio-pci, which no engine supports.",
        ]

    def test_an_nvidia_card_with_a_broken_driver_is_reported(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia")
        found = find(driver, root, nvmlInitWithFlags=NOT_LOADED)
        assert [card["reason"] for card in found["unusable_cards"]] == [
            "The NVIDIA driver is installed but not loaded."
        ]

    def test_cards_outside_a_container_are_not_reported_as_unusable(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia")
        pci_card(root, "0000:41:00.0", NVIDIA, "nvidia")
        found = find(driver, root, GPUS=1)
        assert (len(found["gpus"]), found["unusable_cards"]) == (1, [])

    def test_a_sleeping_card_is_not_reported_as_unusable(self, no_driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia", status="suspended", control="auto")
        found = find(no_driver, root)
        assert (found["unusable_cards"], [gpu["asleep"] for gpu in found["gpus"]]) == ([], [True])


class TestWatch:
    def test_a_gpu_that_may_sleep_is_read_only_while_an_engine_runs(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia", status="suspended", control="auto")
        watched = ask_driver(WATCH, driver, root)
        alone = {name: [None, LEFT_ALONE] for name in READINGS}
        temperatures = [readings["gpu_temperature_c"] for readings, _ in watched["samples"]]
        assert temperatures == [[None, LEFT_ALONE], [61, None], [61, None], [None, LEFT_ALONE], [61, None]]
        assert watched["samples"][0][0] == watched["samples"][3][0] == alone
        assert [count for _, count in watched["samples"]] == [0, 1, 1, 0, 1]  # an open library would keep it awake
        assert watched["open"] == 0

    def test_a_gpu_with_an_active_display_is_always_read(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:01:00.0", NVIDIA, "nvidia", control="auto")
        watched = ask_driver(WATCH, driver, root)
        assert {readings["gpu_temperature_c"][0] for readings, _ in watched["samples"]} == {61}

    def test_a_gpu_without_power_management_is_always_read(self, driver: Path, root: Path) -> None:
        watched = ask_driver(WATCH, driver, root, nvmlDeviceGetDisplayActive=3)
        assert {readings["gpu_temperature_c"][0] for readings, _ in watched["samples"]} == {61}
        assert watched["open"] == 0

    def test_an_amd_card_is_sampled(self, no_driver: Path, root: Path) -> None:
        pci_card(root, "0000:03:00.0", AMD, "amdgpu", AMD_FILES)
        watched = ask_driver(WATCH, no_driver, root)
        assert {tuple(readings["gpu_temperature_c"]) for readings, _ in watched["samples"]} == {(44.0, None)}

    def test_without_a_gpu_each_reading_has_the_reason(self, no_driver: Path, root: Path) -> None:
        watched = ask_driver(WATCH, no_driver, root)
        reason = "No NVIDIA driver is installed."
        assert watched["samples"][1][0] == {name: [None, reason] for name in READINGS}

    def test_the_larger_of_two_gpus_is_sampled(self, driver: Path, root: Path) -> None:
        pci_card(root, "0000:00:02.0", INTEL, "i915")
        write(root / "sys/bus/pci/devices/0000:00:02.0", {"drm/card0/gt_act_freq_mhz": "300"})
        watched = ask_driver(WATCH, driver, root)
        assert watched["samples"][1][0]["gpu_clock_mhz"] == [2520, None]
