"""The memory that a plan has to fit into, on this machine (read from files) and on a described one."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.planner import MachineDescription, _check_awake
from launcher.base.codec import to_json
from launcher.base.errors import BadOption, GpuAsleep
from launcher.machine.cards import find_card
from launcher.machine.gpu import Gpu
from launcher.machine.host import Host, read_host
from launcher.machine.machine import Machine, read_machine
from launcher.models.compute_buffers import Backend
from launcher.models.load_history import record_load
from launcher.models.overhead import expected_overhead_mib
from launcher.models.read_situation import ServerMemory, add_rpc_workers, make_situation
from launcher.models.situation import MEMORY_VIEW, describe_machine, describe_unified_machine
from tests.machine.conftest import pci_card

GIB, MIB = 2**30, 2**20
RX_7900, PHOENIX, ARC_B580 = (0x1002, 0x744C), (0x1002, 0x15BF), (0x8086, 0xE20B)


def nvidia(index: int = 0, *, total: int = 24 * GIB, free: int | None = 22 * GIB, **more: object) -> Gpu:
    card = Gpu("nvidia", index, "NVIDIA GeForce RTX 4090", f"GPU-{index}", total, free_bytes=free, unified=False)
    return replace(card, **{"memory_bandwidth_gb_s": 1_008.0, "asleep": False, **more})  # type: ignore[arg-type]


@pytest.fixture
def linux_host() -> Host:
    """This computer as the host, with fixed values for all that plans depend on."""
    known = read_host()
    return replace(known, kind="linux", wsl=None, display=None, memory_bytes=64 * GIB, available_bytes=48 * GIB)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder in the place of /."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def machine(host: Host, *gpus: Gpu) -> Machine:
    return Machine(host, gpus, None if gpus else "No NVIDIA driver is installed.", {}, (), ())


class TestDescribed:
    def test_a_card_gives_a_program_less_than_its_size(self) -> None:
        # RTX 5060 Ti 16 GB: 15.84K MiB, the published article's figure.
        known = describe_machine(16)
        assert known.free_mib == pytest.approx(15_840, abs=10)
        assert (known.backend, known.margin_mib, known.host_mib, known.described) == ("cuda", 1_024, None, True)
        assert any("15,8" in note for note in known.notes)

    def test_described_values_are_used(self) -> None:
        known = describe_machine(24, free_mib=12_000, headless=True, host_gib=32, backend="vulkan")
        assert (known.free_mib, known.margin_mib, known.backend) == (12_000, 512, "vulkan")
        assert known.host_mib == 24 * 1_024
        assert known.notes == (
            "The plan uses up to 24,576 MiB of 32 GiB host memory and leaves the rest to the system.",
            "Speeds are those of a typical card of this size: NVIDIA GeForce RTX 3090.",
        )

    def test_two_cards_and_unified_memory_are_described(self) -> None:
        pair = describe_machine((24, 12))
        assert (pair.gpus, pair.nominal_gb, pair.margin_mib) == (2, 36, 2_048)
        assert sum(pair.gpu_free_mib) == pair.free_mib
        assert [card.memory_gb for card in pair.cards] == [24, 12]
        shared = describe_unified_machine(128)
        assert (shared.unified, shared.backend, shared.free_mib) == (True, "vulkan", 120 * 1_024)
        assert describe_machine(24, card=find_card("7900 XTX")).backend == "vulkan"
        with pytest.raises(BadOption, match="--unified-memory 2 is out of range"):
            describe_unified_machine(2)

    def test_without_a_gpu_host_memory_is_planned(self) -> None:
        known = describe_machine(24, host_gib=64, backend="cpu")
        assert (known.backend, known.nominal_gb, known.free_mib, known.margin_mib) == ("cpu", 64, 56 * 1_024, 1_024)
        assert describe_machine(24, host_gib=64, backend="cpu", free_mib=0).free_mib == 0
        with pytest.raises(BadOption, match="--backend cpu") as wrong:
            describe_machine(24, backend="cpu")
        assert "--host-memory" in wrong.value.hint

    @pytest.mark.parametrize("size", [0, -1, 0.4, 5_000, 1e12])
    def test_impossible_card_sizes_are_refused(self, size: float) -> None:
        with pytest.raises(BadOption, match="--gpu-memory"):
            describe_machine(size)

    @pytest.mark.parametrize("free", [-1, 24 * 1_024 + 1])
    def test_free_memory_above_the_total_is_refused(self, free: int) -> None:
        with pytest.raises(BadOption, match="24,576 MiB"):
            describe_machine(24, free_mib=free)
        with pytest.raises(BadOption, match="The host has"):
            describe_machine(8, free_mib=24 * 1_024 + 1, host_gib=24, backend="cpu")


class TestThisMachine:
    def test_without_a_gpu_the_processor_is_planned_with_the_reason(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host))
        assert (known.backend, known.free_mib, known.host_mib, known.gpu_name) == ("cpu", 48 * 1_024, 48 * 1_024, None)
        assert known.notes == ("No NVIDIA driver is installed.",)

    @pytest.mark.parametrize(("stated", "expected"), [(None, 90), (120.0, 120), (89.6, 90), (44.8, 45), (500.0, 90)])
    def test_a_chip_has_the_bandwidth_of_its_computers_modules(
        self, linux_host: Host, stated: float | None, expected: int
    ) -> None:
        """The Radeon 890M comes with LPDDR5X-7500 and with one or two modules of DDR5-5600; other figures are wrong."""
        chip = Gpu("amd", 0, "AMD Radeon 890M", "0000:65:00.0", 48 * GIB, free_bytes=40 * GIB, unified=True)
        known = make_situation(machine(replace(linux_host, memory_bandwidth_gb_s=stated), chip))
        assert (known.cards[0].bandwidth_gb_s, known.host_gb_s) == (expected, stated)

    def test_without_a_gpu_gpu_backends_are_refused(self, linux_host: Host) -> None:
        with pytest.raises(BadOption, match="--backend vulkan needs a GPU") as wrong:
            make_situation(machine(linux_host), backend="vulkan")
        assert "--gpu-memory" in wrong.value.hint

    def test_free_memory_and_backend_are_read_anew(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia(free=12 * GIB)))
        assert (known.free_mib, known.nominal_gb, known.backend) == (12 * 1_024, 24, "cuda")
        assert (known.gpu_name, known.bandwidth_gb_s) == ("NVIDIA GeForce RTX 4090", 1_008)
        assert make_situation(machine(linux_host, nvidia()), free_mib=900).free_mib == 900
        assert make_situation(machine(linux_host, nvidia()), backend="vulkan").backend == "vulkan"

    @pytest.mark.parametrize(
        ("kind", "wsl", "display", "margin"),
        [
            ("linux", None, None, 512),
            ("linux", None, ":0", 1_024),
            ("linux", 2, None, 1_024),
            ("windows", None, None, 1_024),
            ("macos", None, None, 1_024),
        ],
    )
    def test_the_margin_is_small_only_on_linux_without_a_display(
        self, linux_host: Host, kind: str, wsl: int | None, display: str | None, margin: int
    ) -> None:
        other = replace(linux_host, kind=kind, wsl=wsl, display=display)  # type: ignore[arg-type]
        known = make_situation(machine(other, nvidia()))
        assert (known.margin_mib, known.headless) == (margin, margin == 512)
        assert make_situation(machine(other, nvidia()), headless=True).margin_mib == 512

    def test_a_model_is_split_over_gpus_of_one_vendor(self, linux_host: Host) -> None:
        other = Gpu("amd", 0, "AMD Radeon RX 7900 XTX", "0000:09:00.0", 24 * GIB, free_bytes=23 * GIB, unified=False)
        known = make_situation(machine(linux_host, nvidia(0), nvidia(1, free=20 * GIB), other))
        assert (known.gpus, known.nominal_gb, known.free_mib) == (2, 48, 42 * 1_024)
        assert known.margin_mib == 2 * 512
        assert known.bandwidth_gb_s is None
        assert known.notes == (
            "The AMD Radeon RX 7900 XTX is not used: a model can only be split over GPUs of one maker.",
        )

    def test_unlike_gpus_are_all_named(self, linux_host: Host) -> None:
        names = ("RTX 3090", "RTX 5080", "RTX 3090")
        cards = [replace(nvidia(at), name=f"NVIDIA GeForce {name}") for at, name in enumerate(names)]
        known = [make_situation(machine(linux_host, *cards[:count])) for count in (1, 2, 3)]
        assert [each.gpu_name for each in known] == [
            "NVIDIA GeForce RTX 3090",
            "NVIDIA GeForce RTX 3090 + NVIDIA GeForce RTX 5080",
            "2 x NVIDIA GeForce RTX 3090 + NVIDIA GeForce RTX 5080",
        ]
        alike = make_situation(machine(linux_host, cards[0], cards[2]))
        assert (alike.gpu_name, alike.unlike_gpus) == ("NVIDIA GeForce RTX 3090", False)
        odd = make_situation(machine(linux_host, replace(cards[0], name="AMD Radeon RX 580 + Z")))
        assert [each.unlike_gpus for each in (*known, odd)] == [False, True, True, False]
        remote = add_rpc_workers(known[0], {"RPC0": 8_000}, ["10.0.0.2"])
        assert (remote.gpu_name, remote.unlike_gpus) == ("NVIDIA GeForce RTX 3090 + RPC0", True)

    @pytest.mark.parametrize(("value", "used"), [(None, 9), ("MIG-1", 18)])
    def test_one_slice_of_a_gpu_is_used(self, linux_host: Host, value: str | None, used: int) -> None:
        slices = [
            replace(nvidia(at, total=20 * GIB, free=free * GIB), name="NVIDIA H100 MIG 2g.20gb", id=f"MIG-{at}")
            for at, free in enumerate((9, 18))
        ]
        environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
        known = make_situation(machine(linux_host, *slices), environ=environ)
        assert (known.gpus, known.free_mib) == (1, used * 1_024)
        assert any("MIG 2g.20gb is not used" in note for note in known.notes)
        with_card = make_situation(machine(linux_host, *slices, nvidia(5)), environ={})
        assert (with_card.gpus, with_card.gpu_name) == (1, "NVIDIA GeForce RTX 4090")

    @pytest.mark.parametrize(
        ("value", "left"),
        [("0", [24]), ("1", [12]), ("GPU-1", [12]), ("0,1", [24, 12]), ("0,9,1", [24]), ("MIG-77", [24, 12])],
    )
    def test_gpus_hidden_by_a_variable_are_named(self, linux_host: Host, value: str, left: list[int]) -> None:
        cards = [nvidia(0, free=24 * GIB), nvidia(1, free=12 * GIB)]
        environ = {"CUDA_VISIBLE_DEVICES": value, "GGML_VK_VISIBLE_DEVICES": "0"}
        known = make_situation(machine(linux_host, *cards), environ=environ)
        assert (known.gpus, known.free_mib) == (len(left), 1_024 * sum(left))
        assert sum(f"CUDA_VISIBLE_DEVICES={value} hides it" in note for note in known.notes) == 2 - len(left)
        by_vulkan = make_situation(machine(linux_host, *cards), backend="vulkan", environ=environ)
        assert (by_vulkan.gpus, by_vulkan.free_mib) == (1, 24 * 1_024)

    def test_cuda_numbers_gpus_by_speed_unless_set_otherwise(self, linux_host: Host) -> None:
        slow = replace(nvidia(0, free=8 * GIB), memory_bandwidth_gb_s=272.0)
        both = machine(linux_host, slow, nvidia(1, free=20 * GIB))
        assert make_situation(both, environ={"CUDA_VISIBLE_DEVICES": "0"}).free_mib == 20 * 1_024
        bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert make_situation(both, environ=bus).free_mib == 8 * 1_024

    def test_with_all_gpus_hidden_the_processor_is_planned_with_the_reason(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia()), environ={"CUDA_VISIBLE_DEVICES": ""})
        assert (known.backend, known.no_gpu) == ("cpu", True)
        assert known.notes == ("The NVIDIA GeForce RTX 4090 is not used: CUDA_VISIBLE_DEVICES= hides it.",)

    def test_quotation_marks_hide_a_gpu(self, linux_host: Host) -> None:
        """`set CUDA_VISIBLE_DEVICES="0"` of Windows, and files of Docker, keep them (lmstudio-bug-tracker #1712)."""
        known = make_situation(machine(linux_host, nvidia()), environ={"CUDA_VISIBLE_DEVICES": '"0"'})
        why = 'CUDA_VISIBLE_DEVICES="0" hides it, because its value has quotation marks. Write it without them.'
        assert known.notes == (f"The NVIDIA GeForce RTX 4090 is not used: {why}",)

    def test_a_card_too_old_for_cuda_is_ignored(self, linux_host: Host) -> None:
        new = nvidia(1, compute_capability=(8, 9), driver="580.65.06")
        old = nvidia(0, total=2 * GIB, free=2 * GIB, compute_capability=(3, 5), driver="580.65.06", name="GT 710")
        for cards in ((old, new), (new, old)):
            known = make_situation(machine(linux_host, *cards))
            assert (known.gpus, known.free_mib, known.backend) == (1, 22 * 1_024, "cuda")
            (note,) = known.notes
            assert note.startswith("The GT 710 has compute capability 3.5")
            assert note.endswith("It is not used.")
        assert make_situation(machine(linux_host, new, old), backend="vulkan").gpus == 2
        assert make_situation(machine(linux_host, old)).backend == "vulkan"

    def test_a_gpu_of_unknown_memory_is_left_out_with_the_reason(self, linux_host: Host) -> None:
        silent = nvidia(1, absent={"memory_bytes": "The GPU stopped answering: restart the computer."})
        silent = replace(silent, memory_bytes=None, free_bytes=None)
        for cards in ((nvidia(), silent), (silent,)):
            known = make_situation(machine(linux_host, *cards))
            assert any("unknown: The GPU stopped answering" in note for note in known.notes)
        assert (known.backend, known.no_gpu) == ("cpu", True)
        built_in = Gpu("intel", 0, "Intel Iris Xe", "0000:00:02.0", unified=True)
        assert make_situation(machine(linux_host, nvidia(), built_in)).notes == ()

    @pytest.mark.parametrize(
        ("name", "backend"), [("Vulkan0", "vulkan"), ("ROCm0", "rocm"), ("MTL0", "metal"), ("CUDA0", "cuda")]
    )
    def test_a_gpu_that_only_the_engine_lists_is_planned(self, linux_host: Host, name: str, backend: str) -> None:
        gpu = Gpu("other", 0, "Some GPU", name, 12 * GIB, free_bytes=11 * GIB)
        known = make_situation(
            machine(linux_host, gpu), environ={"CUDA_VISIBLE_DEVICES": "5", "GGML_VK_VISIBLE_DEVICES": "3"}
        )
        assert (known.backend, known.free_mib, known.gpu_name) == (backend, 11 * 1_024, "Some GPU")

    def test_a_requested_processor_ignores_the_gpu(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia()), backend="cpu")
        assert (known.backend, known.free_mib, known.gpu_name, known.notes) == ("cpu", 48 * 1_024, None, ())
        assert not known.no_gpu

    def test_a_sleeping_gpu_is_ignored_and_named(self, linux_host: Host) -> None:
        asleep = Gpu("nvidia", 1, "NVIDIA RTX A500 Laptop GPU", "GPU-1", unified=None, asleep=True)
        known = make_situation(machine(linux_host, nvidia(), asleep))
        assert known.gpus == 1
        assert known.notes == ("The NVIDIA RTX A500 Laptop GPU is asleep and not used; --wake wakes it.",)

    @pytest.mark.parametrize("overhead", [130, 630])
    def test_earlier_loads_give_the_overhead_of_a_gpu(self, linux_host: Host, overhead: int) -> None:
        first = make_situation(machine(linux_host, nvidia()))
        assert first.overheads_mib == (expected_overhead_mib("cuda", find_card("4090")),)
        record_load("GPU-0", "cuda", buffers_mib=10_000, measured_mib=10_000 + overhead)
        known = make_situation(machine(linux_host, nvidia()))
        assert (known.overheads_mib, known.margin_mib, known.headless) == ((overhead,), 512, True)
        assert f"took up to {overhead} MiB of the NVIDIA GeForce RTX 4090 in earlier loads" in known.notes[-1]
        desktop = make_situation(machine(replace(linux_host, display=":0"), nvidia()))
        assert (desktop.margin_mib, desktop.headless) == (1_024, False)

    def test_disabled_resizable_bar_is_a_caution_on_vulkan(self, linux_host: Host) -> None:
        off = replace(nvidia(), vendor="amd", name="AMD Radeon RX 7900 XTX", small_bar=True)
        (caution,) = make_situation(machine(linux_host, off)).cautions
        assert caution.startswith("Resizable BAR is off for the AMD Radeon RX 7900 XTX, which can make Vulkan several")
        assert "Above 4G Decoding" in caution
        assert make_situation(machine(linux_host, off), backend="rocm").cautions == ()
        assert make_situation(machine(linux_host, replace(off, small_bar=False))).cautions == ()


