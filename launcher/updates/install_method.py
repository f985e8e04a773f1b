"""The installation method of this program, which decides how a newer version is installed."""

import os
import sys
from enum import Enum
from pathlib import Path

from launcher.base.paths import shipped_file
from launcher.base.running_mark import UNINSTALLER

DPKG = Path("/var/lib/dpkg/info")
_PACKAGE = "mtp-launcher"
_RECEIPT = "uv-receipt.toml"
"""uv writes this file into each tool's environment."""


class InstallMethod(Enum):
    """An installation method; the value is the name, or its suffix, of the release file for it."""

    SETUP = "-setup.exe"
    """The Windows installer: the program lies below the folder of its uninstaller."""
    DEB = ".deb"
    """The Debian package."""
    SCRIPT = "install.ps1" if sys.platform == "win32" else "install.sh"
    """The install script, which stores itself beside the versions that it installs:
    FOLDER/VERSION/tools/mtp-launcher."""
    TOOL = "uv tool"
    """The user's own `uv tool install`."""
    SOURCE = "source"
    """A checkout, or an environment that the user made."""


def find_install_method(prefix: Path | None = None, data: Path | None = None, dpkg: Path = DPKG) -> InstallMethod:
    """Return the installation method of the program in `prefix`, by default this one, with its shipped data."""
    prefix = prefix or Path(sys.prefix)
    if (prefix / _RECEIPT).is_file():
        return (
            InstallMethod.SCRIPT
            if prefix.parents[2].joinpath(InstallMethod.SCRIPT.value).is_file()
            else InstallMethod.TOOL
        )
    if any((folder / UNINSTALLER).is_file() for folder in (prefix, prefix.parent)):
        return InstallMethod.SETUP
    try:
        listed = (dpkg / f"{_PACKAGE}.list").read_text("utf-8", "replace").splitlines()
    except OSError:
        return InstallMethod.SOURCE
    return InstallMethod.DEB if os.fspath(data or shipped_file("resources")) in listed else InstallMethod.SOURCE
