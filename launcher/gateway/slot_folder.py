"""The folder in which engines save their slots for a handover."""

from pathlib import Path

from launcher.base.files import make_private_folder

SLOT_FILES = "slot-*.bin"


def clear_slot_folder(folder: Path) -> None:
    """Make the folder for slots if needed, with access for this user only, and delete what an earlier run left there.

    Raises OSError.
    """
    make_private_folder(folder)
    for path in folder.glob(SLOT_FILES):
        path.unlink(missing_ok=True)
