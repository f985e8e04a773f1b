"""`mtp-launcher doctor` as a user types it, with stand-ins for the NVIDIA driver and for the engine on PATH."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.engine.builds.known_bad import build_number
from tests import forked
from tests.cli import in_process
from tests.conftest import FAKES

STUB_DEVICE = "CUDA0: NVIDIA Stub 24GB (24082 MiB, 18000 MiB free)"
Doctor = Callable[..., Any]


@pytest.fixture
def engine_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a llama-server of a version, with devices, on PATH."""

    def write_engine(version: str, devices: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "llama-server"
        fake = shlex.join([sys.executable, "-S", str(FAKES / "llama_server.py")])
        program.write_text(
            f"#!/bin/sh\ncase $1 in --version) echo 'version: {version}' >&2 ;; *) exec {fake} \"$@\" ;; esac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_DEVICES", f"Available devices:\n  {devices}")
        return program

    return write_engine


def run(*arguments: str, **environment: str) -> str:
    """Return what doctor prints."""
    done = forked.run("doctor", *arguments, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="processors are taken away on Linux")
def test_fewer_processors_than_cores_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    done = in_process.run("doctor")
    assert " cores, 1 usable (the limit of its control group)" in done.stdout


def report(*arguments: str, **environment: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json", **environment))


def titles(result: Any) -> list[str]:  # noqa: ANN401 -- any JSON value
    return [finding["title"] for finding in result["findings"]]


def with_driver(driver: Path, **answers: object) -> dict[str, str]:
    stub = {f"STUB_{name}": str(value) for name, value in answers.items()}
    return {"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "0", **stub}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_output_is_as_wide_as_the_terminal(columns: int) -> None:
    result = run(COLUMNS=str(columns))
    assert max(len(line) for line in result.splitlines() if "/" not in line) <= columns  # a path stays whole
    labels = [line.split()[0] for line in result.splitlines() if line[:1].strip()]
    assert labels[:3] == ["System", "Processor", "Memory"]


def test_a_gpu_is_described_with_its_activity_and_the_suitable_build(driver: Path) -> None:
    result = report(**with_driver(driver, REASONS=4, PROCESSES=1))
    (gpu,) = result["gpus"]
    assert (gpu["name"], gpu["compute_capability"], gpu["cuda_version"]) == ("NVIDIA Stub 24GB", [8, 9], "13.1")
    assert gpu["readings"]["gpu_power_limit_w"] == {"value": 450.0, "absent": None}
    assert gpu["activity"]["throttled_by"] == ["power limit"]
    assert result["engine_fit"]["backend"] == "cuda-13"
    assert result["no_gpu_because"] is None
    text = " ".join(run(**with_driver(driver, REASONS=4, PROCESSES=1)).split())
    assert "GPU NVIDIA Stub 24GB, 24,576 MiB, 18,432 MiB free, driver 580.65.06, CUDA 13.1" in text
    assert "compute capability 8.9, 1,008 GB/s, drives a display" in text
    assert "now: 61 °C, 312 W, limit 450 W, 2,520 MHz, 87 % busy, held back by: power limit" in text
    assert "Backend cuda-13. The NVIDIA Stub 24GB has compute capability 8.9" in text


def test_hidden_gpus_and_what_hides_them_are_named(driver: Path) -> None:
    environment = with_driver(driver) | {"CUDA_VISIBLE_DEVICES": ""}
    result = report(**environment)
    why = "The NVIDIA Stub 24GB is not used: CUDA_VISIBLE_DEVICES= hides it."
    assert [gpu["hidden"] for gpu in result["gpus"]] == [why]
    assert (result["engine_fit"]["backend"], result["engine_fit"]["gpu"]) == ("cpu", None)
    text = " ".join(run(**environment).split())
    assert f"Backend cpu. {why}" in text
    assert text.count(why) == 2


@pytest.mark.parametrize("visible", ["0", "1"])
def test_one_hidden_gpu_of_two_is_named(driver: Path, visible: str) -> None:
    result = report(
        **with_driver(driver, GPUS=2) | {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    )
    hidden = [gpu["hidden"] for gpu in result["gpus"]]
    assert hidden[int(visible)] is None
    assert f"CUDA_VISIBLE_DEVICES={visible} hides it." in hidden[1 - int(visible)]
    assert result["engine_fit"]["backend"] == "cuda-13"
    assert result["no_gpu_because"] is None


def test_an_unknown_value_has_its_reason(driver: Path) -> None:
    result = report(**with_driver(driver, nvmlDeviceGetMemoryBusWidth=3, nvmlDeviceGetUtilizationRates=3))
    (gpu,) = result["gpus"]
    unsupported = "This card or driver does not report it."
    assert gpu["memory_bandwidth_gb_s"] is None
    assert gpu["absent"] == {"memory_bandwidth_gb_s": unsupported}
    assert gpu["readings"]["gpu_use_percent"] == {"value": None, "absent": unsupported}


def test_a_lost_gpu_does_not_hide_the_other(driver: Path) -> None:
    result = report(**with_driver(driver, GPUS=2, LOST=0))
    assert [gpu["id"] for gpu in result["gpus"]] == ["GPU-one"]
    assert "NVIDIA GPU 0: The GPU stopped answering: restart the computer." in titles(result)


def test_without_a_driver_the_reason_and_the_processor_are_shown(no_driver: Path) -> None:
    result = report(LD_LIBRARY_PATH=str(no_driver))
    assert [gpu for gpu in result["gpus"] if gpu["vendor"] == "nvidia"] == []
    assert result["gpus_absent"]["nvidia"] == "No NVIDIA driver is installed."


def test_an_engine_that_agrees_with_the_driver_is_not_mentioned(
    driver: Path, engine_on_path: Callable[[str, str], Path]
) -> None:
    program = engine_on_path("0.7.0 (build 11669, commit Debian)", STUB_DEVICE)
    result = report(**with_driver(driver))
    assert result["engines"][1]["place"] == str(program)
    assert result["engines"][1]["devices"][0]["total_mib"] == 24082
    assert not [title for title in titles(result) if str(program) in title]


def test_a_gpu_that_only_the_engine_names_is_listed(
    no_driver: Path, engine_on_path: Callable[[str, str], Path]
) -> None:
    program = engine_on_path(
        "0.7.0 (build 11669, commit Debian)", "Vulkan0: AMD Radeon RX 9999 XT (16304 MiB, 15000 MiB free)"
    )
    result = report(LD_LIBRARY_PATH=str(no_driver))
    gpu = next(each for each in result["gpus"] if each["id"] == "Vulkan0")
    assert (gpu["name"], gpu["memory_bytes"]) == ("AMD Radeon RX 9999 XT", 16304 * 2**20)
    assert result["no_gpu_because"] is None
    assert not [title for title in titles(result) if str(program) in title]


@pytest.mark.parametrize(
    ("devices", "title"),
    [
        ("(none)", "The engine does not see the GPU (NVIDIA Stub 24GB)."),
        (
            "CUDA0: NVIDIA Stub 24GB (12000 MiB, 9000 MiB free)",
            "The driver reports 24,576 MiB of memory for NVIDIA Stub 24GB, the engine 12,000 MiB.",
        ),
        (
            f"{STUB_DEVICE}\n  Vulkan0: llvmpipe (LLVM 21.1.8, 256 bits) (24105 MiB, 23622 MiB free)",
            "The engine treats the CPU as a GPU: Vulkan0 is llvmpipe (LLVM 21.1.8, 256 bits).",
        ),
    ],
)
def test_an_engine_that_lists_other_devices_is_reported(
    driver: Path, engine_on_path: Callable[[str, str], Path], devices: str, title: str
) -> None:
    program = engine_on_path("0.7.0 (build 11669, commit Debian)", devices)
    assert f"{program}: {title}" in titles(report(**with_driver(driver)))


@pytest.mark.parametrize(
    ("device", "total_mib", "free_mib", "unified"),
    [
        ("NVIDIA Stub 24GB MIG 1g.10gb", 9_728, 9_600, False),
        ("NVIDIA Stub 24GB", 12_000, 9_000, False),
        ("NVIDIA Stub 24GB", 46_477, None, True),
    ],
    ids=["a slice", "a limit", "shared memory"],
)
def test_doctor_and_plan_count_the_memory_that_the_engine_can_use(
    driver: Path,
    engine_on_path: Callable[[str, str], Path],
    device: str,
    total_mib: int,
    free_mib: int | None,
    unified: bool,
) -> None:
    devices = f"CUDA0: {device} ({total_mib} MiB, {free_mib or total_mib} MiB free)"
    engine_on_path("0.7.0 (build 11669, commit Debian)", devices)
    environment = with_driver(driver)
    found = report(**environment)
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["memory_bytes"], gpu["unified"]) == (device, total_mib * 2**20, unified)
    done = forked.run("plan", "--json", env=os.environ | environment)
    machine = json.loads(done.stdout)["machine"]
    assert (machine["gpu"], machine["nominal_gb"]) == (device, pytest.approx(total_mib / 1_024, abs=0.1))
    assert free_mib is None or machine["free_mib"] == found["memory"]["alone_mib"] == free_mib
    assert machine["free_mib"] + machine["host_mib"] <= 18 * 1_024 + psutil.virtual_memory().total // 2**20


def test_an_engine_that_agrees_with_the_driver_is_asked_only_once(
    driver: Path, engine_on_path: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program, log = engine_on_path("0.7.0 (build 11669, commit Debian)", STUB_DEVICE), tmp_path / "asked"
    program.write_text(program.read_text().replace("case", f'echo "$1" >> {shlex.quote(str(log))}\ncase', 1))

    def plan(**environment: str) -> int:
        done = forked.run("plan", "--json", env=os.environ | with_driver(driver) | environment)
        assert json.loads(done.stdout)["machine"]["free_mib"] == 18 * 1_024
        return log.read_text().split().count("--list-devices")

    # To choose the engine on PATH, each plan asks it once more.
    assert [plan(), plan(), plan(CUDA_DEVICE_ORDER="PCI_BUS_ID")] == [2, 3, 5]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("version", "title", "blocks"),
    [
        (
            "0.5.0 (build 10745, commit x)",
            "b10745, a build with a known bug: it cannot start MTP (--spec-type draft-mtp ends it).",
            "MTP",
        ),
        ("0.5.0 (build 10740, commit x)", "b10740, older than the oldest build that this program supports.", None),
        ("6123 (abcdef0)", "b6123, older than the oldest build that this program supports.", None),
        ("0.5.0 (build 10749, commit x)", None, None),
        ("0.6.0-dev (build 0, commit unknown)", None, None),
    ],
)
def test_an_engine_that_is_too_old_is_reported(
    driver: Path, engine_on_path: Callable[[str, str], Path], version: str, title: str | None, blocks: str | None
) -> None:
    program = engine_on_path(version, STUB_DEVICE)
    findings = [each for each in report(**with_driver(driver))["findings"] if str(program) in each["title"]]
    expected = [] if title is None else [(f"{program} is {title}", blocks)]
    assert [(each["title"], each["blocks"]) for each in findings] == expected


def test_the_models_folder_of_the_option_is_shown(tmp_path: Path) -> None:
    result = report("--models", str(tmp_path / "models"))
    assert result["disks"]["models"]["folder"] == str(tmp_path / "models")
    assert result["disks"]["models"]["free_bytes"] > 0
    assert f"models: {tmp_path / 'models'}" in run("--models", str(tmp_path / "models"))


@pytest.fixture(scope="module")
def no_cursors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with invalid libraries for cursors; the process that commands are forked from finds them there."""
    folder = tmp_path_factory.mktemp("no-cursors")
    for soname in ("libxcb-cursor.so.0", "libwayland-cursor.so.0"):
        (folder / soname).touch()
    with forked.prepared(LD_LIBRARY_PATH=str(folder)):
        yield folder


@pytest.mark.cases(1)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no library of the system's is looked for")
@pytest.mark.parametrize(
    ("displays", "named"),
    [
        ({"DISPLAY": ":9"}, "libxcb-cursor.so.0"),
        ({"DISPLAY": ":9", "WAYLAND_DISPLAY": "wayland-9"}, "libxcb-cursor.so.0"),
        ({"WAYLAND_DISPLAY": "wayland-9"}, "libwayland-cursor.so.0"),
        ({}, "libxcb-cursor.so.0"),
    ],
)
def test_missing_libraries_of_the_display_in_use_are_named(
    no_cursors: Path, displays: dict[str, str], named: str
) -> None:
    result = report(**{"LD_LIBRARY_PATH": str(no_cursors), "DISPLAY": "", "WAYLAND_DISPLAY": ""} | displays)
    assert [each["soname"] for each in result["missing_libraries"] if "-cursor" in each["soname"]] == [named]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("verb", [["doctor"], ["demo", "--headless"]])
def test_a_missing_proc_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    with monkeypatch.context() as here:
        here.setattr(psutil, "PROCFS_PATH", str(tmp_path))
        result = in_process.run(*verb)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: /proc is not mounted")


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("0.7.0 (build 11669, commit Debian)", 11669),
        ("6123 (abcdef0)", 6123),
        ("0.6.0-dev (build 0, commit x)", None),
        ("xllamacpp 2026.10.11549", 11549),
        ("", None),
    ],
)
def test_all_forms_of_the_version_are_parsed(version: str, number: int | None) -> None:
    assert build_number(version) == number
