"""Names for files that come from elsewhere: whatever a server says, they stay inside the folder that is meant."""

import re
from pathlib import Path, PurePosixPath

from launcher.base.errors import BadOption

_FORBIDDEN = re.compile(r'[<>:"/\\|?*\0-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]')
"""What Windows forbids in a name, control characters, and those that turn the order of writing around."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)", re.IGNORECASE)
"""Names of devices, with whatever ending (https://learn.microsoft.com/windows/win32/fileio/naming-a-file)."""
_MOST_BYTES = 220
"""Of the 255 that file systems take in a name: the rest is left for what is written beside a file that arrives."""


def local_name(name: str) -> str:
    """Return one part of a path as every system takes it, the same on each of them.

    What cannot stand in a name becomes "_". Raises BadOption for a name that means a folder, or is too long.
    """
    if name in ("", ".", ".."):
        raise BadOption(f"{name!r} is no name for a file.", "Take a file with an ordinary name.")
    if len(name.encode("utf-8", "replace")) > _MOST_BYTES:
        raise BadOption(f"The name {name[:40]}… is too long for a file system.", "Take a file with a shorter name.")
    clean = _FORBIDDEN.sub("_", name.encode("utf-8", "replace").decode())
    clean = re.sub(r"[. ]+$", lambda end: "_" * len(end[0]), clean)
    return f"_{clean}" if _RESERVED.fullmatch(clean.split(".")[0].rstrip(" ")) else clean


def is_local_name(name: str) -> bool:
    """Return whether every system takes one part of a path as it is."""
    try:
        return local_name(name) == name
    except BadOption:
        return False


def local_path(folder: Path, name: str) -> Path:
    """Return where below `folder` a file lies that a server calls `name`, with / between the parts of its path.

    Raises BadOption when a part cannot be used: see `local_name`.
    """
    return folder.joinpath(*map(local_name, PurePosixPath("/", name).parts[1:] or [""]))
