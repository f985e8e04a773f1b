"""Windows' counters of GPU memory, over a library compiled here in pdh.dll's place."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.machine.gpu import Reading
from launcher.machine.gpu_counters import ProcessGpuMemory

PID = 4711
UNKNOWN = Reading.unknown("Windows does not report the GPU memory of this process.")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pdh") / "libpdh.so"
    source = Path(__file__).parents[1] / "fakes" / "pdh_stub.c"
    cc = shutil.which("cc")
    assert cc, "a C compiler is needed: ./test installs one"
    subprocess.run([cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture
def pdh(library: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    figures = {"PID": PID, "SHARED": 300, "SHARED_2": 115, "DEDICATED": 23_000}
    for name, value in figures.items():
        monkeypatch.setenv(f"STUB_{name}", str(value))
    return ctypes.CDLL(str(library))


def test_figures_are_summed_over_gpus(pdh: ctypes.CDLL) -> None:
    counters = ProcessGpuMemory(PID, lambda: pdh)
    assert counters.sample() == {"gpu_shared_mib": Reading(415.0), "engine_vram_mib": Reading(23_000.0)}
    assert ctypes.c_int.in_dll(pdh, "stub_open_count").value == 1
    counters.close()
    counters.close()
    assert ctypes.c_int.in_dll(pdh, "stub_open_count").value == 0
    assert counters.sample() == {}


@pytest.mark.parametrize(("name", "value"), [("PID", "1"), ("COLLECT", "1"), ("STATUS", "3221227457")])
def test_a_missing_counter_is_unknown_and_not_0(
    pdh: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"STUB_{name}", value)
    counters = ProcessGpuMemory(PID, lambda: pdh)
    assert counters.sample() == {"gpu_shared_mib": UNKNOWN, "engine_vram_mib": UNKNOWN}
    counters.close()


def test_a_missing_or_different_library_gives_no_counters(pdh: ctypes.CDLL) -> None:
    def fail_to_load() -> ctypes.CDLL:
        raise OSError("no such file")

    assert ProcessGpuMemory(PID, fail_to_load).sample() == {}
    assert ProcessGpuMemory(PID, lambda: ctypes.CDLL(None)).sample() == {}


def test_there_are_no_counters_on_other_systems() -> None:
    assert ProcessGpuMemory(PID).sample() == {}
