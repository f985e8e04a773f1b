"""NVIDIA cards through the real pynvml, with a small NVML library compiled here in the driver's place.

pynvml keeps the library for the life of its process, so each case has a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUB = Path(__file__).parents[1] / "fakes" / "nvml_stub.c"
SONAME = "libnvidia-ml.so.1"
LOOK = """
import ctypes, json, os
from launcher.machine.nvidia import Nvml
nvml = Nvml()
said = {"absent": nvml.absent, "gpus": [[g.index, g.name, g.uuid, g.memory_bytes, g.driver] for g in nvml.gpus]}
said["readings"] = {gpu.index: nvml.sample(gpu.index) for gpu in nvml.gpus}
os.environ["STUB_LOST"] = "0"
said["lost"] = {gpu.index: nvml.sample(gpu.index) for gpu in nvml.gpus}
nvml.close()
nvml.close()
if os.environ["STUB_LIBRARY"]:
    said["still_open"] = ctypes.c_int.in_dll(ctypes.CDLL(os.environ["STUB_LIBRARY"]), "stub_open_count").value
print(json.dumps(said))
"""
NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, GPU_IS_LOST, MISMATCH, UNKNOWN_CODE = 3, 4, 9, 15, 18, 77
NAMES = {
    "gpu_temperature_c",
    "gpu_power_w",
    "gpu_clock_mhz",
    "gpu_memory_clock_mhz",
    "vram_used_mib",
    "gpu_use_percent",
}
LOST = "The GPU stopped answering: restart the computer."


def compiled(folder: Path, *flags: str) -> Path:
    cc = shutil.which("cc")
    assert cc, "a C compiler is needed: ./test installs one"
    command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    subprocess.run([*command, "-o", folder / SONAME, STUB], check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library of a present driver."""
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that lacks a function."""
    return compiled(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER")


def look(folder: Path, **answers: object) -> dict[str, Any]:
    """Return what Nvml says in a process that finds the library of `folder`, with STUB_ variables for `answers`."""
    library = folder / SONAME
    variables = {f"STUB_{name}": str(answer) for name, answer in answers.items()}
    variables["LD_LIBRARY_PATH"] = str(folder)
    variables["STUB_LIBRARY"] = str(library) if library.exists() and library.stat().st_size else ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOOK],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


class TestNoCard:
    def test_no_library_means_no_driver(self, tmp_path: Path) -> None:
        (tmp_path / SONAME).touch()  # an empty file cannot be loaded, and hides one that this computer may have
        said = look(tmp_path)
        assert said["absent"] == "No NVIDIA driver is installed."
        assert said["gpus"] == []

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (NOT_LOADED, "The NVIDIA driver is installed but not loaded."),
            (MISMATCH, "The NVIDIA driver was updated: restart the computer."),
            (NO_PERMISSION, "The NVIDIA driver answered: Insufficient Permissions."),
            (UNKNOWN_CODE, "The NVIDIA driver answered: NVML Error with code 77."),
        ],
    )
    def test_a_driver_that_does_not_start_says_why(self, driver: Path, code: int, reason: str) -> None:
        said = look(driver, nvmlInitWithFlags=code)
        assert (said["absent"], said["gpus"], said["still_open"]) == (reason, [], 0)

    def test_a_driver_without_a_card(self, driver: Path) -> None:
        said = look(driver, GPUS=0)
        assert (said["absent"], said["gpus"], said["still_open"]) == ("The NVIDIA driver lists no GPU.", [], 0)

    def test_a_driver_that_cannot_count(self, driver: Path) -> None:
        said = look(driver, nvmlDeviceGetCount_v2=NO_PERMISSION)
        assert said["absent"] == "The NVIDIA driver answered: Insufficient Permissions."

    def test_the_only_card_is_lost(self, driver: Path) -> None:
        said = look(driver, LOST=0)
        assert (said["absent"], said["gpus"], said["still_open"]) == (LOST, [], 0)


class TestCards:
    def test_a_card_is_named_and_read(self, driver: Path) -> None:
        said = look(driver)
        assert said["absent"] is None
        assert said["gpus"] == [[0, "NVIDIA Stub 24GB", "GPU-zero", 24 * 2**30, "580.65.06"]]
        assert said["readings"]["0"] == {
            "gpu_temperature_c": [61, None],
            "gpu_power_w": [312.5, None],
            "gpu_clock_mhz": [2520, None],
            "gpu_memory_clock_mhz": [10501, None],
            "vram_used_mib": [6144, None],
            "gpu_use_percent": [87, None],
        }

    @pytest.mark.parametrize(
        ("function", "unknown"),
        [
            ("nvmlDeviceGetUtilizationRates", {"gpu_use_percent"}),
            ("nvmlDeviceGetPowerUsage", {"gpu_power_w"}),
            ("nvmlDeviceGetTemperature", {"gpu_temperature_c"}),
            ("nvmlDeviceGetMemoryInfo", {"vram_used_mib"}),
            ("nvmlDeviceGetClockInfo", {"gpu_clock_mhz", "gpu_memory_clock_mhz"}),
        ],
    )
    def test_what_a_card_does_not_report_is_unknown_alone(self, driver: Path, function: str, unknown: set[str]) -> None:
        readings = look(driver, **{function: NOT_SUPPORTED})["readings"]["0"]
        assert set(readings) == NAMES
        reason = "This card or driver does not report it."
        assert {name for name, reading in readings.items() if reading == [None, reason]} == unknown
        assert all(value is not None for name, (value, _) in readings.items() if name not in unknown)

    def test_what_an_old_driver_cannot_be_asked_is_unknown_alone(self, old_driver: Path) -> None:
        readings = look(old_driver)["readings"]["0"]
        assert readings.pop("gpu_power_w") == [None, "This NVIDIA driver is too old to report it."]
        assert all(absent is None for _, absent in readings.values())

    def test_a_card_without_a_name_or_memory_is_still_a_card(self, driver: Path) -> None:
        said = look(
            driver,
            nvmlDeviceGetName=NOT_SUPPORTED,
            nvmlDeviceGetUUID=NOT_SUPPORTED,
            nvmlDeviceGetMemoryInfo=NOT_SUPPORTED,
            nvmlSystemGetDriverVersion=NOT_SUPPORTED,
        )
        assert said["absent"] is None
        assert said["gpus"] == [[0, "NVIDIA GPU 0", "index-0", None, None]]

    def test_a_card_lost_while_it_is_watched_is_unknown_in_everything(self, driver: Path) -> None:
        said = look(driver)
        assert said["lost"]["0"] == {name: [None, LOST] for name in NAMES}

    def test_the_second_card_goes_on_without_the_first(self, driver: Path) -> None:
        said = look(driver, GPUS=2, LOST=0)
        assert said["absent"] is None
        assert [gpu[2] for gpu in said["gpus"]] == ["GPU-one"]
        assert said["readings"]["1"]["gpu_use_percent"] == [87, None]

    def test_the_library_is_let_go_once(self, driver: Path) -> None:
        assert look(driver)["still_open"] == 0
