"""Static facts of the host: processor, memory, system, display, power."""

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from launcher.machine.surroundings import battery_in_use, container_name, memory_limit, wsl_version
from launcher.machine.sysfs import ROOT

System = Literal["linux", "windows", "darwin", "other"]
BUILT_IN_ENGINE_NEEDS = ("avx2", "fma", "f16c", "bmi2")
"""What the built-in engine was compiled for on x86-64, in the spelling of /proc/cpuinfo."""
_TOLD = ("sse4_2", "avx", *BUILT_IN_ENGINE_NEEDS, "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
_SYSTEMS: dict[str, System] = {"linux": "linux", "win32": "windows", "darwin": "darwin"}
_DISPLAY_S = 2.0
_WINDOWS_FEATURES = {38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f"}
"""IsProcessorFeaturePresent's numbers, from winnt.h. An x86 processor with AVX2 has FMA, F16C and BMI2."""


@dataclass(frozen=True, slots=True)
class Host:
    """This computer. What is unknown is None, and `absent` says why by the field's name.

    Memory is what a program may have: in a container, what its limit leaves. `memory_limit_bytes` is that limit, None
    when there is none. `wsl_gpu` is whether WSL lends this system a GPU. `cpu_features` are those of its processor that
    matter to an engine. `on_battery` is whether a battery is what feeds it.
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
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def avx2(self) -> bool | None:
        """Whether the processor has AVX2; None where it does not apply (not x86) or cannot be told."""
        return None if self.cpu_features is None else "avx2" in self.cpu_features

    @property
    def lacks(self) -> tuple[str, ...]:
        """What the built-in engine needs of the processor and is known not to be there."""
        if self.cpu_features is None:
            return ()
        return tuple(name for name in BUILT_IN_ENGINE_NEEDS if name not in self.cpu_features)

    @property
    def runs_built_in_engine(self) -> bool:
        """Whether the processor has what the built-in engine was compiled for."""
        return not self.lacks


def read_host(root: Path = ROOT) -> Host:
    """Read the facts once; `root` is where the file systems of Linux are looked for."""
    name, flags = _cpu_info(root)
    features = _features(flags)
    cores = psutil.cpu_count(logical=False)
    memory = psutil.virtual_memory()
    limit = memory_limit(root)
    battery, battery_absent = battery_in_use(root)
    absent = {
        "cpu": None if name else "The system does not name its processor.",
        "physical_cores": None if cores else "The system does not say which of its processors are cores.",
        "cpu_features": None if features is not None else _no_features(),
        "memory_limit_bytes": None if limit else "No control group limits it.",
        "wsl": "This is not the Windows Subsystem for Linux.",
        "container": "No sign of a container was found.",
        "on_battery": battery_absent,
        "display": "Neither DISPLAY nor WAYLAND_DISPLAY is set.",
    }
    facts: dict[str, Any] = {
        "cpu": name,
        "physical_cores": cores,
        "cpu_features": features,
        "memory_limit_bytes": limit.limit_bytes if limit else None,
        "wsl": wsl_version(root),
        "container": container_name(root),
        "on_battery": battery,
        "display": display(),
    }
    return Host(
        kind=_SYSTEMS.get(sys.platform, "other"),
        system=_system(),
        machine=platform.machine(),
        memory_bytes=min(memory.total, limit.limit_bytes) if limit else memory.total,
        available_bytes=min(memory.available, limit.left_bytes) if limit else memory.available,
        wsl_gpu=(root / "dev/dxg").exists(),
        absent={name: why for name, why in absent.items() if facts[name] is None and why},
        **facts,
    )


def _system() -> str:
    if sys.platform == "linux":
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            return f"Linux {platform.release()}"
        return f"{release.get('PRETTY_NAME', 'Linux')}, kernel {platform.release()}"
    return f"{platform.system()} {platform.release()}"


def _cpu_info(root: Path) -> tuple[str | None, frozenset[str] | None]:
    """Return the model name and the flags of the first processor in /proc/cpuinfo."""
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


def _features(flags: frozenset[str] | None) -> tuple[str, ...] | None:
    """Return what an engine could use of an x86-64 processor; None of another, or when it cannot be told."""
    if not _is_x86():
        return None
    if flags is not None:
        return tuple(name for name in _TOLD if name in flags)
    if sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        found = {name for number, name in _WINDOWS_FEATURES.items() if present(number)}
        implied = BUILT_IN_ENGINE_NEEDS if "avx2" in found else ()
        return tuple(name for name in _TOLD if name in found or name in implied)
    return None


def _no_features() -> str:
    return "The system does not list them." if _is_x86() else "They are looked for on x86-64 only."


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
