"""Checks for system libraries that the engine and the window need, before anything is loaded."""

import ctypes
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.base.paths import shipped_file

ROOT = Path("/")
_OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
_LOAD_ERROR = re.compile(r"([^\s/]+\.so[.\d]*): (?:cannot open shared object file|file too short|invalid ELF header)")


@dataclass(frozen=True, slots=True)
class SystemLibrary:
    """A shared library and its Debian and Arch Linux packages; an unknown package is empty.

    `purpose` is the part that needs it: "engine", "window", "xcb" or "wayland".
    """

    purpose: str
    soname: str
    package: str = ""
    arch_package: str = ""


def known_libraries() -> tuple[SystemLibrary, ...]:
    """Return the libraries listed in resources/system-libraries.txt."""
    lines = shipped_file("resources", "system-libraries.txt").read_text("utf-8").splitlines()
    return tuple(SystemLibrary(*line.split()) for line in lines if line and not line.startswith("#"))


def missing_libraries(purpose: str) -> tuple[SystemLibrary, ...]:
    """Return the libraries for `purpose` that the dynamic linker does not find. Empty except on Linux."""
    if sys.platform != "linux":
        return ()
    return tuple(
        library for library in known_libraries() if library.purpose == purpose and _linker_error(library.soname)
    )


def window_purposes() -> tuple[str, str]:
    """Return the purposes that a window needs here: Wayland if that is the only display server, else X."""
    wayland = bool(os.environ.get("WAYLAND_DISPLAY")) and not os.environ.get("DISPLAY")
    return "window", "wayland" if wayland else "xcb"


def missing_libraries_report() -> str:
    """Return the missing libraries by part and the command that installs them, for the installer; empty if none."""
    report = ""
    all_missing: list[SystemLibrary] = []
    for part, purposes in (("engine", ("engine",)), ("window", window_purposes())):
        missing = [library for purpose in purposes for library in missing_libraries(purpose)]
        if missing:
            report += f"The {part} needs libraries that are not here: {', '.join(each.soname for each in missing)}\n"
        all_missing += missing
    if all_missing:
        report += f"Install them: {install_command(tuple(all_missing))}\n"
    return report


def find_missing_dependency(plugin: Path) -> SystemLibrary | None:
    """Return the missing library that keeps a plugin, such as Qt's display plugin, from loading.

    None if no library is missing, or the plugin is not there.
    """
    found = _LOAD_ERROR.search(_linker_error(str(plugin)) if plugin.exists() else "")
    if found is None:
        return None
    return next((each for each in known_libraries() if each.soname == found[1]), SystemLibrary("window", found[1]))


def install_command(libraries: tuple[SystemLibrary, ...], root: Path = ROOT) -> str:
    """Return the command that installs `libraries` on this distribution, or a description if that is unknown.

    dnf and zypper accept what a package provides, such as 'libEGL.so.1()(64bit)' (RPM's automatic dependencies),
    instead of its name, so no package names of Fedora, Red Hat and openSUSE are needed.
    """
    provided = [f"{each.soname}()(64bit)" for each in libraries]
    commands = {
        "debian": ("apt-get install --no-install-recommends", [each.package for each in libraries]),
        "fedora": ("dnf install", provided),
        "rhel": ("dnf install", provided),
        "suse": ("zypper install", provided),
        "arch": ("pacman -S --needed", [each.arch_package for each in libraries]),
    }
    for name in _distribution_ids(root):
        command, packages = commands.get(name, ("", [""]))
        if all(packages):
            return f"sudo {command} {shlex.join(dict.fromkeys(packages))}"
    packages = [each.package for each in libraries if each.package]
    sonames = f"the packages with {', '.join(dict.fromkeys(each.soname for each in libraries))}"
    return f"{sonames} (on Debian {' '.join(dict.fromkeys(packages))})" if packages else sonames


def _distribution_ids(root: Path) -> list[str]:
    """Return the IDs of this distribution and of its base distributions, nearest first (os-release(5))."""
    file = next((root / name for name in _OS_RELEASE if (root / name).is_file()), None)
    lines = file.read_text("utf-8", "replace").splitlines() if file else ()
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return " ".join(fields.get(name, "").strip("\"'") for name in ("ID", "ID_LIKE")).split()


def _linker_error(library: str) -> str:
    """Return the dynamic linker's error for a library; empty if it loads."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""
