"""A GPU of any vendor: what it is, what it has free, and who answers for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol

from launcher.machine.reading import Reading

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
"""The names of what a GPU is sampled for; each ends in its unit."""
ASLEEP = "The GPU sleeps and was not woken to ask."
GONE = "The GPU is gone."
TOO_SHORT = "Not measured for long enough yet."


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it. What is unknown is None, and `absent` says why by the field's name.

    `index` counts the GPUs of one vendor. `id` is the UUID of an NVIDIA GPU, else its PCI address, else the name that
    the engine gives it. Memory is what it was at the moment of asking: `memory_bytes` all that there is,
    `reserved_bytes` what the driver keeps for itself. With `unified` memory the GPU has none of its own, or little,
    and shares the host's; `carve_out_free_bytes` of what is free was set aside for it alone.
    `memory_bandwidth_gb_s` is the highest in theory, in 10^9 bytes per second.
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
    absent: Mapping[str, str] = field(default_factory=dict)

    def explained(self, otherwise: str) -> "Gpu":
        """Return this GPU with a reason for each unknown field: the one it has, else `otherwise`."""
        unknown = [each.name for each in fields(self) if getattr(self, each.name) is None]
        absent = {name: self.absent.get(name, otherwise) for name in unknown}
        if self.vendor != "nvidia":
            absent |= dict.fromkeys(absent.keys() & _CUDA_ONLY, "Only NVIDIA GPUs have one.")
        return replace(self, absent=absent)


_CUDA_ONLY = {"cuda_version", "compute_capability"}


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that uses a GPU; what the system does not say of it is None."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a GPU is doing beside its readings: its programs, and what holds its clocks back, in words.

    What is unknown is None, and `absent` says why by the field's name.
    """

    processes: tuple[GpuProcess, ...] | None
    throttled_by: tuple[str, ...] | None
    absent: Mapping[str, str]

    @classmethod
    def unknown(cls, reason: str) -> "Activity":
        """Return an activity of which nothing is known."""
        return cls(None, None, {"processes": reason, "throttled_by": reason})


SLOW_READINGS = ("pcie_received_mib_s", "pcie_sent_mib_s", "gtt_used_mib")
"""What is read now and then only: NVML counts PCIe traffic for 20 ms, and amdgpu's own file of it takes a second."""


class GpuSource(Protocol):
    """One vendor's GPUs. Each query fails alone, and none raises."""

    @property
    def absent(self) -> str | None:
        """Why there is no GPU of this vendor, or None when there is one."""

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each GPU that is there and did not answer."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs, asked anew; those that sleep are named only."""

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of one of them: one for each of READINGS."""

    def sample_slowly(self, gpu: Gpu) -> dict[str, Reading]:
        """Return those of SLOW_READINGS that this vendor has."""

    def activity(self, gpu: Gpu) -> Activity:
        """Return what one of them is doing."""

    def close(self) -> None:
        """Let the driver go, so that the GPU can sleep. Nothing may be asked afterwards."""


def unknown_readings(reason: str) -> dict[str, Reading]:
    """Return READINGS without values."""
    return dict.fromkeys(READINGS, Reading.unknown(reason))
