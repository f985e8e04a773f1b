"""Options of `mtp-launcher autostart`."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "action", choices=("on", "off", "status"), nargs="?", default="status", help="(default: status)"
    )
    parser.add_argument(
        "--model", metavar="ID[:QUANT] | FILE", help="with on: the model to serve (default: the last one)"
    )
