"""`mtp-launcher gui`: open the window, or explain why it cannot open."""

from __future__ import annotations

import argparse
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError, LibraryMissing
from launcher.machine.display import is_display_reachable
from launcher.machine.libraries import find_missing_dependency, install_command, missing_libraries
from launcher.machine.surroundings import wsl_version

if TYPE_CHECKING:
    from collections.abc import Callable

_PLATFORM = "QT_QPA_PLATFORM"


def can_show_window() -> bool:
    """Return True if a window can be shown."""
    return is_display_reachable(os.environ.get(_PLATFORM, ""))


def explain_no_window() -> str:
    """Return why no window can be shown, as a sentence."""
    tried = [f"{name}={value}" for name in ("WAYLAND_DISPLAY", "DISPLAY") if (value := os.environ.get(name))]
    if not tried:
        return "No display is available for the window: neither DISPLAY nor WAYLAND_DISPLAY is set."
    return f"No display is available for the window: nothing answers at {' or '.join(tried)}."


def run(options: argparse.Namespace, open_window: Callable[[argparse.Namespace], int]) -> int:
    """Open the window and return its exit code. Raises LauncherError without a display, unless for a screenshot.

    Raises LibraryMissing before Qt is loaded, because Qt would abort without a useful message.
    """
    platform = os.environ.get(_PLATFORM) or None
    if platform is None:
        os.environ.pop(_PLATFORM, None)
    elif sys.platform == "linux":
        _check_libraries(platform)
    if not can_show_window():
        if options.screenshot is None:
            raise LauncherError(explain_no_window(), "Run `mtp-launcher demo` in the terminal.")
        os.environ[_PLATFORM] = platform = "offscreen"
    elif platform is None and os.environ.get("DISPLAY") and _is_wsl2():
        os.environ[_PLATFORM] = platform = "xcb"  # Qt's Wayland plugin fails in WSLg (WSL issue 12616)
    if sys.platform == "linux":
        _check_libraries(platform)
    try:
        return open_window(options)
    except ImportError as error:
        raise LibraryMissing(
            f"The window cannot be loaded: {error}.",
            "Install that library; `mtp-launcher doctor` names the known ones.",
        ) from error


def _is_wsl2() -> bool:
    return wsl_version() == 2


def _check_libraries(platform: str | None) -> None:
    """Raise LibraryMissing for missing libraries that Qt needs to show a window.

    If all known ones are there, the dependencies of Qt's platform plugin are checked, which finds any other.
    """
    default = "xcb" if os.environ.get("DISPLAY") else "wayland"
    plugin = re.split("[:;]", platform or default)[0]  # Qt accepts "wayland;xcb" and "xcb:OPTION"
    missing = (*missing_libraries("window"), *missing_libraries(plugin))
    if not missing and (qt := find_spec("PySide6")) is not None:
        folders = (Path(place, "Qt", "plugins", "platforms") for place in qt.submodule_search_locations or ())
        dependencies = (find_missing_dependency(folder / f"libq{plugin}.so") for folder in folders)
        missing = tuple(library for library in dependencies if library is not None)
    if missing:
        names = ", ".join(library.soname for library in missing)
        raise LibraryMissing(f"The window needs {names}.", f"Install it: {install_command(missing)}")
