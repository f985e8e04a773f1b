"""Options of `mtp-launcher plan`."""

import argparse

from launcher.cli.options.machine_options import INTENTS, add_draft_option, add_machine_options, add_setting_options
from launcher.cli.output import add_extra_arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "what",
        nargs="?",
        metavar="ID[:QUANT] | FILE | OWNER/NAME[:QUANT]",
        help="a model of the catalogue, a .gguf file, or a model on Hugging Face (default: all of the catalogue)",
    )
    model.add_argument("--model", metavar="NAME", help="the same, as an option")
    parser.add_argument("--quant", metavar="Q", help="its quantisation, such as UD-Q3_K_XL")
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    add_machine_options(parser)
    add_setting_options(parser)
    add_draft_option(parser)
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")
    parser.add_argument("--defaults", action="store_true", help="ignore the settings of a model's last start")
    parser.add_argument("--evidence", action="store_true", help="list the published runs of the first plan's model")
    parser.add_argument("--vision", action="store_true", help="with the model's vision projector, for images")
    parser.add_argument(
        "--ask-engine",
        action="store_true",
        help="also show llama-server's own figures for the first plan (reads the file's header, on the hub if need be)",
    )
    add_extra_arguments(parser)
