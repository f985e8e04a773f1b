"""Options of `mtp-launcher requests`."""

import argparse

from launcher.cli.quantities import parse_count

_DEFAULT_COUNT = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "-n",
        dest="count",
        type=parse_count,
        default=_DEFAULT_COUNT,
        metavar="N",
        help=f"the last N requests (default {_DEFAULT_COUNT})",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="also print new ones as they end")
    parser.epilog = "Figures only: the text of requests and replies is not kept."
