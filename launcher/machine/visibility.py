"""Environment variables that keep GPUs from an engine: CUDA_VISIBLE_DEVICES and its like.

Values: CUDA C++ Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques"; oneAPI
Level Zero and DPC++ documentation; ggml-vulkan.cpp.
"""

from collections.abc import Mapping, Sequence

from launcher.machine.gpu import Gpu, Vendor

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "sycl": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "vulkan": ("GGML_VK_VISIBLE_DEVICES",),
}
"""The variables that a backend obeys, in the order in which they narrow one another down."""
_VENDORS: Mapping[str, Vendor] = {"cuda": "nvidia", "rocm": "amd", "sycl": "intel"}


def hidden_by(gpus: Sequence[Gpu], backend: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return, by the id of each GPU that an engine's `backend` may not use, the variable that hides it.

    An index counts the GPUs of the backend's vendor, for Vulkan all GPUs; of a list the part after an invalid entry
    does not count. A part of a GPU (MIG) that is named does not hide its GPU.
    """
    vendor = _VENDORS.get(backend)
    left = [gpu for gpu in gpus if vendor in {None, gpu.vendor}]
    if backend == "cuda" and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        left.sort(key=_slowness)  # CUDA's own order is FASTEST_FIRST
    hidden: dict[str, str] = {}
    for variable in VARIABLES.get(backend, ()):
        if variable in environ:
            named = _named(left, environ[variable])
            hidden |= {gpu.id: variable for gpu in left if gpu not in named}
            left = named
    return hidden


def _slowness(gpu: Gpu) -> tuple[float, float]:
    capability = gpu.compute_capability or (0, 0)
    return -(gpu.memory_bandwidth_gb_s or 0.0), -(capability[0] + capability[1] / 10)


def _named(gpus: Sequence[Gpu], value: str) -> list[Gpu]:
    """Return the GPUs that a list of indices or UUIDs names, in its order."""
    named: list[Gpu] = []
    for entry in value.split(","):
        text = entry.strip().rpartition(":")[2]  # level_zero:0
        index = text.partition(".")[0]  # 0.1 is a tile of 0
        if text in {"gpu", "*"} or text.startswith("MIG-"):
            return list(gpus)
        if index.isdecimal() and int(index) < len(gpus):
            found = [gpus[int(index)]]
        else:
            found = [gpu for gpu in gpus if text.startswith("GPU-") and gpu.id.startswith(text)]
        if len(found) != 1:
            return named
        named += found
    return named
