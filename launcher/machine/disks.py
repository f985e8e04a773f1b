"""Disk space and file system of folders, and detection of slow Windows drives in WSL."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from launcher.base.messages import message
from launcher.base.paths import expand_user

_WINDOWS_DRIVES = frozenset({"9p", "v9fs", "drvfs", "virtiofs"})
"""The file systems by which WSL mounts Windows drives."""
_MOUNT_POINT = re.compile(r"/mnt/[a-z](/|$)")


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of `folder`, which need not exist yet.

    Unknown values are None; `absent` has the reason by field name.
    """

    folder: Path
    total_bytes: int | None
    free_bytes: int | None
    file_system: str | None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def holds_windows_files(self) -> bool:
        """True if this is a Windows drive seen from WSL: reading is slow there, and files cannot be memory-mapped."""
        return self.file_system in _WINDOWS_DRIVES or bool(_MOUNT_POINT.match(self.folder.as_posix()))


def read_disks(folders: Iterable[Path], mounts: Sequence[tuple[str, str]] | None = None) -> tuple[Disk, ...]:
    """Return the disk of each folder. `mounts` are mount points with their file systems, by default this system's."""
    known = _list_mounts() if mounts is None else mounts
    return tuple(_read_disk(folder, known) for folder in folders)


def _read_disk(folder: Path, mounts: Sequence[tuple[str, str]]) -> Disk:
    folder = expand_user(folder).absolute()
    absent = {}
    total = free = None
    place = folder.resolve()
    existing = next((path for path in (place, *place.parents) if _exists(path)), place)
    try:
        total, _, free = shutil.disk_usage(existing)
    except OSError as error:
        absent = dict.fromkeys(
            ("total_bytes", "free_bytes"),
            message("Cannot read {existing}: {strerror}.", existing=existing, strerror=error.strerror),
        )
    containing = [(Path(mount), name) for mount, name in mounts if existing.is_relative_to(mount)]
    _, file_system = max(containing, key=lambda each: len(each[0].parts), default=(None, None))
    if not file_system:
        absent["file_system"] = message("The system does not list its mounts.")
    return Disk(folder, total, free, file_system or None, absent)


def _exists(path: Path) -> bool:
    """Return True if a path exists. Before Python 3.12 `exists` raises below a folder without read permission."""
    try:
        return path.exists()
    except OSError:
        return False


def _list_mounts() -> list[tuple[str, str]]:
    try:
        return [(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)]
    except OSError:
        return []
