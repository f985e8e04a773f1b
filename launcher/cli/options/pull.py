"""Options of `mtp-launcher pull`."""

import argparse
from pathlib import Path

from launcher.cli.quantities import parse_number
from launcher.models.drafters import SPEC_TYPES_WITH_FILES

_MB = 10**6


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "what",
        metavar="ID[:QUANT] | REPO:FILE | URL",
        help="a model of the catalogue, a file on the hub (OWNER/NAME:FILE.gguf), or an address with --sha256",
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="folder for the file (default: the models folder)")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit, in place of the catalogue's")
    parser.add_argument("--sha256", metavar="HEX", help="the SHA-256 that the file must have")
    parser.add_argument("--vision", action="store_true", help="also download the model's vision projector")
    add_drafter_option(parser)
    parser.add_argument("--limit", type=_parse_rate, metavar="MB/S", help="the highest speed, in MB per second")
    parser.epilog = "You can interrupt it at any time: the same command resumes."


def add_drafter_option(parser: argparse.ArgumentParser) -> None:
    """Add --drafter, with which a model's draft is downloaded, too."""
    kinds = SPEC_TYPES_WITH_FILES
    parser.add_argument("--drafter", choices=kinds, metavar="KIND", help=f"with the file for {', '.join(kinds)}")


def _parse_rate(text: str) -> int:
    rate = parse_number(text)
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a speed; write it in MB per second, like 5 or 0.5")
    return max(int(rate * _MB), 1)
