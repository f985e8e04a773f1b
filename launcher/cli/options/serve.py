"""Options of `mtp-launcher serve`."""

import argparse
from pathlib import Path

from launcher.cli.options.machine_options import add_draft_option, add_engine_option, add_setting_option
from launcher.cli.output import add_extra_arguments
from launcher.cli.quantities import parse_int, parse_mib, parse_rpc_workers
from launcher.models.server_settings import ROWS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "what",
        nargs="?",
        metavar="ID[:QUANT] | FILE",
        help='a model that was pulled, a .gguf file, or "demo" for the demo model',
    )
    model.add_argument("--model", metavar="ID[:QUANT] | FILE", help="the same, as an option")
    model.add_argument("--last", action="store_true", help="the model that was served last")
    add_engine_option(parser)
    add_draft_option(parser)
    for row in ROWS.values():
        add_setting_option(parser, row, default=row.default)
    vision = parser.add_mutually_exclusive_group()
    vision.add_argument("--vision", action="store_true", help="with the model's vision projector, for images")
    vision.add_argument("--mmproj", type=Path, metavar="FILE", help="a vision projector, for images")
    parser.add_argument(
        "--chat-template-file", type=Path, metavar="FILE", help="a chat template in place of the model's own"
    )
    parser.add_argument("--port", type=parse_int, metavar="P", help="port to listen on (default: the last one)")
    parser.add_argument(
        "--lan", action="store_true", help="share with the local network while it runs; clients need the API key"
    )
    parser.add_argument("--no-tls", action="store_true", help="with --lan: share without encryption")
    parser.add_argument(
        "--rpc", type=parse_rpc_workers, default=(), metavar="HOST:PORT,...", help="llama.cpp's RPC workers to use"
    )
    parser.add_argument(
        "--memory-limit",
        type=parse_mib,
        metavar="MIB",
        help="the most that several models together may take (default: app setting server.memory_limit)",
    )
    parser.add_argument(
        "--memory-guard",
        action="store_true",
        default=None,
        help="restart the engine before host memory is used up (default: app setting server.memory_guard)",
    )
    parser.add_argument("--defaults", action="store_true", help="ignore the settings of this model's last start")
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")
    parser.add_argument(
        "--direct",
        action="store_true",
        help="let clients talk to the engine itself; their replies then end when it is restarted",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="after a failed start, apply the suggested change and try again, three times at most",
    )
    # For the entry that autostart writes.
    parser.add_argument("--for-window", action="store_true", help=argparse.SUPPRESS)
    add_extra_arguments(parser)
