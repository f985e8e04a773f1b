"""Detects how this program was installed, because a newer version is installed the same way."""

import os
import sys
from enum import Enum
from pathlib import Path

from launcher.base.paths import shipped_file
from launcher.base.running_mark import UNINSTALLER

DPKG = Path("/var/lib/dpkg/info")
_PACKAGE = "mtp-launcher"
_UV_RECEIPT = "uv-receipt.toml"
"""uv writes this file into each tool's environment."""


class InstallMethod(Enum):
    """An installation method. The value is the name, or its suffix, of the release file for it.

    For TOOL and SOURCE, which have no release file, it is a word.
    """

    SETUP = "-setup.exe"
    """The Windows installer. Recognised by: its uninstaller lies in the folder above `prefix`."""
    DEB = ".deb"
    """The Debian package. Recognised by: the package's list of files has our data folder."""
    SCRIPT = "install.ps1" if sys.platform == "win32" else "install.sh"
    """The install script. Recognised by: `prefix` is FOLDER/VERSION/tools/mtp-launcher, has uv's receipt, and the
    script lies in FOLDER.
    """
    TOOL = "uv tool"
    """The user's own `uv tool install`. Recognised by: uv's receipt without the install script."""
    SOURCE = "source"
    """A checkout, or an environment that the user made."""


def find_install_method(prefix: Path | None = None, data: Path | None = None, dpkg: Path = DPKG) -> InstallMethod:
    """Return the installation method of the program in `prefix` with its `data` folder, by default of this program.

    `dpkg` is the folder with the lists of the files of Debian packages.
    """
    prefix = prefix or Path(sys.prefix)
    if (prefix / _UV_RECEIPT).is_file():
        script = prefix.parents[2] / InstallMethod.SCRIPT.value
        return InstallMethod.SCRIPT if script.is_file() else InstallMethod.TOOL
    if (prefix.parent / UNINSTALLER).is_file():
        return InstallMethod.SETUP
    try:
        listed = (dpkg / f"{_PACKAGE}.list").read_text("utf-8", "replace").splitlines()
    except OSError:
        return InstallMethod.SOURCE
    return InstallMethod.DEB if os.fspath(data or shipped_file("resources")) in listed else InstallMethod.SOURCE
