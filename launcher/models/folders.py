"""The folder that models go to: made where it may be, and not on the system's disk in place of one that is away."""

import os
from pathlib import Path

from launcher.base.errors import TargetUnusable

_MOUNTS = (Path("/mnt"), Path("/media"), Path("/run/media"))
"""Where other disks appear (Filesystem Hierarchy Standard 3.0, 3.11 and 3.12; udisks)."""


def make_folder(folder: Path, *, named: str) -> None:
    """Make a folder for downloads and those above it; `named` is how the user named it, such as "--to".

    Raises TargetUnusable when it cannot be made, or would be where a disk should be.
    """
    hint = f"Name another folder with {named}."
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise TargetUnusable(f"{there} is a file, not a folder.", hint, path=str(there))
    mounts = next((each for each in _MOUNTS if folder.is_relative_to(each)), None)
    if there != folder and mounts is not None:
        above = [each for each in (there, *there.parents) if each.is_relative_to(mounts)]
        if not any(os.path.ismount(each) for each in above):
            raise TargetUnusable(
                f"There is no {folder}, and no disk where it should be.",
                f"Is the disk connected? If it is meant to lie on the system's disk, make it: mkdir -p {folder}",
                path=str(folder),
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetUnusable(f"{folder} cannot be made: {error.strerror or error}.", hint, path=str(folder)) from error
