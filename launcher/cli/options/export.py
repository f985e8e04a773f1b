"""Options of `mtp-launcher export`."""

import argparse
from pathlib import Path
from typing import get_args

from launcher.cli.options.machine_options import INTENTS, add_machine_options, add_setting_options
from launcher.cli.output import add_extra_arguments
from launcher.cli.quantities import parse_int
from launcher.export.formats import FORMATS, Shell


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", choices=FORMATS, metavar="KIND", help="what to write, see below")
    parser.add_argument(
        "--model",
        metavar="ID[:QUANT] | FILE",
        help="the model to serve (default: the running server; for llama-swap and router-ini all models)",
    )
    parser.add_argument("--url", help="which running server, when more than one runs")
    parser.add_argument(
        "--peers",
        nargs="?",
        const="",
        metavar="URL,URL...",
        help="for litellm, gpustack and llama-swap: the gateways (default: all that run on this computer)",
    )
    parser.add_argument("--quant", metavar="Q", help="its quantisation, such as UD-Q3_K_XL")
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    parser.add_argument("--vision", action="store_true", help="with the model's vision projector, for images")
    parser.add_argument("--engine", type=Path, metavar="PATH", help="a llama-server, or an installed engine")
    parser.add_argument("--port", type=parse_int, metavar="P", help="port on 127.0.0.1 (default: the last one)")
    parser.add_argument(
        "--shell", choices=get_args(Shell), help=f"for {', '.join(list_for_shells())} (default: this system's)"
    )
    parser.add_argument("--with-key", action="store_true", help="write the API key into the text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file, which must not exist yet")
    parser.add_argument("--force", action="store_true", help="with --out: replace an existing file")
    add_setting_options(parser)
    add_machine_options(parser)
    add_extra_arguments(parser)
    width = max(map(len, FORMATS))
    kinds = "".join(f"  {each.name:<{width}}  {each.help}\n" for each in FORMATS.values())
    parser.epilog = f"kinds:\n{kinds}\n{parser.epilog}"


def list_for_shells() -> list[str]:
    """Return the kinds of export that are scripts for a shell."""
    return [each.name for each in FORMATS.values() if each.for_shells]
