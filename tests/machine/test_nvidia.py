"""NVIDIA cards through the real pynvml, with a small NVML library compiled here in the driver's place."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.machine.gpu import ASLEEP, READINGS
from tests.machine.conftest import SONAME, ask_driver, pci_card, write

LOOK = """
import ctypes, json, os, sys
from dataclasses import asdict
from pathlib import Path
from launcher.machine.nvidia import Nvml
from launcher.machine.sysfs import list_pci_gpus
root = Path(os.environ["STUB_ROOT"])
nvml = Nvml(list_pci_gpus(root), wake=bool(os.environ.get("STUB_WAKE")), root=root)
said = {"no_gpu_reason": nvml.no_gpu_reason, "failures": nvml.failures, "opened": "pynvml" in sys.modules}
gpus = nvml.read_gpus()
said["gpus"] = [asdict(gpu) for gpu in gpus]
said["readings"] = {gpu.index: nvml.sample(gpu) for gpu in gpus}
said["slow_readings"] = {gpu.index: nvml.sample_slow_readings(gpu) for gpu in gpus}
said["activity"] = {gpu.index: asdict(nvml.read_activity(gpu)) for gpu in gpus}
os.environ["STUB_LOST"] = "0"
said["lost"] = {gpu.index: nvml.sample(gpu) for gpu in gpus}
said["gpus_with_one_lost"] = [asdict(gpu) for gpu in nvml.read_gpus()]
nvml.close()
nvml.close()
if os.environ["STUB_LIBRARY"]:
    said["still_open"] = ctypes.c_int.in_dll(ctypes.CDLL(os.environ["STUB_LIBRARY"]), "stub_open_count").value
