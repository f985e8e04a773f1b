"""What the Start page says: of computers that are only described, of plans, of steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import DiskFull
from launcher.first_steps import How, Stage, Step, StepTold
from launcher.gui.start.facts import Fact, facts_of, report_of
from launcher.gui.start.looking import Computer, Found, Question, _told_apart
from launcher.gui.start.said import (
    evidence_of,
    memory_of,
    needs_of,
    parts_of,
    plan_title,
    step_state,
    step_subject,
    time_left,
)
from launcher.machine.advice import advise
from launcher.machine.backend import choose_backend
from launcher.machine.disks import Disk
from launcher.machine.gpu import Activity, Gpu, GpuProcess
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import Wish, make_plans
from launcher.models.situation import described, situation_of

MIB, GB = 2**20, 10**9
FOLDER = Path("/home/ada/models")


def card(index: int = 0, *, name: str = "NVIDIA GeForce RTX 4090", mib: int = 24_564, driver: str = "591.44") -> Gpu:
    return Gpu(
        "nvidia",
        index,
        name,
        f"GPU-{index}",
        memory_bytes=mib * MIB,
        used_bytes=1_600 * MIB,
        free_bytes=(mib - 1_600) * MIB,
        driver=driver,
        compute_capability=(8, 9),
        memory_bandwidth_gb_s=1_008,
    )


def found(
    *gpus: Gpu,
    disk_gb: float = 412,
    processes: tuple[GpuProcess, ...] = (),
    wsl: int | None = None,
    battery: bool = False,
    because: str | None = None,
) -> Found:
    """What looking at such a computer finds."""
    host = replace(
        read_host(),
        system="Ubuntu 24.04.1 LTS, kernel 6.8",
        cpu="Ryzen 9 7950X",
        cpu_features=("avx2", "fma", "f16c", "bmi2"),
        memory_bytes=64 * 2**30,
        available_bytes=51 * 2**30,
        wsl=wsl,
        container=None,
        on_battery=battery,
    )
    machine = Machine(host, gpus, because, {}, (), ())
    disk = Disk(FOLDER, 10**12, int(disk_gb * GB), "ext4")
    activities = {gpu.id: Activity(processes, (), {}) for gpu in gpus[:1]}
    computer = Computer(machine, activities, disk, choose_backend(gpus, "Linux"), advise(machine, (), [disk]))
    situation = situation_of(machine, environ={})
    plans = make_plans(load_catalogue(), situation, Wish())
    return Found(Question(), computer, (), situation, plans, (), None)


def fact(about: Found, subject: str) -> Fact:
    (one,) = [each for each in facts_of(about) if each.subject == subject]
    return one


def test_a_gpu_and_who_uses_it() -> None:
    processes = (GpuProcess(1, "gnome-shell", 820 * MIB), GpuProcess(2, "firefox", 300 * MIB))
    about = found(card(), processes=processes)
    assert fact(about, "GPU") == Fact(
        "GPU", "NVIDIA GeForce RTX 4090", "24,564 MiB, 22,964 free · driver 591.44 · 1,008 GB/s"
    )
    others = fact(about, "Used by others")
    assert others.what == "gnome-shell 820 MiB, firefox 300 MiB"
    assert others.more == "closing firefox would free 300 MiB", "nobody closes the desktop"


def test_an_old_driver_is_warned_of_beside_its_gpu() -> None:
    (warning,) = fact(found(card(driver="560.94")), "GPU").warnings
    assert "driver from 580 on" in warning


def test_two_gpus_are_numbered_and_planned_for_together() -> None:
    about = found(card(0), card(1))
    subjects = [each.subject for each in facts_of(about)]
    assert subjects[:2] == ["GPU 1", "GPU 2"]
    assert "over 2 GPUs" in plan_title(about.plans[0])
    total, others = memory_of(about)
    assert round(total / MIB) == 2 * 24_564
    assert round(others / MIB) == 2 * 1_600


def test_a_short_disk_is_warned_of() -> None:
    disk = fact(found(card(), disk_gb=9), "Disk for models")
    assert disk.what == "9.0 GB free"
    assert disk.warnings[0].startswith("The recommended model needs ")
    assert fact(found(card()), "Disk for models").warnings == ()


def test_no_advice_stands_twice_or_is_lost() -> None:
    about = found(because="No driver was found.", battery=True, wsl=1)
    told = [warning for each in facts_of(about) for warning in each.warnings]
    assert len(told) == len(set(told)) == len(about.computer.advice) == 2
    assert "in WSL1 on battery" in fact(about, "System").what
    assert fact(about, "GPU").warnings[0].startswith("This is WSL 1, which has no GPU.")


def test_the_report_has_the_warnings_and_the_plan() -> None:
    text = report_of(found(card(driver="560.94")))
    assert "GPU: NVIDIA GeForce RTX 4090 (24,564 MiB" in text
    assert "  ! With an NVIDIA driver from 580" in text
    assert text.rstrip().splitlines()[-1].startswith("Recommended: Qwen3.6-35B-A3B, ")


def test_a_plan_in_words_and_parts() -> None:
    about = found(card())
    plan = about.plans[0]
    assert plan_title(plan) == "Qwen3.6-35B-A3B, UD-Q3_K_XL, 256K context, draft 2"
    assert "of 22.4 GiB of GPU memory that are free now" in needs_of(plan, None)
    assert "its header is not read yet" in needs_of(plan, None)
    assert sum(size for _, _, size in parts_of(plan)) == plan.estimate.parts.total
    assert "t/s, RTX 4090" in evidence_of(plan)


@pytest.mark.parametrize(
    ("told", "subject", "state"),
    [
        (StepTold(Step.ENGINE, Stage.DONE, "b1-cpu-x64", How.TESTED), "b1-cpu-x64", "installed, self-test passed"),
        (
            StepTold(
                Step.MODEL,
                Stage.RUNNING,
                "UD-Q3_K_XL",
                done_bytes=11_400_000_000,
                bytes=17_200_000_000,
                bytes_per_second=94e6,
                seconds_left=62,
            ),
            "UD-Q3_K_XL, 17.2 GB",
            "11.4 of 17.2 GB · 94 MB/s · 1 min 2 s left",
        ),
        (
            StepTold(Step.MODEL, Stage.PAUSED, "F16", done_bytes=4_300_000, bytes=8_600_000),
            "F16, 8.6 MB",
            "paused, 4.3 of 8.6 MB kept",
        ),
        (StepTold(Step.VERIFY), "SHA-256 and MTP head", "after the download"),
        (StepTold(Step.LOAD, Stage.RUNNING, percent=42.4), "into memory", "42 %"),
        (
            StepTold(Step.SELF_TEST, Stage.DONE, drafted=32, accepted=30, tokens_per_second=96.2),
            "drafts accepted",
            "30 of 32 drafted tokens accepted · 96 t/s",
        ),
        (StepTold(Step.MODEL, Stage.FAILED, "F16", error=DiskFull("It is full.")), "F16", "failed"),
    ],
)
def test_a_step_in_words(told: StepTold, subject: str, state: str) -> None:
    assert step_subject(told) == subject
    assert step_state(told) == state


def test_every_step_and_stage_can_be_said() -> None:
    for step in Step:
        for stage in Stage:
            for how in (None, *How):
                assert step_subject(StepTold(step, stage, "x", how))
                step_state(StepTold(step, stage, "x", how))


@pytest.mark.parametrize(("seconds", "words"), [(45.2, "45 s"), (62, "1 min 2 s"), (7_500, "2 h 5 min"), (-1, "0 s")])
def test_a_time_that_is_left(seconds: float, words: str) -> None:
    assert time_left(seconds) == words


def test_of_plans_that_no_column_tells_apart_the_first_is_shown() -> None:
    catalogue = load_catalogue()
    plans = make_plans(catalogue, described(24, host_gib=64), Wish())
    other = [replace(each, setting=replace(each.setting, ubatch=each.setting.ubatch * 2)) for each in plans]
    assert _told_apart((*plans, *other)) == plans
    shorter = replace(plans[0], setting=replace(plans[0].setting, context=4_096))
    assert _told_apart((*plans, shorter)) == (*plans, shorter)
