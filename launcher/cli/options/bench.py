"""Options of `mtp-launcher bench`."""

import argparse

from launcher.cli.options.key_options import add_key_options
from launcher.cli.options.machine_options import add_draft_option, add_engine_option
from launcher.cli.options.subject_options import add_model_argument, add_price_options, add_start_options
from launcher.cli.quantities import parse_minutes, parse_number, parse_rounds

DEFAULT_PRECISION_PERCENT, DEFAULT_BUDGET_MIN = 3.0, 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_model_argument(parser)
    parser.add_argument(
        "--workload", metavar="W", help="the prompts: see --list, or a file of your own (default: code)"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads, and measure nothing")
    rounds = parser.add_mutually_exclusive_group()
    rounds.add_argument("--runs", type=parse_rounds, metavar="N", help="ask each prompt exactly N times")
    rounds.add_argument(
        "--within",
        type=_parse_share,
        metavar="PERCENT",
        help="measure until the mean is known to within ± this percentage"
        f" (95 %% interval; default {DEFAULT_PRECISION_PERCENT:g})",
    )
    parser.add_argument(
        "--budget",
        type=parse_minutes,
        metavar="MIN",
        help=f"time limit in minutes (default {DEFAULT_BUDGET_MIN:g}; none with --runs)",
    )
    add_start_options(parser)
    add_engine_option(parser)
    add_draft_option(parser)
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="URL",
        help="compare with this server (Ollama, vLLM, another llama-server) in turns; may be given more than once",
    )
    add_key_options(parser)
    add_price_options(parser)
    parser.epilog = (
        "A running server of this program is measured as it is. Otherwise the model is served as by `serve`, measured,"
        " and stopped. The result goes into the history."
    )


def _parse_share(text: str) -> float:
    value = parse_number(text)
    if not 0 < value <= 50:
        raise argparse.ArgumentTypeError("must be a percentage above 0, up to 50")
    return value / 100
