"""NVIDIA GPUs, read through NVML. A query that fails makes only its own value unknown, with the reason."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from launcher.base.messages import FaceName, command_name, join_messages, mark, message
from launcher.machine.gpu import ASLEEP, Gpu, GpuActivity, GpuProcess, Reading, is_integrated, unknown_readings
from launcher.machine.surroundings import container_name
from launcher.machine.sysfs import ROOT, PciGpu, read_text
from launcher.machine.visibility import SLICE, find_slice_variable

_MIB = 2**20
_LIBRARY = "libnvidia-ml.so.1"
WSL_LIBRARY = f"usr/lib/wsl/lib/{_LIBRARY}"
"""NVML in WSL, below the root of the file systems."""
_NO_DRIVER = message("No NVIDIA driver is installed.")
LOST_IN_CONTAINER = message(
    "This container lost its GPU (the NVIDIA driver answers Unknown Error): start the container again."
)
"""A reload of the host's services takes the devices of running containers away (nvidia-docker #1730)."""
_NO_SLICE = message("It is partitioned (MIG), and no slice of it was found here.")
_ASK_ENGINE = message(
    "Only an engine reports a slice's memory[: {command}][; {page} installs one].[ Or describe it with {option}.]",
    command=command_name("engine install"),
    page=FaceName(None, mark("Start")),
    option=FaceName("--gpu-memory"),
)
_THROTTLE_REASONS = {
    0x02: message("clocks set by an application"),
    0x04: message("power limit"),
    0x08: message("hardware slowdown"),
    0x10: message("synchronised with other GPUs"),
    0x20: message("temperature (driver)"),
    0x40: message("temperature (hardware)"),
    0x80: message("power brake"),
    0x100: message("clocks set for the display"),
}
"""Bits of nvmlClocksEventReasons (nvml.h); bit 0x01 means idle and limits nothing."""


