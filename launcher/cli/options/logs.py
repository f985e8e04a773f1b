"""Options of `mtp-launcher logs`."""

import argparse
from pathlib import Path

from launcher.cli.quantities import parse_count

DEFAULT_LINES = 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("-f", "--follow", action="store_true", help="also print new lines, until the server ends")
    parser.add_argument(
        "--lines",
        type=parse_count,
        default=DEFAULT_LINES,
        metavar="N",
        help=f"begin with the last N lines (default {DEFAULT_LINES})",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--files", action="store_true", help="list the log files on this machine")
    source.add_argument("--file", type=Path, metavar="PATH", help="show this log file")
    parser.add_argument(
        "--report", action="store_true", help="print a text for a bug report, without keys, tokens and names"
    )
