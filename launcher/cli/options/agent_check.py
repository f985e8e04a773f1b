"""Options of `mtp-launcher agent-check`."""

import argparse

from launcher.agents.agent import list_names
from launcher.cli.options.key_options import add_key_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--agent", metavar="NAME", help=f"one of {list_names()} (default: any)")
    parser.add_argument("--url", help="the server's address, if more than one runs, or if it is another program's")
    parser.add_argument("--model", metavar="NAME", help="the model, of a server with several (a router, Ollama)")
    add_key_options(parser)
