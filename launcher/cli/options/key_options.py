"""API keys of other servers: from a variable or a file, never from the command line, which all users can see."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the API key."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--api-key-env", "--key-env", metavar="NAME", help="the environment variable with its API key")
    group.add_argument("--key-file", type=Path, metavar="FILE", help="the file with its API key in the first line")
