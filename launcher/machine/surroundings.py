"""The environment that this system runs in: WSL, a container and its limits, a battery. Nothing here raises."""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.base.late import psutil
from launcher.base.messages import message
from launcher.machine.sysfs import ROOT, read_number, read_text

_CONTAINERS = {
    "docker": "docker",
    "libpod": "podman",
    "kubepods": "kubernetes",
    "lxc": "lxc",
    "containerd": "containerd",
}
"""Container engines, by a word in the name of the control groups that they make."""


_DROPPABLE = ("active_file", "inactive_file", "slab_reclaimable")
"""Names in memory.stat of what the kernel drops when memory is short; shared memory is not among the files."""
_LINUX_DRIVER = re.compile(r"libcuda\.so\.\d{3,}[.\d]+")
"""The file of NVIDIA's Linux driver; WSL's has the number 1.1."""
_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on the memory of this process by one of its control groups, and the memory left below it, in bytes."""

    limit_bytes: int
    left_bytes: int


def wsl_version(root: Path = ROOT) -> int | None:
    """Return 1 or 2 inside the Windows Subsystem for Linux, else None.

    A container on WSL 2 shares its kernel and counts as WSL 2. A custom kernel, which only WSL 2 supports, may have any
    name.
    """
    release = (read_text(root / "proc/sys/kernel/osrelease") or "").lower()
    if "wsl2" in release or "microsoft-standard" in release:  # early kernels of WSL 2 had only the latter in their name
        return 2
    if "microsoft" in release:
        return 1
    if sys.platform != "linux":
        return None
    has_wsl_files = (root / "proc/sys/fs/binfmt_misc/WSLInterop").exists() or (root / "dev/dxg").exists()
    return 2 if has_wsl_files or {"WSL_DISTRO_NAME", "WSL_INTEROP"} & os.environ.keys() else None


def find_linux_driver(root: Path = ROOT) -> str | None:
    """Return the path of CUDA's part of an installed NVIDIA driver for Linux, which does not work in WSL."""
    paths = (path for folder in _LIBRARY_FOLDERS for path in sorted((root / folder).glob("libcuda.so.*")))
    return next((str(path) for path in paths if _LINUX_DRIVER.fullmatch(path.name)), None)


def container_name(root: Path = ROOT) -> str | None:
    """Return the container engine that this process runs under, or None if there is no sign of a container."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    systemd_container = read_text(root / "run/systemd/container")
    if systemd_container and systemd_container != "wsl":
        return systemd_container
    groups = read_text(root / "proc/self/cgroup") or ""
    return next((name for word, name in _CONTAINERS.items() if word in groups), None)


def read_memory_limit(root: Path = ROOT, pid: int | None = None) -> MemoryLimit | None:
    """Return the memory limit with the least memory left, of control groups version 2 or 1; None if there is none.

    `pid` is the process whose groups count; None is this one.
    """
    groups = _list_own_groups(root, "memory", pid)
    limits = [limit for group, version in groups if (limit := _read_group_limit(group, version=version)) is not None]
    return min(limits, key=lambda limit: limit.left_bytes, default=None)


def read_cpu_limit(root: Path = ROOT) -> float | None:
    """Return how many CPUs this process may use at once; None for all of them.

    That is the least of the quotas of its control groups, and of the CPUs on which it may run at all.
    """
    quotas = [_read_quota(group, version=version) for group, version in _list_own_groups(root, "cpu")]
    limits = [quota for quota in quotas if quota is not None]
    if sys.platform == "linux":
        limits.append(len(os.sched_getaffinity(0)))
    limit = min(limits, default=None)
    return None if limit is None or limit >= (os.cpu_count() or 1) else limit


def _read_quota(group: Path, *, version: int) -> float | None:
    """Return one group's quota in CPUs: its time in each period, divided by the period. None without one."""
    if version == 1:
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
    else:
        words = (read_text(group / "cpu.max") or "").split()  # such as "400000 100000", or "max 100000"
        quota, period = (int(word) for word in words) if "".join(words).isdigit() and len(words) == 2 else (None, None)
    return quota / period if quota and period and quota > 0 else None


def _list_own_groups(root: Path, controller: str, pid: int | None = None) -> Iterator[tuple[Path, int]]:
    """Yield the folders of a process's control groups and of the groups around them, each with its version, 2 or 1."""
    for line in (read_text(root / f"proc/{pid or 'self'}/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / (f"sys/fs/cgroup/{controller}" if controllers else "sys/fs/cgroup")
        inside = Path(path.lstrip("/"))
        # Inside a container, its own group is the root of the mounted file system.
        for group in (inside, *inside.parents):
            yield base / group, 1 if controllers else 2


def _read_group_limit(group: Path, *, version: int) -> MemoryLimit | None:
    """Return one group's limit. No limit is a number above any memory in version 1, and the word "max" in version 2.

    Above memory.high the kernel slows programs down until they give memory back, so it limits them as well.
    """
    if version == 1:
        limit_files, usage_file, prefix = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
    else:
        limit_files, usage_file, prefix = ["memory.max", "memory.high"], "memory.current", ""
    limits = [limit for name in limit_files if (limit := read_number(group / name)) is not None]
    limit = min(limits, default=None)
    if limit is None or limit >= psutil.virtual_memory().total:
        return None
    statistics = dict(
        line.split() for line in (read_text(group / "memory.stat") or "").splitlines() if line.count(" ") == 1
    )
    # What the kernel can drop does not count, such as the pages of a model file that was read several times.
    droppable = sum(int(statistics.get(prefix + name, 0)) for name in _DROPPABLE)
    usage = (read_number(group / usage_file) or 0) - droppable
    return MemoryLimit(limit, min(limit, max(0, limit - usage)))


def read_available_bytes(root: Path = ROOT, pid: int | None = None) -> int:
    """Return the memory that a process (default: this one) can get without swapping, within its control groups.

    The kernel does not count the cache of ZFS, which shrinks on demand to its least size (openzfs #10255).
    """
    memory = psutil.virtual_memory()
    words = [line.split() for line in (read_text(root / "proc/spl/kstat/zfs/arcstats") or "").splitlines()]
    cache = {word[0]: int(word[2]) for word in words if len(word) == 3 and word[2].isdecimal()}
    available = min(memory.total, memory.available + max(0, cache.get("size", 0) - cache.get("c_min", 0)))
    limit = read_memory_limit(root, pid)
    return available if limit is None else min(available, limit.left_bytes)


def read_on_battery(root: Path = ROOT) -> tuple[bool | None, str | None]:
    """Return whether the computer runs on battery, and None; if that is unknown, None and the reason."""
    if sys.platform != "linux":
        battery = psutil.sensors_battery()
        if battery is None:
            return False, None
        if battery.power_plugged is None:
            return None, message("The system does not report it.")
        return not battery.power_plugged, None
    supplies = root / "sys/class/power_supply"
    if not supplies.is_dir():
        return None, message("The kernel lists no power supplies.")
    batteries, plugged = [], False
    for supply in supplies.iterdir():
        if read_text(supply / "scope") == "Device":  # the battery of a mouse or a headset
            continue
        if read_text(supply / "type") == "Battery":
            batteries.append(read_text(supply / "status"))
        else:
            plugged |= read_number(supply / "online") == 1
    return "Discharging" in batteries and not plugged, None
