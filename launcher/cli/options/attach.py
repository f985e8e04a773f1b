"""Options of `mtp-launcher attach`."""

import argparse

from launcher.cli.options.key_options import add_key_options
from launcher.cli.quantities import parse_number, parse_rounds

DEFAULT_WORKLOAD = "mixed"
DEFAULT_RUNS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("url", metavar="URL", help="address of the server, such as http://192.168.1.20:8080")
    add_key_options(parser)
    parser.add_argument("--model", metavar="NAME", help="the model, of a server with several (a router, Ollama)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="show what the server offers, and do not watch it")
    mode.add_argument("--seconds", type=parse_number, metavar="N", help="watch for N seconds (default: until Ctrl-C)")
    mode.add_argument("--bench", action="store_true", help="measure its speed with the prompts of a workload")
    parser.add_argument(
        "--runs",
        type=parse_rounds,
        metavar="N",
        help=f"with --bench: ask each prompt N times (default {DEFAULT_RUNS})",
    )
    parser.add_argument(
        "--workload", metavar="W", help=f"with --bench: the prompts, see `bench --list` (default {DEFAULT_WORKLOAD})"
    )
