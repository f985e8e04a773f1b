"""Options of `mtp-launcher estimate`."""

import argparse
from pathlib import Path

from launcher.cli.options.machine_options import add_machine_options, add_setting_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model", metavar="FILE | ID:QUANT | OWNER/NAME:QUANT", help="a .gguf file, or OWNER/NAME:QUANT on Hugging Face"
    )
    add_machine_options(parser)
    add_setting_options(parser)
    parser.add_argument("--mmproj", metavar="FILE | REPO:FILE", help="a vision projector to load with it")
    parser.add_argument("--ask-engine", action="store_true", help="also show llama-server's own figures")
    parser.add_argument("--engine", type=Path, metavar="PATH", help="the llama-server to ask (default: a suitable one)")
