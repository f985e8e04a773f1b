"""Sentences of the Start page: described computers, plans, steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.first.first_steps import Step, StepDetail, StepProgress, StepStage
from launcher.base.errors import DiskFull
from launcher.base.progress import Progress
from launcher.gui.duration import format_duration
from launcher.gui.start.computer_text import Fact, format_report, list_facts
from launcher.gui.start.queries import Computer, PlanRequest, PlanResult, drop_duplicates
from launcher.gui.start.text import (
    evidence_text,
    memory_needs_text,
    memory_parts,
    memory_totals,
    plan_title,
    step_state,
    step_subject,
)
from launcher.machine.advice import list_advice
from launcher.machine.backend import choose_backend
from launcher.machine.disks import Disk
from launcher.machine.gpu import Gpu, GpuActivity, GpuProcess
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.read_situation import ServerMemory, make_situation
from launcher.models.situation import describe_machine

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


def plans_for(
    *gpus: Gpu,
    disk_gb: float = 412,
    processes: tuple[GpuProcess, ...] = (),
    wsl: int | None = None,
    battery: bool = False,
    because: str | None = None,
) -> PlanResult:
    """The plans for a described computer: an Ubuntu with a Ryzen 9, 64 GiB and the given GPUs."""
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
    activities = {gpu.id: GpuActivity(processes, (), {}) for gpu in gpus[:1]}
    computer = Computer(machine, activities, disk, choose_backend(gpus, "Linux"), list_advice(machine, (), [disk]))
    situation = make_situation(machine, environ={})
    plans = make_plans(load_catalogue(), situation, PlanCriteria())
    return PlanResult(PlanRequest(), computer, (), situation, plans, (), None)


def fact(about: PlanResult, subject: str) -> Fact:
    (one,) = [each for each in list_facts(about) if each.subject == subject]
    return one


def test_a_gpu_is_described_with_its_users() -> None:
    processes = (GpuProcess(1, "gnome-shell", 820 * MIB), GpuProcess(2, "firefox", 300 * MIB))
    about = plans_for(card(), processes=processes)
    assert fact(about, "GPU") == Fact(
        "GPU", "NVIDIA GeForce RTX 4090", "24,564 MiB, 22,964 free · driver 591.44 · 1,008 GB/s"
    )
    others = fact(about, "Used by others")
    assert others.value == "gnome-shell 820 MiB, firefox 300 MiB"
    assert others.detail == "close firefox to free 300 MiB", "nobody closes the desktop"


@pytest.mark.parametrize("expected", [True, False])
def test_our_own_server_is_not_counted_among_other_programs(expected: bool) -> None:
    own = GpuProcess(2, "llama-server", 12_000 * MIB if expected else None)
    busy = replace(card(), used_bytes=13_600 * MIB, free_bytes=(24_564 - 13_600) * MIB)
    about = plans_for(busy, processes=(GpuProcess(1, "gnome-shell", 820 * MIB), own))
    server = ServerMemory(2, "qwen", {"GPU-0": 12_000} if expected else None, 0, lambda _backend, _gpus: (12_000,))
    situation = make_situation(about.computer.machine, environ={}, servers=[server])
    about = about._replace(situation=situation, plans=make_plans(load_catalogue(), situation, PlanCriteria()))
    assert fact(about, "Used by this server").value == "qwen 12,000 MiB"
    assert (fact(about, "Used by others").value, fact(about, "Used by others").detail) == ("gnome-shell 820 MiB", "")
    assert round(memory_totals(about.situation)[1] / MIB) == 1_600
    needs = memory_needs_text(about.plans[0], None, situation)
    assert "of 22.4 GiB GPU memory that is free once the running server stops; 10.7 GiB free now." in needs


def test_unknown_memory_of_our_server_is_reported() -> None:
    about = plans_for(card())
    server = ServerMemory(2, "qwen", None, None, lambda _backend, _gpus: None)
    situation = make_situation(about.computer.machine, environ={}, servers=[server])
    result = list_facts(about._replace(situation=situation))
    assert [each.value for each in result if each.subject == "Used by this server"] == ["qwen, size unknown"]
    needs = memory_needs_text(about.plans[0], None, situation)
    assert "GiB free GPU memory. Memory that qwen would free: unknown." in needs
    known = [ServerMemory(pid, "gemma", {"GPU-0": 1_000}, 0, lambda _backend, _gpus: None) for pid in (3, 4)]
    for stopping, more in (("the running server stops", known[:1]), ("2 running servers stop", known)):
        situation = make_situation(about.computer.machine, environ={}, servers=[server, *more])
        needs = memory_needs_text(about.plans[0], None, situation)
        assert f"that is free once {stopping}; 22.4 GiB free now. Memory that qwen would free: unknown" in needs


def test_an_old_driver_is_a_warning_beside_its_gpu() -> None:
    (warning,) = fact(plans_for(card(driver="560.94")), "GPU").warnings
    assert "driver 580 or newer" in warning


def test_two_gpus_are_numbered_and_planned_for_together() -> None:
    about = plans_for(card(0), card(1))
    subjects = [each.subject for each in list_facts(about)]
    assert subjects[:2] == ["GPU 1", "GPU 2"]
    assert "over 2 GPUs" in plan_title(about.plans[0])
    total, others = memory_totals(about.situation)
    assert round(total / MIB) == 2 * 24_564
    assert round(others / MIB) == 2 * 1_600


def test_a_nearly_full_disk_is_a_warning() -> None:
    disk = fact(plans_for(card(), disk_gb=9), "Disk for models")
    assert disk.value == "9.0 GB free"
    assert disk.warnings[0].startswith("The recommended model needs ")
    assert fact(plans_for(card()), "Disk for models").warnings == ()


def test_each_advice_is_shown_once() -> None:
    about = plans_for(because="No driver was found.", battery=True, wsl=1)
    received = [warning for each in list_facts(about) for warning in each.warnings]
    assert len(received) == len(set(received)) == len(about.computer.advice) == 2
    assert "in WSL1 on battery" in fact(about, "System").value
    assert fact(about, "GPU").warnings[0].startswith("This is WSL 1, which has no GPU.")


def test_the_report_has_the_warnings_and_the_plan() -> None:
    text = format_report(plans_for(card(driver="560.94")))
    assert "GPU: NVIDIA GeForce RTX 4090 (24,564 MiB" in text
    assert "  ! With NVIDIA driver 580" in text
    assert text.rstrip().splitlines()[-1].startswith("Recommended: Qwen3.8-27B, ")


def test_a_plan_is_described_in_words_and_parts() -> None:
    about = plans_for(card())
    plan = about.plans[0]
    assert plan_title(plan) == "Qwen3.8-27B, UD-Q5_K_S, 96K context, MTP 3"
    assert "of 22.4 GiB free GPU memory" in memory_needs_text(plan, None)
    assert "the header is not read yet" in memory_needs_text(plan, None)
    assert sum(size for _, _, size in memory_parts(plan)) == plan.estimate.parts.total
    assert "t/s, RTX 4090" in evidence_text(plan)


@pytest.mark.parametrize(
    ("expected", "subject", "state"),
    [
        (
            StepProgress(Step.ENGINE, StepStage.DONE, "b1-cpu-x64", StepDetail.INSTALLED_AND_TESTED),
            "b1-cpu-x64",
            "installed, self-test passed",
        ),
        (
            StepProgress(
                Step.MODEL,
                StepStage.RUNNING,
                "UD-Q3_K_XL",
                progress=Progress(11_400_000_000, 17_200_000_000, bytes_per_second=94e6, seconds_left=62),
            ),
            "UD-Q3_K_XL, 17.2 GB",
            "11.4 of 17.2 GB · 94 MB/s · 1 min 2 s left",
        ),
        (
            StepProgress(Step.MODEL, StepStage.PAUSED, "F16", progress=Progress(4_300_000, 8_600_000)),
            "F16, 8.6 MB",
            "paused, 4.3 of 8.6 MB kept",
        ),
        (StepProgress(Step.VERIFY), "SHA-256 and MTP head", "after the download"),
        (StepProgress(Step.LOAD, StepStage.RUNNING, percent=42.4), "into memory", "42 %"),
        (
            StepProgress(Step.SELF_TEST, StepStage.DONE, drafted=32, accepted=30, tokens_per_second=96.2),
            "drafts accepted",
            "30 of 32 drafted tokens accepted · 96 t/s",
        ),
        (StepProgress(Step.MODEL, StepStage.FAILED, "F16", error=DiskFull("It is full.")), "F16", "failed"),
    ],
)
def test_a_step_is_described_in_words(expected: StepProgress, subject: str, state: str) -> None:
    assert step_subject(expected) == subject
    assert step_state(expected) == state


def test_every_step_and_stage_has_a_text() -> None:
    for step in Step:
        for stage in StepStage:
            for how in (None, *StepDetail):
                assert step_subject(StepProgress(step, stage, "x", how))
                step_state(StepProgress(step, stage, "x", how))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.4, "4 s"), (60, "1 min"), (62, "1 min 2 s"), (552, "9 min 12 s"), (7_500, "2 h 5 min"), (-1, "0 s")],
)
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_plans_that_look_the_same_are_shown_once() -> None:
    catalogue = load_catalogue()
    plans = make_plans(catalogue, describe_machine(24, host_gib=64), PlanCriteria())
    other = [replace(each, setting=replace(each.setting, ubatch=each.setting.ubatch * 2)) for each in plans]
    assert drop_duplicates((*plans, *other)) == plans
    shorter = replace(plans[0], setting=replace(plans[0].setting, context=4_096))
    assert drop_duplicates((*plans, shorter)) == (*plans, shorter)


def test_the_source_of_the_memory_figure_is_shown() -> None:
    plan = make_plans(load_catalogue(hub_figures=False), describe_machine((24,)), PlanCriteria("qwen3.5-9b-mtp"))[0]
    assert "header" in memory_needs_text(plan, None)
    assert memory_needs_text(replace(plan, engine="built-in 1"), None).endswith("Computed by the engine, built-in 1.")
