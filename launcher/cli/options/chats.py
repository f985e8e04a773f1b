"""Options of `mtp-launcher chats`."""

import argparse

from launcher.cli.actions import (
    add_actions,
    add_deletion_arguments,
    add_output_file,
)

_ACTIONS = {
    "list": "list all conversations, the latest first",
    "show": "print a conversation",
    "search": "find conversations that contain all of these words",
    "export": "write a conversation into a file: .md, .json or .txt",
    "delete": "delete conversations; nothing of them stays in the file",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = "The window keeps its conversations; `mtp-launcher chat` in a terminal keeps none."
    actions = add_actions(parser, _ACTIONS)
    for name in ("show", "export"):
        actions[name].add_argument("id", metavar="ID", help="as `chats` shows it, or its beginning")
    actions["search"].add_argument("words", nargs="+", metavar="TEXT", help="parts of words")
    add_output_file(actions["export"])
    add_deletion_arguments(actions["delete"], 'as `chats` shows them, or "all"')
