"""The devices of an engine's --list-devices, matched with those of the drivers."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from launcher.machine.engine_devices import find_disagreements, is_gpu, merge_engine_gpus
from launcher.machine.gpu import ASLEEP, Gpu, Vendor

GIB, MIB = 2**30, 2**20


class Device(NamedTuple):
    name: str
    description: str
    total_mib: int
    free_mib: int


def gpu(name: str, mib: int | None, vendor: Vendor = "nvidia", index: int = 0, reserved_mib: int = 0) -> Gpu:
    memory = None if mib is None else mib * MIB
    id_, reserved = f"{vendor}-{index}", reserved_mib * MIB
    return Gpu(vendor, index, name, id_, memory, free_bytes=memory, reserved_bytes=reserved, unified=False)


RTX_4090 = gpu("NVIDIA GeForce RTX 4090", 24564, reserved_mib=482)
CUDA_4090 = Device("CUDA0", "NVIDIA GeForce RTX 4090", 24082, 23500)
RX_7900 = gpu("AMD Radeon RX 7900 XTX", 24560, "amd")
LLVMPIPE = Device("Vulkan0", "llvmpipe (LLVM 21.1.8, 256 bits)", 24105, 23622)
BLAS = Device("BLAS", "Accelerate", 0, 0)
REMOTE = Device("RPC0", "192.168.1.7:50052", 24000, 23000)


class TestAgreement:
    @pytest.mark.parametrize(
        ("gpus", "devices"),
        [
            ([RTX_4090], [CUDA_4090]),
            ([RTX_4090], [CUDA_4090._replace(description="GeForce RTX 4090")]),
            ([RTX_4090], [CUDA_4090, Device("Vulkan0", "NVIDIA GeForce RTX 4090", 24564, 24000)]),
            ([RX_7900], [Device("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560, 24000)]),
            ([RX_7900], [Device("ROCm0", "Radeon RX 7900 XTX", 24560, 24500)]),
            ([gpu("AMD Navi 31", 24560, "amd")], [Device("ROCm0", "Radeon RX 7900 XTX", 24560, 24500)]),
            ([gpu("Intel Arc B580", None, "intel")], [Device("SYCL0", "Intel(R) Arc(TM) B580 Graphics", 11605, 11000)]),
            ([RTX_4090], [CUDA_4090, BLAS]),
            ([], []),
        ],
        ids=["CUDA", "no maker", "two backends", "RADV", "ROCm", "other name", "SYCL", "BLAS", "nothing"],
    )
    def test_agreeing_lists_give_no_report(self, gpus: list[Gpu], devices: list[Device]) -> None:
        assert find_disagreements(gpus, devices, {}) == ()

    def test_two_cards_with_one_name_are_distinguished_by_memory(self) -> None:
        gpus = [gpu("NVIDIA GeForce RTX 3060", 12288), gpu("NVIDIA GeForce RTX 3060", 8192, index=1)]
        devices = [
            Device("CUDA0", "NVIDIA GeForce RTX 3060", 8191, 8000),
            Device("CUDA1", "NVIDIA GeForce RTX 3060", 12287, 12000),
        ]
        assert find_disagreements(gpus, devices, {}) == ()

    def test_an_integrated_gpu_is_not_missed_beside_another(self) -> None:
        built_in = Gpu("intel", 0, "Intel Iris Xe", "0000:00:02.0", unified=True)
        assert find_disagreements([RTX_4090, built_in], [CUDA_4090], {}) == ()

    def test_one_slice_of_a_gpu_is_enough(self) -> None:
        slices = [replace(gpu("NVIDIA H100 MIG 2g.20gb", 20_000, index=at), id=f"MIG-{at}") for at in range(2)]
        device = Device("CUDA0", "NVIDIA H100 MIG 2g.20gb", 20_000, 19_800)
        assert find_disagreements(slices, [device], {}) == ()
        assert [each.kind for each in find_disagreements(slices, [], {})] == ["missing", "missing"]


class TestDisagreement:
    def test_a_gpu_missing_in_the_engine_is_reported(self) -> None:
        (found,) = find_disagreements([RTX_4090], [], {})
        assert (found.kind, found.title) == ("missing", "The engine does not see the GPU (NVIDIA GeForce RTX 4090).")
        assert "CUDA runtime" in found.hint

    def test_one_of_two_missing_gpus_is_reported(self) -> None:
        (found,) = find_disagreements([RTX_4090, RX_7900], [CUDA_4090], {})
        assert (found.kind, found.title) == ("missing", "The engine does not see the AMD Radeon RX 7900 XTX.")

    def test_a_gpu_of_another_maker_does_not_count(self) -> None:
        arc = Device("Vulkan0", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", 24560, 24000)
        assert [each.kind for each in find_disagreements([RX_7900], [arc], {})] == ["missing"]

    def test_the_only_gpu_is_missed_even_if_it_is_integrated(self) -> None:
        (found,) = find_disagreements([Gpu("intel", 0, "Intel Iris Xe", "0000:00:02.0", unified=True)], [BLAS], {})
        assert found.kind == "missing"

    @pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"])
    def test_a_variable_that_hides_the_gpu_is_named(self, name: str) -> None:
        second = gpu("NVIDIA GeForce RTX 3060", 12288, index=1)
        (found,) = find_disagreements([RTX_4090, second], [CUDA_4090], {name: "0", "HIP_VISIBLE_DEVICES": "0"})
        assert (found.kind, found.title) == (
            "hidden",
            f"{name}=0 hides the NVIDIA GeForce RTX 3060 from the engine.",
        )

    def test_a_variable_that_hides_nothing_is_not_named(self) -> None:
        assert find_disagreements([RTX_4090], [CUDA_4090], {"CUDA_VISIBLE_DEVICES": "0"}) == ()

    @pytest.mark.parametrize("value", ["0", "GPU-5ac", "GPU-", "0,1", "MIG-5"])
    def test_a_variable_that_names_the_only_gpu_does_not_hide_it(self, value: str) -> None:
        card = replace(RTX_4090, id="GPU-5ac1f2")
        (found,) = find_disagreements([card], [], {"CUDA_VISIBLE_DEVICES": value})
        assert found.kind == "missing"

    @pytest.mark.parametrize("value", ["", "-1", "1", "none", "GPU-77"])
    def test_a_variable_that_does_not_name_the_gpu_hides_it(self, value: str) -> None:
        (found,) = find_disagreements([RTX_4090], [], {"CUDA_VISIBLE_DEVICES": value})
        assert found.title == f"CUDA_VISIBLE_DEVICES={value} hides the NVIDIA GeForce RTX 4090 from the engine."

    def test_the_environment_is_read_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert find_disagreements([RTX_4090], [])[0].kind == "hidden"

    @pytest.mark.parametrize(
        ("total_mib", "differs"), [(23_360, False), (23_359, True), (25_300, False), (25_302, True)]
    )
    def test_memory_may_differ_by_3_percent(self, total_mib: int, differs: bool) -> None:
        found = find_disagreements([RTX_4090], [CUDA_4090._replace(total_mib=total_mib)], {})
        assert [each.kind for each in found] == ["memory"] * differs
        if differs:
            assert f"the engine {total_mib:,} MiB" in found[0].title

    def test_unknown_driver_memory_is_not_compared(self) -> None:
        assert (
            find_disagreements([gpu("NVIDIA GB10", None)], [Device("CUDA0", "NVIDIA GB10", 122_000, 100_000)], {}) == ()
        )

    def test_a_cpu_device_is_not_a_gpu(self) -> None:
        (found,) = find_disagreements([], [LLVMPIPE], {})
        assert found.kind == "software_renderer"
        assert "Vulkan0 is llvmpipe" in found.title
        kinds = [each.kind for each in find_disagreements([RTX_4090], [LLVMPIPE], {})]
        assert kinds == ["software_renderer", "missing"]

    def test_gpus_are_distinguished_from_other_devices(self) -> None:
        devices = [CUDA_4090, LLVMPIPE, BLAS, REMOTE, Device("MTL0", "Apple M3 Max", 49152, 49000)]
        assert [device.name for device in devices if is_gpu(device)] == ["CUDA0", "MTL0"]


class TestMerge:
    def test_figures_of_the_driver_are_kept(self) -> None:
        assert merge_engine_gpus([RTX_4090], [CUDA_4090]) == [RTX_4090]

    def test_the_engine_adds_memory_that_the_driver_does_not_report(self) -> None:
        arc = Gpu("intel", 0, "Intel Arc B580", "0000:03:00.0", driver="xe", asleep=False).with_reasons("Not said.")
        (merged,) = merge_engine_gpus(
            [arc], [Device("Vulkan0", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12216, 11000)]
        )
        assert (merged.name, merged.id, merged.driver) == ("Intel Arc B580", "0000:03:00.0", "xe")
        assert (merged.memory_bytes, merged.free_bytes, merged.used_bytes) == (12216 * MIB, 11000 * MIB, 1216 * MIB)
        assert "memory_bytes" not in merged.absent
        assert merged.absent["display_active"] == "Not said."

    def test_the_engine_adds_only_free_memory_if_that_alone_is_missing(self) -> None:
        arc = replace(gpu("Intel Arc B580", 12_288, "intel"), free_bytes=None).with_reasons(
            "The xe driver does not report it."
        )
        (merged,) = merge_engine_gpus(
            [arc], [Device("Vulkan0", "Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12_216, 11_000)]
        )
        assert (merged.memory_bytes, merged.free_bytes) == (12_288 * MIB, 11_000 * MIB)
        assert "free_bytes" not in merged.absent

    @pytest.mark.parametrize(
        ("description", "unified"),
        [
            ("Intel(R) Iris(R) Xe Graphics (TGL GT2)", True),
            ("Intel(R) UHD Graphics 770", True),
            ("Intel(R) Arc(TM) 140V GPU (16GB)", True),
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", None),
            ("AMD Radeon(TM) 8060S Graphics", True),
            ("AMD Radeon 780M Graphics (RADV PHOENIX)", True),
            ("AMD Radeon RX 7900M", None),
            ("Apple M3 Max", True),
        ],
    )
    def test_an_integrated_gpu_is_recognised_by_its_name(self, description: str, unified: bool | None) -> None:
        (added,) = merge_engine_gpus([], [Device("Vulkan0", description, 16_000, 15_000)])
        assert added.unified is unified

    def test_a_sleeping_gpu_counts_as_awake_after_the_engine_listed_it(self) -> None:
        asleep = Gpu("amd", 0, "AMD Radeon RX 7900 XTX", "0000:03:00.0", asleep=True).with_reasons(ASLEEP)
        (merged,) = merge_engine_gpus(
            [asleep], [Device("Vulkan0", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560, 24000)]
        )
        assert merged.asleep is False
        assert merged.memory_bytes == 24560 * MIB

    def test_a_gpu_that_only_the_engine_lists_is_added_once(self) -> None:
        devices = [
            CUDA_4090,
            Device("Vulkan0", "NVIDIA GeForce RTX 4090", 24564, 24000),
            Device("Vulkan1", "AMD Radeon Graphics (RADV PHOENIX)", 16000, 15000),
            BLAS,
        ]
        first, second = merge_engine_gpus([RTX_4090], devices)
        assert first == RTX_4090
        assert (second.vendor, second.index, second.name, second.id) == (
            "amd",
            0,
            "AMD Radeon Graphics (RADV PHOENIX)",
            "Vulkan1",
        )
        assert second.memory_bytes == 16000 * MIB
        assert second.absent["bus_id"] == "This GPU appears only in the engine's device list."

    def test_one_gpu_listed_by_two_backends_is_added_once(self) -> None:
        devices = [CUDA_4090, Device("Vulkan0", "NVIDIA GeForce RTX 4090", 24564, 24000)]
        assert [each.id for each in merge_engine_gpus([], devices)] == ["CUDA0"]

    @pytest.mark.parametrize(
        ("device", "vendor"),
        [
            (Device("MTL0", "Apple M3 Max", 49152, 49000), "other"),
            (Device("Vulkan0", "Intel(R) UHD Graphics 770", 16000, 15000), "intel"),
            (Device("Vulkan0", "Radeon RX 580 Series", 8192, 8000), "amd"),
            (Device("Vulkan0", "Quadro P5000", 16384, 16000), "nvidia"),
            (Device("Vulkan0", "Adreno (TM) 750", 16384, 16000), "other"),
        ],
    )
    def test_the_maker_is_recognised_by_backend_and_name(self, device: Device, vendor: Vendor) -> None:
        assert [each.vendor for each in merge_engine_gpus([], [device])] == [vendor]


class TestMemoryThatTheEngineKnowsBetter:
    def test_a_part_of_a_gpu_counts_as_the_engine_reports_it(self) -> None:
        whole = replace(gpu("NVIDIA H100 NVL", 95_830, reserved_mib=600), memory_bandwidth_gb_s=3_938.0)
        (found,) = merge_engine_gpus([whole], [Device("CUDA0", "NVIDIA H100 NVL MIG 1g.24gb", 22_208, 22_100)])
        assert (found.memory_bytes, found.free_bytes) == (22_208 * MIB, 22_100 * MIB)
        assert (found.name, found.memory_bandwidth_gb_s) == ("NVIDIA H100 NVL MIG 1g.24gb", None)
        limited = merge_engine_gpus([RTX_4090], [CUDA_4090._replace(total_mib=10_000, free_mib=9_000)])[0]
        assert (limited.name, limited.memory_bytes) == (RTX_4090.name, 10_000 * MIB)

    def test_more_than_the_driver_knows_is_shared_with_the_host(self) -> None:
        spark = gpu("NVIDIA RTX Spark N1X", 8_128)
        device = Device("CUDA0", "NVIDIA RTX Spark N1X", 46_477, 45_000)
        for known in (spark, replace(spark, unified=True), replace(spark, name="NVIDIA Graphics Device")):
            (found,) = merge_engine_gpus([known], [device])
            assert (found.unified, found.memory_bytes) == (True, 46_477 * MIB)
            assert found.carve_out_free_bytes == 8_128 * MIB

    def test_a_driver_that_reports_the_hosts_memory_reports_no_carve_out(self) -> None:
        known = replace(gpu("NVIDIA GB10", 116_000), unified=True)
        (found,) = merge_engine_gpus([known], [Device("CUDA0", "NVIDIA GB10", 122_502, 60_000)])
        assert (found.memory_bytes, found.carve_out_free_bytes) == (122_502 * MIB, 0)

    def test_a_card_whose_memory_vulkan_counts_twice_keeps_the_drivers_figure(self) -> None:
        small = gpu("NVIDIA GeForce GTX 1650", 4_096)
        device = Device("Vulkan0", "NVIDIA GeForce GTX 1650", 4_342, 4_000)
        assert merge_engine_gpus([small], [device]) == [small]
        (found,) = find_disagreements([small], [device], {})
        assert found.hint.startswith("Plans count the driver's figure")

    def test_the_first_backend_that_knows_better_counts(self) -> None:
        limited = CUDA_4090._replace(total_mib=10_000, free_mib=9_000)
        (found,) = merge_engine_gpus(
            [RTX_4090], [limited, Device("Vulkan0", "NVIDIA GeForce RTX 4090", 24_564, 24_000)]
        )
        assert (found.memory_bytes, found.unified) == (10_000 * MIB, False)

    def test_the_driver_of_an_apu_knows_better_than_a_list_of_the_hosts_memory(self) -> None:
        halo = Gpu("amd", 0, "AMD Radeon 8060S", "0000:c3:00.0", 112 * GIB, free_bytes=110 * GIB, unified=True)
        halo = replace(halo, driver="amdgpu")
        assert merge_engine_gpus([halo], [Device("ROCm0", "AMD Radeon 8060S", 31_744, 26_000)]) == [halo]

    @pytest.mark.parametrize(
        "name", ["Orin", "Orin (nvgpu)", "NVIDIA Thor", "NVIDIA GB10", "NVIDIA Tegra X1", "Xavier"]
    )
    def test_a_chip_that_only_the_engine_lists_shares_the_hosts_memory(self, name: str) -> None:
        (found,) = merge_engine_gpus([], [Device("CUDA0", name, 30_697, 12_000)])
        assert found.unified is True
