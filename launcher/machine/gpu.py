"""GPU data types common to all vendors, and the protocol of their drivers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, Protocol

from launcher.base.messages import message


class Reading(NamedTuple):
    """One measured value, in the unit named by its key. An unknown value is None with a reason, never 0."""

    value: float | None
    absent: str | None = None

    @classmethod
    def unknown(cls, reason: str) -> "Reading":
        """Return a reading without a value."""
        return cls(None, reason)


Vendor = Literal["nvidia", "amd", "intel", "other"]
READINGS = (
    "gpu_temperature_c",
    "gpu_power_w",
    "gpu_power_limit_w",
    "gpu_clock_mhz",
    "gpu_memory_clock_mhz",
    "vram_used_mib",
    "gpu_use_percent",
)
"""The names of the readings sampled from a GPU; each ends in its unit."""
ASLEEP = message("The GPU is asleep and was not woken.")
GONE = message("The GPU was disconnected.")
TOO_SHORT = message("Not measured for long enough yet.")
RESIZABLE_BAR_CURE = message(
    "In the computer's firmware setup (BIOS), turn on Above 4G Decoding and Resizable BAR (AMD: Smart Access Memory),"
    " and turn off CSM."
)
"""Instructions to turn on Resizable BAR. With Vulkan on an RX 7900 XTX, Qwen3.6-35B-A3B generated 25 tokens/s without
Resizable BAR and 140 with it (llama.cpp #24066); Qwen3.8-27B generated 14 without it (llama.cpp #27097)."""


_INTEGRATED_GPU = re.compile(
    r"\b(apple|adreno|(u?hd|iris(\(r\))?( xe| plus| pro)?) graphics|intel(\(r\))?( arc(\(tm\))?)? graphics"
    r"|arc\S* 1\d0[vt]|radeon(\(tm\))?( vega| r\d| hd)?( \d+s?)? graphics|radeon(\(tm\))? \d{3}m"
    r"|gb10|n1x?|jetson|orin|thor|xavier|tegra|nvgpu|mi300a)\b",
    re.IGNORECASE,
)
"""Names of integrated GPUs, as drivers and engines give them. NVIDIA's are those of DGX Spark, RTX Spark and Jetson,
whose driver appends "(nvgpu)" (llmfit #792)."""


def is_integrated(name: str) -> bool:
    """Return whether a GPU of this name shares the host's memory."""
    return _INTEGRATED_GPU.search(name) is not None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it. Unknown values are None; `absent` has the reason by field name.

    `index` counts the GPUs of one vendor. `id` is the UUID of an NVIDIA GPU, else its PCI address, else the engine's
    name for it. The memory values are those at the time of reading: `memory_bytes` is the total, `reserved_bytes` the
    driver's share. A GPU with `unified` memory has little or none of its own and shares the host's;
    `carve_out_free_bytes` is the free memory of the part that is reserved for it. If only the host's memory is known of
    it, `absent` has the reason why its own is not. `small_bar`: Resizable BAR is known to be off, and the processor
    reaches only a small part of its memory at once. `memory_bandwidth_gb_s` is the theoretical maximum in 10^9 bytes
    per second.
    """

    vendor: Vendor
    index: int
    name: str
    id: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    driver: str | None = None
    cuda_version: str | None = None
    compute_capability: tuple[int, int] | None = None
    bus_id: str | None = None
    memory_bandwidth_gb_s: float | None = None
    unified: bool | None = None
    carve_out_free_bytes: int = 0
    asleep: bool | None = None
    display_active: bool | None = None
    small_bar: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)

    def with_reasons(self, default: str) -> "Gpu":
        """Return a copy with a reason for each unknown field: the existing one, else `default`."""
        unknown = [each.name for each in fields(self) if getattr(self, each.name) is None]
        absent = {name: self.absent.get(name, default) for name in unknown}
        if self.vendor != "nvidia":
            absent |= dict.fromkeys(absent.keys() & _CUDA_ONLY, message("Only NVIDIA GPUs have one."))
        return replace(self, absent=absent)


_CUDA_ONLY = {"cuda_version", "compute_capability"}


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that uses a GPU; unknown values are None."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """The programs on a GPU and the causes that limit its clocks, as text.

    Unknown values are None; `absent` has the reason by field name.
    """

    processes: tuple[GpuProcess, ...] | None
    throttled_by: tuple[str, ...] | None
    absent: Mapping[str, str]

    @classmethod
    def unknown(cls, reason: str) -> "GpuActivity":
        """Return an activity without known values."""
        return cls(None, None, {"processes": reason, "throttled_by": reason})


class GpuSource(Protocol):
    """The GPUs of one vendor. No method raises: if a query fails, only its own value is unknown."""

    @property
    def no_gpu_reason(self) -> str | None:
        """The reason why there is no GPU of this vendor, or None if there is one."""

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each GPU that exists and did not answer."""

    def read_gpus(self) -> tuple[Gpu, ...]:
        """Read the GPUs again and return them; of sleeping ones only the name is known."""

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of a GPU, one for each of READINGS."""

    def sample_slow_readings(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings that are taken less often: NVML measures PCIe traffic for 20 ms each way."""

    def read_activity(self, gpu: Gpu) -> GpuActivity:
        """Return the activity of a GPU."""

    def close(self) -> None:
        """Close the driver, so that the GPU can sleep. Nothing may be queried afterwards."""


def unknown_readings(reason: str) -> dict[str, Reading]:
    """Return READINGS without values."""
    return dict.fromkeys(READINGS, Reading.unknown(reason))
