"""Options of `mtp-launcher prove`."""

import argparse
from pathlib import Path

from launcher.cli.options.machine_options import add_engine_option
from launcher.cli.options.subject_options import add_start_options
from launcher.cli.quantities import parse_minutes

_DEFAULT_MINUTES = 10.0
_DEMO = "demo"
"""The name of the demo as in engine.demo, which is not imported, because that would slow down --help."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model", nargs="?", default=_DEMO, metavar="ID[:QUANT] | FILE", help="a downloaded model (default: demo)"
    )
    parser.add_argument(
        "--minutes",
        type=parse_minutes,
        default=_DEFAULT_MINUTES,
        metavar="N",
        help=f"about how long it may take (default {_DEFAULT_MINUTES:.0f})",
    )
    parser.add_argument(
        "--workload", metavar="W", help="measure with its first prompt: see `bench --list`, or a file (default: code)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report as Markdown")
    add_start_options(parser)
    add_engine_option(parser)
    parser.epilog = (
        "It compares the driver's figures with nvidia-smi, and the memory with the plan for several settings; measures"
        " load times and the cost of monitoring; and keeps the model busy for the rest of the time. Nothing is sent,"
        " and the report names neither you nor this computer. Exit code 1 if a claim is refuted."
    )
