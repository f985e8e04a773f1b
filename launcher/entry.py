"""The command `mtp-launcher`: the command line for its verbs, the window without one."""

import argparse
from typing import NoReturn

from launcher.cli import main as cli


def run() -> NoReturn:
    """Entry point of the command."""
    cli.run(open_window=_open_window)


def _open_window(options: argparse.Namespace) -> int:
    from launcher.gui.application import run_window

    return run_window(options)
