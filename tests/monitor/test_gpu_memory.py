"""GPU memory by program, as the driver of each system reports it."""

import pytest

from launcher.machine.gpu import Gpu, GpuActivity, GpuProcess, Reading
from launcher.machine.gpus import GpuSnapshot
from launcher.monitor.health_watch import MEMORY_READINGS, memory_by_program, unknown_memory

_MIB = 2**20
CARD = Gpu("nvidia", 0, "RTX", "GPU-1", memory_bytes=24_576 * _MIB, unified=False)
LISTED = (GpuProcess(7, "llama-server", 20_000 * _MIB), GpuProcess(9, "game", 900 * _MIB))


def make_snapshot(
    processes: tuple[GpuProcess, ...] | None = LISTED,
    readings: dict[str, Reading] | None = None,
    gpu: Gpu | None = CARD,
    *,
    alone: bool = True,
) -> GpuSnapshot:
    absent = {} if processes is not None else {"processes": "The driver hides them."}
    return GpuSnapshot(gpu, alone, GpuActivity(processes, (), absent), readings or {})


def test_on_linux_the_driver_lists_engine_memory_and_the_rest_belongs_to_others() -> None:
    result = memory_by_program(make_snapshot(), 7, Reading(21_500.0))
    assert [result[name].value for name in MEMORY_READINGS] == [20_000.0, 1_500.0, 24_576.0]


def test_rounding_below_0_gives_0() -> None:
    assert memory_by_program(make_snapshot(), 7, Reading(19_990.0))["others_vram_mib"].value == 0.0


@pytest.mark.parametrize(
    ("snapshot", "pid", "reason"),
    [
        (make_snapshot(None), 7, "The driver hides them."),
        (make_snapshot(), 8, "does not list the engine"),
        (make_snapshot((GpuProcess(7, None, 5),)), 7, "does not list the engine"),
        (make_snapshot((GpuProcess(7, "llama-server", None),)), 7, "does not report"),
        (make_snapshot(readings={"engine_vram_mib": Reading(5.0)}, alone=False), 7, "a total of all GPUs"),
    ],
)
def test_unreported_memory_is_unknown_with_the_reason(snapshot: GpuSnapshot, pid: int, reason: str) -> None:
    result = memory_by_program(snapshot, pid, Reading(21_500.0))
    for name in ("engine_vram_mib", "others_vram_mib"):
        assert result[name].value is None
        assert reason in (result[name].absent or "")


def test_windows_counters_go_before_the_process_list() -> None:
    result = memory_by_program(make_snapshot(readings={"engine_vram_mib": Reading(18_000.0)}), 7, Reading(21_500.0))
    assert result["engine_vram_mib"].value == 18_000.0
    assert result["others_vram_mib"].value == 3_500.0


def test_without_a_total_the_memory_of_others_is_unknown_for_the_same_reason() -> None:
    result = memory_by_program(make_snapshot(), 7, Reading.unknown("The GPU was disconnected."))
    assert result["engine_vram_mib"].value == 20_000.0
    assert result["others_vram_mib"] == Reading.unknown("The GPU was disconnected.")


def test_shared_memory_has_no_total() -> None:
    unified = Gpu("amd", 0, "APU", "0000:05:00.0", memory_bytes=8 * 2**30, unified=True)
    assert "shares host memory" in (
        memory_by_program(make_snapshot(gpu=unified), 7, Reading(1.0))["vram_total_mib"].absent or ""
    )
    nothing = GpuSnapshot(None, False, GpuActivity.unknown("No driver."), {})
    assert memory_by_program(nothing, 7, Reading(1.0))["vram_total_mib"].absent == "No driver."


def test_all_is_unknown_before_the_first_snapshot() -> None:
    assert set(unknown_memory()) == set(MEMORY_READINGS)
    assert all(reading.value is None and reading.absent for reading in unknown_memory().values())
