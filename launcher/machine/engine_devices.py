"""The engine's device list (--list-devices), compared with the GPUs that the drivers report."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from launcher.base.messages import message
from launcher.machine.gpu import Gpu, Vendor, is_integrated
from launcher.machine.visibility import SLICE, find_hidden_gpus

_MIB = 2**20
_TOLERANCE = 0.03
"""Relative difference up to which the two memory totals agree: a backend leaves out the driver's share."""
_BACKEND_VENDORS: dict[str, Vendor] = {"CUDA": "nvidia", "ROCm": "amd", "HIP": "amd", "SYCL": "intel"}
_VENDOR_WORDS: dict[Vendor, re.Pattern[str]] = {
    "nvidia": re.compile(r"\b(nvidia|geforce|quadro|tesla)\b", re.IGNORECASE),
    "amd": re.compile(r"\b(amd|radeon|instinct)\b", re.IGNORECASE),
    "intel": re.compile(r"\b(intel(\(r\))?|iris|arc)\b", re.IGNORECASE),
}
_SHARED_RATIO = 1.5
"""An engine that reports so many times the driver's total counts host memory, too. Below that it may count the same
memory twice: Vulkan adds the 256 MiB that a card without Resizable BAR shows to the processor."""
_Difference = Literal["less", "more", "shared"]
_COUNTED: Mapping[_Difference, str] = {
    "less": message(
        "Plans count the engine's figure, which is what it can use: a partition, a container or a virtual machine "
        "limits it."
    ),
    "more": message("Plans count the driver's figure: the engine counts a part of the memory twice."),
    "shared": message("Plans count the engine's figure: this GPU shares the computer's memory."),
}
_SOFTWARE_RENDERER = re.compile(r"llvmpipe|lavapipe|swiftshader|basic render", re.IGNORECASE)
"""Names of Vulkan and Direct3D drivers that compute on the CPU."""
_NAME_EXTRAS = re.compile(r"\((?:r|tm|c)\)|\([^)]*\)$|^\s*(nvidia|amd|intel)\b", re.IGNORECASE)
"""Parts of a device's name that drivers and backends write differently: trademarks, text in brackets, the vendor."""
_VENDOR_BACKENDS: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("cuda", "vulkan"),
    "amd": ("rocm", "vulkan"),
    "intel": ("sycl", "vulkan"),
    "other": ("vulkan",),
}
"""The backends that can use a GPU, by vendor."""
_ENGINE_ONLY = message("This GPU appears only in the engine's device list.")


class EngineDevice(Protocol):
    """One line of --list-devices."""

    @property
    def name(self) -> str:
        """The backend and a number, such as CUDA0."""

    @property
    def description(self) -> str:
        """The backend's name for the device; some omit the vendor."""

    @property
    def total_mib(self) -> int:
        """Its memory in MiB."""

    @property
    def free_mib(self) -> int:
        """The memory that was free when the list was made, in MiB."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A difference between the drivers and the engine, and what to do about it."""

    kind: Literal["missing", "hidden", "memory", "software_renderer"]
    title: str
    hint: str


def is_gpu(device: EngineDevice) -> bool:
    """Return True if a device is a GPU of this computer, not a BLAS library, remote device or software renderer."""
    is_other_device = device.name.startswith(("BLAS", "CPU", "RPC"))
    return not is_other_device and device.total_mib > 0 and not _SOFTWARE_RENDERER.search(device.description)


def merge_engine_gpus(gpus: Sequence[Gpu], devices: Sequence[EngineDevice]) -> list[Gpu]:
    """Return `gpus` with the engine's memory figures where drivers have none or others, and with GPUs that only the
    engine lists.
    """
    merged = list(gpus)
    for group in _group_by_backend(devices):
        pairs = _match_devices(merged, group)
        for index, device in pairs.items():
            if index < len(gpus) and merged[index] is gpus[index]:  # the first backend that knows better counts
                merged[index] = _add_memory(merged[index], device)
        matched = {device.name for device in pairs.values()}
        for device in group:
            if device.name not in matched:
                merged.append(_gpu_from_device(device, merged))
    return merged


