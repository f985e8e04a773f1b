"""Options of `mtp-launcher status`."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--url", help="only the server at this address")
    parser.add_argument("--show-key", action="store_true", help="print the API keys, too")
