"""How this program came onto this computer, which is how a newer version of it comes."""

import os
import sys
from enum import Enum
from pathlib import Path

from launcher.base.paths import shipped

DPKG = Path("/var/lib/dpkg/info")
_PACKAGE = "mtp-launcher"


class Way(Enum):
    """How it was installed; the value is what manifests' names of files for it end with, empty where none is."""

    SETUP = "-setup.exe"
    """The installer for Windows: python.exe lies beside or below its uninstaller."""
    DEB = ".deb"
    """Debian's package."""
    TOOL = ".whl"
    """`uv tool install`, which both install.sh and install.ps1 run."""
    SOURCE = ""
    """A checkout, or an environment of the user's own making."""


def way(prefix: Path | None = None, data: Path | None = None, dpkg: Path = DPKG) -> Way:
    """Return how the program was installed that runs from `prefix`, by default this one, with its shipped data."""
    prefix = prefix or Path(sys.prefix)
    if (prefix / "uv-receipt.toml").is_file():  # uv writes one into each tool's environment
        return Way.TOOL
    if any((folder / "Uninstall MTP Launcher.exe").is_file() for folder in (prefix, prefix.parent)):
        return Way.SETUP
    try:
        listed = (dpkg / f"{_PACKAGE}.list").read_text("utf-8", "replace").splitlines()
    except OSError:
        return Way.SOURCE
    return Way.DEB if os.fspath(data or shipped("resources")) in listed else Way.SOURCE
