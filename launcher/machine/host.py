"""Static facts of the host: CPU, memory, system, display, power."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from launcher.base.messages import mark, message
from launcher.machine.memory_modules import read_host_bandwidth
from launcher.machine.surroundings import (
    container_name,
    find_linux_driver,
    read_available_bytes,
    read_cpu_limit,
    read_memory_limit,
    read_on_battery,
    wsl_version,
)
from launcher.machine.sysfs import ROOT

System = Literal["linux", "windows", "darwin", "other"]
BUILT_IN_ENGINE_NEEDS = ("avx2", "fma", "f16c", "bmi2")
"""CPU features that the built-in engine requires on x86-64, spelled as in /proc/cpuinfo."""
_KNOWN_FEATURES = (
    "sse4_2",
    "avx",
    *BUILT_IN_ENGINE_NEEDS,
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
)
LINUX_DRIVER = mark("NVIDIA's Linux driver is installed inside WSL and hides the driver of Windows: {file}.")
REMOVE_LINUX_DRIVER = mark(
    "`dpkg -S {file}` names its package. Remove that with `sudo apt-get purge`, then run `wsl --shutdown` in Windows."
)
_SYSTEMS: dict[str, System] = {"linux": "linux", "win32": "windows", "darwin": "darwin"}
_WINDOWS_FEATURES = {38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f"}
"""Feature numbers of IsProcessorFeaturePresent (winnt.h). It has none for FMA, F16C and BMI2; AVX2 implies them."""


@dataclass(frozen=True, slots=True)
class Host:
    """This computer. Unknown values are None; `absent` has the reason by field name.

    `kind` is the operating system, `system` its name and version, `machine` the CPU architecture, such as x86_64.
    `cpu_features` are those that matter to an engine. `memory_bytes` and `available_bytes` are at most what a
    container allows; `memory_limit_bytes` is that limit, None without one. `cpu_limit` is how many CPUs a container
    leaves to this process, None for all. `memory_bandwidth_gb_s` is what its modules
    state, in 10^9 bytes per second. `wsl` is WSL's version, 1 or 2, and None outside WSL. `wsl_gpu` is True if WSL
    provides a GPU; `linux_driver` is the file of a driver of NVIDIA that was installed inside WSL. `on_battery` is True
    if the computer runs on battery power.
    """

    kind: System
    system: str
    machine: str
    cpu: str | None
    physical_cores: int | None
    cpu_features: tuple[str, ...] | None
    memory_bytes: int
    available_bytes: int
    memory_limit_bytes: int | None
    wsl: int | None
    wsl_gpu: bool
    container: str | None
    on_battery: bool | None
    display: str | None
    linux_driver: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    memory_bandwidth_gb_s: float | None = None
    cpu_limit: float | None = None

    @property
    def usable_cores(self) -> int | None:
        """The cores that an engine can use at once, at least 1; None if unknown."""
        known = [each for each in (self.physical_cores, self.cpu_limit) if each is not None]
        return max(1, int(min(known))) if known else None

    @property
    def threads(self) -> int | None:
        """The threads that an engine has to be told to start; None if its own choice, one per core, is right.

        llama.cpp counts the computer's cores, and its threads wait for those that a container does not let run.
        """
        return self.usable_cores if self.usable_cores != self.physical_cores else None

    @property
    def avx2(self) -> bool | None:
        """True if the CPU has AVX2; None if not x86 or unknown."""
        return None if self.cpu_features is None else "avx2" in self.cpu_features

    @property
    def missing_features(self) -> tuple[str, ...]:
        """Required CPU features of the built-in engine that are known to be missing."""
        if self.cpu_features is None:
            return ()
        return tuple(name for name in BUILT_IN_ENGINE_NEEDS if name not in self.cpu_features)

    @property
    def can_run_built_in_engine(self) -> bool:
        """True unless the CPU is known to lack a feature that the built-in engine requires."""
        return not self.missing_features


def read_host(root: Path = ROOT) -> Host:
    """Read the host's facts. `root` is the root of the Linux file systems (for tests)."""
    name, flags = _read_cpu_info(root)
    features = _list_features(flags)
    cores = psutil.cpu_count(logical=False)
    memory_bytes, limit, wsl = psutil.virtual_memory().total, read_memory_limit(root), wsl_version(root)
    battery, battery_absent = read_on_battery(root)
    absent = {
        "cpu": None if name else message("The system does not report the CPU name."),
        "physical_cores": None if cores else message("The system does not report the number of CPU cores."),
        "cpu_features": None if features is not None else _no_features_reason(),
        "memory_limit_bytes": None if limit else message("No control group limits it."),
        "cpu_limit": message("No control group limits it."),
        "memory_bandwidth_gb_s": message("The system does not tell its memory modules to programs."),
        "wsl": message("This is not the Windows Subsystem for Linux."),
        "container": message("No sign of a container was found."),
        "on_battery": battery_absent,
        "display": message("Neither DISPLAY nor WAYLAND_DISPLAY is set."),
    }
    facts: dict[str, Any] = {
        "cpu": name,
        "physical_cores": cores,
        "cpu_features": features,
        "memory_limit_bytes": limit.limit_bytes if limit else None,
        "cpu_limit": read_cpu_limit(root),
        "memory_bandwidth_gb_s": read_host_bandwidth(root),
        "wsl": wsl,
        "container": container_name(root),
        "on_battery": battery,
        "display": find_display(),
    }
    return Host(
        kind=_SYSTEMS.get(sys.platform, "other"),
        system=_system_name(),
        machine=platform.machine(),
        memory_bytes=min(memory_bytes, limit.limit_bytes) if limit else memory_bytes,
        available_bytes=read_available_bytes(root),
        wsl_gpu=(root / "dev/dxg").exists(),
        linux_driver=find_linux_driver(root) if wsl else None,
        absent={name: why for name, why in absent.items() if facts[name] is None and why},
        **facts,
    )


def _system_name() -> str:
    if sys.platform == "linux":
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            return f"Linux {platform.release()}"
        return f"{release.get('PRETTY_NAME', 'Linux')}, kernel {platform.release()}"
    return f"{platform.system()} {platform.release()}"


def _read_cpu_info(root: Path) -> tuple[str | None, frozenset[str] | None]:
    """Return the model name and the feature flags of the first CPU in /proc/cpuinfo; unknown ones are None."""
    try:
        text = (root / "proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or None, None
    fields: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = fields.get("flags")
    return fields.get("model name"), None if flags is None else frozenset(flags.split())


def _is_x86() -> bool:
    return platform.machine().lower() in {"x86_64", "amd64"}


def _list_features(flags: frozenset[str] | None) -> tuple[str, ...] | None:
    """Return the CPU features that matter to an engine on x86-64; None for another CPU, or if unknown."""
    if not _is_x86():
        return None
    if flags is not None:
        return tuple(name for name in _KNOWN_FEATURES if name in flags)
    if sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        found = {name for number, name in _WINDOWS_FEATURES.items() if present(number)}
        implied = BUILT_IN_ENGINE_NEEDS if "avx2" in found else ()
        return tuple(name for name in _KNOWN_FEATURES if name in found or name in implied)
    return None


def _no_features_reason() -> str:
    return message("The system does not list them.") if _is_x86() else message("Checked on x86-64 only.")


def find_display() -> str | None:
    """Return the display for a window, as the environment names it; None without one."""
    if sys.platform == "linux":
        return os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or None
    return "desktop"
