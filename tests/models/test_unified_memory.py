"""Plans for GPUs that share the host's memory: what is on the GPU and what is on the host must fit together."""

from dataclasses import replace

import pytest

from launcher.machine.cards import find_card
from launcher.machine.gpu import Gpu
from launcher.machine.host import Host, read_host
from launcher.machine.machine import Machine
from launcher.models.fitting import host_need_mib
from launcher.models.memory import ROOM_MIB
from launcher.models.plan import Plan, PlanCriteria, Status
from launcher.models.read_situation import ServerMemory, make_situation
from launcher.models.situation import Situation, describe_machine, describe_unified_machine
from tests.models.planned import make_shipped_plans

GIB = 2**30
MOE = "qwen3.6-35b-a3b-mtp"


def host(total_gib: float, available_gib: float) -> Host:
    known = replace(read_host(), kind="linux", wsl=None, display=None)
    return replace(known, memory_bytes=int(total_gib * GIB), available_bytes=int(available_gib * GIB))


def read(gpu: Gpu, here: Host) -> Situation:
    return make_situation(Machine(here, (gpu,), None, {}, (), ()), environ={})


def strix_halo(
    gtt_gib: float, *, carve_out_gib: float = 0.5, host_gib: float = 125.1, free_gib: float = 120
) -> Situation:
    """A Ryzen AI Max+ 395 as amdgpu reports it: GTT is the most that the GPU may take of the host's memory."""
    total, carve_out = int((gtt_gib + carve_out_gib) * GIB), int(carve_out_gib * GIB)
    gpu = Gpu("amd", 0, "AMD Radeon 8060S", "0000:c3:00.0", total, free_bytes=total, unified=True)
    return read(replace(gpu, carve_out_free_bytes=carve_out), host(host_gib, free_gib))


def spark(memory_gib: float | None = 119.6) -> Situation:
    """A DGX Spark, of which an engine lists `memory_gib`; None before one is installed."""
    here = host(121.7, 118)
    total = int((memory_gib or 121.7) * GIB)
    gpu = Gpu("nvidia", 0, "NVIDIA GB10", "GPU-0", total, free_bytes=here.available_bytes, unified=True)
    return read(gpu, here)


LARGE = {
    "GTT 96": strix_halo(96),
    "GTT 118": strix_halo(118),
    "GTT 120": strix_halo(120),
    "GTT 124": strix_halo(124),
    "carve-out of 96": strix_halo(15.5, carve_out_gib=96, host_gib=31, free_gib=26),
    "GB10": spark(),
    "GB10 without an engine": spark(None),
    "--unified-memory 128": describe_unified_machine(128),
    "--gpu GB10": describe_unified_machine(128, card=find_card("GB10")),
}
DESCRIBED = {name: LARGE[name] for name in ("--unified-memory 128", "--gpu GB10")} | {
    "--unified-memory 64": describe_unified_machine(64),
    "--unified-memory 24": describe_unified_machine(24),
}
SMALL = {
    "780M": strix_halo(30, carve_out_gib=0.5, host_gib=31, free_gib=27),
    "Orin Nano": read(
        Gpu("nvidia", 0, "Orin (nvgpu)", "GPU-0", int(7.4 * GIB), free_bytes=int(6 * GIB), unified=True), host(7.4, 6)
    ),
    "16 GB": describe_unified_machine(16),
}


def first_plan(situation: Situation, criteria: PlanCriteria | None = None) -> Plan:
    return make_shipped_plans(situation, criteria or PlanCriteria())[0]


@pytest.mark.parametrize("name", [name for name in LARGE if name != "carve-out of 96"])
def test_each_way_to_know_such_a_machine_gives_the_same_plan(name: str) -> None:
    plan, wanted = first_plan(LARGE[name]), first_plan(LARGE["--unified-memory 128"])
    assert plan.status is Status.FITS
    assert (plan.entry.id, plan.file.quant, plan.setting.kv) == (wanted.entry.id, wanted.file.quant, wanted.setting.kv)
    assert plan.setting.context == wanted.setting.context
    assert not plan.host_short


def test_a_carve_out_leaves_the_host_less_for_its_part() -> None:
    """With 96 of 128 GB carved out, the host has 26 GiB free: too few for a model that needs 28.7 GiB beside the GPU's.

    So the machine's plan is another than with one pool.
    """
    carved, wanted = LARGE["carve-out of 96"], first_plan(LARGE["--unified-memory 128"])
    (same, *_) = make_shipped_plans(carved, PlanCriteria(model=wanted.entry.id))
    assert same.status is Status.TOO_BIG
    assert same.required_mib < carved.free_mib
    assert host_need_mib(same.estimate) > 26 * 1_024 > host_need_mib(first_plan(carved).estimate)
    assert first_plan(carved).status is Status.FITS


def test_a_read_machine_is_planned_as_one_described_with_its_memory() -> None:
    known = strix_halo(124)
    described = describe_unified_machine(known.free_mib / 1_024, free_mib=known.free_mib, card=find_card("8060S"))
    assert (known.host_mib, described.host_mib) == (0, 0)
    here, there = (first_plan(replace(each, margin_mib=512, notes=())) for each in (known, described))
    assert (here.file, here.required_mib, here.setting.cache_ram) == (
        there.file,
        there.required_mib,
        there.setting.cache_ram,
    )


