"""Options of `mtp-launcher preset`."""

import argparse
from pathlib import Path

from launcher.cli.actions import add_actions, add_output_file

_ACTIONS = {
    "list": "list tuned settings, and whether they still match this machine",
    "export": "write tuned settings into a .json file for others, without personal data",
    "import": "import tuned settings of another machine; they are used once measurements here confirm them",
    "forget": "delete the tuned settings of a model",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = (
        "`mtp-launcher tune --apply` saves tuned settings. serve, plan and up use them, unless --no-preset is given."
    )
    actions = add_actions(parser, _ACTIONS)
    for name in ("export", "forget"):
        actions[name].add_argument("model", metavar="MODEL", help="a part of its name or quantisation")
    add_output_file(actions["export"])
    actions["import"].add_argument("file", type=Path, metavar="FILE", help="a file of `preset export`")
