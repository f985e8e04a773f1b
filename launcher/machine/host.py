"""Static facts of the host: processor, memory, system, display."""

import os
import platform
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_DISPLAY_S = 2.0
PROC = Path("/proc")
_PF_AVX2_INSTRUCTIONS_AVAILABLE = 40
"""IsProcessorFeaturePresent's number, from winnt.h."""


@dataclass(frozen=True, slots=True)
class Host:
    """This computer. What cannot be found out is None."""

    system: str
    machine: str
    cpu: str | None
    physical_cores: int | None
    memory_bytes: int
    avx2: bool | None
    wsl: int | None
    display: str | None

    @property
    def runs_built_in_engine(self) -> bool:
        """Whether the processor has what the built-in engine was compiled for (AVX2 on x86-64)."""
        return self.avx2 is not False


def read_host(proc: Path = PROC) -> Host:
    """Read the facts once; `proc` is the root of the proc file system."""
    name, flags = _cpu_info(proc)
    return Host(
        system=_system(),
        machine=platform.machine(),
        cpu=name,
        physical_cores=psutil.cpu_count(logical=False),
        memory_bytes=psutil.virtual_memory().total,
        avx2=_avx2(flags),
        wsl=_wsl(proc),
        display=display(),
    )


def _system() -> str:
    if sys.platform == "linux":
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            return f"Linux {platform.release()}"
        return f"{release.get('PRETTY_NAME', 'Linux')}, kernel {platform.release()}"
    return f"{platform.system()} {platform.release()}"


def _cpu_info(proc: Path) -> tuple[str | None, frozenset[str] | None]:
    """Return the model name and the flags of the first processor in /proc/cpuinfo."""
    try:
        text = (proc / "cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or None, None
    fields: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = fields.get("flags")
    return fields.get("model name"), None if flags is None else frozenset(flags.split())


def _avx2(flags: frozenset[str] | None) -> bool | None:
    """Return whether AVX2 is there; None where it does not apply (not x86) or cannot be told."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    if flags is not None:
        return "avx2" in flags
    if sys.platform == "win32":
        import ctypes

        return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(_PF_AVX2_INSTRUCTIONS_AVAILABLE))
    return None


def _wsl(proc: Path) -> int | None:
    """Return 1 or 2 inside the Windows Subsystem for Linux, else None."""
    try:
        release = (proc / "sys/kernel/osrelease").read_text("utf-8").lower()
    except OSError:
        return None
    if "wsl2" in release or "microsoft-standard" in release:  # the first kernels of WSL 2 named only the latter
        return 2
    return 1 if "microsoft" in release else None


def display() -> str | None:
    """Return what a window could be shown on, or None."""
    if sys.platform == "linux":
        return os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or None
    return "desktop"


def display_answers() -> bool:
    """Return whether there is a display and something listens there (Qt aborts when nothing does)."""
    if sys.platform != "linux":
        return True
    wayland, x11 = os.environ.get("WAYLAND_DISPLAY"), os.environ.get("DISPLAY")
    if wayland and Path(os.environ.get("XDG_RUNTIME_DIR", "/"), wayland).is_socket():
        return True
    found = re.fullmatch(r"(?:unix)?([^:]*):(\d+)(?:\.\d+)?", x11 or "")
    if found is None:
        return bool(x11)  # a form that we do not know: Qt will see
    host, number = found[1], int(found[2])
    if host:
        places: list[tuple[int, Any]] = [(socket.AF_INET, (host, 6000 + number))]
    else:
        path = f"/tmp/.X11-unix/X{number}"  # noqa: S108 -- where X servers listen
        places = [(socket.AF_UNIX, path), (socket.AF_UNIX, "\0" + path)]
    return any(_listens(family, address) for family, address in places)


def _listens(family: int, address: Any) -> bool:  # noqa: ANN401 -- a socket's address
    with socket.socket(family) as probe:
        probe.settimeout(_DISPLAY_S)
        try:
            probe.connect(address)
        except OSError:
            return False
    return True
