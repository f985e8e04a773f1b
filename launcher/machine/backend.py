"""Selects the official llama.cpp build that suits this computer's GPU."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.base.messages import command_name, join_messages, message
from launcher.machine.cards import match_card
from launcher.machine.gpu import Gpu

Backend = Literal["cuda-13", "cuda-12", "vulkan", "metal", "cpu"]
_CUDA_13_DRIVER, _CUDA_12_DRIVER = 580, 525
"""The oldest drivers that run CUDA 13 and CUDA 12 (NVIDIA, CUDA compatibility, minor version compatibility)."""
_CUDA_13_CAPABILITY, _CUDA_12_CAPABILITY = (7, 5), (5, 0)
"""CUDA 13 supports no GPU before Turing; llama.cpp's CUDA 12 builds begin at Maxwell (ggml-cuda/CMakeLists.txt)."""

_COMPILED = {(8, 6): (12,), (8, 7): (12,), (8, 9): (12,), (12, 0): (12, 8), (12, 1): (13,)}
"""Compute capabilities with machine code in llama.cpp's builds, each with the first CUDA version that has it. Code for
8.6 also runs on 8.7 (ggml-cuda/CMakeLists.txt at b11434; CUDA C++ Programming Guide, binary compatibility).
"""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The selected build, the GPU that it is for, and the reason. `better` says how to get a faster build, if possible.

    `backend` is None while the GPU that decides is asleep.
    """

    backend: Backend | None
    gpu: Gpu | None
    reason: str
    better: str | None = None


def choose_backend(gpus: Sequence[Gpu], system: str = platform.system()) -> BackendChoice:
    """Return the build for the first GPU; `gpus` are in the order of `find_gpus`.

    An NVIDIA GPU gets the newest CUDA that its compute capability and driver allow. Every other GPU, and an NVIDIA GPU
    without a suitable CUDA, gets Vulkan. Without a GPU it is the CPU build.
    """
    if system == "Darwin":
        return BackendChoice("metal", gpus[0] if gpus else None, message("On a Mac the engine uses Metal."))
    if not gpus:
        return BackendChoice("cpu", None, message("No GPU was found."))
    gpu = gpus[0]
    if gpu.vendor == "amd":
        return _choose_for_amd(gpu)
    if gpu.vendor != "nvidia":
        return BackendChoice(
            "vulkan", gpu, message("Vulkan runs on the {name} with its current driver.", name=gpu.name)
        )
    if gpu.asleep:
        why = message("The {name} is asleep, so its compute capability is unknown.", name=gpu.name)
        return BackendChoice(
            None,
            gpu,
            why,
            message("[{command} or ]loading a model wakes it.", command=command_name("doctor --wake")),
        )
    return _choose_for_nvidia(gpu)


def _choose_for_amd(gpu: Gpu) -> BackendChoice:
    """Return Vulkan, and published speeds of Vulkan and ROCm (presets/evidence/runs.csv, Qwen3.8-27B in four bits)."""
    card = match_card(gpu.name, (gpu.memory_bytes or 0) / 2**30)
    generation = card.generation if card else None
    reason = message("Vulkan runs on the {name} with its current driver.", name=gpu.name)
    better = None
    if generation == "rdna3":
        why = message("On an RX 7900 XTX it was faster than ROCm: 71 (Linux) and 85 (Windows) against 63 tokens/s.")
        reason = join_messages(reason, why)
    elif generation == "rdna4":
        why = message(
            "On a Radeon AI PRO R9700 under Windows it was faster than ROCm: 63 against 5 tokens/s (ROCm in WSL2: 47)."
        )
        reason = join_messages(reason, why)
        better = message(
            "On an RX 9070 XT under Windows somebody found ROCm 5 to 7 times as fast (llama.cpp #26663). If it is slow,"
            " try `mtp-launcher engine install --backend rocm`."
        )
    elif generation == "cdna":
        better = message(
            "For Instinct cards, only runs with ROCm are published. With ROCm's libraries installed, try"
            " `mtp-launcher engine install --backend rocm`."
        )
    return BackendChoice("vulkan", gpu, reason, better)


def _choose_for_nvidia(gpu: Gpu) -> BackendChoice:
    capability, driver = gpu.compute_capability, _major_version(gpu.driver)
    if capability is None or driver is None:
        missing = message("compute capability") if capability is None else message("driver's version")
        why = gpu.absent.get("compute_capability" if capability is None else "driver", "")
        return BackendChoice(
            "vulkan",
            gpu,
            join_messages(message("The {missing} of the {name} is unknown.", name=gpu.name, missing=missing), why),
        )
    known = message(
        "The {name} has compute capability {capability} and driver {driver}",
        name=gpu.name,
        capability=f"{capability[0]}.{capability[1]}",
        driver=gpu.driver,
    )
    if capability >= _CUDA_13_CAPABILITY and driver >= _CUDA_13_DRIVER:
        return BackendChoice(
            "cuda-13",
            gpu,
            message(
                "{known}: enough for CUDA 13, which needs 7.5 and {cuda_13_driver}.",
                known=known,
                cuda_13_driver=_CUDA_13_DRIVER,
            ),
        )
    if capability >= _CUDA_12_CAPABILITY and driver >= _CUDA_12_DRIVER:
        if capability >= _CUDA_13_CAPABILITY:
            why = message("driver {version}", version=_CUDA_13_DRIVER)
            better = message(
                "With NVIDIA driver {cuda_13_driver} or newer it could use CUDA 13.", cuda_13_driver=_CUDA_13_DRIVER
            )
        else:
            why, better = message("compute capability {version}", version="7.5"), None
        return BackendChoice(
            "cuda-12", gpu, message("{known}: CUDA 13 needs {why}, CUDA 12 does not.", known=known, why=why), better
        )
    if capability >= _CUDA_12_CAPABILITY:
        better = message(
            "With NVIDIA driver {cuda_12_driver} or newer it could use CUDA.", cuda_12_driver=_CUDA_12_DRIVER
        )
        return BackendChoice(
            "vulkan",
            gpu,
            message("{known}: CUDA 12 needs driver {cuda_12_driver}.", known=known, cuda_12_driver=_CUDA_12_DRIVER),
            better,
        )
    return BackendChoice("vulkan", gpu, message("{known}: CUDA 12 needs compute capability 5.0.", known=known))


def find_cuda_obstacle(gpu: Gpu, toolkit: Sequence[int]) -> str | None:
    """Return why llama.cpp's build with CUDA `toolkit`, such as (13, 4), cannot run on an NVIDIA GPU; None if it can.

    If the build has no machine code for a GPU, the driver compiles it, and must then be as new as the toolkit (NVIDIA,
    CUDA compatibility, "provided PTX was compiled with an unsupported toolchain").
    """
    cuda = f"CUDA {'.'.join(map(str, toolkit))}"
    capability, driver = gpu.compute_capability, _major_version(gpu.driver)
    if capability is None or driver is None:
        return message(
            "{build} was skipped: the compute capability or driver of the {name} is unknown.",
            build=cuda,
            name=gpu.name,
        )
    needed_capability, needed_driver = (
        (_CUDA_12_CAPABILITY, _CUDA_12_DRIVER) if tuple(toolkit) < (13,) else (_CUDA_13_CAPABILITY, _CUDA_13_DRIVER)
    )
    if capability < needed_capability:
        return message(
            "{build} needs compute capability {needed}; the {name} has {found}.",
            build=cuda,
            needed=_format_version(needed_capability),
            name=gpu.name,
            found=_format_version(capability),
        )
    if driver < needed_driver:
        return message(
            "{build} needs driver {oldest}; the {name} has {driver}.",
            build=cuda,
            oldest=needed_driver,
            name=gpu.name,
            driver=gpu.driver,
        )
    compiled = {each for each, since in _COMPILED.items() if tuple(toolkit) >= since}
    driver_cuda = tuple(map(int, gpu.cuda_version.split("."))) if gpu.cuda_version else None
    if capability not in compiled and driver_cuda and driver_cuda < tuple(toolkit):
        return message(
            "The {build} build has the driver compile its code for the {name}, and driver"
            " {driver} can do that up to CUDA {cuda_version} only.",
            build=cuda,
            name=gpu.name,
            driver=gpu.driver,
            cuda_version=gpu.cuda_version,
        )
    return None


def _format_version(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _major_version(version: str | None) -> int | None:
    head = (version or "").partition(".")[0]
    return int(head) if head.isdecimal() else None
