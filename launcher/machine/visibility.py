"""Environment variables that hide GPUs from an engine, such as CUDA_VISIBLE_DEVICES.

Values: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques"; oneAPI
Level Zero and DPC++ documentation; ggml-vulkan.cpp.
"""

import re
from collections.abc import Mapping, Sequence

from launcher.machine.gpu import Gpu, Vendor

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "sycl": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "vulkan": ("GGML_VK_VISIBLE_DEVICES",),
}
"""The variables that a backend reads. Each one selects from the GPUs that the variables before it left."""
SLICE = "MIG-"
"""How the ID of a slice of an NVIDIA GPU begins (Multi-Instance GPU)."""
_NAMES_SLICE = re.compile(rf"(^|,)\s*({SLICE}|\d+:\d+)")
"""A list of GPUs that names a slice; NVIDIA's container runtime also takes the numbers of GPU and slice, as in 0:1."""
_VENDORS: Mapping[str, Vendor] = {"cuda": "nvidia", "rocm": "amd", "sycl": "intel"}


def find_hidden_gpus(gpus: Sequence[Gpu], backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the GPUs that `environ` hides from an engine's `backend`: GPU IDs with the variable that hides each.

    An index in a variable counts the GPUs of the backend's vendor, for Vulkan all GPUs; entries after an invalid one
    are ignored. A variable that names a slice of a GPU (MIG) hides all others, if the driver lists that slice.
    """
    vendor = _VENDORS.get(backend)
    visible = [gpu for gpu in gpus if vendor in {None, gpu.vendor}]
    if backend == "cuda" and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        visible.sort(key=_slowness)  # CUDA's default order is FASTEST_FIRST
    hidden: dict[str, str] = {}
    for variable in VARIABLES.get(backend, ()):
        if variable in environ:
            named = _parse_gpu_list(visible, environ[variable])
            hidden |= {gpu.id: variable for gpu in visible if gpu not in named}
            visible = named
    return hidden


def list_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide which GPUs, and how much of them, an engine sees."""
    names = {name for names in VARIABLES.values() for name in names} | {"NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"}
    return {name: value for name, value in sorted(environ.items()) if name in names or name.startswith("CUDA_")}


def find_slice_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that gives programs a slice of an NVIDIA GPU (MIG), or None."""
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if _NAMES_SLICE.search(environ.get(variable, "")):
            return variable
    return None


def _slowness(gpu: Gpu) -> tuple[float, float]:
    """Return a sort key by which the fastest GPU comes first, judged by memory bandwidth and compute capability."""
    capability = gpu.compute_capability or (0, 0)
    return -(gpu.memory_bandwidth_gb_s or 0.0), -(capability[0] + capability[1] / 10)


def _parse_gpu_list(gpus: Sequence[Gpu], value: str) -> list[Gpu]:
    """Return the GPUs that a variable's list of indices or UUIDs names, in its order."""
    named: list[Gpu] = []
    for entry in value.split(","):
        text = entry.strip().rpartition(":")[2]  # for example level_zero:0
        index = text.partition(".")[0]  # 0.1 is a tile of 0
        if text.startswith(SLICE):  # CUDA uses one slice only, the first
            return [gpu for gpu in gpus if gpu.id == text] or list(gpus)
        if text in {"gpu", "*"}:
            return list(gpus)
        if index.isdecimal() and int(index) < len(gpus):
            found = [gpus[int(index)]]
        else:
            found = [gpu for gpu in gpus if text.startswith("GPU-") and gpu.id.startswith(text)]
        if len(found) != 1:
            return named
        named += found
    return named
