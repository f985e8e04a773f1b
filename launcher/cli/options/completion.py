"""Options of `mtp-launcher completion`."""

import argparse

_SHELLS = ("bash", "zsh", "fish", "powershell")
MANUAL = "manual"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("kind", choices=(*_SHELLS, MANUAL), help="the shell, or 'manual' for a page that man shows")
    parser.epilog = "How each shell loads it: docs/commands.md."
