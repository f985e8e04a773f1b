"""Options shared by `bench`, `tune`, `curve` and `endure`. The model that they measure is the subject."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from launcher.base.errors import BadOption
from launcher.cli.options.machine_options import add_draft_option, add_engine_option
from launcher.cli.quantities import parse_number, parse_pair
from launcher.models.server_settings import ROWS

_DEFAULT_WORKLOAD = "code"
"""The name as in tuning.workloads, which is not imported, because that would slow down --help."""


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the argument for the model to measure."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a downloaded model, or "demo" (default: the last one)'
    )


def add_set_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare the option for settings given as KEY=VALUE."""
    parser.add_argument(
        "--set", action="append", default=[], type=_parse_setting, metavar="KEY=VALUE", dest="changes", help=help_text
    )


def _parse_setting(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. Files in arguments for llama-server get absolute names, because it runs in another folder."""
    name, value = parse_pair(text)
    if name == "extra":
        from launcher.engine.serve_options import name_files_absolutely
        from launcher.engine.settings import join_extra, split_extra

        with suppress(BadOption):  # an unclosed quote is refused where the setting is used
            value = join_extra(name_files_absolutely(split_extra(value), Path.cwd()))
    return name, value


def add_start_options(parser: argparse.ArgumentParser, *without: str) -> None:
    """Declare the options for server settings, except those in `without`, and for ignoring tuned settings."""
    names = ", ".join(row.spelling for row in ROWS.values() if row.name not in without)
    add_set_option(parser, f"serve it with this setting: {names} or extra; may be given more than once")
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `curve` and `endure` for the model and the prompt to measure with."""
    add_model_argument(parser)
    add_start_options(parser, "draft")
    add_engine_option(parser)
    add_draft_option(parser)
    parser.add_argument(
        "--workload",
        metavar="W",
        default=_DEFAULT_WORKLOAD,
        help=f"measure with its first prompt: see `bench --list`, or a file of your own (default: {_DEFAULT_WORKLOAD})",
    )


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for electricity and cloud prices."""
    prices = parser.add_argument_group("cost", "Prices are in your currency.")
    prices.add_argument("--price-kwh", type=parse_number, metavar="P", help="price of a kilowatt-hour, such as 0.30")
    prices.add_argument(
        "--cloud-price", type=parse_number, metavar="P", help="a cloud's price of a million reply tokens, to compare"
    )
    prices.add_argument(
        "--watts",
        type=parse_number,
        metavar="W",
        help="power of the whole computer, read from a meter (default: the GPU's own sensor)",
    )


def add_chart_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for files to draw the result into."""
    parser.add_argument(
        "--chart",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="draw the result: .png, .svg, or .html as a page of its own; may be given more than once",
    )
