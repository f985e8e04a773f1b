"""Options of `mtp-launcher restart`."""

import argparse

from launcher.cli.options.subject_options import add_set_option
from launcher.cli.quantities import parse_seconds
from launcher.models.server_settings import ROWS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_set_option(
        parser,
        f"the setting to change: {', '.join(row.spelling for row in ROWS.values())} or extra (your own arguments for"
        " llama-server, as one line); may be given more than once",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain",
        type=parse_seconds,
        default=30.0,
        metavar="SECONDS",
        help="wait up to SECONDS for replies that cannot go on with other settings (default: 30)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing: show the effects, whether it fits, and how long it takes",
    )
