"""Which of llama.cpp's official builds suits this computer's GPU."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.base.words import part
from launcher.machine.gpu import Gpu

Backend = Literal["cuda-13", "cuda-12", "vulkan", "metal", "cpu"]
_CUDA_13_DRIVER, _CUDA_12_DRIVER = 580, 525
"""The oldest drivers that run programs of CUDA 13 and 12 (NVIDIA, CUDA compatibility, minor version compatibility)."""
_CUDA_13_CAPABILITY, _CUDA_12_CAPABILITY = (7, 5), (5, 0)
"""CUDA 13 knows no GPU before Turing; llama.cpp's CUDA 12 builds begin at Maxwell (ggml-cuda/CMakeLists.txt)."""

_COMPILED = {(8, 6): (12,), (8, 7): (12,), (8, 9): (12,), (12, 0): (12, 8), (12, 1): (13,)}
"""Compute capabilities that the builds hold code for, and since which toolkit; code for 8.6 also runs on 8.7
(ggml-cuda/CMakeLists.txt at b11434; CUDA C++ Programming Guide, binary compatibility)."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The build to take, for which GPU, and why this one. `better` is what would lead to a faster one, if anything.

    `backend` is None while the GPU that decides sleeps.
    """

    backend: Backend | None
    gpu: Gpu | None
    reason: str
    better: str | None = None


def choose_backend(gpus: Sequence[Gpu], system: str = platform.system()) -> BackendChoice:
    """Return the build for the first GPU that one suits; `gpus` in the order of `find_gpus`.

    The rule: an NVIDIA GPU takes the newest CUDA that its compute capability and driver allow; every other GPU, and
    an NVIDIA GPU that fits none, takes Vulkan; no GPU, the processor.
    """
    if system == "Darwin":
        return BackendChoice("metal", gpus[0] if gpus else None, "On a Mac the engine computes by Metal.")
    if not gpus:
        return BackendChoice("cpu", None, "No GPU was found.")
    gpu = gpus[0]
    if gpu.vendor != "nvidia":
        return BackendChoice("vulkan", gpu, f"Vulkan runs on the {gpu.name} with the driver that it has.")
    if gpu.asleep:
        why = f"The {gpu.name} sleeps, and its compute capability decides."
        return BackendChoice(None, gpu, why, "`mtp-launcher doctor --wake` wakes it and tells.")
    return _for_nvidia(gpu)


def _for_nvidia(gpu: Gpu) -> BackendChoice:
    capability, driver = gpu.compute_capability, _major(gpu.driver)
    if capability is None or driver is None:
        missing = part("compute capability") if capability is None else part("driver's version")
        why = gpu.absent.get("compute_capability" if capability is None else "driver", "")
        return BackendChoice("vulkan", gpu, f"The {gpu.name}'s {missing} is not known. {why}".rstrip())
    known = f"The {gpu.name} has compute capability {capability[0]}.{capability[1]} and driver {gpu.driver}"
    if capability >= _CUDA_13_CAPABILITY and driver >= _CUDA_13_DRIVER:
        return BackendChoice("cuda-13", gpu, f"{known}: enough for CUDA 13, which needs 7.5 and {_CUDA_13_DRIVER}.")
    if capability >= _CUDA_12_CAPABILITY and driver >= _CUDA_12_DRIVER:
        newer = capability >= _CUDA_13_CAPABILITY
        better = f"With an NVIDIA driver from {_CUDA_13_DRIVER} on it could take CUDA 13." if newer else None
        why = f"driver {_CUDA_13_DRIVER}" if newer else "compute capability 7.5"
        return BackendChoice("cuda-12", gpu, f"{known}: CUDA 13 needs {why}, CUDA 12 does not.", better)
    if capability >= _CUDA_12_CAPABILITY:
        better = f"With an NVIDIA driver from {_CUDA_12_DRIVER} on it could take CUDA."
        return BackendChoice("vulkan", gpu, f"{known}: CUDA 12 needs driver {_CUDA_12_DRIVER}.", better)
    return BackendChoice("vulkan", gpu, f"{known}: CUDA 12 needs compute capability 5.0.")


def cuda_obstacle(gpu: Gpu, toolkit: Sequence[int]) -> str | None:
    """Return why llama.cpp's build with CUDA `toolkit` (13, 4) cannot run on an NVIDIA GPU, or None.

    A GPU that the build holds no code for gets it compiled by the driver, which must then be as new as the toolkit
    (NVIDIA, CUDA compatibility, "provided PTX was compiled with an unsupported toolchain").
    """
    words = f"CUDA {'.'.join(map(str, toolkit))}"
    capability, driver = gpu.compute_capability, _major(gpu.driver)
    if capability is None or driver is None:
        return f"{words} was passed over: the {gpu.name}'s compute capability or driver is not known."
    least, oldest = (
        (_CUDA_12_CAPABILITY, _CUDA_12_DRIVER) if tuple(toolkit) < (13,) else (_CUDA_13_CAPABILITY, _CUDA_13_DRIVER)
    )
    if capability < least:
        return f"{words} needs compute capability {_dotted(least)}, the {gpu.name} has {_dotted(capability)}."
    if driver < oldest:
        return f"{words} needs driver {oldest}, the {gpu.name} has {gpu.driver}."
    compiled = {each for each, since in _COMPILED.items() if tuple(toolkit) >= since}
    offered = tuple(map(int, gpu.cuda_version.split("."))) if gpu.cuda_version else None
    if capability not in compiled and offered and offered < tuple(toolkit):
        return (
            f"The {words} build has the driver compile its code for the {gpu.name}, "
            f"and driver {gpu.driver} can do that up to CUDA {gpu.cuda_version} only."
        )
    return None


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _major(version: str | None) -> int | None:
    head = (version or "").partition(".")[0]
    return int(head) if head.isdecimal() else None
