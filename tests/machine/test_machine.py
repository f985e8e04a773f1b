"""The machine as a plan reads it: quickly, and without what a plan does not need."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.machine.gpu import Gpu
from launcher.machine.gpus import DetectedGpus
from launcher.machine.host import Host, read_host
from launcher.machine.machine import Machine, read_machine
from tests.machine.conftest import ask_driver, pci_card, write

GIB, MIB = 2**30, 2**20
READ = """
import json, os, sys
from pathlib import Path
from launcher.machine.machine import read_machine
root = Path(os.environ["STUB_ROOT"])
machine = read_machine(root=root)
print(json.dumps({
    "names": [gpu.name for gpu in machine.gpus],
    "because": machine.no_gpu_reason,
    "loaded": [name for name in ("asyncio", "pydantic", "httpx") if name in sys.modules],
}))
"""


def test_reading_the_machine_imports_few_modules(driver: Path, root: Path) -> None:
    pci_card(root, "0000:01:00.0", (0x10DE, 0x2684), "nvidia")
    readings = ask_driver(READ, driver, root)
    assert (readings["names"], readings["because"], readings["loaded"]) == (["NVIDIA Stub 24GB"], None, [])


def test_this_machine_is_read(root: Path) -> None:
    pci_card(
        root,
        "0000:03:00.0",
        (0x1002, 0x744C),
        "amdgpu",
        {
            "mem_info_vram_total": str(16 * GIB),
            "mem_info_vram_used": str(GIB),
            "gpu_metrics": struct.pack("<HBB", 120, 1, 3),
        },
    )
    used = root / "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used"
    before = [gpu.free_bytes for gpu in read_machine(root=root).gpus if gpu.vendor == "amd"]
    used.write_text(str(5 * GIB))
    after = read_machine(root=root)
    assert before == [15 * GIB]
    assert [gpu.free_bytes for gpu in after.gpus if gpu.vendor == "amd"] == [11 * GIB]
    assert after.no_gpu_reason is None
    assert after.host.available_bytes > 0


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host that the machine is read with: Linux with 120 GiB, 100 of them available."""
    known = replace(read_host(), kind="linux", wsl=None, memory_bytes=120 * GIB, available_bytes=100 * GIB)
    monkeypatch.setattr("launcher.machine.machine.read_host", lambda _root: known)
    return known


def read_with(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, root: Path) -> Machine:
    found = DetectedGpus((gpu.with_reasons("not reported"),), {}, (), ())
    monkeypatch.setattr("launcher.machine.machine.find_gpus", lambda *_, **__: found)
    return read_machine(root=root)


@pytest.mark.usefixtures("host")
class TestSharedMemory:
    @pytest.mark.parametrize(
        ("gpu", "total_gib", "free_gib"),
        [
            (Gpu("nvidia", 0, "NVIDIA GB10", "GPU-0", unified=True), 120, 100),
            (Gpu("nvidia", 0, "Orin (nvgpu)", "GPU-0", 62 * GIB, free_bytes=GIB, unified=True), 62, 62),
            (Gpu("nvidia", 0, "NVIDIA GB10", "GPU-0", 119 * GIB, free_bytes=4 * GIB, unified=True), 119, 100),
            (Gpu("nvidia", 0, "NVIDIA RTX Spark N1X", "GPU-0", 8 * GIB, free_bytes=7 * GIB, unified=True), 68, 68),
            (Gpu("intel", 0, "Intel Iris Xe", "0000:00:02.0", unified=True), 90, 90),
            (Gpu("amd", 0, "AMD Radeon 8060S", "0000:c3:00.0", 96 * GIB, free_bytes=90 * GIB, unified=True), 96, 90),
            (Gpu("nvidia", 0, "NVIDIA RTX A2000", "GPU-0", unified=False), None, None),
        ],
        ids=["GB10", "Orin", "GB10 that reports", "N1X", "Iris", "Strix Halo", "a card without figures"],
    )
    def test_a_gpu_that_shares_memory_has_the_hosts(
        self, gpu: Gpu, total_gib: int | None, free_gib: int | None, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (found,) = read_with(gpu, monkeypatch, root).gpus
        sizes = [None if size is None else size * GIB for size in (total_gib, free_gib)]
        assert [found.memory_bytes, found.free_bytes] == sizes

    @pytest.mark.parametrize(
        ("name", "total_gib"),
        [("Intel Arc Pro B70", 32), ("Intel Arc B580", 12), ("Intel Arc Next", None)],
    )
    def test_a_card_of_intel_has_the_memory_that_its_name_says(
        self, name: str, total_gib: int | None, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (found,) = read_with(Gpu("intel", 0, name, "0000:03:00.0", unified=False), monkeypatch, root).gpus
        assert found.memory_bytes == (None if total_gib is None else total_gib * GIB)
        assert found.free_bytes is None
        assert found.absent["memory_bytes"]

    def test_windows_knows_what_a_gpu_can_still_take(
        self, host: Host, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("launcher.machine.machine.read_host", lambda _root: replace(host, kind="windows"))
        gpu = Gpu("nvidia", 0, "N1X", "GPU-0", 90 * GIB, free_bytes=40 * GIB, carve_out_free_bytes=GIB, unified=True)
        assert read_with(gpu, monkeypatch, root).gpus[0].free_bytes == 40 * GIB

    @pytest.mark.parametrize(("node_mib", "gone_gib"), [(97_280, 95), (60_000, 0)], ids=["the GPU's", "other memory"])
    def test_the_memory_of_a_gpu_that_linux_lists_as_a_node_is_not_the_hosts(
        self, node_mib: int, gone_gib: int, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = f"Node 1 MemTotal: {node_mib * 1_024} kB\nNode 1 MemFree: {node_mib * 1_024} kB\nNode 1 Active: 8 kB"
        nodes = {
            "node0/cpulist": "0-71",
            "node0/meminfo": "Node 0 MemTotal: 99614720 kB",
            "node1/cpulist": "",
            "node1/meminfo": lines,
        }
        write(root, {f"sys/devices/system/node/{name}": text for name, text in nodes.items()})
        gpu = Gpu("nvidia", 0, "NVIDIA GH200 480GB", "GPU-0", 97_871 * MIB, free_bytes=97_000 * MIB, unified=False)
        found = read_with(gpu, monkeypatch, root).host
        assert (found.memory_bytes, found.available_bytes) == ((120 - gone_gib) * GIB, (100 - gone_gib) * GIB)
