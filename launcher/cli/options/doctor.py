"""Options of `mtp-launcher doctor`."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--wake", action="store_true", help="wake a sleeping GPU to read it")
    parser.add_argument(
        "--copy-wslconfig", action="store_true", help="in WSL: copy the suggested .wslconfig to the Windows clipboard"
    )
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the folder of your model files")
