"""NVIDIA GPUs by NVML. Every query fails alone: what the driver will not say is unknown with its reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.machine.reading import Reading

_MIB = 2**20
READINGS = (
    "gpu_temperature_c",
    "gpu_power_w",
    "gpu_clock_mhz",
    "gpu_memory_clock_mhz",
    "vram_used_mib",
    "gpu_use_percent",
)
"""The names of what a card is sampled for."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card as its driver names it."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    driver: str | None


class Nvml:
    """The NVML library, opened once. `absent` says why there is none."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._handles: dict[int, Any] = {}
        self._open = False
        self.absent: str | None = None
        self.gpus: tuple[Gpu, ...] = ()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.absent = _why(pynvml, error)
            return
        self._open = True
        count, self.absent = self._ask(pynvml.nvmlDeviceGetCount)
        self.gpus = tuple(gpu for gpu in map(self._gpu, range(count or 0)) if gpu)
        if self.gpus:
            self.absent = None
        elif self.absent is None:
            self.absent = "The NVIDIA driver lists no GPU."

    def close(self) -> None:
        """Let the library go."""
        if self._open:
            self._open = False
            self._ask(self._nvml.nvmlShutdown)

    def _gpu(self, index: int) -> Gpu | None:
        nvml = self._nvml
        handle, absent = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            self.absent = absent
            return None
        self._handles[index] = handle
        memory, _ = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        return Gpu(
            index=index,
            name=self._ask(nvml.nvmlDeviceGetName, handle)[0] or f"NVIDIA GPU {index}",
            uuid=self._ask(nvml.nvmlDeviceGetUUID, handle)[0] or f"index-{index}",
            memory_bytes=None if memory is None else int(memory.total),
            driver=self._ask(nvml.nvmlSystemGetDriverVersion)[0],
        )

    def sample(self, index: int | None = None) -> dict[str, Reading]:
        """Return a card's readings by name, the first card's by default; the name ends in the unit.

        Without a card each is unknown, with the reason.
        """
        if self.absent is not None:
            return dict.fromkeys(READINGS, Reading.unknown(self.absent))
        handle = self._handles[self.gpus[0].index if index is None else index]
        nvml = self._nvml
        memory, memory_absent = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        use, use_absent = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "gpu_temperature_c": self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu_power_w": self._number(nvml.nvmlDeviceGetPowerUsage, handle, scale=1e-3),
            "gpu_clock_mhz": self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "gpu_memory_clock_mhz": self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "vram_used_mib": Reading(None, memory_absent) if memory is None else Reading(memory.used / _MIB),
            "gpu_use_percent": Reading(None, use_absent) if use is None else Reading(float(use.gpu)),
        }

    def _number(self, query: Callable[..., Any], *arguments: object, scale: float = 1.0) -> Reading:
        value, absent = self._ask(query, *arguments)
        return Reading(None, absent) if value is None else Reading(value * scale)

    def _ask(self, query: Callable[..., Any], *arguments: object) -> tuple[Any, str | None]:
        try:
            return query(*arguments), None
        except self._nvml.NVMLError as error:
            return None, _why(self._nvml, error)


def _why(nvml: Any, error: Exception) -> str:  # noqa: ANN401 -- pynvml has no type hints
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No NVIDIA driver is installed.",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is installed but not loaded.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was updated: restart the computer.",
        nvml.NVML_ERROR_NOT_SUPPORTED: "This card or driver does not report it.",
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "This NVIDIA driver is too old to report it.",
        nvml.NVML_ERROR_GPU_IS_LOST: "The GPU stopped answering: restart the computer.",
    }
    code = getattr(error, "value", None)
    return reasons.get(code, f"The NVIDIA driver answered: {error}.") if code is not None else str(error)
