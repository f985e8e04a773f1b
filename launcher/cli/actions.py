"""What verbs with actions share: how these are declared, and a file that one of them writes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path


def add_actions(
    parser: argparse.ArgumentParser, actions: Mapping[str, str], *, usual: str = "list"
) -> Mapping[str, argparse.ArgumentParser]:
    """Declare actions by name with what they do; without one the `usual` is taken. Each has --json."""
    made = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, summary in actions.items():
        action = made.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for programs")
    parser.set_defaults(action=usual)
    return made.choices


def add_target(action: argparse.ArgumentParser) -> None:
    """Declare which file is written."""
    action.add_argument("--to", required=True, type=Path, metavar="FILE", help="must not exist yet")


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet. Raises BadOption where it is, or its folder is not; and OSError."""
    from launcher.base.errors import BadOption
    from launcher.base.files import write_atomically

    if file.exists():
        raise BadOption(f"{file} is there already.", "Give another name with --to.", path=str(file))
    if not file.parent.is_dir():
        raise BadOption(
            f"There is no folder {file.parent}.", "Make it first, or name another with --to.", path=str(file)
        )
    write_atomically(file, text.encode())
