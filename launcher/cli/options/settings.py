"""Options of `mtp-launcher settings`."""

import argparse

from launcher.cli.actions import add_actions

_ACTIONS = {
    "list": "list all settings with their values and limits",
    "get": "print the value of a setting",
    "set": "change a setting",
    "reset": "set a setting back to its default",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = add_actions(parser, _ACTIONS)
    for name, action in actions.items():
        if name != "list":
            action.add_argument("name", metavar="NAME", help="such as window.theme, or theme alone")
    actions["set"].add_argument("value", metavar="VALUE", help="as `settings list` shows")