def server(
    pid: int,
    by_gpu: dict[str, int] | None = None,
    *,
    host_mib: int | None = 100,
    estimated: tuple[int, ...] | None = None,
) -> ServerMemory:
    """A running server of ours; without `by_gpu` no driver tells what it has."""

    def estimate(_backend: Backend, _overheads_mib: tuple[int, ...]) -> tuple[int, ...] | None:
        return estimated

    return ServerMemory(pid, f"model-{pid}", by_gpu, host_mib, estimate)


class TestOwnServers:
    def test_memory_of_our_server_is_free_for_a_replacement_only(self, linux_host: Host) -> None:
        busy = nvidia(free=5_020 * MIB, used_bytes=24 * GIB - 5_020 * MIB)
        known = make_situation(machine(linux_host, busy), servers=[server(7, {"GPU-0": 17_333})])
        assert (known.free_mib, known.free_now_mib, known.own_mib) == (22_353, 5_020, 17_333)
        assert known.host_mib == 48 * 1_024 + 100
        (note,) = known.own_notes
        assert note.startswith("Free memory is counted as if model-7 were stopped, which frees 17,333 MiB. While it")
        assert note.endswith("runs, 5,020 MiB are free.")
        beside = known.with_servers_running()
        assert (beside.free_mib, beside.host_mib, beside.own_mib) == (5_020, 48 * 1_024, 17_333)

    def test_without_our_server_both_figures_are_the_free_memory(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia()))
        assert (known.free_mib, known.free_now_mib, known.own_mib, known.own_notes) == (22_528, 22_528, 0, ())
        assert known.with_servers_running() is known
        assert to_json(known, MEMORY_VIEW) == {
            "alone_mib": 22_528,
            "beside_mib": 22_528,
            "own_mib": 0,
            "read_at": pytest.approx(known.read_at, abs=0.1),
        }

    def test_one_of_two_servers_may_be_replaced(self, linux_host: Host) -> None:
        busy = nvidia(free=6_000 * MIB)
        known = make_situation(
            machine(linux_host, busy), servers=[server(7, {"GPU-0": 10_000}), server(8, {"GPU-0": 2_000})]
        )
        assert (known.free_mib, known.free_now_mib, known.own_mib) == (18_000, 6_000, 12_000)
        assert "model-7, model-8 were stopped, which frees 12,000 MiB. While they run" in known.own_notes[0]
        restarted = known.with_servers_running(ending=[7])
        assert (restarted.free_mib, restarted.own_mib) == (16_000, 2_000)
        # `with_servers_running` counts no server as stopped.
        assert (restarted.free_now_mib, restarted.own_notes) == (16_000, ())
        gone = known.with_servers_running(ending=[7, 8])
        assert (gone.free_mib, gone.own, gone.free_now_mib) == (18_000, (), 18_000)

    def test_each_gpu_gets_back_the_memory_of_the_server(self, linux_host: Host) -> None:
        cards = (nvidia(free=2_000 * MIB), nvidia(1, free=9_000 * MIB))
        known = make_situation(machine(linux_host, *cards), servers=[server(7, {"GPU-0": 15_000, "GPU-1": 3_000})])
        assert (known.gpu_free_mib, known.free_mib, known.free_now_mib) == ((17_000, 12_000), 29_000, 11_000)
        assert known.with_servers_running().gpu_free_mib == (2_000, 9_000)

    def test_without_a_driver_the_estimate_is_used_up_to_the_used_memory(self, linux_host: Host) -> None:
        busy = nvidia(free=20_000 * MIB, used_bytes=4_000 * MIB)
        known = make_situation(
            machine(linux_host, busy), servers=[server(7, estimated=(3_000,)), server(8, estimated=(9_000,))]
        )
        assert [(each.mib, each.measured) for each in known.own] == [(3_000, False), (4_000, False)]
        assert known.free_mib == 24 * 1_024  # never more than the card has

    def test_unknown_server_memory_does_not_count_as_free(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia(free=6_000 * MIB)), servers=[server(7)])
        assert (known.free_mib, known.free_now_mib, known.own_mib) == (6_000, 6_000, None)
        assert to_json(known, MEMORY_VIEW)["own_mib"] is None
        assert known.own_notes == (
            "The memory of model-7 is unknown. Stopping it frees more memory than this figure shows.",
        )

    def test_without_a_gpu_private_memory_of_the_engine_counts_as_free(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host), servers=[server(7, {}, host_mib=3_000)])
        assert (known.free_mib, known.host_mib) == (48 * 1_024 + 3_000,) * 2
        assert (known.free_now_mib, known.with_servers_running().free_mib, known.own_mib) == (
            48 * 1_024,
            48 * 1_024,
            3_000,
        )

    def test_memory_given_by_the_user_is_not_changed(self, linux_host: Host) -> None:
        known = make_situation(machine(linux_host, nvidia()), free_mib=9_000, servers=[server(7, {"GPU-0": 4_000})])
        assert (known.free_mib, known.free_now_mib, known.own_mib) == (9_000, 9_000, 0)

    def test_an_integrated_gpu_and_the_host_get_memory_back_once(self, linux_host: Host) -> None:
        shared = nvidia(free=30 * GIB, total=60 * GIB, unified=True)
        here = replace(linux_host, available_bytes=20 * GIB)
        known = make_situation(machine(here, shared), servers=[server(7, {"GPU-0": 10 * 1_024}, host_mib=0)])
        assert (known.free_mib, known.free_now_mib, known.host_mib) == (30 * 1_024, 20 * 1_024, 0)


