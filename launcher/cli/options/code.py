"""Options of `mtp-launcher code`."""

import argparse

from launcher.agents.agent import list_names
from launcher.cli.options.key_options import add_key_options
from launcher.cli.options.machine_options import add_engine_option, add_setting_option
from launcher.models.server_settings import ROWS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("agent", metavar="AGENT", help=f"one of {list_names()}")
    parser.add_argument(
        "--model", metavar="ID[:QUANT] | FILE", help="the model (default: the running server's, else the last one)"
    )
    parser.add_argument("--url", help="the server's address, if more than one runs, or if it is another program's")
    add_key_options(parser)
    parser.add_argument(
        "--print",
        action="store_true",
        dest="only_print",
        help="start nothing: show the variables, files and command of the agent",
    )
    parser.add_argument("--server-only", action="store_true", help="start the server, but not the agent")
    parser.add_argument(
        "--own-template", action="store_true", help="keep the model's own chat template, even if it refuses the agent"
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not check the started server when the agent has ended"
    )
    add_engine_option(parser)
    for row in ROWS.values():
        add_setting_option(parser, row)
    parser.epilog = "What follows -- goes to the agent: mtp-launcher code opencode -- run 'fix the test'."
    parser.set_defaults(extra=[], vision=False, mmproj=None, chat_template_file=None, rpc=())
