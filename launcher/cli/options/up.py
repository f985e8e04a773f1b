"""Options of `mtp-launcher up`."""

import argparse

from launcher.cli.options.machine_options import INTENTS
from launcher.cli.quantities import parse_int


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="ID[:QUANT] | FILE",
        help='a model of the catalogue, a .gguf file, or "demo" (default: the one that `plan` recommends)',
    )
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    parser.add_argument("--port", type=parse_int, metavar="P", help="port to listen on (default: the last one)")
    parser.add_argument("--wake", action="store_true", help="wake a sleeping GPU to read it")
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")
    parser.epilog = "You can interrupt it at any time: the same command resumes. Ctrl-C stops the server."
