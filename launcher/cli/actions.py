"""What verbs with actions share: how these are declared, what is deleted, and a file that one of them writes."""

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


def add_deletion(action: argparse.ArgumentParser, about: str) -> None:
    """Declare what is deleted, by its ids or "all"."""
    action.add_argument("ids", nargs="+", metavar="ID", help=about)
    action.add_argument("--yes", action="store_true", help='delete "all" without asking')


def is_all(options: argparse.Namespace) -> bool:
    """Return whether all is to be deleted."""
    return bool(options.ids == ["all"])


async def may_delete(options: argparse.Namespace, what: str) -> bool:
    """Return whether to delete: all of it only if the user says so. Raises BadOption where nobody can be asked."""
    from launcher.base.errors import BadOption
    from launcher.cli.typed import agreed, can_ask

    if options.yes or not is_all(options):
        return True
    if options.json or not can_ask():
        raise BadOption(f"This deletes all {what}.", "Say so with --yes.")
    return await agreed(f"Delete all {what}?")


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
