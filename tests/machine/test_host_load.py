"""The load of the processor, read from a kernel's files in a folder, and from real programs."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.machine.host_load import HostCounterReader, measure_load

CPUS = "sys/devices/system/cpu"


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_pressure_queue_throttling_and_highest_clock_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/pressure/cpu": "some avg10=74.88 avg60=75.63 avg300=67.46 total=578194908\nfull avg10=0.00 total=7\n",
            "proc/loadavg": f"6.61 5.28 3.21 {3 * (os.cpu_count() or 1)}/194 2004\n",
            f"{CPUS}/cpu0/thermal_throttle/core_throttle_total_time_ms": "1200\n",
            f"{CPUS}/cpu1/thermal_throttle/core_throttle_total_time_ms": "1500\n",
            f"{CPUS}/cpu1/thermal_throttle/package_throttle_total_time_ms": "900\n",
            f"{CPUS}/cpufreq/policy0/scaling_max_freq": "4700000\n",
            f"{CPUS}/cpufreq/policy4/scaling_max_freq": "3400000\n",
        },
    )
    found = HostCounterReader(tmp_path).read(None)
    assert found is not None
    assert (found.waiting_s, found.throttled_s, found.cap_mhz, found.queue) == (
        pytest.approx(578.194908),
        pytest.approx(1.5),
        pytest.approx(4_700),
        pytest.approx(3.0),
    )


@pytest.mark.parametrize("text", ["", "some\n", "some total=x\n", "full total=5\n"])
def test_values_that_the_kernel_does_not_report_are_unknown(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"proc/pressure/cpu": text, "proc/loadavg": text})
    found = HostCounterReader(tmp_path).read(None)
    assert found is not None
    assert (found.waiting_s, found.throttled_s, found.cap_mhz, found.queue) == (None, None, None, None)


@pytest.fixture
def busy_programs() -> Iterator[None]:
    """One program for each core that does nothing but work."""
    programs = [multiprocessing.Process(target=_burn_processor, daemon=True) for _ in range(os.cpu_count() or 1)]
    for program in programs:
        program.start()
    yield
    for program in programs:
        program.kill()
        program.join()


def _burn_processor() -> None:
    while True:
        pass


@pytest.mark.usefixtures("busy_programs")
def test_busy_programs_count_as_load_by_others() -> None:
    reader = HostCounterReader()
    before = reader.read(None)
    share = 0.0
    while share < 0.5:  # the loop itself competes with the programs, so several readings may be needed
        load = measure_load(before, reader.read(None))
        share = load.others + load.stolen if load is not None else 0.0


def test_load_between_different_engines_or_equal_times_is_unknown() -> None:
    reader = HostCounterReader()
    one, other = reader.read(None), reader.read(os.getppid())
    assert measure_load(one, other) is None
    assert measure_load(one, one) is None
    assert measure_load(None, one) is None
