"""Options of `mtp-launcher endure`."""

import argparse

from launcher.cli.options.subject_options import add_chart_option, add_price_options, add_subject_options
from launcher.cli.quantities import parse_int, parse_minutes

_DEFAULT_MINUTES = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_subject_options(parser)
    parser.add_argument(
        "--minutes",
        type=parse_minutes,
        default=_DEFAULT_MINUTES,
        metavar="N",
        help=f"minutes of load (default {_DEFAULT_MINUTES:.0f})",
    )
    parser.add_argument(
        "--draft", type=parse_int, metavar="N", help="draft length, 0 is MTP off (default: as it was served last)"
    )
    parser.add_argument(
        "--agent",
        metavar="AGENT",
        help="do tasks as long as those of a coding agent, in place of a workload: claude, cline, codex, opencode, pi"
        " or qwen; or loop, a long session to compare settings with",
    )
    add_chart_option(parser)
    add_price_options(parser)
    parser.epilog = (
        "A server is started for the model and gets requests without a pause. The verdict is about verification steps"
        " per second, which do not depend on the text. Ctrl-C ends it, and judges what was measured until then."
    )
