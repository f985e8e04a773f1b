"""Options of `mtp-launcher gui`."""

import argparse
import re

from launcher.base.messages import LANGUAGES

PAGES = ("start", "cockpit", "tune", "models", "agents", "logs", "settings")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a .gguf file to serve")
    parser.add_argument("--demo", action="store_true", help="start the demo at once")
    parser.add_argument("--theme", choices=("light", "dark"), help="theme of the window (default: the system's)")
    parser.add_argument("--page", choices=PAGES, help="the page to open on (default: the last one)")
    parser.add_argument("--language", choices=tuple(LANGUAGES), help="language of the window (default: the system's)")
    parser.add_argument("--scale", type=_parse_scale, metavar="PERCENT", help="text size, 80 to 200 (default 100)")
    parser.add_argument("--size", type=_parse_size, metavar="WxH", help="size of the window in pixels")
    parser.add_argument("--screenshot", metavar="FILE", help="save a picture of the window, and exit")


def _parse_scale(text: str) -> int:
    if not text.isdecimal() or not 80 <= int(text) <= 200:
        raise argparse.ArgumentTypeError(f"{text!r} is not a text size from 80 to 200")
    return int(text)


def _parse_size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{2,3}x[1-9]\d{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a window size such as 1280x800")
    return text
