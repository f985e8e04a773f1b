"""`mtp-launcher gui`: open the window, or say why that cannot be."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError, LibraryMissing
from launcher.base.words import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = ("start", "cockpit", "tune", "models", "logs", "settings")
_PLATFORM = "QT_QPA_PLATFORM"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a .gguf file to serve")
    parser.add_argument("--demo", action="store_true", help="start the demo at once")
    parser.add_argument("--theme", choices=("light", "dark"), help="hold to a theme (default: the system's)")
    parser.add_argument("--page", choices=PAGES, help="the page to open on (default: the last one)")
    parser.add_argument("--language", choices=tuple(LANGUAGES), help="language of the window (default: the system's)")
    parser.add_argument("--scale", type=_scale, metavar="PERCENT", help="size of the text, 80 to 200 (default 100)")
    parser.add_argument("--size", type=_size, metavar="WxH", help="size of the window in pixels")
    parser.add_argument("--screenshot", metavar="FILE", help="save a picture of the window and leave")


def _scale(text: str) -> int:
    if not text.isdecimal() or not 80 <= int(text) <= 200:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of text from 80 to 200")
    return int(text)


def _size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{2,3}x[1-9]\d{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 1280x800")
    return text


def shows() -> bool:
    """Return whether there is something that a window could be shown on."""
    from launcher.machine.host import display_answers

    return bool(os.environ.get(_PLATFORM)) or display_answers()


def run(options: argparse.Namespace, open_window: Callable[[argparse.Namespace], int]) -> int:
    """Open the window. Raises LibraryMissing before Qt is touched, for Qt aborts without telling much."""
    from launcher.machine.libraries import install_line, missing_libraries

    platform = os.environ.get(_PLATFORM) or None
    if platform is None:
        os.environ.pop(_PLATFORM, None)
    if not shows():
        if options.screenshot is None:
            raise LauncherError(
                "There is no display that answers, to open a window on.", "Run `mtp-launcher demo` in the terminal."
            )
        os.environ[_PLATFORM] = platform = "offscreen"
    purposes = ["window"]
    if sys.platform == "linux" and platform != "offscreen":
        only_wayland = platform == "wayland" or not os.environ.get("DISPLAY")
        purposes += ["wayland"] if only_wayland else ["xcb"]
    missing = tuple(library for purpose in purposes for library in missing_libraries(purpose))
    if missing:
        names = ", ".join(library.soname for library in missing)
        raise LibraryMissing(f"The window needs {names}.", f"Install it: {install_line(missing)}")
    try:
        return open_window(options)
    except ImportError as error:
        raise LibraryMissing(
            f"The window cannot be loaded: {error}.",
            "Install that library; `mtp-launcher doctor` names the known ones.",
        ) from error
