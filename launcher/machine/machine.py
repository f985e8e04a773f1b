"""The host and its GPUs, read together at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.base.messages import message
from launcher.machine.cards import match_card
from launcher.machine.engine_devices import EngineDevice
from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.gpus import UnusableCard, find_gpus
from launcher.machine.host import Host, read_host
from launcher.machine.sysfs import ROOT, read_text

_INTEL_SHARE = 0.75
"""Share of host memory that Mesa offers to programs on an integrated Intel GPU (anv_physical_device.c)."""
_CARVE_OUT_SHARE, _WINDOWS_SHARE = 0.25, 0.5
"""Share of host memory up to which a driver's figure is that of a carve-out, and the share that Windows lets a GPU use
besides it."""
_CARVE_OUT_ONLY = message("The driver reports only the part that is reserved for it.")
_BY_NAME = message("The driver does not report it; cards of this name have this much.")
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
    gpus = tuple(_size_by_name(_share_host_memory(gpu, host)) for gpu in found.gpus)
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
    """Return a GPU with its part of the host's memory, if it shares that and its driver does not report it.

    NVIDIA's driver reports nothing for a GB10 and only the carve-out for an N1X (unsloth #11208). Free is what is
    available on the host: CUDA on Linux does not count cached files as free (ollama #12283).
    """
    if not gpu.unified or gpu.asleep or (gpu.memory_bytes and gpu.vendor != "nvidia"):
        return gpu
    total, absent = gpu.memory_bytes or 0, gpu.absent
    if not total:
        total = int(host.memory_bytes * (_INTEL_SHARE if gpu.vendor == "intel" else 1))
    elif total <= host.memory_bytes * _CARVE_OUT_SHARE and not gpu.carve_out_free_bytes:
        gpu = replace(gpu, carve_out_free_bytes=gpu.free_bytes or 0)
        total += int(host.memory_bytes * _WINDOWS_SHARE)
        absent = {**absent, "memory_bytes": _CARVE_OUT_ONLY}
    free = min(total, gpu.carve_out_free_bytes + host.available_bytes)
    if gpu.free_bytes and (host.kind != "linux" or host.wsl) and "memory_bytes" not in absent:
        free = min(free, gpu.free_bytes)
    return replace(gpu, memory_bytes=total, free_bytes=free, used_bytes=total - free, absent=absent)


def _size_by_name(gpu: Gpu) -> Gpu:
    """Return a card of Intel with the memory of its name, if its driver does not report it and no engine was asked.

    Linux has no file for it: xe and i915 answer only programs that use the GPU (ramalama #1979, llmfit #609).
    """
    if gpu.vendor != "intel" or gpu.memory_bytes or gpu.unified or gpu.asleep:
        return gpu
    card = match_card(gpu.name, None)
    if card is None:
        return gpu
    return replace(gpu, memory_bytes=card.memory_gb * 2**30, absent={**gpu.absent, "memory_bytes": _BY_NAME})
