"""GPU memory of one process, from Windows' performance counters.

They cover all vendors; with WDDM, NVML cannot report memory by process. The set "GPU Process Memory" has an instance
for each process and GPU: pid_<pid>_luid_<...>_phys_<n>. The English counter names are used, because the displayed ones
are translated (pdh.h: PdhAddEnglishCounterW).
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from launcher.base.messages import message
from launcher.machine.gpu import Reading

_COUNTERS = {"gpu_shared_mib": "Shared Usage", "engine_vram_mib": "Dedicated Usage"}
_LARGE, _NO_SCALE, _MORE_DATA = 0x400, 0x1000, 0x800007D2
"""PDH_FMT_LARGE, PDH_FMT_NOSCALE and PDH_MORE_DATA of pdh.h and pdhmsg.h."""
_STATUS_BITS = 0xFFFFFFFF
"""Makes a PDH status unsigned: ctypes returns it as a signed integer."""
_MIB = 2**20
_NOT_REPORTED = message("Windows does not report the GPU memory of this process.")


class _Value(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE; the union is aligned to 8 bytes."""

    _fields_ = (("status", ctypes.c_uint32), ("large", ctypes.c_int64))


class _Item(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W."""

    _fields_ = (("name", ctypes.c_wchar_p), ("value", _Value))


class ProcessGpuMemory:
    """Counters of the GPU memory of process `pid` and of the host memory that GPUs use for it, summed over all GPUs."""

    def __init__(self, pid: int, library: Callable[[], Any] | None = None) -> None:
        self.pid = pid
        self._pdh: Any = None
        self._query = ctypes.c_void_p()
        self._counters: dict[str, ctypes.c_void_p] = {}
        load = library or _pdh_loader()
        if load is not None:
            self._open(load)

    def sample(self) -> dict[str, Reading]:
        """Return the readings in MiB by name; empty except on Windows."""
        if self._pdh is None:
            return {}
        if self._pdh.PdhCollectQueryData(self._query) & _STATUS_BITS:
            return dict.fromkeys(_COUNTERS, Reading.unknown(_NOT_REPORTED))
        return {name: self._read_counter(self._counters.get(name)) for name in _COUNTERS}

    def close(self) -> None:
        """Close the counter handles."""
        if self._pdh is not None:
            self._pdh.PdhCloseQuery(self._query)
            self._pdh = None

    def _open(self, load: Callable[[], Any]) -> None:
        try:
            pdh = load()
            if pdh.PdhOpenQueryW(None, ctypes.c_size_t(0), ctypes.byref(self._query)):
                return
        except (OSError, AttributeError):
            return
        self._pdh = pdh
        for name, counter in _COUNTERS.items():
            handle = ctypes.c_void_p()
            path = f"\\GPU Process Memory(pid_{self.pid}_*)\\{counter}"
            if not pdh.PdhAddEnglishCounterW(self._query, path, ctypes.c_size_t(0), ctypes.byref(handle)):
                self._counters[name] = handle

    def _read_counter(self, counter: ctypes.c_void_p | None) -> Reading:
        size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
        get_values = self._pdh.PdhGetFormattedCounterArrayW
        flags = _LARGE | _NO_SCALE
        sizes = (ctypes.byref(size), ctypes.byref(count))
        if counter is None or get_values(counter, flags, *sizes, None) & _STATUS_BITS != _MORE_DATA:
            return Reading.unknown(_NOT_REPORTED)
        buffer = ctypes.create_string_buffer(size.value)
        if get_values(counter, flags, *sizes, buffer) & _STATUS_BITS or not count.value:
            return Reading.unknown(_NOT_REPORTED)
        items = ctypes.cast(buffer, ctypes.POINTER(_Item * count.value)).contents
        values = [item.value.large for item in items if item.value.status <= 1]  # valid, or valid and new
        return Reading(sum(values) / _MIB) if values else Reading.unknown(_NOT_REPORTED)


def _pdh_loader() -> Callable[[], Any] | None:
    if sys.platform != "win32":
        return None
    return lambda: ctypes.WinDLL("pdh.dll")
