"""Helpers for verbs with actions, such as `history list`: their parsers, deletions, and files to write."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from launcher.cli.terminal import can_ask, confirm


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> Mapping[str, argparse.ArgumentParser]:
    """Declare actions, given by name and summary, and return their parsers. The default action is `list`."""
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, summary in actions.items():
        action = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for programs")
    parser.set_defaults(action="list")
    return subparsers.choices


def add_output_file(action: argparse.ArgumentParser) -> None:
    """Declare the option for the file to write."""
    action.add_argument("--to", required=True, type=Path, metavar="FILE", help="the new file, which must not exist yet")


def add_deletion_arguments(action: argparse.ArgumentParser, ids_help: str) -> None:
    """Declare the arguments of a deletion: IDs or "all"."""
    action.add_argument("ids", nargs="+", metavar="ID", help=ids_help)
    action.add_argument("--yes", action="store_true", help='delete "all" without asking')


def deletes_all(options: argparse.Namespace) -> bool:
    """Return True if the IDs are just "all"."""
    return bool(options.ids == ["all"])


async def confirm_deletion(options: argparse.Namespace, label: str) -> bool:
    """Return True if the deletion may go on. Before everything is deleted, the user is asked; `label` names it.

    Raises BadOption if nobody can be asked.
    """
    from launcher.base.errors import BadOption

    if options.yes or not deletes_all(options):
        return True
    if options.json or not can_ask():
        raise BadOption(f"This deletes all {label}.", "Confirm with --yes.")
    return await confirm(f"Delete all {label}?")


def write_new_file(file: Path, text: str) -> None:
    """Write a new file. Raises BadOption if the file exists or its folder does not, and OSError."""
    from launcher.base.errors import BadOption
    from launcher.base.files import write_atomically

    if file.exists():
        raise BadOption(f"{file} already exists.", "Give another name with --to.", path=str(file))
    if not file.parent.is_dir():
        raise BadOption(
            f"There is no folder {file.parent}.", "Create it first, or choose another with --to.", path=str(file)
        )
    write_atomically(file, text.encode())
