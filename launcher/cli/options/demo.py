"""Options of `mtp-launcher demo`."""

import argparse

from launcher.cli.quantities import parse_number


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--headless", action="store_true", help="stay in the terminal, even if there is a display")
    parser.add_argument("--seconds", type=parse_number, metavar="N", help="ask for N seconds, in the terminal")
