"""Options of `mtp-launcher curve`."""

import argparse

from launcher.cli.options.subject_options import add_chart_option, add_price_options, add_subject_options
from launcher.cli.quantities import parse_int, parse_rounds, parse_tokens

_DEFAULT_ROUNDS = 3
DEFAULT_PLACES: tuple[int, ...] = ()
"""Lets `plan_sweep` choose the places of the curve, which are its points on the axis."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_subject_options(parser)
    axis = parser.add_mutually_exclusive_group()
    axis.add_argument(
        "--fill",
        nargs="?",
        const=DEFAULT_PLACES,
        type=_parse_token_counts,
        metavar="N,...",
        help="at these numbers of tokens in the context: 0,10000,40000 (default, as far as the context reaches)",
    )
    axis.add_argument(
        "--context",
        nargs="?",
        const=DEFAULT_PLACES,
        type=_parse_token_counts,
        metavar="N,...",
        help="at these context sizes, in tokens",
    )
    axis.add_argument(
        "--streams",
        nargs="?",
        const=DEFAULT_PLACES,
        type=_parse_counts,
        metavar="N,...",
        help="at these numbers of parallel requests: 1,2,4",
    )
    parser.add_argument(
        "--draft", type=_parse_counts, metavar="N,...", help="draft lengths to compare with MTP off; 0: only MTP off"
    )
    parser.add_argument(
        "--rounds",
        type=parse_rounds,
        default=_DEFAULT_ROUNDS,
        metavar="N",
        help=f"measure each point N times (default {_DEFAULT_ROUNDS})",
    )
    add_chart_option(parser)
    add_price_options(parser)
    parser.epilog = (
        "The model is served repeatedly, in turns without and with MTP, on a server of its own. Ctrl-C ends it,"
        " and shows what was measured until then. The result goes into the history."
    )


def _parse_token_counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({parse_tokens(word) for word in text.split(",")}))


def _parse_counts(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted({parse_int(word) for word in text.split(",")}))
    if numbers[0] < 0:
        raise argparse.ArgumentTypeError(f"{numbers[0]} is below 0")
    return numbers
