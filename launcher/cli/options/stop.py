"""Options of `mtp-launcher stop`."""

import argparse

from launcher.cli.quantities import parse_seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="unload only this model (default: stop the server with all models)",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain",
        type=parse_seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait up to SECONDS for running requests to finish (default: do not wait)",
    )