@pytest.mark.parametrize("name", LARGE | DESCRIBED | SMALL)
def test_the_parts_on_gpu_and_host_fit_together(name: str) -> None:
    situation = (LARGE | DESCRIBED | SMALL)[name]
    assert situation.host_mib is not None
    all_mib = situation.free_mib + situation.host_mib
    for intent in ("balanced", "best-quality", "long-context"):
        for plan in make_shipped_plans(situation, PlanCriteria(intent=intent)):
            taken = plan.required_mib + host_need_mib(plan.estimate)
            assert plan.status is Status.TOO_BIG or taken <= all_mib, plan.file.file


def test_a_model_that_leaves_no_room_for_its_part_on_the_host_is_too_big() -> None:
    criteria = PlanCriteria(model=MOE, quant="Q8_0", context=32_768, draft=0, kv="f16", ubatch=512)
    roomy = first_plan(strix_halo(124), criteria)
    on_host, needed = host_need_mib(roomy.estimate), roomy.required_mib
    assert on_host > ROOM_MIB
    just_gib = (needed + on_host + roomy.margin_mib) / 1_024
    enough, less = (strix_halo(124, carve_out_gib=0, free_gib=just_gib - gone) for gone in (-0.1, 1))
    assert first_plan(enough, criteria).status is Status.FITS
    short = first_plan(less, criteria)
    assert short.required_mib < less.free_mib
    assert short.status is Status.TOO_BIG
    # A card with as much memory of its own has room for it on the host.
    card = replace(describe_machine(less.free_mib / 1_024, host_gib=32), free_mib=less.free_mib)
    assert first_plan(card, criteria).status is not Status.TOO_BIG


def test_the_context_is_shortened_until_both_parts_fit() -> None:
    situation = strix_halo(48, carve_out_gib=0, host_gib=48, free_gib=42)
    plan = first_plan(situation, PlanCriteria(model=MOE, quant="Q8_0", draft=0, kv="f16"))
    assert plan.status is not Status.TOO_BIG
    assert plan.needed_mib - plan.required_mib == host_need_mib(plan.estimate)
    assert plan.setting.context < 262_144
    (reason,) = (each for each in plan.reasons if each.startswith("It needs"))
    on_host, spare = plan.needed_mib - plan.required_mib, plan.free_mib - plan.needed_mib
    assert f"and {on_host:,} MiB of it for its part on the host; {spare:,} MiB stay free" in reason


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_described_machine_leaves_the_system_its_part(name: str) -> None:
    situation = DESCRIBED[name]
    assert situation.host_beside_mib(0) == situation.free_mib
    assert situation.free_mib == max(situation.nominal_gb * 3 / 4, situation.nominal_gb - 8) * 1_024
    for plan in make_shipped_plans(situation, PlanCriteria()):
        if plan.status is Status.TOO_BIG:
            continue
        host = plan.estimate.host
        most = plan.needed_mib + (host.checkpoints_most + host.prompt_cache_most) / 2**20
        assert plan.needed_mib == pytest.approx(plan.required_mib + host_need_mib(plan.estimate), abs=1)
        assert most <= situation.free_mib + 1 or any("more host memory" in each for each in plan.cautions)
        (reason,) = (each for each in plan.reasons if each.startswith("It needs"))
        assert f"{plan.needed_mib - plan.required_mib:,} MiB of it for its part on the host" in reason


def test_a_described_machine_states_one_figure_for_the_host() -> None:
    plan = first_plan(DESCRIBED["--unified-memory 64"], PlanCriteria(model="qwen3.8-flash-next"))
    assert plan.status is Status.TOO_BIG
    (caution,) = (each for each in plan.cautions if each.startswith("Not enough host memory"))
    assert f"{host_need_mib(plan.estimate):,} MiB are needed, {plan.free_mib - plan.required_mib:,} MiB" in caution


def test_caches_are_limited_to_what_the_model_leaves() -> None:
    def limits(situation: Situation) -> int | None:
        return first_plan(situation, PlanCriteria(model=MOE, quant="Q8_0")).setting.cache_ram

    assert limits(strix_halo(124)) is None  # 120 GiB are enough for llama-server's own limits
    narrow = strix_halo(64, carve_out_gib=0, host_gib=64, free_gib=46)
    assert limits(narrow) in (0, 256, 512, 1_024, 2_048)
    assert narrow.host_beside_mib(0) == 46 * 1_024
    assert narrow.host_beside_mib(40_000) == 46 * 1_024 - 40_000


def test_memory_that_is_reserved_for_the_gpu_is_not_the_hosts() -> None:
    situation = strix_halo(15.5, carve_out_gib=96, host_gib=31, free_gib=26)
    assert situation.host_beside_mib(0) == situation.host_beside_mib(96 * 1_024) == 26 * 1_024
    assert situation.host_beside_mib(100 * 1_024) == 22 * 1_024
    assert describe_machine(24, host_gib=32).host_beside_mib(20_000) == 24 * 1_024


def test_a_server_beside_another_has_what_that_leaves() -> None:
    here = host(64, 20)
    gpu = Gpu("nvidia", 0, "NVIDIA GB10", "GPU-0", 60 * GIB, free_bytes=20 * GIB, unified=True)
    own = ServerMemory(7, "model", {"GPU-0": 30 * 1_024}, 0, lambda *_: None)
    known = make_situation(Machine(here, (gpu,), None, {}, (), ()), environ={}, servers=[own])
    assert known.host_beside_mib(0) == 50 * 1_024
    assert known.with_servers_running().host_beside_mib(0) == 20 * 1_024