class Nvml:
    """The NVML library, opened once.

    `cards` are the NVIDIA cards in the kernel's list. If all of them are asleep, the library is not opened unless
    `wake`: opening it wakes them, and while it is open they stay awake. `environ` (default: the environment of this
    process) may give programs a slice of a GPU.

    The slices of a partitioned GPU (Multi-Instance GPU, MIG) take its place. Most queries answer for the GPU only.
    """

    def __init__(
        self,
        cards: Sequence[PciGpu] = (),
        *,
        wake: bool = False,
        root: Path = ROOT,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self._environ = os.environ if environ is None else environ
        self._in_container = container_name(root) is not None  # NVML reports pids of the host
        self._cards = {card.address: card for card in cards}
        self._sleepers = () if wake else tuple(card for card in cards if card.is_asleep())
        self._handles: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}
        """The handle of the GPU that a slice belongs to, by the slice's ID."""
        self._without_memory: dict[str, str] = {}
        """Reasons why the memory of a GPU is not that of a program, by the GPU's ID."""
        self._nvml: Any = None
        self._no_gpu_reason: str | None = None
        self._failures: tuple[str, ...] = ()
        if self._sleepers and len(self._sleepers) == len(cards):
            return
        # Under WSL the library's folder may be unknown to the dynamic linker. Outside WSL there is no such file.
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(root / WSL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
        if sys.platform == "linux":  # checked first, because pynvml takes long to import, and is useless without NVML
            try:
                ctypes.CDLL(_LIBRARY)
            except OSError:
                self._no_gpu_reason = _NO_DRIVER
                return
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._no_gpu_reason = _nvml_error_text(pynvml, error, in_container=self._in_container)
            return
        self._nvml = pynvml
        self._open_handles([card for card in cards if card not in self._sleepers] if self._sleepers else None)

    @property
    def no_gpu_reason(self) -> str | None:
        """The reason why there is no NVIDIA GPU, or None if there is one."""
        return self._no_gpu_reason

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each GPU that exists and did not answer."""
        return self._failures

    def close(self) -> None:
        """Close the library."""
        if self._nvml is not None:
            self._query(self._nvml.nvmlShutdown)
            self._nvml = None

    def read_gpus(self) -> tuple[Gpu, ...]:
        """Read the GPUs again and return them; of sleeping ones only the name is known."""
        awake = [self._read_gpu(id_, handle) for id_, handle in self._handles.items()]
        next_index = max((gpu.index for gpu in awake), default=-1) + 1
        driver = read_text(self._root / "sys/module/nvidia/version")
        return (
            *awake,
            *(card.as_sleeping_gpu(next_index + offset, driver) for offset, card in enumerate(self._sleepers)),
        )

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of a GPU by name; the name ends in the unit."""
        handle = self._handles.get(gpu.id)
        if handle is None:
            return unknown_readings(self._no_gpu_reason or ASLEEP)
        nvml = self._nvml
        absent: dict[str, str] = {}
        memory = self._read_memory(absent, handle)
        handle = self._whole.get(gpu.id, handle)
        use, why = self._query(nvml.nvmlDeviceGetUtilizationRates, handle)
        return unknown_readings(message("The {driver} driver does not report it.", driver="NVIDIA")) | {
            "gpu_temperature_c": self._read_number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu_power_w": self._read_number(nvml.nvmlDeviceGetPowerUsage, handle, scale=1e-3),
            "gpu_power_limit_w": self._read_number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle, scale=1e-3),
            "gpu_clock_mhz": self._read_number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "gpu_memory_clock_mhz": self._read_number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "vram_used_mib": Reading(memory.used / _MIB if memory else None, absent.get("used_bytes")),
            "gpu_use_percent": Reading(None, why) if use is None else Reading(float(use.gpu)),
        }

    def sample_slow_readings(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the PCIe traffic received and sent by the GPU. NVML measures each for 20 ms, in KB/s."""
        handle = self._handles.get(gpu.id)
        if handle is None:
            return {}
        nvml = self._nvml
        received, sent = nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES
        throughput = nvml.nvmlDeviceGetPcieThroughput
        return {
            "pcie_received_mib_s": self._read_number(throughput, handle, received, scale=1_000 / _MIB),
            "pcie_sent_mib_s": self._read_number(throughput, handle, sent, scale=1_000 / _MIB),
        }

    def read_activity(self, gpu: Gpu) -> GpuActivity:
        """Return the activity of a GPU. Under WSL and WDDM NVML does not report memory by process."""
        handle = self._handles.get(gpu.id)
        if handle is None:
            return GpuActivity.unknown(self._no_gpu_reason or ASLEEP)
        absent: dict[str, str] = {}
        reasons = self._with_fallback(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        bits = self._query_field(absent, "throttled_by", reasons, handle)
        throttled_by = None if bits is None else tuple(words for bit, words in _THROTTLE_REASONS.items() if bits & bit)
        return GpuActivity(self._list_processes(absent, handle), throttled_by, absent)

    def _open_handles(self, awake: Sequence[PciGpu] | None) -> None:
        """Get the handles of the GPUs at the addresses of `awake`, or of all if None. Other GPUs are not touched."""
        nvml = self._nvml
        if awake is not None:
            results = [self._query(nvml.nvmlDeviceGetHandleByPciBusId, card.address.encode()) for card in awake]
        else:
            count, self._no_gpu_reason = self._query(nvml.nvmlDeviceGetCount)
            results = [self._query(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count or 0)]
        failures = []
        for index, (handle, why) in enumerate(results):
            if handle is None:
                failures.append(f"NVIDIA GPU {index}: {why}")
            else:
                self._add_gpu(self._query(nvml.nvmlDeviceGetUUID, handle)[0] or f"index-{index}", handle)
        self._failures = tuple(failures)
        if not self._handles and not self._sleepers and self._no_gpu_reason is None:
            self._no_gpu_reason = next((why for _, why in results), None) or message("The NVIDIA driver lists no GPU.")

    def _add_gpu(self, id_: str, handle: object) -> None:
        """Add a GPU, or its slices if it is partitioned."""
        nvml = self._nvml
        mode, _ = self._query(nvml.nvmlDeviceGetMigMode, handle)
        variable = find_slice_variable(self._environ)
        if mode is None and variable is not None:
            why = message(
                "{variable} names a slice of it (MIG), and the driver reports the memory of the whole GPU.",
                variable=variable,
            )
            self._without_memory[id_] = join_messages(why, _ASK_ENGINE)
        if mode is not None and mode[0]:
            most, _ = self._query(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
            found = [self._query(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)[0] for at in range(most or 0)]
            slices = {
                self._query(nvml.nvmlDeviceGetUUID, each)[0] or f"{SLICE}{id_}-{at}": each
                for at, each in enumerate(found)
                if each is not None
            }
            self._handles |= slices
            self._whole |= dict.fromkeys(slices, handle)
            if slices:
                return
            self._without_memory[id_] = join_messages(_NO_SLICE, _ASK_ENGINE)
        self._handles[id_] = handle

    def _read_gpu(self, id_: str, handle: object) -> Gpu:
        nvml, absent = self._nvml, dict[str, str]()
        memory, why = self._read_memory(absent, handle), self._without_memory.get(id_)
        if why is not None:
            memory = None
            absent |= dict.fromkeys(("memory_bytes", "used_bytes", "free_bytes", "reserved_bytes"), why)
        name, _ = self._query(nvml.nvmlDeviceGetName, handle)
        if id_ in self._whole:
            why = message("The driver reports it for the whole GPU only.")
            name, handle = name if name and " MIG " in name else f"{name} MIG slice", self._whole[id_]
        index, _ = self._query(nvml.nvmlDeviceGetIndex, handle)
        index = list(self._handles).index(id_) if index is None or self._whole else int(index)
        capability = self._query_field(absent, "compute_capability", nvml.nvmlDeviceGetCudaComputeCapability, handle)
        cuda = self._query_field(absent, "cuda_version", nvml.nvmlSystemGetCudaDriverVersion_v2)
        bus = self._query_field(absent, "bus_id", nvml.nvmlDeviceGetPciInfo, handle)
        clock = self._query_field(
            absent, "memory_bandwidth_gb_s", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM
        )
        width = self._query_field(absent, "memory_bandwidth_gb_s", nvml.nvmlDeviceGetMemoryBusWidth, handle)
        if why is not None:  # a slice has a part of it
            clock = width = None
            absent["memory_bandwidth_gb_s"] = why
        display = self._query_field(absent, "display_active", nvml.nvmlDeviceGetDisplayActive, handle)
        name = name or self._query(nvml.nvmlDeviceGetName, handle)[0] or f"NVIDIA GPU {index}"
        bus_id = None if bus is None else f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}.0"
        card, unified = self._cards.get(bus_id or ""), is_integrated(name)
        return Gpu(
            vendor="nvidia",
            index=index,
            name=name,
            id=id_,
            memory_bytes=int(memory.total) if memory else None,
            used_bytes=int(memory.used) if memory else None,
            free_bytes=int(memory.free) if memory else None,
            reserved_bytes=int(memory.reserved) if hasattr(memory, "reserved") else None,
            driver=self._query_field(absent, "driver", nvml.nvmlSystemGetDriverVersion),
            cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
            bus_id=bus_id,
            # Two transfers per clock: NVML's clock is half the data rate, for GDDR and HBM alike.
            memory_bandwidth_gb_s=clock * 2e6 * width / 8 / 1e9 if clock and width else None,
            unified=unified,
            asleep=False,
            display_active=None if display is None else bool(display),
            small_bar=card is not None and not unified and card.has_small_bar,
            absent=absent,
        ).with_reasons(message("The NVIDIA driver does not report it."))

    def _read_memory(self, absent: dict[str, str], handle: object) -> Any:  # noqa: ANN401 -- pynvml has no type hints
        """Return NVML's memory structure, None if unknown. Since driver 510 it has a field for reserved memory."""
        nvml = self._nvml
        memory, why = self._query(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if memory is None:
            absent["reserved_bytes"] = str(why)
            memory, why = self._query(nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            absent |= dict.fromkeys(("memory_bytes", "used_bytes", "free_bytes"), str(why))
        return memory

    def _list_processes(self, absent: dict[str, str], handle: object) -> tuple[GpuProcess, ...] | None:
        found: dict[int, GpuProcess] = {}
        nvml = self._nvml
        for query in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            for each in self._query_field(absent, "processes", query, handle) or ():
                known = found.get(each.pid)
                if known is None or known.used_bytes is None:
                    used = None if each.usedGpuMemory is None else int(each.usedGpuMemory)
                    name = None if self._in_container else _process_name(each.pid)
                    found[each.pid] = GpuProcess(each.pid, name, used)
        if not found and "processes" in absent:
            return None
        absent.pop("processes", None)  # one of the two lists is better than none
        return tuple(found.values())

    def _with_fallback(self, newer: str, older: str) -> Callable[..., Any]:
        """Return a query that calls `newer`, or `older` if the driver does not have that yet."""
        nvml = self._nvml

        def query(*arguments: object) -> object:
            try:
                return getattr(nvml, newer)(*arguments)
            except nvml.NVMLError_FunctionNotFound:
                return getattr(nvml, older)(*arguments)

        return query

    def _query_field(self, absent: dict[str, str], field: str, query: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Return the value of a query, or None with its reason in `absent[field]`."""
        value, why = self._query(query, *arguments)
        if why is not None:
            absent[field] = why
        return value

    def _read_number(self, query: Callable[..., Any], *arguments: object, scale: float = 1.0) -> Reading:
        value, why = self._query(query, *arguments)
        return Reading(None, why) if value is None else Reading(value * scale)

    def _query(self, query: Callable[..., Any], *arguments: object) -> tuple[Any, str | None]:
        """Return the value and None, or None and the reason."""
        try:
            return query(*arguments), None
        except self._nvml.NVMLError as error:
            return None, _nvml_error_text(self._nvml, error, in_container=self._in_container)


def _process_name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError, ValueError):
        return None


def _nvml_error_text(nvml: Any, error: Exception, *, in_container: bool) -> str:  # noqa: ANN401 -- no type hints
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: _NO_DRIVER,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: message("The NVIDIA driver is installed but not loaded."),
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: message("The NVIDIA driver was updated: restart the computer."),
        nvml.NVML_ERROR_NOT_SUPPORTED: message("This card or driver does not report it."),
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: message("This NVIDIA driver is too old to report it."),
        nvml.NVML_ERROR_GPU_IS_LOST: message("The GPU stopped answering: restart the computer."),
    }
    code = getattr(error, "value", None)
    if code is None:
        return str(error)
    if code == nvml.NVML_ERROR_UNKNOWN and in_container:
        return LOST_IN_CONTAINER
    return reasons.get(code, message("The NVIDIA driver answered: {error}.", error=error))
