"""The disks below the folders that matter: what is free there, and whether it is a slow way to a Windows drive."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from launcher.base.paths import expanded

_WINDOWS_DRIVES = frozenset({"9p", "v9fs", "drvfs", "virtiofs"})
"""What WSL mounts the drives of Windows as."""
_MOUNT_POINT = re.compile(r"/mnt/[a-z](/|$)")


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that holds `folder`, which need not exist yet. What is unknown is None, and `absent` says why."""

    folder: Path
    total_bytes: int | None
    free_bytes: int | None
    file_system: str | None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def holds_windows_files(self) -> bool:
        """Whether, seen from WSL, it is a drive of Windows: reading is slow there, and files cannot be mapped."""
        return self.file_system in _WINDOWS_DRIVES or bool(_MOUNT_POINT.match(self.folder.as_posix()))


def read_disks(folders: Iterable[Path], mounts: Sequence[tuple[str, str]] | None = None) -> tuple[Disk, ...]:
    """Return the disk of each folder. `mounts` are the mount points and their file systems, else the computer's own."""
    known = _mounts() if mounts is None else mounts
    return tuple(_disk(folder, known) for folder in folders)


def _disk(folder: Path, mounts: Sequence[tuple[str, str]]) -> Disk:
    folder = expanded(folder).absolute()
    absent = {}
    total = free = None
    place = folder.resolve()
    existing = next((path for path in (place, *place.parents) if _exists(path)), place)
    try:
        total, _, free = shutil.disk_usage(existing)
    except OSError as error:
        absent = dict.fromkeys(("total_bytes", "free_bytes"), f"{existing} cannot be asked: {error.strerror}.")
    holders = [(Path(mount), kind) for mount, kind in mounts if existing.is_relative_to(mount)]
    system = max(holders, key=lambda each: len(each[0].parts), default=(None, None))[1]
    if not system:
        absent["file_system"] = "The system does not list what is mounted there."
    return Disk(folder, total, free, system or None, absent)


def _exists(path: Path) -> bool:
    """Return whether a path is there; before Python 3.12 `exists` raises below a folder that may not be read."""
    try:
        return path.exists()
    except OSError:
        return False


def _mounts() -> list[tuple[str, str]]:
    try:
        return [(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)]
    except OSError:
        return []