def find_disagreements(
    gpus: Sequence[Gpu], devices: Sequence[EngineDevice], environ: Mapping[str, str] | None = None
) -> tuple[Disagreement, ...]:
    """Return the differences between drivers and engine.

    A GPU that shares the host's memory counts as missing only if the engine lists no GPU at all, and a slice of a GPU
    only if it lists no other slice, because CUDA uses one.
    """
    renderers = [device for device in devices if _SOFTWARE_RENDERER.search(device.description)]
    found = [_renderer_disagreement(device) for device in renderers]
    real = [device for device in devices if is_gpu(device)]
    seen: dict[int, EngineDevice] = {}
    for group in _group_by_backend(real):
        seen = _match_devices(gpus, group) | seen
    sees_slice = any(gpus[index].id.startswith(SLICE) for index in seen)
    for index, gpu in enumerate(gpus):
        if index in seen:
            found += _memory_disagreements(gpu, seen[index])
        elif not (gpu.unified and real) and not (gpu.id.startswith(SLICE) and sees_slice):
            found.append(_explain_missing_gpu(gpu, gpus, real, os.environ if environ is None else environ))
    return tuple(found)


def _renderer_disagreement(device: EngineDevice) -> Disagreement:
    return Disagreement(
        "software_renderer",
        message(
            "The engine treats the CPU as a GPU: {name} is {description}.",
            name=device.name,
            description=device.description,
        ),
        message(
            "This is slower than the engine's CPU code. Install the Vulkan driver of your GPU, or exclude this device."
        ),
    )


def _memory_disagreements(gpu: Gpu, device: EngineDevice) -> list[Disagreement]:
    difference = _compare_memory(gpu, device)
    if difference is None or gpu.unified:
        return []
    return [
        Disagreement(
            "memory",
            message(
                "The driver reports {total:,.0f} MiB of memory for {name}, the engine {total_mib:,} MiB.",
                name=gpu.name,
                total=(gpu.memory_bytes or 0) / _MIB,
                total_mib=device.total_mib,
            ),
            _COUNTED[difference],
        )
    ]


def _compare_memory(gpu: Gpu, device: EngineDevice) -> _Difference | None:
    """Return how the engine's memory total differs from the driver's; None if they agree or if there is none."""
    if not gpu.memory_bytes or (gpu.unified and gpu.vendor == "amd" and gpu.driver is not None):
        # amdgpu knows the memory that an APU may use; some builds for ROCm list the host's instead (ollama #16462).
        return None
    total, usable = gpu.memory_bytes / _MIB, (gpu.memory_bytes - (gpu.reserved_bytes or 0)) / _MIB
    if device.total_mib < usable * (1 - _TOLERANCE):
        return "less"
    if device.total_mib <= total * (1 + _TOLERANCE):
        return None
    return "shared" if device.total_mib > total * _SHARED_RATIO else "more"


def _explain_missing_gpu(
    gpu: Gpu, gpus: Sequence[Gpu], devices: Sequence[EngineDevice], environ: Mapping[str, str]
) -> Disagreement:
    variables = (find_hidden_gpus(gpus, backend, environ).get(gpu.id) for backend in _VENDOR_BACKENDS[gpu.vendor])
    variable = next(filter(None, variables), None)
    if variable is not None:
        return Disagreement(
            "hidden",
            message(
                "{hiding}={environ} hides the {name} from the engine.",
                hiding=variable,
                environ=environ[variable],
                name=gpu.name,
            ),
            message("Unset {hiding}, or name this GPU in it.", hiding=variable),
        )
    if devices:
        return Disagreement(
            "missing",
            message("The engine does not see the {name}.", name=gpu.name),
            message("This build has no backend for it, or the backend's runtime is missing. The GPU is not used."),
        )
    return Disagreement(
        "missing",
        message("The engine does not see the GPU ({name}).", name=gpu.name),
        message("Its GPU backend or CUDA runtime is missing, so it would run on the CPU."),
    )


