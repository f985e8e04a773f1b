"""Creates the download folder, but not on the system disk when the intended disk is not mounted."""

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import TargetUnusable
from launcher.base.messages import message
from launcher.base.paths import find_existing_parent

MOUNT_POINTS = (Path("/mnt"), Path("/media"), Path("/run/media"))
"""Mount points of other disks (Filesystem Hierarchy Standard 3.0, 3.11 and 3.12; udisks)."""


def make_download_folder(folder: Path, *, given_by: str, mount_points: Sequence[Path] = MOUNT_POINTS) -> None:
    """Create a download folder and its parents. `given_by` is the option that set it, such as "--to", for the hint.

    Raises TargetUnusable if it cannot be created, or if it lies below one of `mount_points` without a mounted disk.
    """
    hint = message("Set {named} to another folder.", named=given_by)
    existing = find_existing_parent(folder)
    if not existing.is_dir():
        raise TargetUnusable(message("{there} is a file, not a folder.", there=existing), hint, path=str(existing))
    mounts = next((each for each in mount_points if folder.is_relative_to(each)), None)
    if existing != folder and mounts is not None:
        above = [each for each in (existing, *existing.parents) if each.is_relative_to(mounts)]
        if not any(os.path.ismount(each) for each in above):
            raise TargetUnusable(
                message("{folder} not found, and no disk is mounted there.", folder=folder),
                message(
                    "Is the disk connected? To use the system disk, create the folder: mkdir -p {folder}",
                    folder=folder,
                ),
                path=str(folder),
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetUnusable(
            message("Cannot create {folder}: {strerror}.", folder=folder, strerror=error.strerror or error),
            hint,
            path=str(folder),
        ) from error