print(json.dumps(said))
"""
NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, GPU_IS_LOST, MISMATCH, UNKNOWN_CODE = 3, 4, 9, 15, 18, 77
LOST_DEVICES = 999
UNSUPPORTED = "This card or driver does not report it."
TOO_OLD = "This NVIDIA driver is too old to report it."
LOST = "The GPU stopped answering: restart the computer."
GIB = 2**30
FIRST, SECOND = "0000:01:00.0", "0000:41:00.0"
RTX_4090 = (0x10DE, 0x2684)


def read_driver(folder: Path | None, root: Path = Path("/nowhere"), **answers: object) -> dict[str, Any]:
    """Return the readings of Nvml in a process that finds the library of `folder`."""
    readings: dict[str, Any] = ask_driver(LOOK, folder, root, **answers)
    return readings


class TestNoCard:
    def test_no_library_means_no_driver(self, no_driver: Path) -> None:
        readings = read_driver(no_driver)
        assert readings["no_gpu_reason"] == "No NVIDIA driver is installed."
        assert readings["gpus"] == []

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (NOT_LOADED, "The NVIDIA driver is installed but not loaded."),
            (MISMATCH, "The NVIDIA driver was updated: restart the computer."),
            (NO_PERMISSION, "The NVIDIA driver answered: Insufficient Permissions."),
            (UNKNOWN_CODE, "The NVIDIA driver answered: NVML Error with code 77."),
        ],
    )
    def test_a_driver_that_fails_to_start_is_explained(self, driver: Path, code: int, reason: str) -> None:
        readings = read_driver(driver, nvmlInitWithFlags=code)
        assert (readings["no_gpu_reason"], readings["gpus"], readings["still_open"]) == (reason, [], 0)

    def test_a_container_that_lost_its_gpu_is_told_to_be_started_again(self, driver: Path, root: Path) -> None:
        in_container = root / ".dockerenv"
        in_container.touch()
        assert "start the container again" in read_driver(driver, root, nvmlInitWithFlags=LOST_DEVICES)["no_gpu_reason"]
        in_container.unlink()
        answer = read_driver(driver, root, nvmlInitWithFlags=LOST_DEVICES)["no_gpu_reason"]
        assert answer == "The NVIDIA driver answered: Unknown Error."

    def test_a_driver_without_a_card_is_explained(self, driver: Path) -> None:
        readings = read_driver(driver, GPUS=0)
        assert (readings["no_gpu_reason"], readings["gpus"], readings["still_open"]) == (
            "The NVIDIA driver lists no GPU.",
            [],
            0,
        )

    def test_a_driver_that_fails_to_count_cards_is_explained(self, driver: Path) -> None:
        readings = read_driver(driver, nvmlDeviceGetCount_v2=NO_PERMISSION)
        assert readings["no_gpu_reason"] == "The NVIDIA driver answered: Insufficient Permissions."

    def test_a_lost_only_card_is_explained(self, driver: Path) -> None:
        readings = read_driver(driver, LOST=0)
        assert (readings["no_gpu_reason"], readings["gpus"], readings["still_open"]) == (LOST, [], 0)
        assert readings["failures"] == [f"NVIDIA GPU 0: {LOST}"]


class TestCards:
    def test_a_card_is_described(self, driver: Path) -> None:
        readings = read_driver(driver)
        assert (readings["no_gpu_reason"], readings["failures"]) == (None, [])
        assert readings["gpus"] == [
            {
                "vendor": "nvidia",
                "index": 0,
                "name": "NVIDIA Stub 24GB",
                "id": "GPU-zero",
                "memory_bytes": 24 * GIB,
                "used_bytes": 6 * GIB - 482 * 2**20,
                "free_bytes": 18 * GIB,
                "reserved_bytes": 482 * 2**20,
                "driver": "580.65.06",
                "cuda_version": "13.1",
                "compute_capability": [8, 9],
                "bus_id": FIRST,
                "memory_bandwidth_gb_s": pytest.approx(1008, rel=1e-3),  # what the maker states for 10501 MHz, 384 bits
                "unified": False,
                "carve_out_free_bytes": 0,
                "small_bar": False,
                "asleep": False,
                "display_active": True,
                "absent": {},
            }
        ]

    def test_a_card_is_read(self, driver: Path) -> None:
        assert read_driver(driver)["readings"]["0"] == {
            "gpu_temperature_c": [61, None],
            "gpu_power_w": [312.5, None],
            "gpu_power_limit_w": [450, None],
            "gpu_clock_mhz": [2520, None],
            "gpu_memory_clock_mhz": [10501, None],
            "vram_used_mib": [6144 - 482, None],
            "gpu_use_percent": [87, None],
        }

    def test_two_cards_are_distinguished(self, driver: Path) -> None:
        gpus = read_driver(driver, GPUS=2)["gpus"]
        assert [(gpu["index"], gpu["id"], gpu["bus_id"]) for gpu in gpus] == [
            (0, "GPU-zero", FIRST),
            (1, "GPU-one", SECOND),
        ]
        assert [gpu["display_active"] for gpu in gpus] == [True, False]

    @pytest.mark.parametrize(
        ("function", "unknown"),
        [
            ("nvmlDeviceGetUtilizationRates", {"gpu_use_percent"}),
            ("nvmlDeviceGetPowerUsage", {"gpu_power_w"}),
            ("nvmlDeviceGetEnforcedPowerLimit", {"gpu_power_limit_w"}),
            ("nvmlDeviceGetTemperature", {"gpu_temperature_c"}),
            ("nvmlDeviceGetClockInfo", {"gpu_clock_mhz", "gpu_memory_clock_mhz"}),
        ],
    )
    def test_a_reading_that_a_card_does_not_report_is_unknown_while_others_are_read(
        self, driver: Path, function: str, unknown: set[str]
    ) -> None:
        readings = read_driver(driver, **{function: NOT_SUPPORTED})["readings"]["0"]
        assert set(readings) == set(READINGS)
        assert {name for name, reading in readings.items() if reading == [None, UNSUPPORTED]} == unknown
        assert all(value is not None for name, (value, _) in readings.items() if name not in unknown)

    @pytest.mark.parametrize(
        ("function", "unknown"),
        [
            ("nvmlSystemGetDriverVersion", {"driver"}),
            ("nvmlSystemGetCudaDriverVersion_v2", {"cuda_version"}),
            ("nvmlDeviceGetCudaComputeCapability", {"compute_capability"}),
            ("nvmlDeviceGetPciInfo_v3", {"bus_id"}),
            ("nvmlDeviceGetMemoryBusWidth", {"memory_bandwidth_gb_s"}),
            ("nvmlDeviceGetMaxClockInfo", {"memory_bandwidth_gb_s"}),
            ("nvmlDeviceGetDisplayActive", {"display_active"}),
            ("nvmlDeviceGetMemoryInfo_v2", {"reserved_bytes"}),
        ],
    )
    def test_a_fact_that_a_card_does_not_report_is_unknown_while_others_are_read(
        self, driver: Path, function: str, unknown: set[str]
    ) -> None:
        (gpu,) = read_driver(driver, **{function: NOT_SUPPORTED})["gpus"]
        assert gpu["absent"] == dict.fromkeys(unknown, UNSUPPORTED)
        assert {name for name, value in gpu.items() if value is None} == unknown

    def test_unreported_memory_is_unknown_and_not_0(self, driver: Path) -> None:
        readings = read_driver(driver, nvmlDeviceGetMemoryInfo=NOT_SUPPORTED, nvmlDeviceGetMemoryInfo_v2=NOT_SUPPORTED)
        memory = {"memory_bytes", "used_bytes", "free_bytes", "reserved_bytes"}
        assert readings["gpus"][0]["absent"] == dict.fromkeys(memory, UNSUPPORTED)
        assert readings["readings"]["0"]["vram_used_mib"] == [None, UNSUPPORTED]

    def test_functions_missing_in_an_old_driver_leave_their_values_unknown(self, old_driver: Path) -> None:
        driver = read_driver(old_driver, REASONS=4)
        readings = driver["readings"]["0"]
        assert readings.pop("gpu_power_w") == [None, TOO_OLD]
        assert readings["vram_used_mib"] == [6144, None]  # the old function counts reserved memory as used
        assert all(absent is None for _, absent in readings.values())
        (gpu,) = driver["gpus"]
        assert gpu["absent"] == {"reserved_bytes": TOO_OLD}
        assert (gpu["used_bytes"], gpu["free_bytes"]) == (6 * GIB, 18 * GIB)
        assert driver["activity"]["0"]["throttled_by"] == ["power limit"]

    def test_a_card_without_a_name_is_listed(self, driver: Path) -> None:
        (gpu,) = read_driver(driver, nvmlDeviceGetName=NOT_SUPPORTED, nvmlDeviceGetUUID=NOT_SUPPORTED)["gpus"]
        assert (gpu["name"], gpu["id"]) == ("NVIDIA GPU 0", "index-0")

    def test_a_chip_with_shared_memory_is_recognised(self, driver: Path) -> None:
        (gpu,) = read_driver(driver, NAME="NVIDIA GB10", nvmlDeviceGetMemoryInfo=NOT_SUPPORTED)["gpus"]
        assert gpu["unified"] is True

    def test_the_library_is_shut_down_once(self, driver: Path) -> None:
        assert read_driver(driver)["still_open"] == 0


class TestLost:
    def test_a_card_lost_while_sampled_is_unknown(self, driver: Path) -> None:
        readings = read_driver(driver)
        assert readings["lost"]["0"] == {name: [None, LOST] for name in READINGS}
        (gpu,) = readings["gpus_with_one_lost"]
        assert gpu["memory_bytes"] is None
        assert gpu["absent"]["memory_bytes"] == LOST

    def test_the_second_card_is_sampled_if_the_first_is_lost(self, driver: Path) -> None:
        readings = read_driver(driver, GPUS=2, LOST=0)
        assert (readings["no_gpu_reason"], readings["failures"]) == (None, [f"NVIDIA GPU 0: {LOST}"])
        assert [(gpu["id"], gpu["index"], gpu["absent"]) for gpu in readings["gpus"]] == [("GPU-one", 1, {})]
        assert readings["readings"]["1"]["gpu_use_percent"] == [87, None]


class TestTraffic:
    def test_pcie_traffic_is_in_mib(self, driver: Path) -> None:
        traffic = read_driver(driver)["slow_readings"]["0"]
        assert traffic == {"pcie_received_mib_s": [2000.0, None], "pcie_sent_mib_s": [1_024_000 / 2**20, None]}

    def test_a_driver_without_pcie_counters_is_explained(self, driver: Path) -> None:
        traffic = read_driver(driver, nvmlDeviceGetPcieThroughput=NOT_SUPPORTED)["slow_readings"]["0"]
        assert traffic["pcie_received_mib_s"] == [None, UNSUPPORTED]


class TestActivity:
    def test_an_idle_card_is_not_throttled(self, driver: Path) -> None:
        assert read_driver(driver)["activity"]["0"] == {"processes": [], "throttled_by": [], "absent": {}}

    def test_throttle_reasons_are_in_words(self, driver: Path) -> None:
        activity = read_driver(driver, REASONS=0x1 | 0x4 | 0x40)["activity"]["0"]
        assert activity["throttled_by"] == ["power limit", "temperature (hardware)"]

    def test_a_program_in_both_lists_is_one_and_unknown_memory_is_none(self, driver: Path) -> None:
        processes = read_driver(driver, PROCESSES=2)["activity"]["0"]["processes"]
        assert [(each["pid"], each["used_bytes"]) for each in processes] == [(1, 4 * GIB), (2, 4 * GIB), (3, None)]
        assert processes[0]["name"] == psutil.Process(1).name()

    def test_process_ids_in_a_container_are_not_resolved_to_names(self, driver: Path, root: Path) -> None:
        write(root, {".dockerenv": ""})
        (process,) = read_driver(driver, root, PROCESSES=1)["activity"]["0"]["processes"][:1]
        assert process == {"pid": 1, "name": None, "used_bytes": 4 * GIB}

    def test_one_of_two_process_lists_is_enough(self, driver: Path) -> None:
        result = read_driver(driver, PROCESSES=1, nvmlDeviceGetGraphicsRunningProcesses_v3=NOT_SUPPORTED)["activity"][
            "0"
        ]
        assert [each["pid"] for each in result["processes"]] == [1]
        assert result["absent"] == {}

    def test_a_driver_may_list_no_processes_as_in_wsl(self, driver: Path) -> None:
        readings = read_driver(
            driver,
            nvmlDeviceGetComputeRunningProcesses_v3=NOT_SUPPORTED,
            nvmlDeviceGetGraphicsRunningProcesses_v3=NOT_SUPPORTED,
            nvmlDeviceGetUtilizationRates=NOT_SUPPORTED,
            nvmlDeviceGetCurrentClocksEventReasons=NOT_SUPPORTED,
        )
        assert readings["activity"]["0"] == {
            "processes": None,
            "throttled_by": None,
            "absent": {"processes": UNSUPPORTED, "throttled_by": UNSUPPORTED},
        }
        assert readings["readings"]["0"]["gpu_use_percent"] == [None, UNSUPPORTED]
        assert readings["readings"]["0"]["gpu_temperature_c"] == [61, None]


class TestSubsystem:
    def test_the_library_of_wsl_is_found_in_its_windows_folder(self, driver: Path, root: Path) -> None:
        write(root, {"usr/lib/wsl/lib/libnvidia-ml.so.1": (driver / SONAME).read_bytes()})
        readings = read_driver(None, root)
        assert readings["no_gpu_reason"] is None
        assert readings["gpus"][0]["name"] == "NVIDIA Stub 24GB"


class TestSleep:
    def test_a_sleeping_card_is_listed_and_not_woken(self, driver: Path, root: Path, tmp_path: Path) -> None:
        pci_card(root, FIRST, RTX_4090, "nvidia", status="suspended", control="auto", kind="0x030200")
        write(root, {"sys/module/nvidia/version": "580.65.06"})
        write(root, {"usr/share/misc/pci.ids": "10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]"})
        readings = read_driver(driver, root, TOUCHED=tmp_path / "touched")
        assert (readings["no_gpu_reason"], readings["opened"], readings["still_open"]) == (None, False, 0)
        (gpu,) = readings["gpus"]
        known = {name: value for name, value in gpu.items() if value is not None and name != "absent"}
        assert known == {
            "vendor": "nvidia",
            "index": 0,
            "name": "NVIDIA GeForce RTX 4090",
            "id": FIRST,
            "driver": "580.65.06",
            "bus_id": FIRST,
            "carve_out_free_bytes": 0,
            "small_bar": False,
            "asleep": True,
        }
        assert gpu["absent"] == {name: ASLEEP for name, value in gpu.items() if value is None}
        assert readings["readings"]["0"] == {name: [None, ASLEEP] for name in READINGS}
        assert readings["activity"]["0"]["absent"] == {"processes": ASLEEP, "throttled_by": ASLEEP}
        assert not (tmp_path / "touched").exists()

    def test_a_sleeping_card_is_woken_on_request(self, driver: Path, root: Path, tmp_path: Path) -> None:
        pci_card(root, FIRST, RTX_4090, "nvidia", status="suspended", control="auto")
        readings = read_driver(driver, root, WAKE=1, TOUCHED=tmp_path / "touched")
        assert [(gpu["id"], gpu["asleep"], gpu["memory_bytes"]) for gpu in readings["gpus"]] == [
            ("GPU-zero", False, 24 * GIB)
        ]
        assert (tmp_path / "touched").read_text().split() == ["0"]

    def test_only_cards_that_are_awake_are_read(self, driver: Path, root: Path, tmp_path: Path) -> None:
        pci_card(root, FIRST, RTX_4090, "nvidia", status="suspended", control="auto")
        pci_card(root, SECOND, RTX_4090, "nvidia")
        readings = read_driver(driver, root, GPUS=2, TOUCHED=tmp_path / "touched")
        assert [(gpu["bus_id"], gpu["asleep"]) for gpu in readings["gpus"]] == [(SECOND, False), (FIRST, True)]
        assert len({gpu["index"] for gpu in readings["gpus"]}) == 2
        assert set((tmp_path / "touched").read_text().split()) == {"1"}


class TestSlices:
    """Partitioned GPUs (Multi-Instance GPU)."""

    def test_the_slices_of_a_gpu_take_its_place(self, partitioned_driver: Path) -> None:
        first, second = read_driver(partitioned_driver, MIG=2)["gpus"]
        assert (first["name"], first["id"], second["id"]) == ("NVIDIA Stub 24GB MIG 3g.10gb", "MIG-zero", "MIG-one")
        assert (first["memory_bytes"], first["free_bytes"]) == (9_728 << 20, 9_600 << 20)
        assert (first["compute_capability"], first["bus_id"]) == ([8, 9], "0000:01:00.0")
        assert first["memory_bandwidth_gb_s"] is None
        assert first["absent"]["memory_bandwidth_gb_s"] == "The driver reports it for the whole GPU only."
        assert (first["index"], second["index"]) == (0, 1)

    def test_the_sensors_of_a_slice_are_those_of_its_gpu(self, partitioned_driver: Path) -> None:
        readings = read_driver(partitioned_driver, MIG=1)["readings"]["0"]
        assert readings["gpu_temperature_c"] == [61.0, None]
        assert readings["vram_used_mib"] == [128.0, None]

    def test_a_partitioned_gpu_without_a_slice_has_no_memory_to_plan_with(self, partitioned_driver: Path) -> None:
        (found,) = read_driver(partitioned_driver, MIG=0)["gpus"]
        assert (found["name"], found["memory_bytes"], found["free_bytes"]) == ("NVIDIA Stub 24GB", None, None)
        assert found["absent"]["memory_bytes"].startswith("It is partitioned (MIG), and no slice of it was found here.")

    @pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
    @pytest.mark.parametrize("value", ["MIG-1f9a", "MIG-GPU-1f9a/3/0", "0:1"])
    def test_a_slice_named_by_a_variable_is_not_taken_for_the_whole_gpu(
        self, driver: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
    ) -> None:
        monkeypatch.setenv(variable, value)
        (found,) = read_driver(driver)["gpus"]
        assert found["memory_bytes"] is None
        assert found["absent"]["memory_bytes"].startswith(f"{variable} names a slice of it (MIG)")
        assert "--gpu-memory" in found["absent"]["memory_bytes"]

    def test_a_gpu_that_is_known_to_be_whole_stays_whole(
        self, partitioned_driver: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "MIG-1f9a")
        (found,) = read_driver(partitioned_driver)["gpus"]
        assert found["memory_bytes"] == 24 * GIB
