"""What a system runs in: WSL, a container and its memory limit, a battery. None of it raises."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.machine.sysfs import ROOT, number, text

_CONTAINERS = {
    "docker": "docker",
    "libpod": "podman",
    "kubepods": "kubernetes",
    "lxc": "lxc",
    "containerd": "containerd",
}
"""Words in the name of a container's control group, and what made it."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest limit of the control groups that this process is in, and what is left of it."""

    limit_bytes: int
    left_bytes: int


def wsl_version(root: Path = ROOT) -> int | None:
    """Return 1 or 2 inside the Windows Subsystem for Linux, else None.

    A container on WSL 2 has its kernel, and counts. A kernel of the user's own may have any name; only WSL 2 takes one.
    """
    release = (text(root / "proc/sys/kernel/osrelease") or "").lower()
    if "wsl2" in release or "microsoft-standard" in release:  # the first kernels of WSL 2 named only the latter
        return 2
    if "microsoft" in release:
        return 1
    if sys.platform != "linux":
        return None
    own_kernel = (root / "proc/sys/fs/binfmt_misc/WSLInterop").exists() or (root / "dev/dxg").exists()
    return 2 if own_kernel or {"WSL_DISTRO_NAME", "WSL_INTEROP"} & os.environ.keys() else None


def container_name(root: Path = ROOT) -> str | None:
    """Return what made the container that this runs in, or None when there is no sign of one."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    made_by = text(root / "run/systemd/container")
    if made_by and made_by != "wsl":
        return made_by
    groups = text(root / "proc/self/cgroup") or ""
    return next((name for word, name in _CONTAINERS.items() if word in groups), None)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """Return the memory limit of the control groups, version 2 or 1, or None when none is set."""
    limits = []
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):  # inside a container its own group is the root of what is mounted
            found = _limit_of(base / group, version=1 if controllers else 2)
            if found is not None:
                limits.append(found)
    return min(limits, key=lambda limit: limit.left_bytes, default=None)


def _limit_of(group: Path, *, version: int) -> MemoryLimit | None:
    """Return one group's limit. Version 1 writes a number beyond any memory, version 2 the word max, for none."""
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    limit_file, usage_file, cache = names.get(version, ("memory.max", "memory.current", "inactive_file"))
    limit = number(group / limit_file)
    if limit is None or limit >= psutil.virtual_memory().total:
        return None
    statistics = dict(line.split() for line in (text(group / "memory.stat") or "").splitlines() if line.count(" ") == 1)
    usage = (number(group / usage_file) or 0) - int(statistics.get(cache, 0))  # files that it can drop are no use
    return MemoryLimit(limit, max(0, limit - max(0, usage)))


def battery_in_use(root: Path = ROOT) -> tuple[bool | None, str | None]:
    """Return whether a battery feeds this computer, or None and why that is not known."""
    if sys.platform != "linux":
        battery = psutil.sensors_battery()
        if battery is None:
            return False, None
        return (
            (None, "The system does not say.") if battery.power_plugged is None else (not battery.power_plugged, None)
        )
    supplies = root / "sys/class/power_supply"
    if not supplies.is_dir():
        return None, "The kernel lists no power supplies."
    batteries, plugged = [], False
    for supply in supplies.iterdir():
        if text(supply / "scope") == "Device":  # a mouse's or a headset's
            continue
        if text(supply / "type") == "Battery":
            batteries.append(text(supply / "status"))
        else:
            plugged |= number(supply / "online") == 1
    return "Discharging" in batteries and not plugged, None