class TestFromSysfs:
    def test_the_memory_of_a_radeon_is_planned(self, root: Path, linux_host: Host) -> None:
        memory: dict[str, str | bytes] = {
            "mem_info_vram_total": str(24 * GIB),
            "mem_info_vram_used": str(2 * GIB),
        }
        pci_card(root, "0000:03:00.0", RX_7900, "amdgpu", memory)
        known = make_situation(replace(read_machine(root=root), host=linux_host))
        assert (known.backend, known.nominal_gb, known.free_mib, known.gpus) == ("vulkan", 24, 22 * 1_024, 1)
        assert not known.unified

    def test_an_arc_with_unknown_free_memory_is_planned(self, root: Path, linux_host: Host) -> None:
        pci_card(root, "0000:03:00.0", ARC_B580, "xe", {"tile0/physical_vram_size_bytes": hex(12 * GIB)})
        known = make_situation(replace(read_machine(root=root), host=linux_host))
        assert (known.backend, known.nominal_gb) == ("vulkan", 12)
        assert known.free_mib == describe_machine(12).free_mib
        assert any("96.7 % of its memory" in note for note in known.notes)

    @pytest.mark.parametrize(
        ("available_gib", "free_mib", "left_mib"),
        [(48, 13 * 1_024 + 512, 35 * 1_024), (4, 4 * 1_024 + 512, 0)],
    )
    def test_an_integrated_gpu_has_no_more_than_the_host_and_is_counted_once(
        self, root: Path, linux_host: Host, available_gib: int, free_mib: int, left_mib: int
    ) -> None:
        memory: dict[str, str | bytes] = {"mem_info_vram_total": str(GIB), "mem_info_vram_used": str(GIB // 2)}
        memory |= {"mem_info_gtt_total": str(14 * GIB), "mem_info_gtt_used": str(GIB)}
        memory |= {"gpu_metrics": struct.pack("<HBB", 264, 3, 0) + bytes(260)}  # the table that processors' GPUs have
        pci_card(root, "0000:04:00.0", PHOENIX, "amdgpu", memory)
        linux_host = replace(linux_host, available_bytes=available_gib * GIB)
        known = make_situation(replace(read_machine(root=root), host=linux_host))
        assert (known.unified, known.backend) == (True, "vulkan")
        assert (known.free_mib, known.host_mib) == (free_mib, left_mib)
        assert any("shares host memory" in note for note in known.notes)

    def test_a_sleeping_card_has_no_plan(self, root: Path, linux_host: Host) -> None:
        pci_card(root, "0000:03:00.0", RX_7900, "amdgpu", status="suspended", control="auto")
        found = replace(read_machine(root=root), host=linux_host)
        known = make_situation(found)
        assert (known.backend, known.gpu_name) == ("cpu", None)
        with pytest.raises(GpuAsleep, match="is asleep, so its free memory is unknown") as asleep:
            _check_awake(found, MachineDescription())
        assert "--wake" in asleep.value.hint
        _check_awake(found, MachineDescription(backend="cpu"))
        _check_awake(found, MachineDescription(wake=True))
        _check_awake(replace(found, gpus=(*found.gpus, nvidia())), MachineDescription())
