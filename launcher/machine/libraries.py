"""System libraries that the engine and the window need, looked for before anything is loaded."""

import ctypes
import sys
from dataclasses import dataclass

from launcher.base.paths import shipped


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library by its soname, what needs it ("engine", "window", "xcb", "wayland"), and its Debian package."""

    purpose: str
    soname: str
    package: str


def known_libraries() -> tuple[Library, ...]:
    """Return the libraries named in resources/system-libraries.txt."""
    lines = shipped("resources", "system-libraries.txt").read_text("utf-8").splitlines()
    return tuple(Library(*line.split()) for line in lines if line and not line.startswith("#"))


def missing_libraries(purpose: str) -> tuple[Library, ...]:
    """Return those libraries for `purpose` that the dynamic linker does not find. Empty outside Linux."""
    if sys.platform != "linux":
        return ()
    return tuple(library for library in known_libraries() if library.purpose == purpose and not _loads(library))


def install_line(libraries: tuple[Library, ...]) -> str:
    """Return the Debian or Ubuntu command that installs `libraries`."""
    packages = " ".join(dict.fromkeys(library.package for library in libraries))
    return f"sudo apt-get install --no-install-recommends {packages}"


def _loads(library: Library) -> bool:
    try:
        ctypes.CDLL(library.soname)
    except OSError:
        return False
    return True
