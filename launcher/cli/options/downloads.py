"""Options of `mtp-launcher downloads`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.actions import add_actions
from launcher.cli.options.pull import add_drafter_option

if TYPE_CHECKING:
    from launcher.fetch.jobs import QueuePlace

_ACTIONS = {
    "list": "list all downloads with their progress",
    "run": "download everything that waits in the queue",
    "add": "add models or an engine to the queue",
    "pause": "pause downloads; received data is kept",
    "resume": "resume paused downloads",
    "cancel": "cancel downloads",
    "retry": "try failed or cancelled downloads again",
    "move": "change the order",
    "clear": "remove finished and cancelled downloads from the list",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = add_actions(parser, _ACTIONS)
    for name in ("pause", "resume", "cancel", "retry"):
        actions[name].add_argument("which", nargs="+", metavar="ID", help='numbers as `downloads` shows them, or "all"')
    _configure_add(actions["add"])
    actions["run"].add_argument(
        "--at-once", type=parse_positive, default=1, metavar="N", help="number of parallel downloads (default 1)"
    )
    actions["cancel"].add_argument("--discard", action="store_true", help="also delete the received data")
    actions["move"].add_argument("id", type=parse_positive, metavar="ID")
    actions["move"].add_argument(
        "place", metavar="PLACE", type=_parse_place, help="first, up, down, last, or the number of the place"
    )
    actions["clear"].add_argument("--failed", action="store_true", help="also remove failed downloads")


def _configure_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="MODEL", help="a model as `pull` takes it: ID[:QUANT], REPO:FILE, URL"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="folder for the files (default: the models folder)")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit, in place of the catalogue's")
    parser.add_argument("--sha256", metavar="HEX", help="the SHA-256 that the file must have")
    parser.add_argument("--vision", action="store_true", help="with the models' vision projectors")
    add_drafter_option(parser)
    parser.add_argument(
        "--engine", nargs="?", const="stable", metavar="TAG", help="a build of llama.cpp (without TAG the stable one)"
    )
    parser.add_argument("--backend", metavar="B", help="the engine's backend (default: the best for this computer)")


def parse_positive(text: str) -> int:
    """Return the number of 1 or more. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


def _parse_place(text: str) -> QueuePlace:
    words: dict[str, QueuePlace] = {"first": "first", "up": "up", "down": "down", "last": "last"}
    if text in words:
        return words[text]
    try:
        return parse_positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text} is not a position: write first, up, down, last or a number") from None
