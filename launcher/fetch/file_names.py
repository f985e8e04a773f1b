"""Safe local names for files whose names come from a server: they stay inside the intended folder."""

import re
from pathlib import Path, PurePosixPath

from launcher.base.errors import BadOption
from launcher.base.messages import message

_FORBIDDEN = re.compile(r'[<>:"/\\|?*\0-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]')
"""Characters that Windows forbids in a name, control characters, and those that change the writing direction."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)", re.IGNORECASE)
"""Device names, with any extension (https://learn.microsoft.com/windows/win32/fileio/naming-a-file)."""
_MOST_BYTES = 220
"""Longest name. File systems allow 255 bytes; the difference is for suffixes such as .part.journal.new."""


def local_name(name: str) -> str:
    """Return one path component as a name that is valid, and the same, on every system.

    Invalid characters become "_". Raises BadOption for "", ".", ".." and names that are too long.
    """
    if name in ("", ".", ".."):
        raise BadOption(
            message("{name!r} is not a valid file name.", name=name), message("Choose a file with an ordinary name.")
        )
    if len(name.encode("utf-8", "replace")) > _MOST_BYTES:
        raise BadOption(
            message("The name {name}… is too long for the file system.", name=name[:40]),
            message("Choose a file with a shorter name."),
        )
    clean = _FORBIDDEN.sub("_", name.encode("utf-8", "replace").decode())
    clean = re.sub(r"[. ]+$", lambda end: "_" * len(end[0]), clean)
    return f"_{clean}" if _RESERVED.fullmatch(clean.split(".")[0].rstrip(" ")) else clean


def is_local_name(name: str) -> bool:
    """Return True if one path component is valid unchanged on every system."""
    try:
        return local_name(name) == name
    except BadOption:
        return False


def local_path(folder: Path, name: str) -> Path:
    """Return the path below `folder` for a server's file name, which may contain / between components.

    Raises BadOption if a component cannot be used: see `local_name`.
    """
    return folder.joinpath(*map(local_name, PurePosixPath("/", name).parts[1:] or [""]))
