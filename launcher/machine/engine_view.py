"""The engine's own list of GPUs (--list-devices) beside what the drivers say."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, Protocol

from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.visibility import hidden_by

_MIB = 2**20
_TOLERANCE = 0.03
_BACKENDS: dict[str, Vendor] = {"CUDA": "nvidia", "ROCm": "amd", "HIP": "amd", "SYCL": "intel"}
_WORDS: dict[Vendor, re.Pattern[str]] = {
    "nvidia": re.compile(r"\b(nvidia|geforce|quadro|tesla)\b", re.IGNORECASE),
    "amd": re.compile(r"\b(amd|radeon|instinct)\b", re.IGNORECASE),
    "intel": re.compile(r"\b(intel(\(r\))?|iris|arc)\b", re.IGNORECASE),
}
_PROCESSOR = re.compile(r"llvmpipe|lavapipe|swiftshader|basic render", re.IGNORECASE)
"""Names of Vulkan and Direct3D drivers that compute on the processor."""
_NOISE = re.compile(r"\((?:r|tm|c)\)|\([^)]*\)$|^\s*(nvidia|amd|intel)\b", re.IGNORECASE)
_POSSIBLE: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("cuda", "vulkan"),
    "amd": ("rocm", "vulkan"),
    "intel": ("sycl", "vulkan"),
    "other": ("vulkan",),
}
"""The backends that a GPU may be used by."""
_BUILT_IN = re.compile(
    r"\b(apple|adreno|(u?hd|iris(\(r\))?( xe| plus| pro)?) graphics|intel(\(r\))?( arc(\(tm\))?)? graphics"
    r"|arc\S* 1\d0[vt]|radeon(\(tm\))?( vega| r\d| hd)?( \d+s?)? graphics|radeon(\(tm\))? \d{3}m)\b",
    re.IGNORECASE,
)
"""Names of GPUs inside processors, as Vulkan's and Metal's drivers give them."""
_ENGINE_ONLY = "Only the engine's device list names this GPU."


class EngineDevice(Protocol):
    """A line of --list-devices."""

    @property
    def name(self) -> str:
        """The backend and a number, such as CUDA0."""

    @property
    def description(self) -> str:
        """What the backend calls the device; some leave the maker's name out."""

    @property
    def total_mib(self) -> int:
        """Its memory."""

    @property
    def free_mib(self) -> int:
        """What of it was free when the engine was asked."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Something that the drivers and the engine see differently: what, and what to do."""

    kind: Literal["missing", "hidden", "memory", "processor"]
    title: str
    hint: str


def is_gpu(device: EngineDevice) -> bool:
    """Return whether a device is a GPU of this computer: no BLAS library, remote device, or renderer in software."""
    elsewhere = device.name.startswith(("BLAS", "CPU", "RPC"))
    return not elsewhere and device.total_mib > 0 and not _PROCESSOR.search(device.description)


def merge(gpus: Sequence[Gpu], devices: Sequence[EngineDevice]) -> list[Gpu]:
    """Return `gpus` with the memory that only the engine knows, and the GPUs that only the engine names."""
    merged = list(gpus)
    for group in _by_backend(devices):
        pairs = _pairs(merged, group)
        for place, device in pairs.items():
            merged[place] = _with_memory(merged[place], device)
        matched = {device.name for device in pairs.values()}
        for device in group:
            if device.name not in matched:
                merged.append(_engine_only(device, merged))
    return merged


def disagreements(
    gpus: Sequence[Gpu], devices: Sequence[EngineDevice], environ: Mapping[str, str] | None = None
) -> tuple[Disagreement, ...]:
    """Return what a driver and an engine say differently of the same computer.

    A GPU that shares the host's memory is missed only when the engine lists none at all. The engine's total may lie
    3 % off: a backend leaves out what the driver reserves.
    """
    found = [
        Disagreement(
            "processor",
            f"The engine takes the processor for a GPU: {device.name} is {device.description}.",
            "It is slower than the engine's own code for processors. Install the GPU's Vulkan driver, or leave it out.",
        )
        for device in devices
        if _PROCESSOR.search(device.description)
    ]
    real = [device for device in devices if is_gpu(device)]
    seen: dict[int, EngineDevice] = {}
    for group in _by_backend(real):
        seen = _pairs(gpus, group) | seen
    for place, gpu in enumerate(gpus):
        if place in seen:
            found += _memory(gpu, seen[place])
        elif not (gpu.unified and real):
            found.append(_missing(gpu, gpus, real, os.environ if environ is None else environ))
    return tuple(found)