def _group_by_backend(devices: Sequence[EngineDevice]) -> list[list[EngineDevice]]:
    """Return the GPUs grouped by backend, because two backends list the same GPU twice."""
    groups: dict[str, list[EngineDevice]] = {}
    for device in sorted(devices, key=_backend_name):
        if is_gpu(device):
            groups.setdefault(_backend_name(device), []).append(device)
    return list(groups.values())


def _backend_name(device: EngineDevice) -> str:
    return device.name.rstrip("0123456789")


def _match_devices(gpus: Sequence[Gpu], group: Sequence[EngineDevice]) -> dict[int, EngineDevice]:
    """Return the device for each GPU, by the GPU's index.

    Only devices of the GPU's vendor can match. Devices with the GPU's name come first, then those with the most similar
    memory.
    """
    candidates = sorted(
        (_plain_name(gpu.name) != _plain_name(device.description), _memory_distance(gpu, device), index, order)
        for index, gpu in enumerate(gpus)
        for order, device in enumerate(group)
        if gpu.vendor == _device_vendor(device)
    )
    pairs: dict[int, EngineDevice] = {}
    used: set[int] = set()
    for *_, index, order in candidates:
        if index not in pairs and order not in used:
            pairs[index] = group[order]
            used.add(order)
    return pairs


def _memory_distance(gpu: Gpu, device: EngineDevice) -> float:
    """Return the relative difference in memory, rounded down to steps so that identical cards keep their order."""
    if gpu.memory_bytes is None:
        return 0.0
    return abs(device.total_mib * _MIB / gpu.memory_bytes - 1) // (2 * _TOLERANCE)


def _plain_name(name: str) -> str:
    return " ".join(_NAME_EXTRAS.sub(" ", _NAME_EXTRAS.sub(" ", name)).casefold().split())


def _device_vendor(device: EngineDevice) -> Vendor:
    known = _BACKEND_VENDORS.get(_backend_name(device))
    if known is not None:
        return known
    return next((vendor for vendor, words in _VENDOR_WORDS.items() if words.search(device.description)), "other")


def _add_memory(gpu: Gpu, device: EngineDevice) -> Gpu:
    match _compare_memory(gpu, device):
        case None if not gpu.memory_bytes:
            return _take_memory(gpu, device)
        case "less":
            return _take_memory(gpu, device)
        case "more" if gpu.unified:
            return _take_memory(gpu, device)
        case "shared":  # the driver reports the part that is reserved for the GPU
            return _take_memory(replace(gpu, unified=True, carve_out_free_bytes=gpu.free_bytes or 0), device)
    if gpu.free_bytes is not None:
        return gpu
    free = min(device.free_mib * _MIB, gpu.memory_bytes or 0)  # the driver reports everything except free memory
    absent = {name: why for name, why in gpu.absent.items() if name != "free_bytes"}
    return replace(gpu, free_bytes=free, absent=absent)


def _take_memory(gpu: Gpu, device: EngineDevice) -> Gpu:
    """Return a GPU with the memory that the engine reports.

    The engine also knows the name of a slice of a GPU (MIG), whose bandwidth is only a part of the whole GPU's.
    """
    now_known = {"memory_bytes", "free_bytes", "used_bytes", "asleep"}
    if " MIG " in device.description:
        gpu = replace(gpu, name=device.description, memory_bandwidth_gb_s=None)
    return replace(
        gpu,
        memory_bytes=device.total_mib * _MIB,
        free_bytes=device.free_mib * _MIB,
        used_bytes=(device.total_mib - device.free_mib) * _MIB,
        reserved_bytes=None,
        asleep=False,  # listing the devices has woken the GPU
        absent={name: why for name, why in gpu.absent.items() if name not in now_known},
    )


def _gpu_from_device(device: EngineDevice, others: Sequence[Gpu]) -> Gpu:
    vendor = _device_vendor(device)
    bare = Gpu(
        vendor=vendor,
        index=sum(gpu.vendor == vendor for gpu in others),
        name=device.description,
        id=device.name,
        unified=True if is_integrated(device.description) else None,
    )
    return _add_memory(bare.with_reasons(_ENGINE_ONLY), device)
