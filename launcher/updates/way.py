"""How this program came onto this computer, which is how a newer version of it comes."""

import os
import sys
from enum import Enum
from pathlib import Path

from launcher.base.paths import shipped
from launcher.base.running_mark import UNINSTALLER

DPKG = Path("/var/lib/dpkg/info")
_PACKAGE = "mtp-launcher"
_RECEIPT = "uv-receipt.toml"
"""uv writes one into each tool's environment."""


class Way(Enum):
    """How it was installed; the value is what the file of a release for it is called, or how its name ends."""

    SETUP = "-setup.exe"
    """The installer for Windows: below the folder of its uninstaller."""
    DEB = ".deb"
    """Debian's package."""
    SCRIPT = "install.ps1" if sys.platform == "win32" else "install.sh"
    """The script, which keeps itself beside the versions that it makes: FOLDER/VERSION/tools/mtp-launcher."""
    TOOL = "uv tool"
    """The user's own `uv tool install`."""
    SOURCE = "source"
    """A checkout, or an environment of the user's own making."""


def way(prefix: Path | None = None, data: Path | None = None, dpkg: Path = DPKG) -> Way:
    """Return how the program was installed that runs from `prefix`, by default this one, with its shipped data."""
    prefix = prefix or Path(sys.prefix)
    if (prefix / _RECEIPT).is_file():
        return Way.SCRIPT if prefix.parents[2].joinpath(Way.SCRIPT.value).is_file() else Way.TOOL
    if any((folder / UNINSTALLER).is_file() for folder in (prefix, prefix.parent)):
        return Way.SETUP
    try:
        listed = (dpkg / f"{_PACKAGE}.list").read_text("utf-8", "replace").splitlines()
    except OSError:
        return Way.SOURCE
    return Way.DEB if os.fspath(data or shipped("resources")) in listed else Way.SOURCE
