"""Disturbances that spoil a reply, beside the usual state of a machine."""

import pytest

from launcher.machine.gpu import GpuActivity, GpuProcess
from launcher.monitor.health_event import Finding, FindingCode
from launcher.tuning.disturbances import DisturbanceJudge, MachineSnapshot

ENGINE = GpuProcess(10, "llama-server", 4 << 30)
DESKTOP = GpuProcess(20, "gnome-shell", 300 << 20)
GAME = GpuProcess(30, "game", 2 << 30)


def make_snapshot(
    *programs: GpuProcess, held_back: tuple[str, ...] = (), others_mib: float | None = None
) -> MachineSnapshot:
    return MachineSnapshot((), GpuActivity((ENGINE, *programs), held_back, {}), others_mib, engine_pid=10)


def test_without_data_nothing_is_spoilt() -> None:
    marks = DisturbanceJudge()
    assert all(marks.find_disturbance(MachineSnapshot(), MachineSnapshot(), None) is None for _ in range(20))


def test_a_lower_clock_spoils_runs_until_it_is_usual() -> None:
    marks, hot = DisturbanceJudge(), make_snapshot(held_back=("temperature (driver)",))
    assert all(marks.find_disturbance(make_snapshot(), make_snapshot(), 2_600.0) is None for _ in range(6))
    assert marks.find_disturbance(make_snapshot(), hot, 2_590.0) is None  # throttling that does not lower the clock
    disturbance = marks.find_disturbance(make_snapshot(), hot, 1_800.0)
    assert disturbance == "The GPU was throttled (temperature (driver)): 1800 MHz instead of the usual 2600 MHz."
    # Idle clocks and the like are no throttling.
    assert marks.find_disturbance(make_snapshot(), make_snapshot(), 1_800.0) is None
    judged = [marks.find_disturbance(hot, hot, 1_800.0) for _ in range(12)]
    assert judged[0] is not None
    assert judged[-1] is None


def test_a_power_limit_spoils_nothing() -> None:
    marks = DisturbanceJudge()
    assert all(
        marks.find_disturbance(make_snapshot(), make_snapshot(held_back=("power limit",)), 2_600.0 - 300 * i) is None
        for i in range(8)
    )


def test_a_spill_spoils_runs() -> None:
    found = Finding(FindingCode.SPILL, "115 MiB have moved.", {})
    slow = Finding(FindingCode.SPEED_FALLING, "It is slower.", {})
    assert (
        DisturbanceJudge().find_disturbance(MachineSnapshot(), MachineSnapshot((slow, found)), None)
        == "115 MiB have moved."
    )
    assert DisturbanceJudge().find_disturbance(MachineSnapshot(), MachineSnapshot((slow,)), None) is None


def test_a_new_program_on_the_gpu_spoils_the_run() -> None:
    marks = DisturbanceJudge()
    assert (
        marks.find_disturbance(make_snapshot(DESKTOP), make_snapshot(DESKTOP, GAME), None)
        == "Another program started on the GPU: game."
    )
    assert marks.find_disturbance(make_snapshot(DESKTOP, GAME), make_snapshot(DESKTOP, GAME), None) is None
    assert marks.find_disturbance(make_snapshot(), make_snapshot(GpuProcess(40, "bar", 5 << 20)), None) is None
    # The process is in a container, so it may be the engine itself.
    assert marks.find_disturbance(make_snapshot(), make_snapshot(GpuProcess(41, None, 5 << 30)), None) is None
    # An earlier sample is needed to tell which program is new.
    assert marks.find_disturbance(MachineSnapshot(), make_snapshot(GAME), None) is None


@pytest.mark.parametrize(("before", "after", "spoilt"), [(500, 600, False), (500, 700, True), (None, 700, False)])
def test_memory_used_by_others_spoils_runs(before: float | None, after: float, spoilt: bool) -> None:
    disturbance = DisturbanceJudge().find_disturbance(
        make_snapshot(others_mib=before), make_snapshot(others_mib=after), None
    )
    assert (disturbance is not None) is spoilt