def _memory(gpu: Gpu, device: EngineDevice) -> list[Disagreement]:
    if gpu.memory_bytes is None or gpu.unified:
        return []
    total, usable = gpu.memory_bytes / _MIB, (gpu.memory_bytes - (gpu.reserved_bytes or 0)) / _MIB
    if usable * (1 - _TOLERANCE) <= device.total_mib <= total * (1 + _TOLERANCE):
        return []
    return [
        Disagreement(
            "memory",
            f"The driver gives {gpu.name} {total:,.0f} MiB of memory, the engine {device.total_mib:,} MiB.",
            "The engine's figure is what it can use: a partition, a container or a virtual machine limits it.",
        )
    ]


def _missing(
    gpu: Gpu, gpus: Sequence[Gpu], devices: Sequence[EngineDevice], environ: Mapping[str, str]
) -> Disagreement:
    hidden = (hidden_by(gpus, backend, environ).get(gpu.id) for backend in _POSSIBLE[gpu.vendor])
    hiding = next(filter(None, hidden), None)
    if hiding is not None:
        return Disagreement(
            "hidden",
            f"{hiding}={environ[hiding]} hides the {gpu.name} from the engine.",
            f"Unset {hiding}, or name this GPU in it.",
        )
    if devices:
        return Disagreement(
            "missing",
            f"The engine does not see the {gpu.name}.",
            "This build has no backend for it, or the backend's runtime is missing: the GPU stays unused.",
        )
    return Disagreement(
        "missing",
        f"The engine does not see the GPU ({gpu.name}).",
        "Its GPU backend or the CUDA runtime beside it is missing: it would run on the processor.",
    )


def _by_backend(devices: Sequence[EngineDevice]) -> list[list[EngineDevice]]:
    """Return the GPUs by backend: two backends name the same GPU twice."""

    def backend(device: EngineDevice) -> str:
        return device.name.rstrip("0123456789")

    real = sorted((device for device in devices if is_gpu(device)), key=backend)
    return [list(group) for _, group in groupby(real, backend)]


def _pairs(gpus: Sequence[Gpu], group: Sequence[EngineDevice]) -> dict[int, EngineDevice]:
    """Return which device is which GPU: of the same vendor, those first that are most alike in name and memory."""
    alike = sorted(
        (_plain(gpu.name) != _plain(device.description), _distance(gpu, device), place, order)
        for place, gpu in enumerate(gpus)
        for order, device in enumerate(group)
        if gpu.vendor == _vendor(device)
    )
    pairs: dict[int, EngineDevice] = {}
    taken: set[int] = set()
    for *_, place, order in alike:
        if place not in pairs and order not in taken:
            pairs[place] = group[order]
            taken.add(order)
    return pairs


def _distance(gpu: Gpu, device: EngineDevice) -> float:
    """Return by which share the memories differ, in steps of the tolerance: identical cards keep their order."""
    if gpu.memory_bytes is None:
        return 0.0
    return abs(device.total_mib * _MIB / gpu.memory_bytes - 1) // (2 * _TOLERANCE)


def _plain(name: str) -> str:
    return " ".join(_NOISE.sub(" ", _NOISE.sub(" ", name)).casefold().split())


def _vendor(device: EngineDevice) -> Vendor:
    known = _BACKENDS.get(device.name.rstrip("0123456789"))
    if known is not None:
        return known
    return next((vendor for vendor, words in _WORDS.items() if words.search(device.description)), "other")


def _with_memory(gpu: Gpu, device: EngineDevice) -> Gpu:
    if gpu.free_bytes is not None:
        return gpu
    if gpu.memory_bytes is not None:  # the driver tells all but what is free
        free = min(device.free_mib * _MIB, gpu.memory_bytes)
        absent = {name: why for name, why in gpu.absent.items() if name != "free_bytes"}
        return replace(gpu, free_bytes=free, absent=absent)
    gone = {"memory_bytes", "free_bytes", "used_bytes", "asleep"}
    return replace(
        gpu,
        memory_bytes=device.total_mib * _MIB,
        free_bytes=device.free_mib * _MIB,
        used_bytes=(device.total_mib - device.free_mib) * _MIB,
        asleep=False,  # listing its devices wakes a GPU
        absent={name: why for name, why in gpu.absent.items() if name not in gone},
    )


def _engine_only(device: EngineDevice, others: Sequence[Gpu]) -> Gpu:
    vendor = _vendor(device)
    bare = Gpu(
        vendor=vendor,
        index=sum(gpu.vendor == vendor for gpu in others),
        name=device.description,
        id=device.name,
        unified=True if _BUILT_IN.search(device.description) else None,
    )
    return _with_memory(bare.explained(_ENGINE_ONLY), device)
