"""Options of `mtp-launcher keys`."""

import argparse

from launcher.cli.quantities import parse_int


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "add", "rotate", "revoke", "replace"),
        default="list",
        help="(default: list); replace is rotate for the key named default",
    )
    parser.add_argument("name", nargs="?", help="the key to add, rotate or revoke")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--port", type=parse_int, metavar="P", help="the keys of this port")
    which.add_argument("--all", action="store_true", help="replace the default keys of all ports")
    parser.add_argument("--show-key", action="store_true", help="print the keys, too")
