"""The host and its GPUs, read together at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.machine.engine_devices import EngineDevice
from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.gpus import UnusableCard, find_gpus
from launcher.machine.host import Host, read_host
from launcher.machine.sysfs import ROOT, read_text

_INTEL_SHARE = 0.75
"""Share of host memory that Mesa offers to programs on an integrated Intel GPU (anv_physical_device.c)."""
_SAME_SIZE = 0.05
"""Relative difference up to which a NUMA node is a GPU's memory, of which the driver keeps a part."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The host and its GPUs, those with memory of their own first.

    `no_gpu_reason` is None if there is a GPU; `absent` has the reason by vendor for each vendor without a GPU.
    `failures` are sentences about GPUs that exist and do not answer.
    """

    host: Host
    gpus: tuple[Gpu, ...]
    no_gpu_reason: str | None
    absent: Mapping[Vendor, str]
    failures: tuple[str, ...]
    unusable_cards: tuple[UnusableCard, ...]


def read_machine(devices: Sequence[EngineDevice] = (), *, root: Path = ROOT, wake: bool = False) -> Machine:
    """Read the host and all GPUs. Raises nothing; unknown values have a reason.

    A sleeping GPU is listed by name only, unless `wake`. `devices` is an engine's --list-devices: it adds GPUs of which
    this program knows no driver. `root` is the root of the Linux file systems (for tests).
    """
    found = find_gpus(devices, root=root, wake=wake)
    host = _without_gpu_nodes(read_host(root), found.gpus, root)
    gpus = tuple(_share_host_memory(gpu, host) for gpu in found.gpus)
    return Machine(host, gpus, found.no_gpu_reason, found.absent, found.failures, found.unusable_cards)


def _without_gpu_nodes(host: Host, gpus: Sequence[Gpu], root: Path) -> Host:
    """Return the host without memory that is a GPU's own: on a GH200 it is a NUMA node without processors.

    Source: numactl #210.
    """
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.vendor == "nvidia" and gpu.memory_bytes and not gpu.unified]
    for node in sorted(root.glob("sys/devices/system/node/node[0-9]*")) if sizes else ():
        if read_text(node / "cpulist"):
            continue
        lines = [line.split() for line in (read_text(node / "meminfo") or "").splitlines()]
        known = {words[2]: int(words[3]) * 1_024 for words in lines if len(words) > 3 and words[3].isdecimal()}
        total = known.get("MemTotal:", 0)
        if any(abs(total / size - 1) < _SAME_SIZE for size in sizes):
            host = replace(
                host,
                memory_bytes=max(0, host.memory_bytes - total),
                available_bytes=max(0, host.available_bytes - known.get("MemFree:", 0)),
            )
    return host


def _share_host_memory(gpu: Gpu, host: Host) -> Gpu:
    """Return a GPU with the host's memory if it shares that and its driver reports none, as on a DGX Spark.

    Of NVIDIA's, free is what is available on the host: CUDA does not count cached files as free (ollama #12283).
    """
    if not gpu.unified or gpu.asleep or (gpu.memory_bytes and gpu.vendor != "nvidia"):
        return gpu
    total = gpu.memory_bytes or int(host.memory_bytes * (_INTEL_SHARE if gpu.vendor == "intel" else 1))
    free = min(total, gpu.carve_out_free_bytes + host.available_bytes)
    return replace(gpu, memory_bytes=total, free_bytes=free, used_bytes=total - free)
