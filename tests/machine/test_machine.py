"""The machine as a plan reads it: quickly, and without what a plan does not need."""

import struct
from pathlib import Path

from launcher.machine.machine import read_machine
from tests.machine.conftest import ask_driver, pci_card

GIB = 2**30
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
